//! The ops of a vision tower by themselves, as `kernels` has those of the text model: each backend against the float64
//! reference, within a bound derived from the op's arithmetic.

use crate::common::cases::*;
use crate::common::*;
use lfm3::backend::reference::ReferenceBackend;
use lfm3::backend::{Encoding, Float, Grid, Input};
use lfm3::model::config::RopeConfig;
use lfm3::model::forward::inverse_frequencies;
use lfm3::plan::{AttentionId, AttentionShape, BufferId, Op, Plan, RowSet, Stage, StoreId, WeightId, WeightRole};
use std::sync::Arc;

/// Grids off the tiles: one block, one row of blocks, one column, more rows than a round, more keys than a span.
const GRIDS: [Grid; 7] = [
    Grid { rows: 1, cols: 1, merge: 1 },
    Grid { rows: 2, cols: 2, merge: 2 },
    Grid { rows: 2, cols: 6, merge: 2 },
    Grid { rows: 6, cols: 2, merge: 2 },
    Grid { rows: 9, cols: 6, merge: 3 },
    Grid { rows: 14, cols: 10, merge: 2 },
    Grid { rows: 30, cols: 22, merge: 2 },
];

/// A stage of the ops pushed since the last stage's end.
fn end_stage(plan: &mut Plan, grid_rows: usize) {
    let start = plan.stages.last().map_or(0, |stage| stage.ops.end);
    plan.stages.push(Stage { ops: start..plan.ops.len(), grid_rows });
}

/// Each stage over all rows of pictures of these grids, one slot a picture, in rounds of growing sizes; where two fit
/// into a round, two pictures share it. `inputs` are filled between `-size` and `size`, exact in f16.
fn picture_steps(rng: &mut Rng, plan: &Plan, grids: &[Grid], inputs: &[(BufferId, f32)]) -> Vec<Step> {
    let mut steps = Vec::new();
    for (stage, of) in plan.stages.iter().enumerate() {
        let ends: Vec<usize> = grids.iter().map(|grid| grid.len() / of.grid_rows).collect();
        let mut at = vec![0; grids.len()];
        let mut size = ROWS.into_iter().cycle();
        while at != ends {
            let mut left = size.next().expect("a cycle has no end");
            let mut cuts = Vec::new();
            for slot in (0..grids.len()).filter(|&slot| at[slot] < ends[slot]).collect::<Vec<_>>() {
                let rows = left.min(ends[slot] - at[slot]);
                if rows > 0 {
                    cuts.push(GridCut { slot, grid: grids[slot], start: at[slot], rows });
                }
                (at[slot], left) = (at[slot] + rows, left - rows);
            }
            let round = grid_round(plan, stage, &cuts);
            let mut fill = |&(id, size): &(BufferId, f32)| {
                let values = rng.values(round.rows.len() * plan.width(id), size);
                (id, values.iter().map(|&v| half::f16::from_f32(v).to_f32()).collect())
            };
            let inputs = inputs.iter().map(&mut fill).collect();
            steps.push(Step { round, inputs, absolute: Vec::new() });
        }
    }
    steps
}

/// Sums in 16 lanes and a tree make the mean off by `width / 16 + 5` roundings of the mean size; that error goes on to
/// every value, and its square to the variance; then as in an RMS norm, and one rounding of the bias' sum.
fn layer_norm_bound(x: &[f32], [weight, bias]: &[Tensor; 2], eps: f64) -> Vec<f64> {
    let count = x.len() as f64;
    let mean = x.iter().map(|&v| f64::from(v)).sum::<f64>() / count;
    let size = x.iter().map(|&v| f64::from(v.abs())).sum::<f64>() / count;
    let variance = x.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / count;
    let deviation = (variance + eps).sqrt();
    let shift = (count / 16.0 + 5.0) * U * size;
    let relative = (shift / deviation).powi(2) / 2.0 + (count / 32.0 + 10.0) * U;
    let value = |(i, &v): (usize, &f32)| {
        let (weight, bias) = (weight.magnitudes[i], bias.magnitudes[i]);
        weight / deviation * (shift + (f64::from(v) - mean).abs() * relative) + bias * U
    };
    x.iter().enumerate().map(value).collect()
}

