//! Random weights in memory, for tests that run the CPU backend without a checkpoint.

use lfm3::backend::cpu::{CpuBackend, CpuOptions, Isa};
use lfm3::backend::{Backend, Band, Encoding, Float, TensorDesc, WeightSource};
use lfm3::error::Result;
use lfm3::plan::{Plan, WeightId, WeightRole, WeightSpec};

/// A small generator of random numbers.
pub struct Random(pub u64);

impl Random {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 ^ (self.0 >> 13) as u32
    }

    pub fn below(&mut self, end: usize) -> usize {
        self.bits() as usize % end
    }

    /// -1 to 1.
    pub fn float(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A tensor held in memory as its file would have it.
pub struct Memory {
    pub desc: TensorDesc,
    pub data: Vec<u8>,
    pub scales: Vec<u8>,
    pub biases: Vec<u8>,
}

impl WeightSource for Memory {
    fn desc(&self) -> &TensorDesc {
        &self.desc
    }

    fn read_rows(&mut self, first: usize, count: usize, band: &mut Band) -> Result<()> {
        let rows = self.desc.rows;
        let part = |bytes: &[u8]| bytes[bytes.len() / rows * first..bytes.len() / rows * (first + count)].to_vec();
        *band = Band { data: part(&self.data), scales: part(&self.scales), biases: part(&self.biases) };
        Ok(())
    }
}

pub fn float_bytes(float: Float, value: f32, out: &mut Vec<u8>) {
    match float {
        Float::Bf16 => out.extend(((value.to_bits() >> 16) as u16).to_le_bytes()),
        Float::F16 => out.extend(lfm3::math::f32_to_f16(value).to_le_bytes()),
        Float::F32 => out.extend(value.to_le_bytes()),
    }
}

/// Random values for `spec`, matrices in `matrix`'s encoding; rows of products keep about the size of their input.
pub fn random_weight(spec: &WeightSpec, matrix: Encoding, random: &mut Random) -> Memory {
    let encoding = if spec.role == WeightRole::Matrix { matrix } else { Encoding::Dense(Float::Bf16) };
    let desc = TensorDesc { name: spec.names[0].clone(), rows: spec.rows, cols: spec.cols, encoding };
    let mut memory = Memory { desc, data: Vec::new(), scales: Vec::new(), biases: Vec::new() };
    let size = 1.5 / (spec.cols as f32).sqrt();
    match encoding {
        Encoding::Dense(float) => {
            for _ in 0..spec.rows * spec.cols {
                let value = if spec.cols == 1 { 1.0 + 0.5 * random.float() } else { size * random.float() };
                float_bytes(float, value, &mut memory.data);
            }
        }
        Encoding::Affine { bits, group, scales } => {
            memory.data = (0..spec.rows * spec.cols * usize::from(bits) / 8).map(|_| random.bits() as u8).collect();
            let steps = ((1 << bits) - 1) as f32;
            for _ in 0..spec.rows * spec.cols / group {
                let scale = 2.0 * size / steps * if random.below(2) == 0 { 1.0 } else { -1.0 };
                float_bytes(scales, scale, &mut memory.scales);
                float_bytes(scales, -scale * steps * (0.5 + 0.1 * random.float()), &mut memory.biases);
            }
        }
    }
    memory
}

/// Weights for a whole plan; the same seed gives the same weights.
pub fn random_weights(plan: &Plan, matrix: Encoding, seed: u64) -> Vec<Memory> {
    let mut random = Random(seed);
    plan.weights.iter().map(|spec| random_weight(spec, matrix, &mut random)).collect()
}

/// A backend with random weights.
pub fn backend(plan: &Plan, matrix: Encoding, seed: u64, options: &CpuOptions) -> CpuBackend {
    let mut backend = CpuBackend::new(std::sync::Arc::new(plan.clone()), options).expect("a backend");
    for (id, memory) in random_weights(plan, matrix, seed).iter_mut().enumerate() {
        backend.load(WeightId(id), memory).expect("random weights load");
    }
    backend
}

pub fn options(threads: usize, isa: Isa) -> CpuOptions {
    CpuOptions { threads, isa: Some(isa), round_to_8_bits: false }
}
