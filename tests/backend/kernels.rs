//! Every op by itself: each backend against the float64 reference, within a bound derived from the op's arithmetic.
//!
//! `U` is half a unit in the last place of float32, the relative error of one rounding. A bound is
//! `relative * |reference| + absolute`, the worst case unless its comment says otherwise, so it never fails by chance.

use crate::common::cases::*;
use crate::common::*;
use lfm3::backend::cpu::{CpuBackend, CpuOptions, Isa};
use lfm3::backend::reference::ReferenceBackend;
use lfm3::backend::{Encoding, Float, TensorDesc};
use lfm3::model::config::RopeConfig;
use lfm3::model::forward::inverse_frequencies;
use lfm3::plan::{AttentionId, AttentionShape, BufferId, ConvId, ConvShape, Op, Plan, RowSet, WeightRole};
use std::sync::Arc;

/// Input widths of matrices.
const INPUTS: [usize; 5] = [32, 64, 96, 192, 256];

/// Sums of squares in 16 lanes and a tree (`width / 16 + 4` roundings, halved by the root), then mean, epsilon, root,
/// division and two products.
fn norm_bound(width: usize) -> f64 {
    ((width / 16) as f64 / 2.0 + 10.0) * U
}

fn rms_norm_cases() -> Vec<Case> {
    let mut rng = Rng(1);
    let mut cases = Vec::new();
    for width in WIDTHS.into_iter().chain([256, 2048]) {
        for (float, in_place) in [(Float::Bf16, false), (Float::F16, true), (Float::F32, false)] {
            let tensor = Tensor::random(&mut rng, width, 1, Encoding::Dense(float), 2.0);
            let mut plan = plan();
            let x = plan.buffer("x", width, RowSet::All);
            let out = if in_place { x } else { plan.buffer("out", width, RowSet::All) };
            let weight = weight(&mut plan, &tensor, WeightRole::Vector);
            plan.ops.push(Op::RmsNorm { x, weight, out });
            let steps = [1.0, 1e-4, 1e6].iter().flat_map(|&size| steps(&mut rng, &plan, &[x], size)).collect();
            let name = format!("rms_norm of {width}, weight {float:?}");
            cases.push(Case { name, plan, weights: vec![tensor], steps, out, relative: norm_bound(width) });
        }
    }
    cases
}

#[test]
fn rms_norm_is_within_its_bound() {
    check("rms_norm", rms_norm_cases());
}

fn head_norm_cases() -> Vec<Case> {
    let mut rng = Rng(2);
    let mut cases = Vec::new();
    for (heads, width) in [(1, 64), (3, 16), (4, 20), (5, 100), (16, 128)] {
        let tensor = Tensor::random(&mut rng, width, 1, Encoding::Dense(Float::Bf16), 2.0);
        let mut plan = plan();
        let x = plan.buffer("x", heads * width, RowSet::All);
        let weight = weight(&mut plan, &tensor, WeightRole::Vector);
        plan.ops.push(Op::HeadNorm { x, weight });
        let steps = steps(&mut rng, &plan, &[x], 3.0);
        let name = format!("head_norm of {heads} x {width}");
        cases.push(Case { name, plan, weights: vec![tensor], steps, out: x, relative: norm_bound(width) });
    }
    cases
}

#[test]
fn head_norm_is_within_its_bound() {
    check("head_norm", head_norm_cases());
}

/// Affine weights: activations are rounded per 64 values to steps of `max / 32639`, half a step at most each; then each
/// group's two terms are rounded (conversion, scale product, fma) and the chain twice a group.
/// Dense weights: float32 products in at least four chains.
fn matmul_bound(tensor: &Tensor, x: &[f32], bias: Option<&Tensor>) -> Vec<f64> {
    let (cols, dense) = (tensor.desc.cols, matches!(tensor.desc.encoding, Encoding::Dense(_)));
    let steps: Vec<f64> = x.chunks(64).map(|g| g.iter().fold(0.0, |m: f64, v| m.max(f64::from(v.abs())))).collect();
    let output = |n: usize| {
        let row = n * cols..(n + 1) * cols;
        let (values, sizes) = (&tensor.values[row.clone()], &tensor.magnitudes[row]);
        let bias = bias.map_or(0.0, |b| b.magnitudes[n]);
        let total: f64 = sizes.iter().zip(x).map(|(w, x)| w * f64::from(x.abs())).sum::<f64>() + bias;
        if dense {
            return total * U * ((cols / 4) as f64 + 4.0);
        }
        let rounding: f64 = values.iter().enumerate().map(|(k, w)| w.abs() * steps[k / 64] / (2.0 * 32639.0)).sum();
        // The integer itself comes from a float32 quotient: 0.502 steps at most.
        rounding * 1.004 + total * U * (2.0 * (cols / 32) as f64 + 6.0)
    };
    (0..tensor.desc.rows).map(output).collect()
}

