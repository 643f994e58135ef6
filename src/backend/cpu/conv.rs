//! The gated short convolution.

use super::Isa;
use super::pool::Shared;
use super::simd::kernel;
use crate::backend::Lane;
use crate::plan::{ConvShape, MAX_TAPS};
use std::collections::BTreeMap;
use std::ops::Range;

/// Channels of a unit of work.
pub const BLOCK_CHANNELS: usize = 128;

/// One row's gates and input, and the weights, for some channels.
struct Inputs<'a> {
    /// B.
    pub b: &'a [f32],
    /// C.
    pub c: &'a [f32],
    /// x.
    pub x: &'a [f32],
    /// `B * x` of the `taps - 1` rows before, oldest first.
    pub history: &'a [&'a [f32]],
    /// Taps, `stride` apart, oldest first.
    pub taps: &'a [f32],
    /// Channels between a tap and the next.
    pub stride: usize,
    /// Bias.
    pub bias: Option<&'a [f32]>,
}

kernel! {
    /// `g = B * x; out = C * (bias + sum of taps * g)`: one chain a channel, from the oldest tap.
    fn conv_row(inputs: &Inputs<'_>, g: &mut [f32], out: &mut [f32]) = plain row
}

#[inline(always)]
fn row(inputs: &Inputs<'_>, g: &mut [f32], out: &mut [f32]) {
    for ((g, b), x) in g.iter_mut().zip(inputs.b).zip(inputs.x) {
        *g = b * x;
    }
    match inputs.bias {
        Some(bias) => out.copy_from_slice(bias),
        None => out.fill(0.0),
    }
    for (j, column) in inputs.history.iter().copied().chain([&*g]).enumerate() {
        for ((out, tap), g) in out.iter_mut().zip(&inputs.taps[j * inputs.stride..]).zip(column) {
            *out = tap.mul_add(*g, *out);
        }
    }
    for (out, c) in out.iter_mut().zip(inputs.c) {
        *out *= c;
    }
}

/// A layer's convolution over all rows of a round. A unit is a block of channels.
pub struct Convolution<'a> {
    /// Instruction set.
    pub isa: Isa,
    /// Layer.
    pub shape: ConvShape,
    /// Rows of B, C, x.
    pub bcx: &'a [f32],
    /// Taps.
    pub taps: &'a [f32],
    /// Bias.
    pub bias: Option<&'a [f32]>,
    /// Lanes.
    pub lanes: &'a [Lane],
    /// States before the round.
    pub states: &'a BTreeMap<u32, Vec<f32>>,
    /// Where this layer's begin.
    pub state_start: usize,
    /// `B * x` of the round's rows.
    pub gated: Shared<'a, f32>,
    /// Results.
    pub out: Shared<'a, f32>,
}

impl Convolution<'_> {
    /// Does one block of channels.
    pub fn unit(&self, unit: usize) {
        let channels = unit * BLOCK_CHANNELS..self.shape.width.min((unit + 1) * BLOCK_CHANNELS);
        for lane in self.lanes {
            for row in 0..lane.rows {
                self.row(lane, row, channels.clone());
            }
        }
    }

    fn row(&self, lane: &Lane, row: usize, channels: Range<usize>) {
        let (width, columns) = (self.shape.width, self.shape.taps - 1);
        let state = &self.states[&lane.slot.0][self.state_start..][..columns * width];
        let first = |row: usize| (lane.first_row + row) * width + channels.start;
        let mut history: [&[f32]; MAX_TAPS] = [&[]; MAX_TAPS];
        for (j, column) in history[..columns].iter_mut().enumerate() {
            *column = match (row + j).checked_sub(columns) {
                // SAFETY: a block of channels is one unit, done by one thread; this row's own part is another.
                Some(earlier) => unsafe { self.gated.part(first(earlier), channels.len()) },
                None => &state[(row + j) * width..][channels.clone()],
            };
        }
        let bcx = &self.bcx[(lane.first_row + row) * 3 * width..][..3 * width];
        let [b, c, x] = [0, 1, 2].map(|i| &bcx[i * width..][channels.clone()]);
        let (taps, bias) = (&self.taps[channels.start..], self.bias.map(|bias| &bias[channels.clone()]));
        let inputs = Inputs { b, c, x, history: &history[..columns], taps, stride: width, bias };
        // SAFETY: a block of channels is one unit, done by one thread; the history holds parts of earlier rows.
        let (g, out) =
            unsafe { (self.gated.part(first(row), channels.len()), self.out.part(first(row), channels.len())) };
        conv_row(self.isa, &inputs, g, out);
    }
}
