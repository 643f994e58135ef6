//! Ops that look at one value at a time.

use super::simd::kernel;
use crate::math;

kernel! {
    /// `x = silu(x) * up`.
    pub fn swiglu(x: &mut [f32], up: &[f32]) = plain swiglu_row
}

#[inline(always)]
fn swiglu_row(x: &mut [f32], up: &[f32]) {
    for (x, up) in x.iter_mut().zip(up) {
        *x = math::silu(*x) * up;
    }
}

kernel! {
    /// `x = gelu(x)`.
    pub fn gelu(x: &mut [f32]) = plain gelu_row
}

#[inline(always)]
fn gelu_row(x: &mut [f32]) {
    for x in x {
        *x = math::gelu(*x);
    }
}

kernel! {
    /// `to += x`.
    pub fn add(to: &mut [f32], x: &[f32]) = plain add_row
}

#[inline(always)]
fn add_row(to: &mut [f32], x: &[f32]) {
    for (to, x) in to.iter_mut().zip(x) {
        *to += x;
    }
}

kernel! {
    /// Each head of `x` times `sigmoid` of its gate.
    pub fn head_gate(x: &mut [f32], gate: &[f32]) = plain gate_heads
}

#[inline(always)]
fn gate_heads(x: &mut [f32], gate: &[f32]) {
    let head_dim = x.len() / gate.len();
    for (head, gate) in x.chunks_exact_mut(head_dim).zip(gate) {
        let factor = math::sigmoid(*gate);
        for x in head {
            *x *= factor;
        }
    }
}

kernel! {
    /// Whether no value is infinite or NaN.
    pub fn all_finite(x: &[f32]) -> bool = plain finite_row
}

#[inline(always)]
fn finite_row(x: &[f32]) -> bool {
    let mut most = 0;
    for value in x {
        let magnitude = (value.to_bits() & 0x7fff_ffff) as i32;
        most = if magnitude > most { magnitude } else { most };
    }
    most < 0x7f80_0000
}
