//! Rotary positions: pairs `(i, i + head_dim / 2)` turned by `float32(position * inverse_frequency)`.

use super::simd::kernel;
use crate::math;
use crate::plan::MAX_HEAD_DIM;

/// Largest `head_dim / 2`.
pub const MAX_PAIRS: usize = MAX_HEAD_DIM / 2;

kernel! {
    /// Turns every head of `x`, in place; pairs of inverse frequency 0 stay as they are.
    pub fn rotate(x: &mut [f32], inverse: &[f32], position: u32) = plain turn
}

kernel! {
    /// Turns every head of `x`, in place: of its pairs the first half by `row`, the second by `col`.
    pub fn rotate_grid(x: &mut [f32], inverse: &[f32], row: u32, col: u32) = plain turn_grid
}

#[inline(always)]
fn turn_grid(x: &mut [f32], inverse: &[f32], row: u32, col: u32) {
    let pairs = 2 * inverse.len();
    let (mut sines, mut cosines) = ([0.0_f32; MAX_PAIRS], [0.0_f32; MAX_PAIRS]);
    for (axis, at) in [row, col].into_iter().enumerate() {
        for (i, inverse) in inverse.iter().enumerate() {
            let i = axis * pairs / 2 + i;
            (sines[i], cosines[i]) = math::sin_cos(at as f32 * inverse);
        }
    }
    turn_heads(x, &sines[..pairs], &cosines[..pairs], pairs);
}

#[inline(always)]
fn turn(x: &mut [f32], inverse: &[f32], position: u32) {
    let pairs = inverse.len();
    let (mut sines, mut cosines) = ([0.0_f32; MAX_PAIRS], [0.0_f32; MAX_PAIRS]);
    // Trailing zeros are where the proportional layout ends.
    let turning = inverse.iter().rposition(|f| *f != 0.0).map_or(0, |last| last + 1);
    for i in 0..turning {
        (sines[i], cosines[i]) = math::sin_cos(position as f32 * inverse[i]);
    }
    turn_heads(x, &sines[..turning], &cosines[..turning], pairs);
}

/// Turns the first pairs of every head by the angles given.
#[inline(always)]
fn turn_heads(x: &mut [f32], sines: &[f32], cosines: &[f32], pairs: usize) {
    for head in x.chunks_exact_mut(2 * pairs) {
        let (first, second) = head.split_at_mut(pairs);
        for i in 0..sines.len() {
            let (a, b) = (first[i], second[i]);
            first[i] = a.mul_add(cosines[i], -(b * sines[i]));
            second[i] = b.mul_add(cosines[i], a * sines[i]);
        }
    }
}