fn layer_norm_cases() -> Vec<Case> {
    const EPS: f32 = 1e-6;
    let mut rng = Rng(50);
    let mut cases = Vec::new();
    for (index, width) in WIDTHS.into_iter().chain([256, 1024]).enumerate() {
        let float = [Float::Bf16, Float::F16, Float::F32][index % 3];
        let mut vector = || Tensor::random(&mut rng, width, 1, Encoding::Dense(float), 2.0);
        let vectors = [vector(), vector()];
        let mut plan = Plan::default();
        let x = plan.buffer("x", width, RowSet::All);
        let ids = vectors.each_ref().map(|tensor| weight(&mut plan, tensor, WeightRole::Vector));
        plan.ops.push(Op::LayerNorm { x, weight: ids[0], bias: ids[1], eps: EPS });
        let mut all = Vec::new();
        // Around zero, far from it, all but constant, large.
        for (size, offset) in [(1.0, 0.0), (1.0, 30.0), (1e-4, 0.5), (1e6, -1e5)] {
            for mut step in steps(&mut rng, &plan, &[x], size) {
                let values = &mut step.inputs[0].1;
                values.iter_mut().for_each(|v| *v += offset);
                let rows = values.chunks(width);
                step.absolute = rows.flat_map(|x| layer_norm_bound(x, &vectors, f64::from(EPS))).collect();
                all.push(step);
            }
        }
        let name = format!("layer_norm of {width}");
        cases.push(Case { name, plan, weights: vectors.into(), steps: all, out: x, relative: U });
    }
    cases
}

#[test]
fn layer_norm_is_within_its_bound() {
    check("layer_norm", layer_norm_cases());
}

fn gelu_cases() -> Vec<Case> {
    let mut rng = Rng(51);
    let mut cases = Vec::new();
    for (width, size) in WIDTHS.into_iter().flat_map(|width| [1e-20, 0.5, 3.0, 12.0, 300.0].map(|size| (width, size))) {
        let mut plan = Plan::default();
        let x = plan.buffer("x", width, RowSet::All);
        plan.ops.push(Op::Gelu { x });
        let mut steps = steps(&mut rng, &plan, &[x], size);
        for step in &mut steps {
            // Computed in float64 and rounded once; `1 + erf` is off by what float64 leaves of 1.
            step.absolute = step.inputs[0].1.iter().map(|v| 1e-15 * f64::from(v.abs())).collect();
        }
        cases.push(Case { name: format!("gelu {width} to {size}"), plan, weights: vec![], steps, out: x, relative: U });
    }
    cases
}

#[test]
fn gelu_is_rounded_once() {
    check("gelu", gelu_cases());
}

/// The usual approximations, by `tanh` and by `sigmoid`, are far outside of what is allowed.
#[test]
fn gelu_bound_is_tighter_than_its_approximations() {
    let exact = |x: f64| f64::from(lfm3::math::gelu(x as f32));
    for x in [-2.0_f64, -0.7, 0.9, 2.1] {
        let tanh = 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh());
        let sigmoid = x / (1.0 + (-1.702 * x).exp());
        for other in [tanh, sigmoid] {
            assert!((other - exact(x)).abs() > 100.0 * (2.0 * U * exact(x).abs() + 1e-15 * x.abs()), "{x}: {other}");
        }
    }
}

/// Grids whose rows or columns have high numbers.
const LONG_GRIDS: [Grid; 3] = [
    Grid { rows: 2, cols: 1 << 19, merge: 2 },
    Grid { rows: 1 << 19, cols: 2, merge: 1 },
    Grid { rows: 1024, cols: 1024, merge: 4 },
];

