//! What the tests share: random numbers, weights in memory, small models, rounds and backends.
#![allow(dead_code, unused_imports)] // each test file uses a part of it

pub mod model;
pub mod rounds;
pub mod stream;
pub mod tensor;

pub use model::*;
pub use rounds::*;
pub use stream::*;
pub use tensor::*;

/// Half a unit in the last place of 1.0 in float32: the relative error of one rounding.
pub const U: f64 = 1.0 / (1 << 24) as f64;

/// splitmix64: reproducible everywhere, no crate needed.
pub struct Rng(u64);

impl Rng {
    /// A generator that depends on `seed` alone.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// A value between -1 and 1.
    pub fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1 << 23) as f32 - 1.0
    }

    /// `n` values between `-size` and `size`.
    pub fn values(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n).map(|_| self.unit() * size).collect()
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.below(items.len())]
    }
}
