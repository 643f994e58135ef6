//! The plan compiled for this backend: ops in order, matmuls of the same input taken together.

use super::rope::MAX_PAIRS;
use crate::error::{Code, Error, Result};
use crate::plan::{AttentionId, BufferId, ConvId, MAX_TAPS, Op, Plan, RowSet, WeightId};

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
    /// RMS norm.
    RmsNorm { x: BufferId, weight: WeightId, out: BufferId },
    /// Checks activations and rounds them to integers where one of the weights wants those.
    Prepare { x: BufferId, weights: Vec<WeightId> },
    /// Matrices times the prepared activations.
    Multiply { x: BufferId, products: Vec<Product> },
    /// RMS norm by head.
    HeadNorm { x: BufferId, weight: WeightId },
    /// Positions.
    Rope { x: BufferId, rope: usize },
    /// Keys and values to pages.
    StoreKv { k: BufferId, v: BufferId, layer: AttentionId },
    /// Attention, queries replaced by results.
    Attend { x: BufferId, layer: AttentionId },
    /// Gates by head.
    HeadGate { x: BufferId, gate: BufferId },
    /// Convolution.
    ShortConv { bcx: BufferId, taps: WeightId, bias: Option<WeightId>, layer: ConvId, out: BufferId },
    /// `out = silu(gate) * up`.
    SwiGlu { gate: BufferId, up: BufferId, out: BufferId },
    /// `to += x`.
    Add { x: BufferId, to: BufferId },
    /// All rows of `x`.
    Copy { x: BufferId, to: BufferId },
    /// Wanted rows of `x`.
    Gather { x: BufferId, out: BufferId },
}

/// Compiles `plan` after checking that its widths fit together.
pub fn compile(plan: &Plan) -> Result<Vec<Phase>> {
    let mut phases: Vec<Phase> = Vec::new();
    let sizes_fit = plan.buffers.iter().all(|b| (1..=MAX_WIDTH).contains(&b.width))
        && plan.weights.iter().all(|w| (1..=MAX_WIDTH).contains(&w.rows) && (1..=MAX_WIDTH).contains(&w.cols));
    if !sizes_fit {
        return Err(Error::new(Code::Unsupported, format!("a buffer or weight is empty or wider than {MAX_WIDTH}")));
    }
    for (op, what) in plan.ops.iter().enumerate() {
        if !fits(plan, what) {
            return Err(Error::new(Code::Unsupported, format!("op {op}: widths do not fit together: {what:?}")));
        }
        let mut push = |step| phases.push(Phase { op, step });
        match *what {
            Op::Embed { table, out } => push(Step::Embed { table, out }),
            Op::RmsNorm { x, weight, out } => push(Step::RmsNorm { x, weight, out }),
            Op::Matmul { x, weight, bias, out } => product(&mut phases, x, Product { op, weight, bias, out }),
            Op::HeadNorm { x, weight } => push(Step::HeadNorm { x, weight }),
            Op::Rope { x, rope } => push(Step::Rope { x, rope }),
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
            Op::SwiGlu { gate, up, out } => push(Step::SwiGlu { gate, up, out }),
            Op::Add { x, to } => push(Step::Add { x, to }),
            Op::Gather { x, out } => push(Step::Gather { x, out }),
            _ => return Err(Error::new(Code::Unsupported, format!("op {op}: {what:?}"))),
        }
    }
    Ok(phases)
}

/// Adds a product to the phase before where that reads the same input, else opens one.
fn product(phases: &mut Vec<Phase>, input: BufferId, product: Product) {
    if let [.., prepare, multiply] = &mut phases[..]
        && let Step::Multiply { x, products } = &mut multiply.step
        && let Step::Prepare { weights, .. } = &mut prepare.step
        && *x == input
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

/// Whether an op's buffers, weights and shapes have the sizes the kernels rely on.
fn fits(plan: &Plan, op: &Op) -> bool {
    let width = |id: BufferId| plan.width(id);
    let set = |id: BufferId| plan.buffers[id.0].rows;
    let weight = |id: WeightId| (plan.weights[id.0].rows, plan.weights[id.0].cols);
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
            heads && rows && width(q) == shape.heads * shape.head_dim && shape.window != Some(0)
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
        Op::Input { .. }
        | Op::LayerNorm { .. }
        | Op::GridRope { .. }
        | Op::StoreGated { .. }
        | Op::GridConv { .. }
        | Op::Save { .. }
        | Op::Load { .. }
        | Op::Gelu { .. } => true,
        Op::Gather { x, out } => width(x) == width(out) && set(x) == RowSet::All && set(out) == RowSet::Wanted,
    }
}
