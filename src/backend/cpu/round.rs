//! A round being run: checked, with its blocks for attention and its faults.

use super::attend::{BLOCK_ROWS, SPAN};
use crate::backend::check::check_inputs;
use crate::backend::{KEY_CHUNK, Lane, PAGE_ROWS, PageId, ROUND_LOGITS, ROUND_ROWS, Round};
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

/// The first position a query at `position` sees.
pub fn first_visible(shape: &AttentionShape, position: usize) -> usize {
    shape.window.map_or(0, |window| (position + 1).saturating_sub(window))
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
        check(plan, &round, wanted.len())
            .map_err(|message| Error::new(Code::InvalidArgument, format!("round: {message}")))?;
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

fn page_range(round: &Round, lane: &Lane, shape: &AttentionShape) -> Range<usize> {
    let position = round.rows[lane.first_row].position as usize;
    if let Some(grid) = lane.grid.filter(|_| shape.bidirectional) {
        return 0..grid.len().div_ceil(PAGE_ROWS);
    }
    first_visible(shape, position) / PAGE_ROWS..(position + lane.rows - 1) / PAGE_ROWS + 1
}

fn check(plan: &Plan, round: &Round, wanted: usize) -> std::result::Result<(), String> {
    if round.rows.is_empty() || round.rows.len() > ROUND_ROWS || wanted > ROUND_LOGITS {
        let rows = round.rows.len();
        return Err(format!("{rows} rows, {wanted} wanted; at most {ROUND_ROWS} and {ROUND_LOGITS}, at least one row"));
    }
    let mut next = 0;
    for (index, lane) in round.lanes.iter().enumerate() {
        if lane.first_row != next || lane.rows == 0 || lane.rows > round.rows.len() - next {
            return Err(format!("lane {index} has rows {}+{}, expected to start at {next}", lane.first_row, lane.rows));
        }
        let rows = &round.rows[next..next + lane.rows];
        for (i, row) in rows.iter().enumerate() {
            let expected = u64::from(rows[0].position) + i as u64;
            if row.lane as usize != index || u64::from(row.position) != expected {
                return Err(format!("row {}: {row:?} in lane {index}, expected position {expected}", next + i));
            }
        }
        next += lane.rows;
    }
    if next != round.rows.len() {
        return Err(format!("lanes end at row {next} of {}", round.rows.len()));
    }
    check_inputs(plan, round)?;
    round.lanes.iter().enumerate().try_for_each(|(index, lane)| check_pages(plan, round, index, lane))
}

fn check_pages(plan: &Plan, round: &Round, index: usize, lane: &Lane) -> std::result::Result<(), String> {
    if lane.pages.len() != plan.attentions.len() {
        let (found, expected) = (lane.pages.len(), plan.attentions.len());
        return Err(format!("lane {index} has pages of {found} attention layers, the plan has {expected}"));
    }
    for (layer, (shape, pages)) in plan.attentions.iter().zip(&lane.pages).enumerate() {
        let range = page_range(round, lane, shape);
        if range.end > pages.len() || pages[range.clone()].contains(&PageId::NONE) {
            return Err(format!("lane {index}, attention layer {layer}: pages {range:?} are not all there"));
        }
    }
    Ok(())
}