fn grid_rope_cases() -> Vec<Case> {
    let mut rng = Rng(52);
    let mut cases = Vec::new();
    for (heads, dim, theta) in [(1, 4, 1e4), (3, 20, 1e4), (2, 64, 1e6), (5, 100, 1e6)] {
        let mut plan = Plan::default();
        let frequencies = inverse_frequencies(dim / 2, RopeConfig { theta, partial: 1.0 });
        plan.ropes = vec![vec![0.5; 1], frequencies];
        let x = plan.buffer("x", heads * dim, RowSet::All);
        plan.ops.push(Op::GridRope { x, rope: 1 });
        let mut steps = Vec::new();
        for (slot, grid) in GRIDS.into_iter().chain(LONG_GRIDS).enumerate() {
            for (rows, start) in ROWS.into_iter().filter(|rows| *rows <= grid.len()).flat_map(|rows| {
                let end = grid.len() - rows;
                [(rows, 0), (rows, end / 2), (rows, end)]
            }) {
                let round = grid_round(&plan, 0, &[GridCut { slot, grid, start, rows }]);
                let values = rng.values(rows * heads * dim, 2.0);
                let partner = |i: usize| if i % dim < dim / 2 { i + dim / 2 } else { i - dim / 2 };
                let size = |i: usize| f64::from(values[i].abs() + values[partner(i)].abs());
                let absolute = (0..values.len()).map(|i| ROPE_BOUND * size(i)).collect();
                steps.push(Step { round, inputs: vec![(x, values)], absolute });
            }
        }
        let name = format!("grid_rope {heads} x {dim}");
        cases.push(Case { name, plan, weights: vec![], steps, out: x, relative: 0.0 });
    }
    cases
}

#[test]
fn grid_rope_is_within_its_bound_at_every_place() {
    check("grid_rope", grid_rope_cases());
}

fn grid_attend_case(rng: &mut Rng, (heads, kv_heads, head_dim): (usize, usize, usize), grids: &[Grid]) -> Case {
    let mut plan = Plan::default();
    let shape = AttentionShape { heads, kv_heads, head_dim, window: None, bidirectional: true };
    plan.attentions = vec![shape];
    let mut buffer = |name, heads: usize| plan.buffer(name, heads * head_dim, RowSet::All);
    let (q, k, v) = (buffer("q", heads), buffer("k", kv_heads), buffer("v", kv_heads));
    let layer = AttentionId(0);
    plan.ops.push(Op::StoreKv { k, v, layer });
    end_stage(&mut plan, 1);
    plan.ops.push(Op::Attend { q, layer, out: q });
    end_stage(&mut plan, 1);
    let sizes = [q, k, v].into_iter().zip(ATTEND_SIZE);
    let mut steps = picture_steps(rng, &plan, grids, &sizes.collect::<Vec<_>>());
    let most = grids.iter().map(|grid| grid.len()).max().expect("a grid");
    for step in &mut steps {
        step.absolute = vec![attend_bound(head_dim, most); step.inputs[0].1.len()];
    }
    Case { name: format!("attend {shape:?} over {grids:?}"), plan, weights: vec![], steps, out: q, relative: 0.0 }
}

fn grid_attend_cases() -> Vec<Case> {
    let mut rng = Rng(53);
    let shapes = [(1, 1, 16), (2, 1, 64), (3, 3, 20), (6, 2, 48), (5, 1, 100), (4, 2, 128), (2, 2, 32)];
    let alone = GRIDS.into_iter().zip(shapes).map(|(grid, shape)| (shape, vec![grid]));
    // Heads off the chains and the registers too.
    let odd = [((2, 1, 7), vec![GRIDS[5]]), ((2, 2, 18), vec![GRIDS[4]]), ((1, 1, 71), vec![GRIDS[2]])];
    let together = [((4, 2, 32), GRIDS[1..6].to_vec()), ((2, 2, 16), vec![GRIDS[5], GRIDS[2]])];
    alone.chain(odd).chain(together).map(|(shape, grids)| grid_attend_case(&mut rng, shape, &grids)).collect()
}