fn matmul_case(rng: &mut Rng, n: usize, k: usize, encoding: Encoding, biased: bool) -> Case {
    let tensor = Tensor::random(rng, n, k, encoding, 1.0);
    let bias = biased.then(|| Tensor::random(rng, n, 1, Encoding::Dense(Float::Bf16), 1.0));
    let mut plan = plan();
    let (x, out) = (plan.buffer("x", k, RowSet::All), plan.buffer("out", n, RowSet::All));
    let id = weight(&mut plan, &tensor, WeightRole::Matrix);
    let bias_id = bias.as_ref().map(|b| weight(&mut plan, b, WeightRole::Vector));
    plan.ops.push(Op::Matmul { x, weight: id, bias: bias_id, out });
    let mut steps = steps(rng, &plan, &[x], 2.0);
    for step in &mut steps {
        let x = &mut step.inputs[0].1;
        x[..k / 2].fill(0.0); // groups of zeros have no scale
        step.absolute = x.chunks(k).flat_map(|x| matmul_bound(&tensor, x, bias.as_ref())).collect();
    }
    let weights = [Some(tensor), bias].into_iter().flatten().collect();
    Case { name: format!("matmul {n} x {k}, {encoding:?}"), plan, weights, steps, out, relative: 0.0 }
}

#[test]
fn matmul_is_within_its_bound_in_every_encoding() {
    let mut rng = Rng(3);
    for encoding in encodings() {
        let group = if let Encoding::Affine { group, .. } = encoding { group } else { 1 };
        let shapes = INPUTS.iter().filter(|k| *k % group == 0).flat_map(|&k| WIDTHS.map(|n| (n, k)));
        let cases: Vec<Case> = shapes.map(|(n, k)| matmul_case(&mut rng, n, k, encoding, (n + k) % 3 == 0)).collect();
        check(&format!("matmul {encoding:?}"), cases);
    }
}

/// What rounding each 64 columns of a matrix to 8 bits adds: half a step of their range for each weight, and the
/// rounding errors of `q * scale + bias` in place of the weight's.
fn rounded_bound(tensor: &Tensor, x: &[f32]) -> Vec<f64> {
    let row = |row: &[f64]| {
        let group = |(w, x): (&[f64], &[f32])| {
            // Columns that fill up a group may be zeros.
            let (low, high) = w.iter().fold((0.0, 0.0), |(low, high): (f64, f64), w| (low.min(*w), high.max(*w)));
            let inputs: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
            let chain = (2.0 * (tensor.desc.cols / 64) as f64 + 8.0) * U * (high - 2.0 * low);
            inputs * ((high - low) / 510.0 * 1.001 + chain)
        };
        row.chunks(64).zip(x.chunks(64)).map(group).sum::<f64>()
    };
    let products = tensor.values.chunks(tensor.desc.cols).map(row);
    let activations = Tensor { desc: TensorDesc { encoding: affine(), ..tensor.desc.clone() }, ..tensor.clone() };
    products.zip(matmul_bound(&activations, x, None)).map(|(a, b)| a + b).collect()
}

/// Any affine encoding.
fn affine() -> Encoding {
    Encoding::Affine { bits: 8, group: 64, scales: Float::F32 }
}

