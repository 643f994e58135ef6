//! The vision tower and the projector behind it, written down once: patches in, rows for the text model out.
//!
//! Convolution and attention read all patches of a picture, rounds hold only some. So each layer is cut in two where
//! it begins to read other rows, and a stage is the second half of one layer and the first half of the next.

use super::config::RopeConfig;
use super::forward::{feed_forward, inverse_frequencies, project, vector};
use super::vision_config::{KERNEL, VisionConfig, VisionLayer};
use crate::plan::{AttentionId, AttentionShape, BufferId, Op, Plan, RowSet, Stage, StoreId, WeightId, WeightRole};

/// What the names of the tower's tensors begin with, behind the checkpoint's prefix.
pub const TOWER: &str = "vision_tower.";
/// What the names of the projector's tensors begin with, behind the checkpoint's prefix.
pub const PROJECTOR: &str = "multi_modal_projector.";
/// The names of the matrix that takes patches in.
pub const PATCHES: [&str; 2] = ["vision_tower.patchifier", "vision_tower.patch_embed"];
/// Epsilon of the projector's norm.
const PROJECTOR_EPS: f32 = 1e-6;
/// The only rope.
const AXIAL: usize = 0;

/// Buffers of the tower and the projector.
struct Buffers {
    patches: BufferId,
    hidden: BufferId,
    normed: BufferId,
    out: BufferId,
    q: BufferId,
    k: BufferId,
    v: BufferId,
    bcx: BufferId,
    w1: BufferId,
    w3: BufferId,
    merged: BufferId,
    projected: BufferId,
    rows: BufferId,
}

/// The plan being written.
struct Writer<'a> {
    plan: Plan,
    config: &'a VisionConfig,
    b: Buffers,
    /// The rows in flight between two stages.
    hidden: StoreId,
    /// The convolution's output gates; a row reads its own alone, so one store does for all layers.
    gates: StoreId,
    /// Gated input of conv layers by [`turn`].
    gated: Vec<StoreId>,
}

/// Writes the plan of `config`.
pub fn vision_plan(config: &VisionConfig) -> Plan {
    let mut writer = Writer::new(config);
    writer.embed();
    for (index, kind) in config.layers.iter().enumerate() {
        let operator_norm = writer.first_half(index, *kind);
        writer.end_stage(1);
        writer.second_half(index, *kind, operator_norm);
    }
    writer.leave();
    writer.end_stage(1);
    writer.project();
    writer.end_stage(config.block());
    writer.plan
}

/// Which of two places a layer keeps its rows in: not that of the layer before, where that is of the same kind, since
/// one stage reads the one's and writes the other's.
fn turn(layers: &[VisionLayer], index: usize) -> usize {
    layers[..index].iter().rev().take_while(|kind| **kind == layers[index]).count() % 2
}

impl Buffers {
    fn new(plan: &mut Plan, config: &VisionConfig) -> Buffers {
        let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
        let mut all = |name, width| plan.buffer(name, width, RowSet::All);
        Buffers {
            patches: all("patches", config.patch_values()),
            hidden: all("hidden", config.hidden),
            normed: all("normed", config.hidden),
            out: all("out", config.hidden),
            q: all("q", q),
            k: all("k", kv),
            v: all("v", kv),
            bcx: all("bcx", 3 * config.hidden),
            w1: all("w1", config.ffn),
            w3: all("w3", config.ffn),
            merged: all("merged", config.block() * config.hidden),
            projected: all("projected", config.projector_hidden),
            rows: all("rows", config.text_hidden),
        }
    }
}

