//! Rounds over the grids of pictures, and whole pictures driven through the stages of a tower.

use super::{Tensor, pages};
use lfm3::backend::{Backend, Grid, Input, Lane, Limit, Progress, Round, Row, Slot};
use lfm3::model::vision_config::{VisionConfig, VisionLayer};
use lfm3::plan::{Op, Plan, WeightId};
use std::collections::BTreeMap;

/// Some consecutive rows of one picture.
#[derive(Clone, Copy)]
pub struct GridCut {
    pub slot: usize,
    pub grid: Grid,
    pub start: usize,
    pub rows: usize,
}

/// A round of a stage that begins with what is stored, one lane a cut.
pub fn grid_round(plan: &Plan, stage: usize, cuts: &[GridCut]) -> Round {
    let mut round = Round { stage, ..Round::default() };
    for (index, cut) in cuts.iter().enumerate() {
        let first_row = round.rows.len();
        let row = |i| Row { input: Input::Stored, position: (cut.start + i) as u32, lane: index as u32, wanted: false };
        round.rows.extend((0..cut.rows).map(row));
        let lane = Lane {
            slot: Slot(cut.slot as u32),
            first_row,
            rows: cut.rows,
            pages: pages(plan, cut.slot, cut.grid.len()),
            grid: Some(cut.grid),
        };
        round.lanes.push(lane);
    }
    round
}

/// Gives each row of a round values of its own, from a picture's in its lane.
pub fn give(round: &mut Round, width: usize, pictures: &[&[f32]]) {
    for row in &mut round.rows {
        row.input = Input::Vector((round.vectors.len() / width) as u32);
        round.vectors.extend(&pictures[row.lane as usize][row.position as usize * width..][..width]);
    }
}

/// A small tower of layers `c` and `a`, whose picture's sides are multiples of `merge`.
pub fn small_tower(kinds: &str, merge: usize) -> VisionConfig {
    let kind = |c| if c == 'a' { VisionLayer::Attention } else { VisionLayer::Conv };
    VisionConfig {
        hidden: 64,
        ffn: 192,
        layers: kinds.chars().map(kind).collect(),
        heads: 4,
        kv_heads: 2,
        head_dim: 32,
        patch: 4,
        frames: 2,
        merge,
        norm_eps: 1e-5,
        theta: 1e4,
        projector_hidden: 128,
        projector_bias: true,
        text_hidden: 96,
    }
}

/// A picture as patches.
#[derive(Clone)]
pub struct Picture {
    pub grid: Grid,
    pub patches: Vec<f32>,
}

/// Pictures on their way through a tower, each under the slot of its index. Keeps what each stage leaves: hidden rows,
/// at the end projected ones.
pub struct GridRun<'a> {
    plan: &'a Plan,
    pub backend: &'a mut dyn Backend,
    pub pictures: Vec<Picture>,
    /// By picture, stage and position.
    pub seen: BTreeMap<(usize, usize, usize), Vec<f32>>,
}

impl<'a> GridRun<'a> {
    /// No round has run yet.
    pub fn new(plan: &'a Plan, backend: &'a mut dyn Backend, pictures: Vec<Picture>) -> GridRun<'a> {
        GridRun { plan, backend, pictures, seen: BTreeMap::new() }
    }

    /// Rows of a picture in a stage.
    pub fn rows(&self, picture: usize, stage: usize) -> usize {
        self.pictures[picture].grid.len() / self.plan.stages[stage].grid_rows
    }

    /// The round of `(picture, start, rows)` lanes.
    pub fn lanes(&self, stage: usize, lanes: &[(usize, usize, usize)]) -> Round {
        let cut = |&(slot, start, rows): &_| GridCut { slot, grid: self.pictures[slot].grid, start, rows };
        let mut round = grid_round(self.plan, stage, &lanes.iter().map(cut).collect::<Vec<_>>());
        if let (0, Op::Input { out }) = (stage, &self.plan.ops[0]) {
            let patches: Vec<&[f32]> = lanes.iter().map(|lane| &self.pictures[lane.0].patches[..]).collect();
            give(&mut round, self.plan.width(*out), &patches);
        }
        round
    }

    /// Runs and commits one round of `(picture, start, rows)` lanes. Lanes that faulted leave nothing.
    pub fn round(&mut self, stage: usize, lanes: &[(usize, usize, usize)], mut limit: impl FnMut() -> Limit) {
        self.backend.submit(self.lanes(stage, lanes)).expect("a good round");
        while self.backend.advance(limit()).expect("no error") == Progress::Working {}
        let last = stage + 1 == self.plan.stages.len();
        let out = if last { self.plan.output.expect("an output") } else { self.plan.taps[0].1 };
        let (values, mut rows) = (self.backend.read_buffer(out), 0..);
        for (index, &(picture, start, count)) in lanes.iter().enumerate() {
            for (position, row) in (start..start + count).zip(&mut rows) {
                if !self.backend.faulted(index) {
                    let width = self.plan.width(out);
                    self.seen.insert((picture, stage, position), values[row * width..][..width].to_vec());
                }
            }
        }
        self.backend.commit(&lanes.iter().map(|lane| lane.2).collect::<Vec<_>>());
    }

    /// Runs a picture through all stages in rounds of `window` rows, alone.
    pub fn whole(&mut self, picture: usize, window: usize, mut limit: impl FnMut() -> Limit) {
        for stage in 0..self.plan.stages.len() {
            let rows = self.rows(picture, stage);
            for start in (0..rows).step_by(window) {
                self.round(stage, &[(picture, start, window.min(rows - start))], &mut limit);
            }
        }
    }
}

/// A planted fault: the projector's norm takes the four patches of a block for one row.
pub fn norm_after_merge(plan: &mut Plan, weights: &mut [Tensor]) {
    let at = plan.ops.iter().position(|op| matches!(op, Op::LayerNorm { .. })).expect("the norm");
    let Op::LayerNorm { weight, bias, eps, .. } = plan.ops.remove(at) else { unreachable!("found as such") };
    let Op::Load { out, .. } = plan.ops[at + 1] else { panic!("the merge is two ops behind the norm") };
    plan.ops.insert(at + 2, Op::LayerNorm { x: out, weight, bias, eps });
    let last = plan.stages.len() - 1;
    plan.stages[last - 1].ops.end -= 1;
    plan.stages[last].ops.start -= 1;
    for WeightId(id) in [weight, bias] {
        plan.weights[id].rows *= 4;
        weights[id].desc.rows *= 4;
        weights[id].data = weights[id].data.repeat(4);
    }
}