#[test]
fn matrices_rounded_to_8_bits_are_off_by_half_a_step_at_most() {
    let mut rng = Rng(13);
    let mut most: f64 = 0.0;
    for (n, k) in INPUTS.iter().flat_map(|&k| WIDTHS.map(|n| (n, k))) {
        let float = rng.pick(&[Float::Bf16, Float::F16, Float::F32]);
        let mut case = matmul_case(&mut rng, n, k, Encoding::Dense(float), false);
        for step in &mut case.steps {
            step.absolute = step.inputs[0].1.chunks(k).flat_map(|x| rounded_bound(&case.weights[0], x)).collect();
        }
        let plan = Arc::new(case.plan.clone());
        let expected = run(&mut ReferenceBackend::new(Arc::clone(&plan)), &case);
        let mut found = Vec::new();
        for isa in [Isa::Portable, Isa::Avx2].into_iter().filter(|isa| isa.available()) {
            let options = CpuOptions { threads: 1, isa: Some(isa), round_to_8_bits: true };
            let mut backend = CpuBackend::new(Arc::clone(&plan), &options).expect("a backend");
            found.push(run(&mut backend, &case));
            most = most.max(worst(&case, &expected, &found[0]));
        }
        assert!(found.iter().all(|other| *other == found[0]), "{}: instruction sets differ", case.name);
        assert!(most <= 1.0, "{}: {most:.2} times its bound", case.name);
    }
    println!("matmul rounded to 8 bits: at most {most:.3} of the bound");
    assert!(most > 1e-3, "nothing was rounded");
}

fn embed_cases() -> Vec<Case> {
    let mut rng = Rng(4);
    let mut cases = Vec::new();
    for encoding in encodings() {
        for k in [64, 192] {
            let table = Tensor::random(&mut rng, VOCAB, k, encoding, 1.0);
            let mut plan = plan();
            let out = plan.buffer("out", k, RowSet::All);
            let id = weight(&mut plan, &table, WeightRole::Matrix);
            plan.ops.push(Op::Embed { table: id, out });
            let step = |rows: usize| {
                let tokens = tokens(&mut rng, rows);
                let sizes = tokens.iter().flat_map(|&t| &table.magnitudes[t as usize * k..(t as usize + 1) * k]);
                // A product and a sum, or one fma; dense values are exact.
                let absolute = match encoding {
                    Encoding::Dense(_) => Vec::new(),
                    Encoding::Affine { .. } => sizes.map(|m| 2.0 * U * m).collect(),
                };
                let rows = tokens.iter().map(|&t| (t, false)).collect();
                Step { round: round(&plan, &[Cut { stream: 0, start: 0, rows }]), inputs: vec![], absolute }
            };
            let steps = ROWS.map(step).into();
            let name = format!("embed {encoding:?}");
            cases.push(Case { name, plan, weights: vec![table], steps, out, relative: 0.0 });
        }
    }
    cases
}

#[test]
fn embedding_rows_are_the_tables_rows() {
    check("embed", embed_cases());
}

#[test]
fn the_reference_unpacks_what_was_packed() {
    let mut rng = Rng(5);
    for encoding in encodings() {
        let table = Tensor::random(&mut rng, 5, 192, encoding, 1.0);
        let mut plan = plan();
        let out = plan.buffer("out", 192, RowSet::All);
        let id = weight(&mut plan, &table, WeightRole::Matrix);
        plan.ops.push(Op::Embed { table: id, out });
        let rows = (0..5).map(|t| (t, false)).collect();
        let step = Step { round: round(&plan, &[Cut { stream: 0, start: 0, rows }]), inputs: vec![], absolute: vec![] };
        let values: Vec<f32> = table.values.iter().map(|&v| v as f32).collect();
        let name = format!("{encoding:?}");
        let case = Case { name, plan, weights: vec![table], steps: vec![step], out, relative: 0.0 };
        let found = run(&mut ReferenceBackend::new(Arc::new(case.plan.clone())), &case);
        assert_eq!(found, [values], "{encoding:?}");
    }
}

/// Positions the rope cases start at; the largest context ends at 262,143.
const ROPE_STARTS: [usize; 6] = [0, 1, 63, 1_000, 200_000, 262_144 - 64];

