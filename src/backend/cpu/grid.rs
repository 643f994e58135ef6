//! Pictures: what stages keep of them, the convolution over their grid.

use super::simd::kernel;
use crate::backend::{Grid, Lane};
use crate::error::{Code, Error, Result};
use crate::plan::{Plan, StoreId};
use std::collections::BTreeMap;

/// Most taps of a kernel over a grid.
pub const MAX_GRID_TAPS: usize = 49;

/// Rows of one picture, by [`StoreId`].
struct Kept {
    grid: Grid,
    rows: Vec<Vec<f32>>,
}

/// Rows that stages keep, by slot.
#[derive(Default)]
pub struct Stores(BTreeMap<u32, Kept>);

impl Stores {
    /// Makes sure that a lane with a grid has room for it.
    pub fn ensure(&mut self, lane: &Lane, plan: &Plan) -> Result<()> {
        let Some(grid) = lane.grid else { return Ok(()) };
        let new = || Kept { grid, rows: plan.stores.iter().map(|store| vec![0.0; grid.len() * store.width]).collect() };
        let kept = self.0.entry(lane.slot.0).or_insert_with(new);
        if kept.grid != grid {
            let (slot, old) = (lane.slot.0, kept.grid);
            let message = format!("slot {slot} holds a picture of {old:?}, not {grid:?}: release it first");
            return Err(Error::new(Code::State, message));
        }
        Ok(())
    }

    /// Lets a picture go.
    pub fn release(&mut self, slot: u32) {
        self.0.remove(&slot);
    }

    /// Bytes of all pictures.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.0.values().flat_map(|kept| &kept.rows).map(|rows| 4 * rows.capacity() as u64).sum()
    }

    /// Some rows of a picture that `ensure` made room for, `width` values each.
    pub fn rows(&self, slot: u32, store: StoreId, first: usize, count: usize, width: usize) -> &[f32] {
        &self.0[&slot].rows[store.0][first * width..][..count * width]
    }

    /// One row, to write.
    pub fn row_mut(&mut self, slot: u32, store: StoreId, row: usize, width: usize) -> &mut [f32] {
        let kept = self.0.get_mut(&slot).expect("submit made room");
        &mut kept.rows[store.0][row * width..][..width]
    }
}

/// Bytes of stores for each row of a grid.
pub fn store_bytes(plan: &Plan) -> u64 {
    plan.stores.iter().map(|store| 4 * store.width as u64).sum()
}

/// What the convolution reads for one row of a grid.
pub struct Around<'a> {
    /// `B * x` at each tap's place; `None` outside the grid.
    places: [Option<&'a [f32]>; MAX_GRID_TAPS],
    /// Taps, channel beside channel.
    taps: &'a [f32],
    /// C.
    gate: &'a [f32],
}

impl<'a> Around<'a> {
    /// The neighbourhood of the row at `position`, for a square kernel of `taps`.
    pub fn new(
        stores: &'a Stores,
        (slot, grid): (u32, Grid),
        (gated, gates): (StoreId, StoreId),
        taps: &'a [f32],
        width: usize,
        position: usize,
    ) -> Around<'a> {
        let count = taps.len() / width;
        let side = count.isqrt() as u32;
        let (row, col) = grid.place(position);
        let mut places = [None; MAX_GRID_TAPS];
        for (tap, place) in places[..count].iter_mut().enumerate() {
            // Shifted by half a kernel, so that no place is negative.
            let (y, x) = (row + tap as u32 / side, col + tap as u32 % side);
            let inside = |at: u32, len: u32| at.checked_sub(side / 2).filter(|at| *at < len);
            if let (Some(y), Some(x)) = (inside(y, grid.rows), inside(x, grid.cols)) {
                *place = Some(stores.rows(slot, gated, grid.index(y, x), 1, width));
            }
        }
        Around { places, taps, gate: stores.rows(slot, gates, position, 1, width) }
    }
}

kernel! {
    /// `out = C * sum of taps * (B * x)`: one chain a channel, the kernel row by row; nothing is added outside the
    /// grid.
    pub fn grid_conv(around: &Around<'_>, out: &mut [f32]) = plain convolve
}

#[inline(always)]
fn convolve(around: &Around<'_>, out: &mut [f32]) {
    out.fill(0.0);
    let width = out.len();
    for (taps, place) in around.taps.chunks_exact(width).zip(&around.places) {
        let Some(values) = place else { continue };
        for ((out, tap), value) in out.iter_mut().zip(taps).zip(*values) {
            *out = tap.mul_add(*value, *out);
        }
    }
    for (out, gate) in out.iter_mut().zip(around.gate) {
        *out *= gate;
    }
}

kernel! {
    /// `gated = B * x` of a row of B, C, x.
    pub fn gate_input(bcx: &[f32], gated: &mut [f32]) = plain multiply
}

#[inline(always)]
fn multiply(bcx: &[f32], gated: &mut [f32]) {
    let width = gated.len();
    for ((gated, b), x) in gated.iter_mut().zip(bcx).zip(&bcx[2 * width..]) {
        *gated = b * x;
    }
}
