//! A small random model with every kind of layer.

use super::{Rng, Tensor, encodings};
use lfm3::backend::{Backend, Encoding, Float};
use lfm3::model::config::{LayerKind, RopeConfig, TextConfig};
use lfm3::plan::{Plan, WeightId, WeightRole};

/// Tokens of the small model.
pub const VOCAB: usize = 100;

/// Four layers of the three kinds, with sandwich norms and gates, and a window shorter than two pages.
pub fn small_config() -> TextConfig {
    TextConfig {
        vocab_size: VOCAB,
        hidden: 64,
        ffn: 192,
        layers: vec![LayerKind::Conv, LayerKind::SlidingAttention, LayerKind::Conv, LayerKind::FullAttention],
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        taps: 7,
        conv_bias: false,
        attention_bias: false,
        window: 64,
        norm_eps: 1e-5,
        sandwich: true,
        gate: true,
        tied: true,
        max_positions: 1024,
        rope_full: RopeConfig { theta: 1e6, partial: 0.5 },
        rope_sliding: RopeConfig { theta: 1e4, partial: 1.0 },
    }
}

/// A random tensor for each weight of `plan`; matrices go through all encodings from the one at `first` on.
pub fn random_weights(plan: &Plan, rng: &mut Rng, first: usize) -> Vec<Tensor> {
    let mut all = encodings().into_iter().cycle().skip(first);
    random_weights_as(plan, rng, || all.next().expect("a cycle has no end"))
}

/// As [`random_weights`], each matrix in the encoding that `next` gives.
pub fn random_weights_as(plan: &Plan, rng: &mut Rng, mut next: impl FnMut() -> Encoding) -> Vec<Tensor> {
    let mut tensor = |role: WeightRole, rows: usize, cols: usize| match role {
        WeightRole::Matrix => Tensor::random(rng, rows, cols, next(), 3.0 / (cols as f32).sqrt()),
        WeightRole::Vector => Tensor::vector(&rng.values(rows, 0.5).iter().map(|v| v + 1.0).collect::<Vec<_>>()),
        WeightRole::Taps | WeightRole::GridTaps => Tensor::random(rng, rows, cols, Encoding::Dense(Float::F32), 0.8),
    };
    plan.weights.iter().map(|w| tensor(w.role, w.rows, w.cols)).collect()
}

/// Gives `backend` every weight of its plan.
pub fn load(backend: &mut dyn Backend, weights: &[Tensor]) {
    for (i, tensor) in weights.iter().enumerate() {
        backend.load(WeightId(i), &mut tensor.clone()).expect("a good tensor");
    }
}

/// `n` tokens of the small model.
pub fn tokens(rng: &mut Rng, n: usize) -> Vec<u32> {
    (0..n).map(|_| rng.below(VOCAB) as u32).collect()
}
