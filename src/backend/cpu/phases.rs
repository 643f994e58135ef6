//! The plan compiled for this backend: ops in order, matmuls of the same input taken together.

use super::grid::MAX_GRID_TAPS;
use super::rope::MAX_PAIRS;
use crate::error::{Code, Error, Result};
use crate::plan::{AttentionId, BufferId, ConvId, MAX_TAPS, Op, Plan, RowSet, StoreId, WeightId};

/// Values of a row, at most; keeps sizes of scratch far from overflow.
const MAX_WIDTH: usize = 1 << 24;

/// A step and the plan's op it begins with.
#[derive(Clone, Debug)]
pub struct Phase {
    /// Index in [`Plan::ops`].
    pub op: usize,
    /// What to do.
    pub step: Step,
}

/// One matrix of a [`Step::Multiply`].
#[derive(Clone, Debug)]
pub struct Product {
    /// Index of its op.
    pub op: usize,
    /// Matrix.
    pub weight: WeightId,
    /// Vector added.
    pub bias: Option<WeightId>,
    /// Where it goes.
    pub out: BufferId,
}

/// What the backend runs; fields as in [`Op`], results in place of `out` or `x`.
#[derive(Clone, Debug)]
pub enum Step {
    /// Rows of the table.
    Embed { table: WeightId, out: BufferId },
    /// Rows given as values.
    Input { out: BufferId },
    /// RMS norm.
    RmsNorm { x: BufferId, weight: WeightId, out: BufferId },
    /// Norm around the mean.
    LayerNorm { x: BufferId, weight: WeightId, bias: WeightId, eps: f32 },
    /// Checks activations and rounds them to integers where one of the weights wants those.
    Prepare { x: BufferId, weights: Vec<WeightId> },
    /// Matrices times the prepared activations.
    Multiply { x: BufferId, products: Vec<Product> },
    /// RMS norm by head.
    HeadNorm { x: BufferId, weight: WeightId },
    /// Positions.
    Rope { x: BufferId, rope: usize },
    /// Positions in a grid.
    GridRope { x: BufferId, rope: usize },
    /// Keys and values to pages.
    StoreKv { k: BufferId, v: BufferId, layer: AttentionId },
    /// Attention, queries replaced by results.
    Attend { x: BufferId, layer: AttentionId },
    /// Gates by head.
    HeadGate { x: BufferId, gate: BufferId },
    /// Convolution.
    ShortConv { bcx: BufferId, taps: WeightId, bias: Option<WeightId>, layer: ConvId, out: BufferId },
    /// `B * x` and C to stores.
    StoreGated { bcx: BufferId, gated: StoreId, gates: StoreId },
    /// Convolution over a grid.
    GridConv { gated: StoreId, gates: StoreId, taps: WeightId, out: BufferId },
    /// Rows to a store.
    Save { x: BufferId, store: StoreId },
    /// Rows of a store.
    Load { store: StoreId, out: BufferId },
    /// `x = gelu(x)`.
    Gelu { x: BufferId },
    /// `out = silu(gate) * up`.
    SwiGlu { gate: BufferId, up: BufferId, out: BufferId },
    /// `to += x`.
    Add { x: BufferId, to: BufferId },
    /// All rows of `x`.
    Copy { x: BufferId, to: BufferId },
    /// Wanted rows of `x`.
    Gather { x: BufferId, out: BufferId },
}

impl Step {
    /// Whether it copies into places that rows share, too fast to be worth sharing out.
    pub fn is_serial(&self) -> bool {
        matches!(self, Step::StoreKv { .. } | Step::Save { .. } | Step::StoreGated { .. })
    }
}

