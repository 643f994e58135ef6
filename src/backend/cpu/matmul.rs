//! Quantized matrices times activations: exact integers inside a group, one float chain across groups.

#![expect(clippy::needless_range_loop, reason = "lanes are counted, several arrays at once")]

use super::dense;
use super::pack::{Affine, BLOCK, TILE};
use super::simd::{Simd, kernel};
use crate::backend::Float;

/// Most rows one call works on.
pub const ROWS_AT_ONCE: usize = 32;
/// Pairs of integers in a block.
pub const PAIRS: usize = BLOCK / 2;
/// Largest integer of an activation: `127 * 256 + 127`.
const INT_MAX: f32 = 32639.0;

/// Activation rows as integers, block by block, row by row.
#[derive(Clone, Copy)]
pub struct Ints<'a> {
    /// Rows of the round.
    pub rows: usize,
    /// For each block and row, [`PAIRS`] pairs of i16: for each four columns (0, 2), then (1, 3).
    pub pairs: &'a [[i32; PAIRS]],
    /// For each block and row.
    pub scales: &'a [BlockScale],
}

/// What goes with a block's integers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct BlockScale {
    /// What an integer is worth.
    pub scale: f32,
    /// Sums of the integers of each half.
    pub sums: [i32; 2],
}

kernel! {
    /// Rounds up to 64 values to integers. False, and zeros, where a value is not finite.
    pub fn quantize_block(x: &[f32], pairs: &mut [i32; PAIRS], scale: &mut BlockScale) -> bool = plain quantize
}

#[inline(always)]
fn quantize(x: &[f32], pairs: &mut [i32; PAIRS], scale: &mut BlockScale) -> bool {
    // A short block is filled with zeros.
    let mut block = [0.0_f32; BLOCK];
    block[..x.len()].copy_from_slice(x);
    let mut most = 0;
    for value in &block {
        let magnitude = (value.to_bits() & 0x7fff_ffff) as i32;
        most = if magnitude > most { magnitude } else { most };
    }
    let finite = most < 0x7f80_0000;
    let sx = f32::from_bits(most as u32) / INT_MAX;
    if !finite || sx == 0.0 {
        *pairs = [0; PAIRS];
        *scale = BlockScale::default();
        return finite;
    }
    let mut ints = [0_i32; BLOCK];
    for (int, value) in ints.iter_mut().zip(&block) {
        let steps = value / sx;
        let steps = if steps > INT_MAX { INT_MAX } else { steps };
        let steps = if steps < -INT_MAX { -INT_MAX } else { steps };
        // Adding 1.5 * 2^23 rounds half to even and leaves the integer in the low bits.
        *int = (steps + 12_582_912.0).to_bits() as i32 - 0x4b40_0000;
    }
    let mut sums = [0; 2];
    for (sum, half) in sums.iter_mut().zip(ints.as_chunks::<{ BLOCK / 2 }>().0) {
        *sum = half.iter().sum();
    }
    for (pair, four) in pairs.as_chunks_mut::<2>().0.iter_mut().zip(ints.as_chunks::<4>().0) {
        *pair = [(four[0] & 0xffff) | four[2] << 16, (four[1] & 0xffff) | four[3] << 16];
    }
    *scale = BlockScale { scale: sx, sums };
    true
}