#[test]
fn attention_over_a_grid_sees_all_of_its_rows() {
    check("attend over a grid", grid_attend_cases());
}

fn grid_conv_case(rng: &mut Rng, width: usize, side: usize, grids: &[Grid]) -> Case {
    let count = side * side;
    let float = rng.pick(&[Float::Bf16, Float::F16, Float::F32]);
    let taps = Tensor::random(rng, width, count, Encoding::Dense(float), 1.0);
    let mut plan = Plan::default();
    let (bcx, out) = (plan.buffer("bcx", 3 * width, RowSet::All), plan.buffer("out", width, RowSet::All));
    // Another store comes first, so that stores are told apart.
    plan.store("other", width + 1);
    let (gates, gated) = (plan.store("gates", width), plan.store("gated", width));
    let id = weight(&mut plan, &taps, WeightRole::GridTaps);
    plan.ops.push(Op::StoreGated { bcx, gated, gates });
    end_stage(&mut plan, 1);
    plan.ops.push(Op::GridConv { gated, gates, taps: id, out });
    end_stage(&mut plan, 1);
    let mut steps = picture_steps(rng, &plan, grids, &[(bcx, 1.0)]);
    for step in &mut steps {
        // B, C and x are at most 1, so a channel's terms are at most its taps: a product, an fma a tap, a product.
        let channel = |c: usize| taps.magnitudes[c * count..(c + 1) * count].iter().sum::<f64>();
        let bound = |i: usize| channel(i % width) * (count as f64 + 3.0) * U;
        step.absolute = (0..step.round.rows.len() * width).map(bound).collect();
    }
    let name = format!("grid_conv {side} x {side}, {width} channels, {grids:?}");
    Case { name, plan, weights: vec![taps], steps, out, relative: 0.0 }
}

fn grid_conv_cases() -> Vec<Case> {
    let mut rng = Rng(54);
    let mut cases = Vec::new();
    for (index, side) in [1, 3, 5, 7].into_iter().enumerate() {
        for grid in GRIDS {
            cases.push(grid_conv_case(&mut rng, WIDTHS[(index + cases.len()) % WIDTHS.len()], side, &[grid]));
        }
        cases.push(grid_conv_case(&mut rng, 16, side, &GRIDS[1..6]));
    }
    cases
}

#[test]
fn grid_conv_is_within_its_bound_in_every_grid() {
    check("store_gated and grid_conv", grid_conv_cases());
}

/// A case whose values are copied, so that nothing may be off.
fn copied(name: String, plan: Plan, steps: Vec<Step>, out: BufferId) -> Case {
    Case { name, plan, weights: vec![], steps, out, relative: -U }
}

fn store_cases() -> Vec<Case> {
    let mut rng = Rng(55);
    let mut cases = Vec::new();
    for (width, grid) in WIDTHS.into_iter().zip(GRIDS.into_iter().cycle()) {
        let block = (grid.merge * grid.merge) as usize;
        for side_by_side in [1, block] {
            let mut plan = Plan::default();
            let x = plan.buffer("x", width, RowSet::All);
            let out = plan.buffer("out", side_by_side * width, RowSet::All);
            let stores = [plan.store("other", width), plan.store("rows", width)];
            plan.ops.push(Op::Save { x, store: stores[1] });
            end_stage(&mut plan, 1);
            plan.ops.push(Op::Load { store: stores[1], out });
            end_stage(&mut plan, side_by_side);
            let steps = picture_steps(&mut rng, &plan, &[grid, GRIDS[1]], &[(x, 1.0)]);
            // The second picture's rows must be whole blocks of the first's.
            if GRIDS[1].len().is_multiple_of(side_by_side) {
                cases.push(copied(format!("save and load {width} x {side_by_side}"), plan, steps, out));
            }
        }
    }
    assert!(cases.len() > 10);
    cases
}

