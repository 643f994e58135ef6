//! What every backend asks of a round: that its stage is there, its rows are given as the stage reads them, and its
//! pictures' grids hold them.

use super::{Grid, Input, Lane, Round};
use crate::plan::{Op, Plan};

/// Most places of a grid.
pub const MAX_GRID_ROWS: usize = 1 << 20;

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

/// Says what is wrong with a round's stage, inputs or grids.
pub fn check_inputs(plan: &Plan, round: &Round) -> Result<(), String> {
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
    let rows = lane.first_row..(lane.first_row + lane.rows).min(round.rows.len());
    round.rows.get(rows).and_then(|rows| rows.last()).map_or(0, |row| row.position as usize)
}

fn check_grid(grid: Grid, grid_rows: usize, last: usize) -> Result<(), String> {
    let whole = |side: u32| side > 0 && side.is_multiple_of(grid.merge);
    let sides = grid.merge > 0 && whole(grid.rows) && whole(grid.cols);
    let places = u64::from(grid.rows) * u64::from(grid.cols);
    if !sides || places > MAX_GRID_ROWS as u64 || !grid.len().is_multiple_of(grid_rows) {
        return Err(format!("{grid:?}: expected blocks, at most {MAX_GRID_ROWS} places, in rows of {grid_rows}"));
    }
    if last >= grid.len() / grid_rows {
        return Err(format!("position {last} lies outside {grid:?} in rows of {grid_rows}"));
    }
    Ok(())
}