kernel! {
    /// Tile `tile` of `matrix` times rows `first .. first + out.len()` of `x`; at most [`ROWS_AT_ONCE`] rows.
    pub fn affine_tile(matrix: &Affine, tile: usize, x: Ints<'_>, first: usize, out: &mut [[f32; TILE]]) = simd affine
}

#[inline(always)]
fn affine<S: Simd>(matrix: &Affine, tile: usize, x: Ints<'_>, first: usize, out: &mut [[f32; TILE]]) {
    match (matrix.bits, matrix.group) {
        (4, 32) => groups::<S, 4, 16>(matrix, tile, x, first, out),
        (4, _) => groups::<S, 4, 32>(matrix, tile, x, first, out),
        (6, 32) => groups::<S, 6, 16>(matrix, tile, x, first, out),
        (6, _) => groups::<S, 6, 32>(matrix, tile, x, first, out),
        (_, 32) => groups::<S, 8, 16>(matrix, tile, x, first, out),
        (_, _) => groups::<S, 8, 32>(matrix, tile, x, first, out),
    }
}

/// Walks the groups of `2 * HALF` columns: unpacks each once and serves every row.
#[inline(always)]
fn groups<S: Simd, const BITS: usize, const HALF: usize>(
    matrix: &Affine,
    tile: usize,
    x: Ints<'_>,
    first: usize,
    out: &mut [[f32; TILE]],
) {
    out.fill([0.0; TILE]);
    let mut weights = [[S::zero(); 2]; HALF];
    for (g, record) in matrix.tile(tile).chunks_exact(matrix.record_bytes()).enumerate() {
        let (values, floats) = record.split_at(matrix.value_bytes());
        unpack::<S, BITS, HALF>(values, &mut weights);
        let (scales, biases) = floats.split_at(TILE * matrix.scales.bytes());
        let factors = Factors {
            scales: tile_floats::<S>(matrix.scales, scales),
            biases: tile_floats::<S>(matrix.scales, biases),
        };
        let (block, half) = (2 * HALF * g / BLOCK, 2 * HALF * g / (BLOCK / 2) % 2);
        let at = block * x.rows + first;
        let pairs = &x.pairs[at..][..out.len()];
        let scales = &x.scales[at..][..out.len()];
        let pairs = |row: usize| -> &[i32; HALF] { &pairs[row].as_chunks::<HALF>().0[half % (PAIRS / HALF)] };
        let sum = |row: usize| {
            let sums = scales[row].sums;
            (if 2 * HALF == BLOCK { sums[0] + sums[1] } else { sums[half] }) as f32
        };
        let mut row = 0;
        while row + 4 <= out.len() {
            let dots = dots::<S, 4, HALF>(&weights, [pairs(row), pairs(row + 1), pairs(row + 2), pairs(row + 3)]);
            for (i, dot) in dots.into_iter().enumerate() {
                chain::<S>(dot, scales[row + i].scale, sum(row + i), &factors, &mut out[row + i]);
            }
            row += 4;
        }
        while row < out.len() {
            let [dot] = dots::<S, 1, HALF>(&weights, [pairs(row)]);
            chain::<S>(dot, scales[row].scale, sum(row), &factors, &mut out[row]);
            row += 1;
        }
    }
}

/// Scales and biases of a tile's outputs for one group.
struct Factors {
    scales: [f32; TILE],
    biases: [f32; TILE],
}

/// The exact dots of a group: 16 outputs times `ROWS` rows.
#[inline(always)]
fn dots<S: Simd, const ROWS: usize, const HALF: usize>(
    weights: &[[S::Lanes; 2]; HALF],
    x: [&[i32; HALF]; ROWS],
) -> [[S::Lanes; 2]; ROWS] {
    let mut sums = [[S::zero(); 2]; ROWS];
    for p in 0..HALF {
        for r in 0..ROWS {
            let pair = S::splat(x[r][p]);
            sums[r] = [S::add_dot(sums[r][0], weights[p][0], pair), S::add_dot(sums[r][1], weights[p][1], pair)];
        }
    }
    sums
}

/// One step of the chain over groups, for 16 outputs.
#[inline(always)]
fn chain<S: Simd>(dot: [S::Lanes; 2], sx: f32, sum: f32, factors: &Factors, acc: &mut [f32; TILE]) {
    for (half, dot) in dot.into_iter().enumerate() {
        let dot = S::to_i32(dot);
        for i in 0..TILE / 2 {
            let n = half * (TILE / 2) + i;
            let scaled = (dot[i] as f32).mul_add(sx * factors.scales[n], acc[n]);
            acc[n] = sum.mul_add(sx * factors.biases[n], scaled);
        }
    }
}

#[inline(always)]
fn tile_floats<S: Simd>(float: Float, bytes: &[u8]) -> [f32; TILE] {
    let mut out = [[0.0; TILE]];
    dense::widen::<S>(float, bytes, &mut out);
    out[0]
}

/// A record's values as pairs of i16, in the order of the activations' pairs.
#[inline(always)]
fn unpack<S: Simd, const BITS: usize, const HALF: usize>(values: &[u8], out: &mut [[S::Lanes; 2]; HALF]) {
    let load = |row: usize, half: usize| S::load(values[row * 64 + half * 32..].first_chunk().expect("a whole record"));
    match BITS {
        8 => {
            for (quad, pairs) in out.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                for half in 0..2 {
                    let v = load(quad, half);
                    pairs[0][half] = S::right::<0>(v, 0x00ff_00ff);
                    pairs[1][half] = S::right::<8>(v, 0x00ff_00ff);
                }
            }
        }
        4 => {
            for (row, pairs) in out.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                for half in 0..2 {
                    let nibbles = nibbles::<S>(load(row, half));
                    for i in 0..4 {
                        pairs[i][half] = nibbles[i];
                    }
                }
            }
        }
        _ => {
            for (octet, pairs) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                for half in 0..2 {
                    let low = nibbles::<S>(load(octet * 3, half));
                    let high = nibbles::<S>(load(octet * 3 + 1, half));
                    let upper = upper_bits::<S>(load(octet * 3 + 2, half));
                    for i in 0..4 {
                        pairs[i][half] = S::or(low[i], upper[i]);
                        pairs[i + 4][half] = S::or(high[i], upper[i + 4]);
                    }
                }
            }
        }
    }
}

/// Two quads that share bytes: (0, 2) and (1, 3) of the low nibbles, then of the high.
#[inline(always)]
fn nibbles<S: Simd>(v: S::Lanes) -> [S::Lanes; 4] {
    const MASK: u32 = 0x000f_000f;
    [S::right::<0>(v, MASK), S::right::<8>(v, MASK), S::right::<4>(v, MASK), S::right::<12>(v, MASK)]
}

/// The upper two of six bits of four quads that share bytes, in place.
#[inline(always)]
fn upper_bits<S: Simd>(v: S::Lanes) -> [S::Lanes; 8] {
    const MASK: u32 = 0x0030_0030;
    [
        S::left::<4>(v, MASK),
        S::right::<4>(v, MASK),
        S::left::<2>(v, MASK),
        S::right::<6>(v, MASK),
        S::right::<0>(v, MASK),
        S::right::<8>(v, MASK),
        S::right::<2>(v, MASK),
        S::right::<10>(v, MASK),
    ]
}
