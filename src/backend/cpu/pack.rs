//! Weights as the kernels read them: 16 outputs side by side, packed from bands of rows as they come from the file.

use super::CpuOptions;
use crate::backend::{Band, Encoding, Float, TensorDesc, WeightSource};
use crate::error::{Code, Error, Result};
use crate::math;
use crate::plan::{WeightRole, WeightSpec};

/// Outputs of a tile.
pub const TILE: usize = 16;
/// Columns an activation scale covers; also the group of matrices rounded to 8 bits.
pub const BLOCK: usize = 64;
/// About how many bytes of a tensor are read at a time.
const BAND_BYTES: usize = 4 << 20;

/// A weight in memory.
pub enum Packed {
    /// A quantized matrix.
    Affine(Affine),
    /// A matrix as stored.
    Dense(Dense),
    /// A vector.
    Vector(Vec<f32>),
    /// Convolution taps, tap by tap: `taps` rows of `channels`.
    Taps(Vec<f32>),
}

/// A quantized matrix. For each tile and each group of columns one record: the values of 16 outputs in quads of 4
/// columns (64 bytes a quad at 8 bits; at 4 bits the even quads are the low nibbles, the odd ones the high; at 6 bits
/// two such 64-byte rows of nibbles, then 64 bytes with the upper two bits of four quads), 16 scales, 16 biases.
pub struct Affine {
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// 4, 6 or 8.
    pub bits: usize,
    /// 32 or 64 columns.
    pub group: usize,
    /// Type of scales and biases.
    pub scales: Float,
    data: Vec<u8>,
}

/// A matrix in its file's floats: tile by tile, `cols` rows of 16 values.
pub struct Dense {
    /// Inputs.
    pub cols: usize,
    /// Type of the values.
    pub float: Float,
    data: Vec<u8>,
}

impl Affine {
    fn new(rows: usize, cols: usize, bits: usize, group: usize, scales: Float) -> Affine {
        let mut matrix = Affine { rows, cols, bits, group, scales, data: Vec::new() };
        matrix.data = vec![0; matrix.tiles() * matrix.tile_bytes()];
        matrix
    }

    /// Tiles of 16 outputs, the last perhaps padded.
    pub fn tiles(&self) -> usize {
        self.rows.div_ceil(TILE)
    }

    /// Bytes of a record's values.
    pub fn value_bytes(&self) -> usize {
        TILE * self.group * self.bits / 8
    }

    /// Bytes of a record.
    pub fn record_bytes(&self) -> usize {
        self.value_bytes() + 2 * TILE * self.scales.bytes()
    }

    fn tile_bytes(&self) -> usize {
        self.cols.div_ceil(self.group) * self.record_bytes()
    }

    /// The records of a tile.
    pub fn tile(&self, tile: usize) -> &[u8] {
        &self.data[tile * self.tile_bytes()..][..self.tile_bytes()]
    }

    /// Dequantizes one row.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let lane = row % TILE;
        let records = self.tile(row / TILE).chunks_exact(self.record_bytes());
        for (record, out) in records.zip(out.chunks_mut(self.group)) {
            let (values, floats) = record.split_at(self.value_bytes());
            let scale = float_at(self.scales, floats, lane);
            let bias = float_at(self.scales, floats, TILE + lane);
            for (k, out) in out.iter_mut().enumerate() {
                let q = value_at(self.bits, values, k, lane);
                *out = f32::from(q).mul_add(scale, bias);
            }
        }
    }

    /// Packs one tile: `values[lane][k]`, and scales and biases by group and lane in the file's bytes.
    fn pack_tile(&mut self, tile: usize, lanes: &TileRows) {
        let (bits, group, float_bytes) = (self.bits, self.group, self.scales.bytes());
        let (value_bytes, record_bytes, tile_bytes) = (self.value_bytes(), self.record_bytes(), self.tile_bytes());
        let records = self.data[tile * tile_bytes..][..tile_bytes].chunks_exact_mut(record_bytes);
        for (g, record) in records.enumerate() {
            let (values, floats) = record.split_at_mut(value_bytes);
            let (scales, biases) = floats.split_at_mut(TILE * float_bytes);
            for lane in 0..lanes.count {
                pack_values(bits, values, lane, &lanes.values[lane * lanes.stride + g * group..][..group]);
                let from = (lane * lanes.groups + g) * float_bytes;
                let to = lane * float_bytes..(lane + 1) * float_bytes;
                scales[to.clone()].copy_from_slice(&lanes.scales[from..][..float_bytes]);
                biases[to].copy_from_slice(&lanes.biases[from..][..float_bytes]);
            }
        }
    }
}