fn rope_case(rng: &mut Rng, heads: usize, dim: usize, config: RopeConfig) -> Case {
    let mut plan = plan();
    plan.ropes = vec![vec![0.5; 1], inverse_frequencies(dim, config)];
    let x = plan.buffer("x", heads * dim, RowSet::All);
    plan.ops.push(Op::Rope { x, rope: 1 });
    let mut step = |start: usize, rows: usize| {
        let values = rng.values(rows * heads * dim, 2.0);
        let partner = |i: usize| if i % dim < dim / 2 { i + dim / 2 } else { i - dim / 2 };
        let size = |i: usize| f64::from(values[i].abs() + values[partner(i)].abs());
        let absolute = (0..values.len()).map(|i| ROPE_BOUND * size(i)).collect();
        Step { round: round(&plan, &[Cut::blank(0, start, rows)]), inputs: vec![(x, values)], absolute }
    };
    let steps = ROPE_STARTS.iter().flat_map(|&start| ROWS.map(|rows| (start, rows))).map(|(s, r)| step(s, r)).collect();
    Case { name: format!("rope {heads} x {dim} {config:?}"), plan, weights: vec![], steps, out: x, relative: 0.0 }
}

fn rope_cases() -> Vec<Case> {
    let mut rng = Rng(6);
    let configs = [RopeConfig { theta: 1e6, partial: 0.5 }, RopeConfig { theta: 1e4, partial: 1.0 }];
    let shapes = [(1, 64), (3, 16), (4, 20), (2, 100), (5, 128)];
    let all = configs.iter().flat_map(|&config| shapes.map(|(heads, dim)| (heads, dim, config)));
    all.map(|(heads, dim, config)| rope_case(&mut rng, heads, dim, config)).collect()
}

#[test]
fn rope_is_within_its_bound_at_every_position() {
    check("rope", rope_cases());
}

#[test]
fn rope_bound_is_tighter_than_a_careless_sine_at_position_200000() {
    let mut seen = 0;
    for frequency in inverse_frequencies(64, RopeConfig { theta: 1e4, partial: 1.0 }) {
        let angle = 200_000f32 * frequency;
        let reduced = angle - (angle / std::f32::consts::TAU).floor() * std::f32::consts::TAU;
        let error = (f64::from(angle).sin() - f64::from(reduced.sin())).abs();
        // Angles of a few turns are reduced well even so.
        if angle > 1e4 {
            assert!(error > 100.0 * ROPE_BOUND, "angle {angle}: careless error {error:e}");
            seen += 1;
        }
    }
    assert!(seen > 5);
}

fn gate_cases() -> Vec<Case> {
    let mut rng = Rng(7);
    let mut cases = Vec::new();
    for (heads, dim, size) in [(1, 16, 1.0), (3, 20, 10.0), (4, 64, 80.0), (17, 4, 300.0)] {
        let mut plan = plan();
        let x = plan.buffer("x", heads * dim, RowSet::All);
        let gate = plan.buffer("gate", heads, RowSet::All);
        plan.ops.push(Op::HeadGate { x, gate });
        let steps = steps(&mut rng, &plan, &[x, gate], size);
        // exp within three roundings, a sum, a division, a product.
        cases.push(Case {
            name: format!("head_gate {heads}"),
            plan,
            weights: vec![],
            steps,
            out: x,
            relative: 8.0 * U,
        });
    }
    for (width, size) in WIDTHS.into_iter().flat_map(|width| [(width, 1.0), (width, 12.0), (width, 300.0)]) {
        let mut plan = plan();
        let (a, b) = (plan.buffer("a", width, RowSet::All), plan.buffer("b", width, RowSet::All));
        let (silu, sum) = (Op::SwiGlu { gate: a, up: b, out: a }, Op::Add { x: a, to: b });
        for (op, out, relative) in [(silu, a, 9.0 * U), (sum, b, 0.0)] {
            let plan = Plan { ops: vec![op], ..plan.clone() };
            let steps = steps(&mut rng, &plan, &[a, b], size);
            cases.push(Case { name: format!("{plan} {width}"), plan, weights: vec![], steps, out, relative });
        }
    }
    cases
}

#[test]
fn gates_and_sums_are_within_their_bounds() {
    check("head_gate, swiglu, add", gate_cases());
}