#[test]
fn saved_rows_are_loaded_side_by_side() {
    check("save, load", store_cases());
    // The reference against the values themselves.
    for case in store_cases() {
        let mut kept = std::collections::BTreeMap::new();
        let found = run(&mut ReferenceBackend::new(Arc::new(case.plan.clone())), &case);
        for (step, found) in case.steps.iter().zip(&found) {
            let (of, width) = (case.plan.stages[step.round.stage].grid_rows, case.plan.width(BufferId(0)));
            for (index, row) in step.round.rows.iter().enumerate() {
                let at = |position: usize| (step.round.lanes[row.lane as usize].slot.0, position);
                if step.round.stage == 0 {
                    let values = step.inputs[0].1[index * width..][..width].to_vec();
                    kept.insert(at(row.position as usize), values);
                } else {
                    let positions = row.position as usize * of..(row.position as usize + 1) * of;
                    let expected: Vec<f32> = positions.flat_map(|position| kept[&at(position)].clone()).collect();
                    assert_eq!(found[index * of * width..][..of * width], expected, "{}", case.name);
                }
            }
        }
    }
}

/// A round's rows as values in shuffled order, some of them tokens where `vocab` says that there are any.
fn given_steps(rng: &mut Rng, plan: &Plan, width: usize, vocab: Option<usize>) -> Vec<Step> {
    let mut step = |rows: usize| {
        let mut round = round(plan, &[Cut::blank(0, 0, rows)]);
        let is_token: Vec<bool> = (0..rows).map(|_| vocab.is_some() && rng.below(2) == 0).collect();
        let mut order: Vec<u32> = (0..is_token.iter().filter(|token| !**token).count() as u32).collect();
        round.vectors = rng.values(order.len() * width, 1.0);
        for (row, is_token) in round.rows.iter_mut().zip(is_token) {
            row.input = match vocab.filter(|_| is_token) {
                Some(vocab) => Input::Token(rng.below(vocab) as u32),
                None => Input::Vector(order.swap_remove(rng.below(order.len()))),
            };
        }
        Step { round, inputs: vec![], absolute: vec![] }
    };
    ROWS.map(&mut step).into()
}

fn input_cases() -> Vec<Case> {
    let mut rng = Rng(56);
    let case = |width: usize| {
        let mut plan = Plan::default();
        let out = plan.buffer("out", width, RowSet::All);
        plan.ops.push(Op::Input { out });
        let steps = given_steps(&mut rng, &plan, width, None);
        copied(format!("input {width}"), plan, steps, out)
    };
    WIDTHS.map(case).into()
}

fn mixed_cases() -> Vec<Case> {
    let mut rng = Rng(57);
    let mut cases = Vec::new();
    for float in [Float::Bf16, Float::F16, Float::F32] {
        let table = Tensor::random(&mut rng, VOCAB, 96, Encoding::Dense(float), 1.0);
        let mut plan = Plan::default();
        let out = plan.buffer("out", 96, RowSet::All);
        let id = weight(&mut plan, &table, WeightRole::Matrix);
        plan.ops.push(Op::Embed { table: id, out });
        let steps = given_steps(&mut rng, &plan, 96, Some(VOCAB));
        cases.push(Case { weights: vec![table], ..copied(format!("tokens and values, {float:?}"), plan, steps, out) });
    }
    cases
}

#[test]
fn rows_given_as_values_are_those_values() {
    check("input", input_cases());
    check("embed with values", mixed_cases());
    for case in input_cases().into_iter().chain(mixed_cases()) {
        let width = case.plan.width(case.out);
        let found = run(&mut ReferenceBackend::new(Arc::new(case.plan.clone())), &case);
        for (step, found) in case.steps.iter().zip(&found) {
            for (row, found) in step.round.rows.iter().zip(found.chunks(width)) {
                let expected: Vec<f32> = match row.input {
                    Input::Vector(index) => step.round.vectors[index as usize * width..][..width].to_vec(),
                    Input::Token(token) => {
                        let table = &case.weights[0].values[token as usize * width..][..width];
                        table.iter().map(|&v| v as f32).collect()
                    }
                    Input::Stored => Vec::new(),
                };
                assert_eq!(expected, found, "{}", case.name);
            }
        }
    }
}

