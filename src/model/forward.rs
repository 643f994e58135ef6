//! The LFM3 text model, written down once.

use super::config::{LayerKind, RopeConfig, TextConfig};
use crate::math::{exp64, ln64};
use crate::plan::{AttentionId, AttentionShape, BufferId, ConvId, ConvShape, Op, Plan, RowSet, WeightId, WeightRole};

/// Buffers of the text model; those a layer is done with serve the next.
struct Buffers {
    hidden: BufferId,
    normed: BufferId,
    out: BufferId,
    q: BufferId,
    k: BufferId,
    v: BufferId,
    gate: BufferId,
    bcx: BufferId,
    w1: BufferId,
    w3: BufferId,
}

/// Writes the plan of `config`: tokens in, logits of the wanted rows out.
pub fn text_plan(config: &TextConfig) -> Plan {
    let mut plan = Plan { norm_eps: config.norm_eps as f32, ..Plan::default() };
    plan.ropes = vec![
        inverse_frequencies(config.head_dim, config.rope_full),
        inverse_frequencies(config.head_dim, config.rope_sliding),
    ];
    let (q, kv) = (config.heads * config.head_dim, config.kv_heads * config.head_dim);
    let mut all = |name, width| plan.buffer(name, width, RowSet::All);
    let b = Buffers {
        hidden: all("hidden", config.hidden),
        normed: all("normed", config.hidden),
        out: all("out", config.hidden),
        q: all("q", q),
        k: all("k", kv),
        v: all("v", kv),
        gate: all("gate", config.heads),
        bcx: all("bcx", 3 * config.hidden),
        w1: all("w1", config.ffn),
        w3: all("w3", config.ffn),
    };
    let table = matrix(&mut plan, &["embed_tokens.weight"], config.vocab_size, config.hidden);
    plan.ops.push(Op::Embed { table, out: b.hidden });
    plan.taps.push((plan.ops.len(), b.hidden));
    for (index, kind) in config.layers.iter().enumerate() {
        layer(&mut plan, config, &b, index, *kind);
        plan.taps.push((plan.ops.len(), b.hidden));
    }
    head(&mut plan, config, &b, table);
    plan
}

/// `h += post_norm(op(norm(h)))`, then the same around the feed-forward.
fn layer(plan: &mut Plan, config: &TextConfig, b: &Buffers, index: usize, kind: LayerKind) {
    let name = |part: &str| format!("layers.{index}.{part}");
    norm(plan, &name("operator_norm.weight"), b.hidden, b.normed);
    match kind {
        LayerKind::Conv => short_conv(plan, config, b, index),
        LayerKind::FullAttention => attention(plan, config, b, index, None, 0),
        LayerKind::SlidingAttention => attention(plan, config, b, index, Some(config.window), 1),
    }
    if config.sandwich {
        norm(plan, &name("post_operator_norm.weight"), b.out, b.out);
    }
    plan.ops.push(Op::Add { x: b.out, to: b.hidden });

    norm(plan, &name("ffn_norm.weight"), b.hidden, b.normed);
    feed_forward(plan, &name("feed_forward"), b.normed, (b.w1, b.w3), b.out);
    if config.sandwich {
        norm(plan, &name("post_ffn_norm.weight"), b.out, b.out);
    }
    plan.ops.push(Op::Add { x: b.out, to: b.hidden });
}

/// `out = w2(silu(w1 x) * (w3 x))`.
pub(super) fn feed_forward(plan: &mut Plan, name: &str, x: BufferId, inner: (BufferId, BufferId), out: BufferId) {
    let (hidden, ffn, (gate, up)) = (plan.width(x), plan.width(inner.0), inner);
    let w1 = matrix(plan, &[&format!("{name}.w1.weight")], ffn, hidden);
    let w3 = matrix(plan, &[&format!("{name}.w3.weight")], ffn, hidden);
    let w2 = matrix(plan, &[&format!("{name}.w2.weight")], hidden, ffn);
    plan.ops.push(Op::Matmul { x, weight: w1, bias: None, out: gate });
    plan.ops.push(Op::Matmul { x, weight: w3, bias: None, out: up });
    plan.ops.push(Op::SwiGlu { gate, up, out: gate });
    plan.ops.push(Op::Matmul { x: gate, weight: w2, bias: None, out });
}

fn short_conv(plan: &mut Plan, config: &TextConfig, b: &Buffers, index: usize) {
    let name = |part: &str| format!("layers.{index}.conv.{part}");
    let width = config.hidden;
    plan.convs.push(ConvShape { width, taps: config.taps });
    let layer = ConvId(plan.convs.len() - 1);
    project(plan, &[&name("in_proj")], b.normed, b.bcx, 3 * width, config.conv_bias);
    let taps = plan.weight(vec![name("conv.weight")], width, config.taps, WeightRole::Taps);
    let bias = config.conv_bias.then(|| vector(plan, &[&name("conv.bias")], width));
    plan.ops.push(Op::ShortConv { bcx: b.bcx, taps, bias, layer, out: b.normed });
    project(plan, &[&name("out_proj")], b.normed, b.out, width, config.conv_bias);
}