fn gather_cases() -> Vec<Case> {
    let mut rng = Rng(8);
    let mut cases = Vec::new();
    for width in WIDTHS {
        let mut plan = plan();
        let (x, out) = (plan.buffer("x", width, RowSet::All), plan.buffer("out", width, RowSet::Wanted));
        plan.ops.push(Op::Gather { x, out });
        let mut steps = steps(&mut rng, &plan, &[x], 1.0);
        for step in &mut steps {
            let every = step.round.rows.len().div_ceil(16);
            step.round.rows.iter_mut().enumerate().for_each(|(i, row)| row.wanted = i % every == every - 1);
        }
        cases.push(Case { name: format!("gather {width}"), plan, weights: vec![], steps, out, relative: -U });
    }
    cases
}

#[test]
fn gather_copies_the_wanted_rows() {
    check("gather", gather_cases());
}

fn short_conv_cases() -> Vec<Case> {
    let mut rng = Rng(9);
    let mut cases = Vec::new();
    for (index, (width, count)) in WIDTHS.into_iter().flat_map(|width| [(width, 3), (width, 7)]).enumerate() {
        let float = [Float::Bf16, Float::F16, Float::F32][index % 3];
        let taps = Tensor::random(&mut rng, width, count, Encoding::Dense(float), 1.0);
        let bias = (index % 2 == 0).then(|| Tensor::random(&mut rng, width, 1, Encoding::Dense(Float::F32), 1.0));
        let mut plan = plan();
        plan.convs = vec![ConvShape { width, taps: count }];
        let (bcx, out) = (plan.buffer("bcx", 3 * width, RowSet::All), plan.buffer("out", width, RowSet::All));
        let taps_id = weight(&mut plan, &taps, WeightRole::Taps);
        let bias_id = bias.as_ref().map(|b| weight(&mut plan, b, WeightRole::Vector));
        plan.ops.push(Op::ShortConv { bcx, taps: taps_id, bias: bias_id, layer: ConvId(0), out });
        let bias_size = f64::from(u8::from(bias.is_some()));
        let steps = stream_steps(&mut rng, &plan, &[(bcx, 1.0)], |inputs, absolute| {
            // B * x is at most 1, so a channel's terms are at most its taps: a product, then an fma a tap.
            for row in inputs[0].1.chunks(3 * width) {
                for (c, gate) in row[width..2 * width].iter().enumerate() {
                    let terms: f64 = taps.magnitudes[c * count..(c + 1) * count].iter().sum::<f64>() + bias_size;
                    absolute.push(f64::from(gate.abs()) * terms * (count as f64 + 3.0) * U);
                }
            }
        });
        let weights = [Some(taps.clone()), bias].into_iter().flatten().collect();
        cases.push(Case { name: format!("conv {width} x {count}"), plan, weights, steps, out, relative: 0.0 });
    }
    cases
}

#[test]
fn short_conv_is_within_its_bound_across_rounds_and_streams() {
    check("short_conv", short_conv_cases());
}

/// Rounds in which streams go on: one of each row count alone, then stream 0 with stream 1, and with a fresh stream.
fn stream_steps(
    rng: &mut Rng,
    plan: &Plan,
    inputs: &[(BufferId, f32)],
    bound: impl Fn(&[(BufferId, Vec<f32>)], &mut Vec<f64>),
) -> Vec<Step> {
    let mut at = [0; 12];
    let mut steps = Vec::new();
    for (index, rows) in ROWS.into_iter().enumerate() {
        for other in [None, Some(1), Some(2 + index)] {
            let mut cuts = vec![(0, rows.min(60))];
            cuts.extend(other.map(|stream| (stream, 1 + rng.below(64 - cuts[0].1))));
            let mut cut = |(stream, rows): (usize, usize)| {
                at[stream] += rows;
                Cut::blank(stream, at[stream] - rows, rows)
            };
            let round = round(plan, &cuts.into_iter().map(&mut cut).collect::<Vec<_>>());
            let mut fill = |&(id, size): &(BufferId, f32)| {
                let values = rng.values(round.rows.len() * plan.width(id), size);
                // Exact in f16, so that storing keys and values adds no error of its own.
                (id, values.iter().map(|&v| half::f16::from_f32(v).to_f32()).collect())
            };
            let inputs: Vec<(BufferId, Vec<f32>)> = inputs.iter().map(&mut fill).collect();
            let mut absolute = Vec::new();
            bound(&inputs, &mut absolute);
            steps.push(Step { round, inputs, absolute });
        }
    }
    steps
}

