//! RMS norms, and the sum every reduction shares.

use super::simd::kernel;

/// Virtual lanes of a reduction: value `i` goes to lane `i % LANES`. Part of the arithmetic.
pub const LANES: usize = 16;

/// Adds the lanes by one fixed tree.
#[inline(always)]
pub fn tree(lanes: [f32; LANES]) -> f32 {
    let mut lanes = lanes;
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] += lanes[i + half];
        }
        half /= 2;
    }
    lanes[0]
}

/// The mean of the squares.
#[inline(always)]
fn mean_square(x: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; LANES];
    let (whole, tail) = x.as_chunks::<LANES>();
    for values in whole {
        for i in 0..LANES {
            lanes[i] = values[i].mul_add(values[i], lanes[i]);
        }
    }
    for (lane, value) in lanes.iter_mut().zip(tail) {
        *lane = value.mul_add(*value, *lane);
    }
    tree(lanes) / x.len() as f32
}

kernel! {
    /// `x / sqrt(mean(x^2) + eps) * weight`, in place. False where the row is not finite or its squares overflow.
    pub fn rms_norm(x: &mut [f32], weight: &[f32], eps: f32) -> bool = plain rms
}

#[inline(always)]
fn rms(x: &mut [f32], weight: &[f32], eps: f32) -> bool {
    let mean = mean_square(x);
    let factor = 1.0 / (mean + eps).sqrt();
    for (x, w) in x.iter_mut().zip(weight) {
        *x = *x * factor * w;
    }
    mean.is_finite()
}

kernel! {
    /// `(x - mean) / sqrt(variance + eps) * weight + bias`, in place. False where the row is not finite or its sums
    /// overflow.
    pub fn layer_norm(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) -> bool = plain centred
}

#[inline(always)]
fn centred(x: &mut [f32], weight: &[f32], bias: &[f32], eps: f32) -> bool {
    let mut lanes = [0.0_f32; LANES];
    let (whole, tail) = x.as_chunks::<LANES>();
    for values in whole {
        for i in 0..LANES {
            lanes[i] += values[i];
        }
    }
    for (lane, value) in lanes.iter_mut().zip(tail) {
        *lane += value;
    }
    let mean = tree(lanes) / x.len() as f32;
    for x in x.iter_mut() {
        *x -= mean;
    }
    let variance = mean_square(x);
    let factor = 1.0 / (variance + eps).sqrt();
    for ((x, w), b) in x.iter_mut().zip(weight).zip(bias) {
        *x = (*x * factor).mul_add(*w, *b);
    }
    variance.is_finite()
}

kernel! {
    /// [`rms_norm`] of each head of `weight.len()` values.
    pub fn head_norm(x: &mut [f32], weight: &[f32], eps: f32) -> bool = plain heads
}

#[inline(always)]
fn heads(x: &mut [f32], weight: &[f32], eps: f32) -> bool {
    let mut finite = true;
    for head in x.chunks_exact_mut(weight.len()) {
        finite &= rms(head, weight, eps);
    }
    finite
}
