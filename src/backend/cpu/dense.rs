//! Matrices of plain floats times activations: four float chains an output, by column modulo 4.

use super::pack::{Dense, TILE};
use super::simd::{Simd, kernel};
use crate::backend::Float;
use crate::math;

/// Columns converted to float32 at a time.
const CHUNK: usize = 64;
/// Independent chains of an output; column `k` belongs to chain `k % CHAINS`. Part of the arithmetic.
pub const CHAINS: usize = 4;

/// The chains of 16 outputs.
pub type Chains = [[f32; TILE]; CHAINS];

kernel! {
    /// Tile `tile` of `matrix` times rows `first ..` of `x` (rows of `matrix.cols` values), one for each of `out`.
    /// `chains` is scratch of the same length.
    pub fn dense_tile(
        matrix: &Dense, tile: usize, x: &[f32], first: usize, chains: &mut [Chains], out: &mut [[f32; TILE]],
    ) = simd dense
}

#[inline(always)]
fn dense<S: Simd>(
    matrix: &Dense,
    tile: usize,
    x: &[f32],
    first: usize,
    chains: &mut [Chains],
    out: &mut [[f32; TILE]],
) {
    let cols = matrix.cols;
    chains.fill([[0.0; TILE]; CHAINS]);
    let mut weights = [[0.0; TILE]; CHUNK];
    let row_bytes = TILE * matrix.float.bytes();
    for (c, bytes) in matrix.tile(tile).chunks(CHUNK * row_bytes).enumerate() {
        let weights = &mut weights[..bytes.len() / row_bytes];
        widen::<S>(matrix.float, bytes, weights);
        for (row, chains) in chains.iter_mut().enumerate() {
            multiply(weights, &x[(first + row) * cols + c * CHUNK..][..weights.len()], chains);
        }
    }
    for (chains, out) in chains.iter().zip(out) {
        *out = total(chains);
    }
}

/// Adds 16 outputs' products over `x.len()` columns, the first a multiple of [`CHAINS`].
#[inline(always)]
pub fn multiply(weights: &[[f32; TILE]], x: &[f32], chains: &mut Chains) {
    let mut acc = *chains;
    let (fours, rest) = weights.as_chunks::<CHAINS>();
    let (x_fours, x_rest) = x.as_chunks::<CHAINS>();
    for (weights, x) in fours.iter().zip(x_fours) {
        for c in 0..CHAINS {
            for n in 0..TILE {
                acc[c][n] = weights[c][n].mul_add(x[c], acc[c][n]);
            }
        }
    }
    for ((weights, x), acc) in rest.iter().zip(x_rest).zip(&mut acc) {
        for n in 0..TILE {
            acc[n] = weights[n].mul_add(*x, acc[n]);
        }
    }
    *chains = acc;
}

/// The outputs: the chains added in a fixed order.
#[inline(always)]
pub fn total(chains: &Chains) -> [f32; TILE] {
    let mut out = [0.0; TILE];
    for n in 0..TILE {
        out[n] = (chains[0][n] + chains[1][n]) + (chains[2][n] + chains[3][n]);
    }
    out
}

/// Tiles of stored floats as float32.
#[inline(always)]
pub fn widen<S: Simd>(float: Float, bytes: &[u8], out: &mut [[f32; TILE]]) {
    let out = out.as_flattened_mut();
    match float {
        Float::F32 => {
            for (out, b) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *out = f32::from_le_bytes(*b);
            }
        }
        Float::Bf16 => {
            for (out, b) in out.iter_mut().zip(bytes.as_chunks::<2>().0) {
                *out = math::bf16_to_f32(u16::from_le_bytes(*b));
            }
        }
        Float::F16 => {
            let eights = bytes.as_chunks::<16>().0;
            for (out, bytes) in out.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
                let mut half = [0; 8];
                for (half, b) in half.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *half = u16::from_le_bytes(*b);
                }
                *out = S::widen_f16(&half);
            }
        }
    }
}
