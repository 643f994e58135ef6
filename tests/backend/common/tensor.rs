//! Random tensors in memory, in every encoding a checkpoint may have.

use super::Rng;
use lfm3::backend::{Band, Encoding, Float, TensorDesc, WeightSource};
use lfm3::error::Result;

/// Every encoding: dense ones first, then the affine ones of each group length.
pub fn encodings() -> Vec<Encoding> {
    let floats = [Float::Bf16, Float::F16, Float::F32];
    let mut all: Vec<Encoding> = floats.map(Encoding::Dense).to_vec();
    for group in [32, 64] {
        for bits in [4, 6, 8] {
            all.extend(floats.map(|scales| Encoding::Affine { bits, group, scales }));
        }
    }
    all
}

/// A tensor as a file would hold it, and what it stands for.
#[derive(Clone)]
pub struct Tensor {
    pub desc: TensorDesc,
    pub data: Vec<u8>,
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
    /// The values, exact.
    pub values: Vec<f64>,
    /// `q * |scale| + |bias|`, or `|value|`: what rounding errors are relative to.
    pub magnitudes: Vec<f64>,
}

impl Tensor {
    /// Values between about `-size` and `size`; scales are negative as often as positive.
    pub fn random(rng: &mut Rng, rows: usize, cols: usize, encoding: Encoding, size: f32) -> Tensor {
        let desc = TensorDesc { name: format!("random {encoding:?}"), rows, cols, encoding };
        let mut t = Tensor { desc, data: vec![], scales: vec![], biases: vec![], values: vec![], magnitudes: vec![] };
        match encoding {
            Encoding::Dense(float) => {
                let values = rng.values(rows * cols, size);
                t.values = values.iter().map(|&v| put(float, v, &mut t.data)).collect();
                t.magnitudes = t.values.iter().map(|v| v.abs()).collect();
            }
            Encoding::Affine { bits, group, scales } => {
                assert_eq!(cols % group, 0);
                for _ in 0..rows * cols / group {
                    t.push_group(rng, usize::from(bits), group, scales, size);
                }
            }
        }
        t
    }

    /// A float32 vector of given values, one column.
    pub fn vector(values: &[f32]) -> Tensor {
        let mut t = Tensor::random(&mut Rng(0), values.len(), 1, Encoding::Dense(Float::F32), 0.0);
        t.data = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        t.values = values.iter().map(|&v| f64::from(v)).collect();
        t.magnitudes = t.values.iter().map(|v| v.abs()).collect();
        t
    }

    fn push_group(&mut self, rng: &mut Rng, bits: usize, group: usize, float: Float, size: f32) {
        let sign = if rng.below(2) == 0 { 1.0 } else { -1.0 };
        let most = ((1 << bits) - 1) as f32;
        let scale = put(float, sign * size * (1.5 + 0.5 * rng.unit()) / most, &mut self.scales);
        let bias = put(float, -sign * size * (0.9 + 0.1 * rng.unit()), &mut self.biases);
        let (mut word, mut filled) = (0u64, 0);
        for _ in 0..group {
            let q = rng.below(1 << bits) as u64;
            self.values.push(q as f64 * scale + bias);
            self.magnitudes.push(q as f64 * scale.abs() + bias.abs());
            word |= q << filled;
            filled += bits;
            while filled >= 8 {
                self.data.push(word as u8);
                word >>= 8;
                filled -= 8;
            }
        }
    }
}

impl WeightSource for Tensor {
    fn desc(&self) -> &TensorDesc {
        &self.desc
    }

    fn read_rows(&mut self, first: usize, count: usize, band: &mut Band) -> Result<()> {
        let part = |bytes: &[u8]| {
            let row = bytes.len() / self.desc.rows;
            bytes[first * row..(first + count) * row].to_vec()
        };
        *band = Band { data: part(&self.data), scales: part(&self.scales), biases: part(&self.biases) };
        Ok(())
    }
}

/// Appends `value` as stored and gives what was stored.
fn put(float: Float, value: f32, bytes: &mut Vec<u8>) -> f64 {
    match float {
        Float::Bf16 => {
            let v = half::bf16::from_f32(value);
            bytes.extend(v.to_le_bytes());
            v.to_f64()
        }
        Float::F16 => {
            let v = half::f16::from_f32(value);
            bytes.extend(v.to_le_bytes());
            v.to_f64()
        }
        Float::F32 => {
            bytes.extend(value.to_le_bytes());
            f64::from(value)
        }
    }
}