fn attention(plan: &mut Plan, config: &TextConfig, b: &Buffers, index: usize, window: Option<usize>, rope: usize) {
    let name = |part: &str| format!("layers.{index}.self_attn.{part}");
    let shape = AttentionShape {
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        window,
        bidirectional: false,
    };
    plan.attentions.push(shape);
    let layer = AttentionId(plan.attentions.len() - 1);
    let bias = config.attention_bias;
    project(plan, &[&name("q_proj")], b.normed, b.q, config.heads * config.head_dim, bias);
    project(plan, &[&name("k_proj")], b.normed, b.k, config.kv_heads * config.head_dim, bias);
    project(plan, &[&name("v_proj")], b.normed, b.v, config.kv_heads * config.head_dim, bias);
    if config.gate {
        project(plan, &[&name("gate_proj"), &name("g_proj")], b.normed, b.gate, config.heads, false);
    }
    for (x, norm) in [(b.q, "q_norm.weight"), (b.k, "k_norm.weight")] {
        let weight = vector(plan, &[&name(norm)], config.head_dim);
        plan.ops.push(Op::HeadNorm { x, weight });
        plan.ops.push(Op::Rope { x, rope });
    }
    plan.ops.push(Op::StoreKv { k: b.k, v: b.v, layer });
    plan.ops.push(Op::Attend { q: b.q, layer, out: b.q });
    if config.gate {
        plan.ops.push(Op::HeadGate { x: b.q, gate: b.gate });
    }
    project(plan, &[&name("o_proj")], b.q, b.out, config.hidden, bias);
}

fn head(plan: &mut Plan, config: &TextConfig, b: &Buffers, table: WeightId) {
    let last = plan.buffer("last", config.hidden, RowSet::Wanted);
    let logits = plan.buffer("logits", config.vocab_size, RowSet::Wanted);
    plan.ops.push(Op::Gather { x: b.hidden, out: last });
    norm(plan, "embedding_norm.weight", last, last);
    plan.taps.pop();
    plan.taps.push((plan.ops.len(), last));
    let weight = if config.tied { table } else { matrix(plan, &["lm_head.weight"], config.vocab_size, config.hidden) };
    plan.ops.push(Op::Matmul { x: last, weight, bias: None, out: logits });
    plan.logits = Some(logits);
}

/// A projection `NAME.weight` with `NAME.bias` where the config has one.
pub(super) fn project(plan: &mut Plan, names: &[&str], x: BufferId, out: BufferId, rows: usize, bias: bool) {
    let cols = plan.width(x);
    let full: Vec<String> = names.iter().map(|n| format!("{n}.weight")).collect();
    let weight = plan.weight(full, rows, cols, WeightRole::Matrix);
    let bias = bias.then(|| vector(plan, &[&format!("{}.bias", names[0])], rows));
    plan.ops.push(Op::Matmul { x, weight, bias, out });
}

fn norm(plan: &mut Plan, name: &str, x: BufferId, out: BufferId) {
    let width = plan.width(x);
    let weight = vector(plan, &[name], width);
    plan.ops.push(Op::RmsNorm { x, weight, out });
}

fn matrix(plan: &mut Plan, names: &[&str], rows: usize, cols: usize) -> WeightId {
    plan.weight(names.iter().map(|n| n.to_string()).collect(), rows, cols, WeightRole::Matrix)
}

/// A norm's weight or a bias.
pub(super) fn vector(plan: &mut Plan, names: &[&str], len: usize) -> WeightId {
    plan.weight(names.iter().map(|n| n.to_string()).collect(), len, 1, WeightRole::Vector)
}

/// Proportional layout: `theta^(-2i / head_dim)` for the first `partial` part of the pairs, then zeros.
/// Computed in float32 steps as the reference does.
pub fn inverse_frequencies(head_dim: usize, rope: RopeConfig) -> Vec<f32> {
    let pairs = head_dim / 2;
    let rotating = (rope.partial * head_dim as f64 / 2.0) as usize;
    (0..pairs)
        .map(|i| {
            if i >= rotating {
                return 0.0;
            }
            let exponent = (2 * i) as f32 / head_dim as f32;
            // Not powf: the platform's differs in the last bit from system to system.
            1.0 / exp64(ln64(rope.theta) * f64::from(exponent)) as f32
        })
        .collect()
}
