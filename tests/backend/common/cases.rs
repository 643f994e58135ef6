//! One op's cases: what goes in, how each backend is run, and how far what comes out may be off.
//!
//! A bound is `relative * |reference| + absolute`, the worst case unless its comment says otherwise.

use super::{Cut, Rng, Tensor, U, cpu_backends, load, round};
use lfm3::backend::reference::ReferenceBackend;
use lfm3::backend::{Backend, Limit, Progress, Round};
use lfm3::plan::{BufferId, Plan, WeightId, WeightRole};
use std::sync::Arc;

/// Row counts off the tiles.
pub const ROWS: [usize; 9] = [1, 2, 3, 5, 7, 16, 17, 33, 64];
/// Widths and output counts off the tiles.
pub const WIDTHS: [usize; 7] = [1, 4, 15, 16, 17, 48, 100];
/// Results this small may be flushed to zero.
pub const TINY: f64 = 1e-30;

/// One op (or a store and an attend, perhaps in stages) with its weights, over rounds that follow one another.
pub struct Case {
    pub name: String,
    pub plan: Plan,
    pub weights: Vec<Tensor>,
    pub steps: Vec<Step>,
    pub out: BufferId,
    /// Part of the bound that goes with the reference's value.
    pub relative: f64,
}

/// One round, committed whole.
pub struct Step {
    pub round: Round,
    pub inputs: Vec<(BufferId, Vec<f32>)>,
    /// For each output value, or empty for nothing.
    pub absolute: Vec<f64>,
}

/// A plan under construction, all of whose buffers have every row.
pub fn plan() -> Plan {
    Plan { norm_eps: 1e-5, ..Plan::default() }
}

pub fn weight(plan: &mut Plan, tensor: &Tensor, role: WeightRole) -> WeightId {
    plan.weight(vec!["w".into()], tensor.desc.rows, tensor.desc.cols, role)
}

/// One step for each of `ROWS`, with `inputs` filled at random between `-size` and `size`.
pub fn steps(rng: &mut Rng, plan: &Plan, inputs: &[BufferId], size: f32) -> Vec<Step> {
    let mut step = |rows: usize| Step {
        round: round(plan, &[Cut::blank(0, 0, rows)]),
        inputs: inputs.iter().map(|&id| (id, rng.values(rows * plan.width(id), size))).collect(),
        absolute: Vec::new(),
    };
    ROWS.iter().map(|&rows| step(rows)).collect()
}

/// The outputs of every step of the last stage; nothing of the others, which store for it.
pub fn run(backend: &mut dyn Backend, case: &Case) -> Vec<Vec<f32>> {
    load(backend, &case.weights);
    let mut outputs = Vec::new();
    for step in &case.steps {
        backend.submit(step.round.clone()).expect("a good round");
        for (id, values) in &step.inputs {
            backend.write_buffer(*id, values);
        }
        assert_eq!(backend.advance(Limit::End).expect("no error"), Progress::Done);
        let last = step.round.stage + 1 == case.plan.stages.len().max(1);
        outputs.push(if last { backend.read_buffer(case.out) } else { Vec::new() });
        let kept: Vec<usize> = step.round.lanes.iter().map(|lane| lane.rows).collect();
        backend.commit(&kept);
    }
    outputs
}

/// The largest error of any output value in units of its bound; above 1 is a fault.
pub fn worst(case: &Case, reference: &[Vec<f32>], outputs: &[Vec<f32>]) -> f64 {
    let mut worst: f64 = 0.0;
    for ((step, expected), found) in case.steps.iter().zip(reference).zip(outputs) {
        assert_eq!(expected.len(), found.len(), "{}", case.name);
        for (i, (&e, &f)) in expected.iter().zip(found).enumerate() {
            let (e, f) = (f64::from(e), f64::from(f));
            // The reference is read as float32: half a unit more.
            let bound = (case.relative + U) * e.abs() + step.absolute.get(i).unwrap_or(&0.0) + TINY;
            let error = if f.is_finite() { (e - f).abs() } else { f64::INFINITY };
            worst = worst.max(error / bound);
        }
    }
    worst
}

/// Runs `cases` on every backend and prints how much of its bound the op needs.
pub fn check(op: &str, cases: impl IntoIterator<Item = Case>) {
    let (mut most, mut count): (f64, usize) = (0.0, 0);
    for case in cases {
        let plan = Arc::new(case.plan.clone());
        let reference = run(&mut ReferenceBackend::new(Arc::clone(&plan)), &case);
        for (name, mut backend) in cpu_backends(&plan) {
            let error = worst(&case, &reference, &run(&mut *backend, &case));
            assert!(error <= 1.0, "{}: {name}: {error:.2} times its bound", case.name);
            most = most.max(error);
            count += 1;
        }
    }
    assert!(count > 0);
    println!("{op}: {count} cases, at most {most:.3} of the bound");
}

/// Sine and cosine within a rounding and a half each, two products and their difference.
pub const ROPE_BOUND: f64 = 4.0 * U;

/// Sizes of queries, keys and values in the attention cases.
pub const ATTEND_SIZE: [f32; 3] = [3.0, 1.0, 2.0];

/// A score is a dot in at least four chains, scaled, less a maximum; an error of `d` in every score changes a weight by
/// the factor `1 + 2d`. Weights and values are then summed. Unlike the other bounds this one is not the worst case,
/// which is a hundred times what occurs: the mean square of uniform values is a third, and `n` roundings add up to the
/// root of `n`.
pub fn attend_bound(dim: usize, keys: usize) -> f64 {
    let [q, k, v] = ATTEND_SIZE.map(f64::from);
    let score = q * k * (dim as f64).sqrt() / 3.0;
    let score_error = score * ((dim as f64 / 4.0).sqrt() + 4.0) * U;
    v * (2.0 * score_error + ((keys as f64).sqrt() + 4.0) * U)
}