/// Compiles `plan` after checking that its widths fit together.
pub fn compile(plan: &Plan) -> Result<Vec<Phase>> {
    let mut phases: Vec<Phase> = Vec::new();
    let sizes_fit = plan.buffers.iter().all(|b| (1..=MAX_WIDTH).contains(&b.width))
        && plan.weights.iter().all(|w| (1..=MAX_WIDTH).contains(&w.rows) && (1..=MAX_WIDTH).contains(&w.cols));
    if !sizes_fit {
        return Err(Error::new(Code::Unsupported, format!("a buffer or weight is empty or wider than {MAX_WIDTH}")));
    }
    if !stages_fit(plan) {
        let message = "a stage is not a part of the plan's ops, or gives its rows values twice";
        return Err(Error::new(Code::Unsupported, message));
    }
    for (op, what) in plan.ops.iter().enumerate() {
        if !fits(plan, what) || !rows_fit(plan, op) {
            return Err(Error::new(Code::Unsupported, format!("op {op}: widths do not fit together: {what:?}")));
        }
        let mut push = |step| phases.push(Phase { op, step });
        match *what {
            Op::Embed { table, out } => push(Step::Embed { table, out }),
            Op::Input { out } => push(Step::Input { out }),
            Op::RmsNorm { x, weight, out } => push(Step::RmsNorm { x, weight, out }),
            Op::LayerNorm { x, weight, bias, eps } => push(Step::LayerNorm { x, weight, bias, eps }),
            Op::Matmul { x, weight, bias, out } => product(plan, &mut phases, x, Product { op, weight, bias, out }),
            Op::HeadNorm { x, weight } => push(Step::HeadNorm { x, weight }),
            Op::Rope { x, rope } => push(Step::Rope { x, rope }),
            Op::GridRope { x, rope } => push(Step::GridRope { x, rope }),
            Op::StoreKv { k, v, layer } => push(Step::StoreKv { k, v, layer }),
            Op::Attend { q, layer, out } => {
                if q != out {
                    push(Step::Copy { x: q, to: out });
                }
                push(Step::Attend { x: out, layer });
            }
            Op::HeadGate { x, gate } => push(Step::HeadGate { x, gate }),
            Op::ShortConv { bcx, taps, bias, layer, out } => {
                push(Step::ShortConv { bcx, taps, bias, layer, out });
            }
            Op::StoreGated { bcx, gated, gates } => push(Step::StoreGated { bcx, gated, gates }),
            Op::GridConv { gated, gates, taps, out } => push(Step::GridConv { gated, gates, taps, out }),
            Op::Save { x, store } => push(Step::Save { x, store }),
            Op::Load { store, out } => push(Step::Load { store, out }),
            Op::Gelu { x } => push(Step::Gelu { x }),
            Op::SwiGlu { gate, up, out } => push(Step::SwiGlu { gate, up, out }),
            Op::Add { x, to } => push(Step::Add { x, to }),
            Op::Gather { x, out } => push(Step::Gather { x, out }),
        }
    }
    Ok(phases)
}

/// Adds a product to the phase before where that reads the same input, else opens one.
fn product(plan: &Plan, phases: &mut Vec<Phase>, input: BufferId, product: Product) {
    if let [.., prepare, multiply] = &mut phases[..]
        && let Step::Multiply { x, products } = &mut multiply.step
        && let Step::Prepare { weights, .. } = &mut prepare.step
        && *x == input
        && !plan.stages.iter().any(|stage| stage.ops.start == product.op)
        && products.iter().all(|p| p.out != product.out)
    {
        weights.push(product.weight);
        products.push(product);
        return;
    }
    let op = product.op;
    phases.push(Phase { op, step: Step::Prepare { x: input, weights: vec![product.weight] } });
    phases.push(Phase { op, step: Step::Multiply { x: input, products: vec![product] } });
}

/// Whether every stage is a part of the ops with one op at most that takes rows in.
fn stages_fit(plan: &Plan) -> bool {
    let takes = |op: &&Op| matches!(op, Op::Embed { .. } | Op::Input { .. });
    (0..plan.stages.len().max(1))
        .all(|stage| plan.ops.get(plan.stage_ops(stage)).is_some_and(|ops| ops.iter().filter(takes).count() <= 1))
}

/// Whether an op over a grid stands in a stage whose rows are what the op takes them for.
fn rows_fit(plan: &Plan, index: usize) -> bool {
    let grid_rows = plan.stages.iter().find(|stage| stage.ops.contains(&index)).map_or(1, |stage| stage.grid_rows);
    match plan.ops[index] {
        Op::Load { store, out } => plan.width(out) == plan.stores[store.0].width * grid_rows,
        Op::GridRope { .. } | Op::StoreGated { .. } | Op::GridConv { .. } | Op::Save { .. } => grid_rows == 1,
        Op::StoreKv { layer, .. } | Op::Attend { layer, .. } => {
            grid_rows == 1 || !plan.attentions[layer.0].bidirectional
        }
        _ => true,
    }
}