impl Dense {
    fn new(rows: usize, cols: usize, float: Float) -> Dense {
        Dense { cols, float, data: vec![0; rows.div_ceil(TILE) * TILE * cols * float.bytes()] }
    }

    /// A tile's bytes: `cols` times 16 values.
    pub fn tile(&self, tile: usize) -> &[u8] {
        let bytes = TILE * self.cols * self.float.bytes();
        &self.data[tile * bytes..][..bytes]
    }

    /// One row as float32.
    pub fn row(&self, row: usize, out: &mut [f32]) {
        let tile = self.tile(row / TILE);
        for (k, out) in out.iter_mut().enumerate() {
            *out = float_at(self.float, tile, k * TILE + row % TILE);
        }
    }

    fn set_row(&mut self, row: usize, bytes: &[u8]) {
        let size = self.float.bytes();
        let tile_bytes = TILE * self.cols * size;
        let tile = &mut self.data[row / TILE * tile_bytes..][..tile_bytes];
        for (k, value) in bytes.chunks_exact(size).enumerate() {
            tile[(k * TILE + row % TILE) * size..][..size].copy_from_slice(value);
        }
    }
}

impl Packed {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let bytes = match self {
            Packed::Affine(m) => m.data.capacity(),
            Packed::Dense(m) => m.data.capacity(),
            Packed::Vector(v) | Packed::Taps(v) => v.capacity() * 4,
        };
        bytes as u64
    }

    /// Reads and packs a tensor, checking shape, band sizes and that every float is finite.
    pub fn load(spec: &WeightSpec, source: &mut dyn WeightSource, options: &CpuOptions) -> Result<Packed> {
        let desc = source.desc().clone();
        check_shape(spec, &desc)?;
        match (spec.role, desc.encoding) {
            (WeightRole::Matrix, Encoding::Affine { bits, group, scales }) => {
                load_affine(source, &desc, Affine::new(desc.rows, desc.cols, usize::from(bits), group, scales))
            }
            (WeightRole::Matrix, Encoding::Dense(float)) if options.round_to_8_bits => {
                load_rounded(source, &desc, float, Affine::new(desc.rows, desc.cols, 8, BLOCK, Float::F32))
            }
            (WeightRole::Matrix, Encoding::Dense(float)) => {
                load_dense(source, &desc, Dense::new(desc.rows, desc.cols, float))
            }
            (WeightRole::Vector, Encoding::Dense(float)) => Ok(Packed::Vector(load_floats(source, &desc, float)?)),
            (WeightRole::Taps | WeightRole::GridTaps, Encoding::Dense(float)) => {
                let by_channel = load_floats(source, &desc, float)?;
                let value = |i: usize| by_channel[i % desc.rows * desc.cols + i / desc.rows];
                Ok(Packed::Taps((0..desc.rows * desc.cols).map(value).collect()))
            }
            (role, Encoding::Affine { .. }) => {
                let message = format!("{}: quantized, but used as {role:?}, which must be plain floats", desc.name);
                Err(Error::new(Code::Unsupported, message))
            }
        }
    }
}

