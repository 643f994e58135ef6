//! What every backend asks of a round: that its rows and lanes follow one another, its stage is there, its rows are
//! given as the stage reads them, its pictures' grids hold them, and its pages are there.

use super::{Grid, Input, Lane, PAGE_ROWS, PageId, ROUND_LOGITS, ROUND_ROWS, Round};
use crate::plan::{AttentionShape, Op, Plan};
use std::ops::Range;

/// Most places of a grid.
pub const MAX_GRID_ROWS: usize = 1 << 20;

/// Says what is wrong with a round.
pub fn check_round(plan: &Plan, round: &Round) -> Result<(), String> {
    check_lanes(round)?;
    check_inputs(plan, round)?;
    round.lanes.iter().enumerate().try_for_each(|(index, lane)| check_pages(plan, round, index, lane))
}

/// The first position a query at `position` sees.
pub fn first_visible(shape: &AttentionShape, position: usize) -> usize {
    shape.window.map_or(0, |window| (position + 1).saturating_sub(window))
}

/// Which of a lane's pages its rows read or write in an attention layer.
pub fn page_range(round: &Round, lane: &Lane, shape: &AttentionShape) -> Range<usize> {
    let position = round.rows[lane.first_row].position as usize;
    if let Some(grid) = lane.grid.filter(|_| shape.bidirectional) {
        return 0..grid.len().div_ceil(PAGE_ROWS);
    }
    first_visible(shape, position) / PAGE_ROWS..(position + lane.rows - 1) / PAGE_ROWS + 1
}

fn check_lanes(round: &Round) -> Result<(), String> {
    let wanted = round.rows.iter().filter(|row| row.wanted).count();
    if round.rows.is_empty() || round.rows.len() > ROUND_ROWS || wanted > ROUND_LOGITS {
        let rows = round.rows.len();
        return Err(format!("{rows} rows, {wanted} wanted; at most {ROUND_ROWS} and {ROUND_LOGITS}, at least one row"));
    }
    let mut next = 0;
    for (index, lane) in round.lanes.iter().enumerate() {
        if lane.first_row != next || lane.rows == 0 || lane.rows > round.rows.len() - next {
            return Err(format!("lane {index} has rows {}+{}, expected to start at {next}", lane.first_row, lane.rows));
        }
        if let Some(other) = round.lanes[..index].iter().position(|other| other.slot == lane.slot) {
            return Err(format!("lanes {other} and {index} are both of slot {}", lane.slot.0));
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
    Ok(())
}

/// What the rows of a stage may be given as.
struct Inputs {
    /// Rows of the embedding, where there is one.
    vocab: Option<usize>,
    /// Values of a row given as values.
    width: Option<usize>,
    /// Whether the stage works on a grid.
    grid: bool,
}

impl Inputs {
    fn of(plan: &Plan, stage: usize) -> Inputs {
        let mut inputs = Inputs { vocab: None, width: None, grid: false };
        for op in &plan.ops[plan.stage_ops(stage)] {
            match op {
                Op::Embed { table, out } => {
                    inputs.vocab = Some(plan.weights[table.0].rows);
                    inputs.width = Some(plan.width(*out));
                }
                Op::Input { out } => inputs.width = Some(plan.width(*out)),
                Op::GridRope { .. } | Op::StoreGated { .. } | Op::GridConv { .. } => inputs.grid = true,
                Op::Save { .. } | Op::Load { .. } => inputs.grid = true,
                Op::Attend { layer, .. } => inputs.grid |= plan.attentions[layer.0].bidirectional,
                _ => {}
            }
        }
        inputs
    }

    fn fit(&self, input: Input, vectors: usize) -> bool {
        match input {
            Input::Token(id) => self.vocab.is_some_and(|vocab| (id as usize) < vocab),
            Input::Vector(index) => self.width.is_some() && (index as usize) < vectors,
            Input::Stored => self.width.is_none(),
        }
    }
}

fn check_inputs(plan: &Plan, round: &Round) -> Result<(), String> {
    if round.stage >= plan.stages.len().max(1) {
        return Err(format!("stage {} of {}", round.stage, plan.stages.len()));
    }
    let inputs = Inputs::of(plan, round.stage);
    let vectors = round.rows.iter().filter(|row| matches!(row.input, Input::Vector(_))).count();
    let expected = vectors * inputs.width.unwrap_or(0);
    if round.vectors.len() != expected {
        return Err(format!("{} values for {vectors} rows, expected {expected}", round.vectors.len()));
    }
    if let Some(index) = round.rows.iter().position(|row| !inputs.fit(row.input, vectors)) {
        return Err(format!(
            "row {index} is given as {:?}, which stage {} does not read",
            round.rows[index].input, round.stage
        ));
    }
    let grid_rows = plan.stages.get(round.stage).map_or(1, |stage| stage.grid_rows);
    for (index, lane) in round.lanes.iter().enumerate() {
        match lane.grid {
            Some(grid) => check_grid(grid, grid_rows, last_position(round, lane))?,
            None if inputs.grid => return Err(format!("lane {index} has no grid, stage {} needs one", round.stage)),
            None => {}
        }
    }
    Ok(())
}

fn last_position(round: &Round, lane: &Lane) -> usize {
    round.rows[lane.first_row + lane.rows - 1].position as usize
}

fn check_grid(grid: Grid, grid_rows: usize, last: usize) -> Result<(), String> {
    let whole = |side: u32| side > 0 && side.is_multiple_of(grid.merge);
    let sides = grid.merge > 0 && whole(grid.rows) && whole(grid.cols);
    let places = u64::from(grid.rows) * u64::from(grid.cols);
    let block = u64::from(grid.merge) * u64::from(grid.merge);
    if !sides || places > MAX_GRID_ROWS as u64 || (grid_rows != 1 && grid_rows as u64 != block) {
        return Err(format!("{grid:?}: expected blocks, at most {MAX_GRID_ROWS} places, in rows of {grid_rows}"));
    }
    if last >= grid.len() / grid_rows {
        return Err(format!("position {last} lies outside {grid:?} in rows of {grid_rows}"));
    }
    Ok(())
}

fn check_pages(plan: &Plan, round: &Round, index: usize, lane: &Lane) -> Result<(), String> {
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