#[test]
fn inputs_rounded_to_bf16_turn_every_op_of_the_tower_red() {
    let ops = [layer_norm_cases(), grid_rope_cases(), grid_attend_cases(), grid_conv_cases(), store_cases()];
    // One value is its own mean: nothing of it is left.
    let ops = ops.into_iter().flatten().filter(|case| case.name != "layer_norm of 1");
    for mut case in ops.chain(gelu_cases()) {
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

/// What a fault changes in a case; ids are those of the one conv case.
type Fault = (&'static str, fn(&mut Case));

/// The kernel's rows and columns change places.
fn transpose(taps: &mut Tensor) {
    let (side, bytes) = (taps.desc.cols.isqrt(), taps.data.len() / taps.desc.rows / taps.desc.cols);
    for kernel in taps.data.chunks_mut(side * side * bytes) {
        let old = kernel.to_vec();
        for (i, tap) in kernel.chunks_mut(bytes).enumerate() {
            tap.copy_from_slice(&old[(i % side * side + i / side) * bytes..][..bytes]);
        }
    }
}

/// Every lane's grid with sides or blocks changed.
fn regrid(case: &mut Case, change: fn(Grid) -> Grid) {
    for lane in case.steps.iter_mut().flat_map(|step| &mut step.round.lanes) {
        lane.grid = lane.grid.map(change);
    }
}

const CONV_FAULTS: [Fault; 5] = [
    ("the kernel transposed", |case| transpose(&mut case.weights[0])),
    ("rows taken to lie in raster order", |case| regrid(case, |grid| Grid { merge: 1, ..grid })),
    ("rows and columns swapped", |case| regrid(case, |g| Grid { rows: g.cols, cols: g.rows, ..g })),
    ("gates for the gated", |case| {
        case.plan.ops[1] = Op::GridConv { gated: StoreId(1), gates: StoreId(1), taps: WeightId(0), out: BufferId(1) }
    }),
    ("the kernel shifted by a tap", |case| {
        let bytes = case.weights[0].data.len() / case.weights[0].desc.rows / 9;
        case.weights[0].data.rotate_left(bytes);
    }),
];

#[test]
fn faults_of_the_convolution_turn_it_red() {
    for (name, plant) in CONV_FAULTS {
        let good = grid_conv_case(&mut Rng(58), 16, 3, &[GRIDS[5]]);
        let expected = run(&mut ReferenceBackend::new(Arc::new(good.plan.clone())), &good);
        let mut faulty = grid_conv_case(&mut Rng(58), 16, 3, &[GRIDS[5]]);
        plant(&mut faulty);
        for (backend, mut cpu) in cpu_backends(&Arc::new(faulty.plan.clone())) {
            let found = run(&mut *cpu, &faulty);
            assert!(worst(&good, &expected, &found) > 100.0, "{name} on {backend}");
        }
    }
}

#[test]
fn causal_attention_over_a_grid_is_red() {
    let case = || grid_attend_case(&mut Rng(59), (4, 2, 32), &[GRIDS[2]]);
    let (good, mut faulty) = (case(), case());
    faulty.plan.attentions[0].bidirectional = false;
    let expected = run(&mut ReferenceBackend::new(Arc::new(good.plan.clone())), &good);
    for (name, mut backend) in cpu_backends(&Arc::new(faulty.plan.clone())) {
        assert!(worst(&good, &expected, &run(&mut *backend, &faulty)) > 100.0, "{name}");
    }
}