impl<'a> Writer<'a> {
    fn new(config: &'a VisionConfig) -> Writer<'a> {
        let mut plan = Plan { norm_eps: config.norm_eps as f32, ..Plan::default() };
        // One axis has half of a head.
        plan.ropes = vec![inverse_frequencies(config.head_dim / 2, RopeConfig { theta: config.theta, partial: 1.0 })];
        let b = Buffers::new(&mut plan, config);
        let (hidden, gates) = (plan.store("hidden", config.hidden), plan.store("gates", config.hidden));
        Writer { plan, config, b, hidden, gates, gated: Vec::new() }
    }

    /// Ends the stage of the ops since the last stage's end.
    fn end_stage(&mut self, grid_rows: usize) {
        let start = self.plan.stages.last().map_or(0, |stage| stage.ops.end);
        self.plan.stages.push(Stage { ops: start..self.plan.ops.len(), grid_rows });
    }

    fn tap(&mut self) {
        self.plan.taps.push((self.plan.ops.len(), self.b.hidden));
    }

    fn norm(&mut self, weight: WeightId, out: BufferId) {
        self.plan.ops.push(Op::RmsNorm { x: self.b.hidden, weight, out });
    }

    fn add(&mut self) {
        self.plan.ops.push(Op::Add { x: self.b.out, to: self.b.hidden });
    }

    fn embed(&mut self) {
        self.plan.ops.push(Op::Input { out: self.b.patches });
        project(&mut self.plan, &PATCHES, self.b.patches, self.b.hidden, self.config.hidden, false);
        let weight = vector(&mut self.plan, &[&format!("{TOWER}embedding_norm.weight")], self.config.hidden);
        self.norm(weight, self.b.hidden);
        self.tap();
    }

    /// Stores the rows and what the layer's other rows will read of them. Returns the operator norm's weight.
    fn first_half(&mut self, index: usize, kind: VisionLayer) -> WeightId {
        self.plan.ops.push(Op::Save { x: self.b.hidden, store: self.hidden });
        let operator_norm = vector(&mut self.plan, &[&name(index, "operator_norm.weight")], self.config.hidden);
        self.norm(operator_norm, self.b.normed);
        match kind {
            VisionLayer::Conv => self.gate(index),
            VisionLayer::Attention => self.keys(index),
        }
        operator_norm
    }

    /// The operator over all rows, then the feed-forward.
    fn second_half(&mut self, index: usize, kind: VisionLayer, operator_norm: WeightId) {
        self.plan.ops.push(Op::Load { store: self.hidden, out: self.b.hidden });
        match kind {
            VisionLayer::Conv => self.convolve(index),
            VisionLayer::Attention => {
                self.norm(operator_norm, self.b.normed);
                self.attend(index);
            }
        }
        self.add();
        let weight = vector(&mut self.plan, &[&name(index, "ffn_norm.weight")], self.config.hidden);
        self.norm(weight, self.b.normed);
        let b = &self.b;
        feed_forward(&mut self.plan, &name(index, "feed_forward"), b.normed, (b.w1, b.w3), b.out);
        self.add();
        self.tap();
    }

    fn gated(&mut self, index: usize) -> StoreId {
        const NAMES: [&str; 2] = ["gated 0", "gated 1"];
        let turn = turn(&self.config.layers, index);
        if turn == self.gated.len() {
            self.gated.push(self.plan.store(NAMES[turn], self.config.hidden));
        }
        self.gated[turn]
    }

    fn gate(&mut self, index: usize) {
        let gated = self.gated(index);
        project(
            &mut self.plan,
            &[&name(index, "conv.in_proj")],
            self.b.normed,
            self.b.bcx,
            3 * self.config.hidden,
            false,
        );
        self.plan.ops.push(Op::StoreGated { bcx: self.b.bcx, gated, gates: self.gates });
    }

    fn convolve(&mut self, index: usize) {
        let (gated, width) = (self.gated(index), self.config.hidden);
        let names = vec![name(index, "conv.spatial_conv.weight")];
        let taps = self.plan.weight(names, width, KERNEL * KERNEL, WeightRole::GridTaps);
        self.plan.ops.push(Op::GridConv { gated, gates: self.gates, taps, out: self.b.normed });
        project(&mut self.plan, &[&name(index, "conv.out_proj")], self.b.normed, self.b.out, width, false);
    }

    fn attention(&mut self, index: usize) -> AttentionId {
        let turn = turn(&self.config.layers, index);
        if turn == self.plan.attentions.len() {
            self.plan.attentions.push(AttentionShape {
                heads: self.config.heads,
                kv_heads: self.config.kv_heads,
                head_dim: self.config.head_dim,
                window: None,
                bidirectional: true,
            });
        }
        AttentionId(turn)
    }

    fn keys(&mut self, index: usize) {
        let layer = self.attention(index);
        let (k, v, width) = (self.b.k, self.b.v, self.config.kv_heads * self.config.head_dim);
        project(&mut self.plan, &[&name(index, "self_attn.k_proj")], self.b.normed, k, width, false);
        project(&mut self.plan, &[&name(index, "self_attn.v_proj")], self.b.normed, v, width, false);
        self.turn_heads(index, k, ["k_layernorm", "k_norm"]);
        self.plan.ops.push(Op::StoreKv { k, v, layer });
    }

    fn attend(&mut self, index: usize) {
        let layer = self.attention(index);
        let (q, width) = (self.b.q, self.config.heads * self.config.head_dim);
        project(&mut self.plan, &[&name(index, "self_attn.q_proj")], self.b.normed, q, width, false);
        self.turn_heads(index, q, ["q_layernorm", "q_norm"]);
        self.plan.ops.push(Op::Attend { q, layer, out: q });
        project(&mut self.plan, &[&name(index, "self_attn.out_proj")], q, self.b.out, self.config.hidden, false);
    }

    /// The norm of each head, named one of `norms`, and its place.
    fn turn_heads(&mut self, index: usize, x: BufferId, norms: [&str; 2]) {
        let [released, other] = norms.map(|norm| name(index, &format!("self_attn.{norm}.weight")));
        let weight = vector(&mut self.plan, &[&released, &other], self.config.head_dim);
        self.plan.ops.push(Op::HeadNorm { x, weight });
        self.plan.ops.push(Op::GridRope { x, rope: AXIAL });
    }

    /// Out of the tower: the projector's norm, which stands before the merge.
    fn leave(&mut self) {
        let part = |part: &str| format!("{PROJECTOR}layer_norm.{part}");
        let weight = vector(&mut self.plan, &[&part("weight")], self.config.hidden);
        let bias = vector(&mut self.plan, &[&part("bias")], self.config.hidden);
        self.plan.ops.push(Op::LayerNorm { x: self.b.hidden, weight, bias, eps: PROJECTOR_EPS });
        self.plan.ops.push(Op::Save { x: self.b.hidden, store: self.hidden });
    }

    fn project(&mut self) {
        let (b, bias) = (&self.b, self.config.projector_bias);
        let part = |part: &str| format!("{PROJECTOR}{part}");
        self.plan.ops.push(Op::Load { store: self.hidden, out: b.merged });
        let width = self.config.projector_hidden;
        project(&mut self.plan, &[&part("linear_1")], b.merged, b.projected, width, bias);
        self.plan.ops.push(Op::Gelu { x: b.projected });
        project(&mut self.plan, &[&part("linear_2")], b.projected, b.rows, self.config.text_hidden, bias);
        self.plan.output = Some(b.rows);
    }
}

/// The name of a part of a layer.
fn name(index: usize, part: &str) -> String {
    format!("{TOWER}layers.{index}.{part}")
}