/// What [`Packed::load`] will hold for a tensor, in bytes.
pub fn packed_bytes(desc: &TensorDesc, role: WeightRole, options: &CpuOptions) -> u64 {
    let (rows, cols) = (desc.rows as u64, desc.cols as u64);
    let (tile, padded) = (TILE as u64, rows.div_ceil(TILE as u64) * TILE as u64);
    let affine = |bits: u64, group: u64, float: Float| {
        padded / tile * cols.div_ceil(group) * (tile * group * bits / 8 + 2 * tile * float.bytes() as u64)
    };
    match (role, desc.encoding) {
        (WeightRole::Vector | WeightRole::Taps | WeightRole::GridTaps, _) => rows * cols * 4,
        (_, Encoding::Affine { bits, group, scales }) => affine(u64::from(bits), group as u64, scales),
        (_, Encoding::Dense(_)) if options.round_to_8_bits => affine(8, BLOCK as u64, Float::F32),
        (_, Encoding::Dense(float)) => padded * cols * float.bytes() as u64,
    }
}

/// The `index`-th little-endian float of `bytes`.
fn float_at(float: Float, bytes: &[u8], index: usize) -> f32 {
    let two = |i: usize| u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]);
    match float {
        Float::Bf16 => math::bf16_to_f32(two(index)),
        Float::F16 => math::f16_to_f32(two(index)),
        Float::F32 => f32::from_le_bytes(bytes[4 * index..][..4].try_into().expect("four bytes")),
    }
}

fn value_at(bits: usize, values: &[u8], k: usize, lane: usize) -> u8 {
    let (quad, at) = (k / 4, lane * 4 + k % 4);
    let nibble = |row: usize| (values[row * 64 + at] >> (4 * (quad % 2))) & 15;
    match bits {
        8 => values[quad * 64 + at],
        4 => nibble(quad / 2),
        _ => {
            let (octet, within) = (quad / 4, quad % 4);
            nibble(octet * 3 + within / 2) | ((values[octet * 192 + 128 + at] >> (2 * within)) & 3) << 4
        }
    }
}

/// Puts one output's values of one group into the record.
fn pack_values(bits: usize, values: &mut [u8], lane: usize, q: &[u8]) {
    for (quad, four) in q.as_chunks::<4>().0.iter().enumerate() {
        let four = u32::from_le_bytes(*four);
        let mut put = |row: usize, part: u32| {
            let place = &mut values[row * 64 + lane * 4..][..4];
            let old = u32::from_le_bytes([place[0], place[1], place[2], place[3]]);
            place.copy_from_slice(&(old | part).to_le_bytes());
        };
        let nibbles = (four & 0x0f0f_0f0f) << (4 * (quad % 2));
        match bits {
            8 => put(quad, four),
            4 => put(quad / 2, nibbles),
            _ => {
                let (octet, within) = (quad / 4, quad % 4);
                put(octet * 3 + within / 2, nibbles);
                put(octet * 3 + 2, ((four >> 4) & 0x0303_0303) << (2 * within));
            }
        }
    }
}