/// Whether an op's buffers, weights and shapes have the sizes the kernels rely on.
fn fits(plan: &Plan, op: &Op) -> bool {
    let width = |id: BufferId| plan.width(id);
    let set = |id: BufferId| plan.buffers[id.0].rows;
    let weight = |id: WeightId| (plan.weights[id.0].rows, plan.weights[id.0].cols);
    let kept = |id: StoreId| plan.stores[id.0].width;
    let vector = |id: Option<WeightId>, len: usize| id.is_none_or(|id| weight(id) == (len, 1));
    let alike = |a: BufferId, b: BufferId| width(a) == width(b) && set(a) == set(b);
    match *op {
        Op::Embed { table, out } => weight(table).1 == width(out) && set(out) == RowSet::All,
        Op::RmsNorm { x, weight, out } => alike(x, out) && vector(Some(weight), width(x)),
        Op::Matmul { x, weight: w, bias, out } => {
            weight(w) == (width(out), width(x)) && vector(bias, width(out)) && set(x) == set(out) && x != out
        }
        Op::HeadNorm { x, weight: w } => width(x).is_multiple_of(weight(w).0) && weight(w).1 == 1,
        Op::Rope { x, rope } => {
            let pairs = plan.ropes[rope].len();
            (1..=MAX_PAIRS).contains(&pairs) && width(x).is_multiple_of(2 * pairs)
        }
        Op::StoreKv { k, v, layer } => {
            let shape = plan.attentions[layer.0];
            alike(k, v) && set(k) == RowSet::All && width(k) == shape.kv_heads * shape.head_dim
        }
        Op::Attend { q, layer, out } => {
            let shape = plan.attentions[layer.0];
            let heads = shape.heads > 0 && shape.kv_heads > 0 && shape.heads.is_multiple_of(shape.kv_heads);
            let rows = alike(q, out) && set(q) == RowSet::All;
            heads
                && rows
                && width(q) == shape.heads * shape.head_dim
                && shape.window != Some(0)
                && !(shape.bidirectional && shape.window.is_some())
        }
        Op::HeadGate { x, gate } => width(x).is_multiple_of(width(gate)) && set(x) == set(gate) && x != gate,
        Op::ShortConv { bcx, taps, bias, layer, out } => {
            let shape = plan.convs[layer.0];
            let fit = weight(taps) == (shape.width, shape.taps) && vector(bias, shape.width);
            let rows = set(bcx) == RowSet::All && set(out) == RowSet::All && bcx != out;
            fit && rows
                && (1..=MAX_TAPS).contains(&shape.taps)
                && width(bcx) == 3 * shape.width
                && width(out) == shape.width
        }
        Op::SwiGlu { gate, up, out } => alike(gate, up) && alike(gate, out) && up != out,
        Op::Add { x, to } => alike(x, to) && x != to,
        Op::Input { out } => set(out) == RowSet::All,
        Op::LayerNorm { x, weight, bias, .. } => vector(Some(weight), width(x)) && vector(Some(bias), width(x)),
        Op::GridRope { x, rope } => {
            let pairs = 2 * plan.ropes[rope].len();
            (1..=MAX_PAIRS).contains(&pairs) && width(x).is_multiple_of(2 * pairs) && set(x) == RowSet::All
        }
        Op::StoreGated { bcx, gated, gates } => {
            set(bcx) == RowSet::All && gated != gates && [gated, gates].iter().all(|id| 3 * kept(*id) == width(bcx))
        }
        Op::GridConv { gated, gates, taps, out } => {
            let (channels, count) = weight(taps);
            let square = count.isqrt() * count.isqrt() == count && count % 2 == 1 && count <= MAX_GRID_TAPS;
            let alike = [kept(gated), kept(gates), channels].iter().all(|len| *len == width(out));
            square && alike && set(out) == RowSet::All
        }
        Op::Save { x, store } => kept(store) == width(x) && set(x) == RowSet::All,
        Op::Load { store, out } => kept(store) > 0 && set(out) == RowSet::All && width(out) >= kept(store),
        Op::Gelu { .. } => true,
        Op::Gather { x, out } => width(x) == width(out) && set(x) == RowSet::All && set(out) == RowSet::Wanted,
    }
}
