//! A round being run: checked, with its blocks for attention and its faults.

use super::attend::{BLOCK_ROWS, SPAN};
use crate::backend::check::{check_round, first_visible, page_range};
use crate::backend::{KEY_CHUNK, Lane, PageId, Round};
use crate::error::{Code, Error, Result};
use crate::plan::{AttentionShape, Plan};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Consecutive rows of one lane that attention takes together.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Index of the lane.
    pub lane: usize,
    /// First row of the round.
    pub row: usize,
    /// Rows.
    pub rows: usize,
    /// Position of the first row.
    pub position: usize,
    /// Keys of a bidirectional layer.
    pub keys: usize,
}

impl Block {
    /// Positions visible to some row of the block.
    pub fn visible(&self, shape: &AttentionShape) -> Range<usize> {
        if shape.bidirectional { 0..self.keys } else { first_visible(shape, self.position)..self.position + self.rows }
    }

    /// Which keys of the chunk at `key` a row of the block sees, counted from the chunk's first.
    pub fn visible_in(&self, shape: &AttentionShape, row: usize, key: usize) -> Range<usize> {
        let position = self.position + row;
        let first = if shape.bidirectional { 0 } else { first_visible(shape, position) };
        let end = if shape.bidirectional { self.keys } else { position + 1 }.min(key + KEY_CHUNK);
        first.max(key).min(end).saturating_sub(key)..end.saturating_sub(key)
    }

    /// Spans of keys its rows walk.
    pub fn spans(&self, shape: &AttentionShape) -> Range<usize> {
        let visible = self.visible(shape);
        visible.start / SPAN..(visible.end - 1) / SPAN + 1
    }
}

/// A round between submit and commit.
pub struct Active {
    /// As submitted.
    pub round: Round,
    /// Rows whose logits are wanted.
    pub wanted: Vec<usize>,
    /// Blocks for attention, in the order of rows.
    pub blocks: Vec<Block>,
    faults: Vec<AtomicBool>,
}

impl Active {
    /// Checks a round against the plan.
    pub fn new(plan: &Plan, round: Round) -> Result<Active> {
        let wanted: Vec<usize> = (0..round.rows.len()).filter(|&row| round.rows[row].wanted).collect();
        check_round(plan, &round).map_err(|message| Error::new(Code::InvalidArgument, format!("round: {message}")))?;
        let mut blocks = Vec::new();
        for (lane, of) in round.lanes.iter().enumerate() {
            for offset in (0..of.rows).step_by(BLOCK_ROWS) {
                let row = of.first_row + offset;
                let position = round.rows[row].position as usize;
                let keys = of.grid.map_or(0, |grid| grid.len());
                blocks.push(Block { lane, row, rows: BLOCK_ROWS.min(of.rows - offset), position, keys });
            }
        }
        let faults = round.lanes.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Active { round, wanted, blocks, faults })
    }

    /// Marks the lane of a row.
    pub fn fault(&self, row: usize) {
        self.faults[self.round.rows[row].lane as usize].store(true, Ordering::Relaxed);
    }

    /// Whether a lane was marked.
    pub fn faulted(&self, lane: usize) -> bool {
        self.faults[lane].load(Ordering::Relaxed)
    }

    /// The pages a lane reads or writes in an attention layer.
    pub fn pages<'a>(
        &self,
        lane: &'a Lane,
        layer: usize,
        shape: &AttentionShape,
    ) -> impl Iterator<Item = PageId> + use<'a> {
        lane.pages[layer][page_range(&self.round, lane, shape)].iter().copied()
    }
}