/// One tile's rows before packing.
struct TileRows {
    count: usize,
    /// Columns, padded to whole groups.
    stride: usize,
    groups: usize,
    values: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

impl TileRows {
    fn new(matrix: &Affine) -> TileRows {
        let groups = matrix.cols.div_ceil(matrix.group);
        let stride = groups * matrix.group;
        let floats = TILE * groups * matrix.scales.bytes();
        let (scales, biases) = (vec![0; floats], vec![0; floats]);
        TileRows { count: 0, stride, groups, values: vec![0; TILE * stride], scales, biases }
    }
}

fn check_shape(spec: &WeightSpec, desc: &TensorDesc) -> Result<()> {
    if (desc.rows, desc.cols) != (spec.rows, spec.cols) {
        let (found, expected) = ((desc.rows, desc.cols), (spec.rows, spec.cols));
        return Err(Error::new(Code::Format, format!("{}: expected shape {expected:?}, found {found:?}", desc.name)));
    }
    let Encoding::Affine { bits, group, .. } = desc.encoding else { return Ok(()) };
    if !matches!(bits, 4 | 6 | 8) || !matches!(group, 32 | 64) {
        let message = format!("{}: {bits} bits in groups of {group}; known are 4, 6, 8 bits and 32, 64", desc.name);
        return Err(Error::new(Code::Unsupported, message));
    }
    if !desc.cols.is_multiple_of(group) {
        let message = format!("{}: {} columns are not a multiple of the group {group}", desc.name, desc.cols);
        return Err(Error::new(Code::Format, message));
    }
    Ok(())
}

/// Reads all rows in bands of whole tiles: `each(first_row, rows, band)`.
fn each_band(
    source: &mut dyn WeightSource,
    desc: &TensorDesc,
    mut each: impl FnMut(usize, usize, &Band) -> Result<()>,
) -> Result<()> {
    let (row_bytes, float_bytes) = match desc.encoding {
        Encoding::Dense(float) => (desc.cols * float.bytes(), 0),
        Encoding::Affine { bits, group, scales } => {
            (desc.cols * usize::from(bits) / 8, desc.cols / group * scales.bytes())
        }
    };
    let step = (BAND_BYTES / row_bytes.max(1)).max(1).next_multiple_of(TILE);
    let mut band = Band::default();
    for first in (0..desc.rows).step_by(step) {
        let count = step.min(desc.rows - first);
        source.read_rows(first, count, &mut band)?;
        let parts = [(&band.data, row_bytes, "data"), (&band.scales, float_bytes, "scales")];
        for (bytes, each, what) in parts.into_iter().chain([(&band.biases, float_bytes, "biases")]) {
            if bytes.len() != count * each {
                let (found, expected) = (bytes.len(), count * each);
                let message = format!("{}: rows {first}+{count}: {what} of {found} bytes, not {expected}", desc.name);
                return Err(Error::new(Code::Format, message));
            }
        }
        each(first, count, &band)?;
    }
    Ok(())
}

/// Refuses infinities and NaN. `width` floats make a row of the tensor; the first is in row `first`.
fn check_finite(desc: &TensorDesc, what: &str, float: Float, bytes: &[u8], first: usize, width: usize) -> Result<()> {
    let special = |v: &[u8]| match float {
        Float::Bf16 => v[1] & 0x7f == 0x7f && v[0] & 0x80 != 0,
        Float::F16 => v[1] & 0x7c == 0x7c,
        Float::F32 => v[3] & 0x7f == 0x7f && v[2] & 0x80 != 0,
    };
    let Some(at) = bytes.chunks_exact(float.bytes()).position(special) else { return Ok(()) };
    let (row, column) = (first + at / width, at % width);
    let message = format!("{}: the {what} at [{row}, {column}] is not a finite number", desc.name);
    Err(Error::new(Code::Numeric, message))
}

fn load_floats(source: &mut dyn WeightSource, desc: &TensorDesc, float: Float) -> Result<Vec<f32>> {
    let mut out = Vec::with_capacity(desc.rows * desc.cols);
    each_band(source, desc, |first, count, band| {
        check_finite(desc, "value", float, &band.data, first, desc.cols)?;
        out.extend((0..count * desc.cols).map(|i| float_at(float, &band.data, i)));
        Ok(())
    })?;
    Ok(out)
}

fn load_dense(source: &mut dyn WeightSource, desc: &TensorDesc, mut matrix: Dense) -> Result<Packed> {
    let row_bytes = desc.cols * matrix.float.bytes();
    each_band(source, desc, |first, _, band| {
        check_finite(desc, "value", matrix.float, &band.data, first, desc.cols)?;
        for (row, bytes) in band.data.chunks_exact(row_bytes).enumerate() {
            matrix.set_row(first + row, bytes);
        }
        Ok(())
    })?;
    Ok(Packed::Dense(matrix))
}

fn load_affine(source: &mut dyn WeightSource, desc: &TensorDesc, mut matrix: Affine) -> Result<Packed> {
    let mut lanes = TileRows::new(&matrix);
    let row_bytes = desc.cols * matrix.bits / 8;
    let float_bytes = lanes.groups * matrix.scales.bytes();
    each_band(source, desc, |first, count, band| {
        check_finite(desc, "scale", matrix.scales, &band.scales, first, lanes.groups)?;
        check_finite(desc, "bias", matrix.scales, &band.biases, first, lanes.groups)?;
        for row in (0..count).step_by(TILE) {
            lanes.count = TILE.min(count - row);
            for lane in 0..lanes.count {
                let bytes = &band.data[(row + lane) * row_bytes..][..row_bytes];
                unpack_row(matrix.bits, bytes, &mut lanes.values[lane * lanes.stride..][..desc.cols]);
            }
            let floats = row * float_bytes..(row + lanes.count) * float_bytes;
            lanes.scales[..floats.len()].copy_from_slice(&band.scales[floats.clone()]);
            lanes.biases[..floats.len()].copy_from_slice(&band.biases[floats]);
            matrix.pack_tile((first + row) / TILE, &lanes);
        }
        Ok(())
    })?;
    Ok(Packed::Affine(matrix))
}

/// Spreads MLX's packed bits of a row to one byte a value.
fn unpack_row(bits: usize, bytes: &[u8], out: &mut [u8]) {
    match bits {
        8 => out.copy_from_slice(bytes),
        4 => {
            for (two, byte) in out.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
                *two = [byte & 15, byte >> 4];
            }
        }
        _ => {
            for (four, b) in out.as_chunks_mut::<4>().0.iter_mut().zip(bytes.as_chunks::<3>().0) {
                let word = u32::from_le_bytes([b[0], b[1], b[2], 0]);
                *four = [word & 63, (word >> 6) & 63, (word >> 12) & 63, word >> 18].map(|q| q as u8);
            }
        }
    }
}