fn attend_case(rng: &mut Rng, shape: AttentionShape) -> Case {
    let mut plan = plan();
    plan.attentions = vec![shape];
    let (wide, narrow) = (shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
    let q = plan.buffer("q", wide, RowSet::All);
    let k = plan.buffer("k", narrow, RowSet::All);
    let v = plan.buffer("v", narrow, RowSet::All);
    let layer = AttentionId(0);
    plan.ops = vec![Op::StoreKv { k, v, layer }, Op::Attend { q, layer, out: q }];
    let inputs = [(q, ATTEND_SIZE[0]), (k, ATTEND_SIZE[1]), (v, ATTEND_SIZE[2])];
    let bound = attend_bound(shape.head_dim, shape.window.unwrap_or(512));
    let steps = stream_steps(rng, &plan, &inputs, |inputs, absolute| absolute.resize(inputs[0].1.len(), bound));
    Case { name: format!("attend {shape:?}"), plan, weights: vec![], steps, out: q, relative: 0.0 }
}

fn attend_cases() -> Vec<Case> {
    let mut rng = Rng(10);
    let mut cases = Vec::new();
    let shapes = [(1, 1, 16), (2, 1, 64), (3, 3, 20), (6, 2, 48), (5, 1, 100), (4, 2, 128)];
    for (index, window) in [None, Some(1), Some(7), Some(31), Some(32), Some(33), Some(64)].into_iter().enumerate() {
        for (heads, kv_heads, head_dim) in [shapes[index % 6], shapes[(index + 3) % 6]] {
            cases.push(attend_case(
                &mut rng,
                AttentionShape { heads, kv_heads, head_dim, window, bidirectional: false },
            ));
        }
    }
    cases
}

#[test]
fn attention_is_within_its_bound_in_every_window() {
    check("attend", attend_cases());
}

#[test]
fn stored_values_are_f16_rounded_to_even_and_saturated() {
    let mut rng = Rng(11);
    let shape = AttentionShape { heads: 2, kv_heads: 2, head_dim: 16, window: Some(1), bidirectional: false };
    let mut case = attend_case(&mut rng, shape);
    let special = [65504.0, 65519.9, 65520.0, 1e9, -1e9, 1.0 + 1.0 / 2048.0, 1.0 + 3.0 / 2048.0, 6e-8, 2.9e-8, -3e-5];
    for step in &mut case.steps {
        let v = &mut step.inputs[2].1;
        v.iter_mut().for_each(|v| *v = if rng.below(3) == 0 { rng.pick(&special) } else { 2.0 * rng.unit() });
    }
    let stored = |v: f32| half::f16::from_f32(v.clamp(-65504.0, 65504.0)).to_f32();
    for (name, mut backend) in cpu_backends(&Arc::new(case.plan.clone())) {
        for (step, found) in case.steps.iter().zip(run(&mut *backend, &case)) {
            let expected: Vec<f32> = step.inputs[2].1.iter().map(|&v| stored(v)).collect();
            assert_eq!(expected, found, "{name}");
        }
    }
}

#[test]
fn inputs_rounded_to_bf16_turn_every_op_red() {
    let matmuls = encodings().into_iter().map(|encoding| matmul_case(&mut Rng(12), 17, 192, encoding, true));
    let ops = [rms_norm_cases(), head_norm_cases(), rope_cases(), gate_cases(), gather_cases()];
    let more = [short_conv_cases(), attend_cases()];
    for mut case in ops.into_iter().chain(more).flatten().chain(matmuls) {
        let plan = Arc::new(case.plan.clone());
        let expected = run(&mut ReferenceBackend::new(Arc::clone(&plan)), &case);
        for (_, values) in case.steps.iter_mut().flat_map(|step| &mut step.inputs) {
            values.iter_mut().for_each(|v| *v = half::bf16::from_f32(*v).to_f32());
        }
        let found = run(&mut ReferenceBackend::new(plan), &case);
        let error = worst(&case, &expected, &found);
        assert!(error > 2.0, "{}: {error:.2} times its bound", case.name);
    }
}