/// Rounds a plain matrix to 8 bits, a scale and a bias for each 64 columns.
fn load_rounded(source: &mut dyn WeightSource, desc: &TensorDesc, float: Float, mut matrix: Affine) -> Result<Packed> {
    let mut lanes = TileRows::new(&matrix);
    let mut row_values = vec![0.0; desc.cols];
    each_band(source, desc, |first, count, band| {
        check_finite(desc, "value", float, &band.data, first, desc.cols)?;
        for row in (0..count).step_by(TILE) {
            lanes.count = TILE.min(count - row);
            for lane in 0..lanes.count {
                for (k, value) in row_values.iter_mut().enumerate() {
                    *value = float_at(float, &band.data, (row + lane) * desc.cols + k);
                }
                round_row(&row_values, lane, &mut lanes);
            }
            matrix.pack_tile((first + row) / TILE, &lanes);
        }
        Ok(())
    })?;
    Ok(Packed::Affine(matrix))
}

fn round_row(values: &[f32], lane: usize, lanes: &mut TileRows) {
    for (g, group) in values.chunks(BLOCK).enumerate() {
        let low = group.iter().copied().fold(f32::INFINITY, f32::min);
        let high = group.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        // Divided before subtracting: the range itself may overflow.
        let scale = high / 255.0 - low / 255.0;
        let q = &mut lanes.values[lane * lanes.stride + g * BLOCK..][..group.len()];
        for (q, &value) in q.iter_mut().zip(group) {
            let steps = if scale > 0.0 { value / scale - low / scale } else { 0.0 };
            *q = steps.round_ties_even().clamp(0.0, 255.0) as u8;
        }
        let at = (lane * lanes.groups + g) * 4;
        lanes.scales[at..at + 4].copy_from_slice(&scale.to_le_bytes());
        lanes.biases[at..at + 4].copy_from_slice(&low.to_le_bytes());
    }
}
