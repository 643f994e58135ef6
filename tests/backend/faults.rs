//! Faults planted in the plan, the weights or the states: each must turn the comparison with the reference red.

use crate::common::*;
use lfm3::backend::cpu::Isa;
use lfm3::backend::reference::ReferenceBackend;
use lfm3::backend::{Backend, ConvState, Encoding, Limit, Slot};
use lfm3::model::config::RopeConfig;
use lfm3::model::forward::{inverse_frequencies, text_plan};
use lfm3::plan::{Op, Plan};
use std::sync::Arc;

/// Rows of the last layer, 2-norm, relative: twice what the CPU's f16 keys and values cost this model.
const BOUND: f64 = 1e-3;
/// Ends of the rounds the stream is run in; faults in states are planted after the second.
const CUTS: [usize; 4] = [40, 70, 134, 150];

/// What one run uses; a fault changes one field.
struct Setup {
    plan: Plan,
    weights: Vec<Tensor>,
    tokens: Vec<u32>,
    /// Changes the conv states after the second round.
    states: fn(&Plan, &mut [f32]),
    /// Added to positions from the third round on.
    shift: usize,
    /// Rows left out at the end of the second round.
    lost: usize,
}

impl Setup {
    fn new() -> Setup {
        let plan = text_plan(&small_config());
        let mut rng = Rng(30);
        let weights = random_weights(&plan, &mut rng, 0);
        let tokens = tokens(&mut rng, CUTS[3]);
        Setup { plan, weights, tokens, states: |_, _| (), shift: 0, lost: 0 }
    }

    /// The last layer's output in the third and fourth round, row after row.
    fn run(&self, backend: &mut dyn Backend) -> Vec<f32> {
        load(backend, &self.weights);
        let mut hidden = Vec::new();
        let mut start = 0;
        for (index, end) in CUTS.into_iter().enumerate() {
            if index == 2 {
                let mut state = backend.conv_state(Slot(0)).0;
                (self.states)(&self.plan, &mut state);
                backend.set_conv_state(Slot(0), &ConvState(state));
            }
            let shift = if index >= 2 { self.shift } else { 0 };
            let run = if index == 1 { end - self.lost } else { end };
            let rows = self.tokens[start..run].iter().map(|&token| (token, false)).collect();
            let cut = Cut { stream: 0, start: start + shift, rows };
            backend.submit(round(&self.plan, &[cut])).expect("a good round");
            backend.advance(Limit::End).expect("no error");
            if index >= 2 {
                hidden.extend(backend.read_buffer(self.plan.taps[0].1));
            }
            backend.commit(&[run - start]);
            start = end;
        }
        hidden
    }

    fn on_cpu(&self) -> Vec<f32> {
        self.run(&mut cpu_backend(&Arc::new(self.plan.clone()), Isa::Portable, 1))
    }
}

/// The worst row's distance, relative to the reference's row.
fn distance(expected: &[f32], found: &[f32], width: usize) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let row = |(e, f): (&[f32], &[f32])| {
        let error = norm(&mut e.iter().zip(f).map(|(e, f)| f64::from(e - f)));
        error / norm(&mut e.iter().map(|&e| f64::from(e)))
    };
    expected.chunks(width).zip(found.chunks(width)).map(row).fold(0.0, f64::max)
}

/// Shifts each layer's columns by one, as a state saved a row too late would be.
fn shift_columns(plan: &Plan, state: &mut [f32]) {
    let mut rest = state;
    for shape in &plan.convs {
        let (layer, next) = rest.split_at_mut((shape.taps - 1) * shape.width);
        layer.rotate_left(shape.width);
        rest = next;
    }
}

/// Swaps the states of two layers of one shape.
fn swap_layers(_: &Plan, state: &mut [f32]) {
    let half = state.len() / 2;
    state.rotate_left(half);
}

/// A scale's sign bit is dropped.
fn drop_signs(weights: &mut [Tensor]) {
    for tensor in weights {
        if let Encoding::Affine { scales, .. } = tensor.desc.encoding {
            tensor.scales.chunks_mut(scales.bytes()).for_each(|value| value[scales.bytes() - 1] &= 0x7f);
        }
    }
}

/// Removes the first op that `is` one of.
fn remove(plan: &mut Plan, is: fn(&Op) -> bool) {
    let at = plan.ops.iter().position(is).expect("the op");
    plan.ops.remove(at);
}

type Fault = (&'static str, fn(&mut Setup));

const FAULTS: [Fault; 14] = [
    ("full rotation for partial", |s| {
        s.plan.ropes[0] = inverse_frequencies(32, RopeConfig { theta: 1e6, partial: 1.0 })
    }),
    ("the other layers' rope", |s| s.plan.ropes.swap(0, 1)),
    ("window 63 for 64", |s| s.plan.attentions[0].window = Some(63)),
    ("window 65 for 64", |s| s.plan.attentions[0].window = Some(65)),
    ("no window", |s| s.plan.attentions[0].window = None),
    ("conv state shifted by one", |s| s.states = shift_columns),
    ("conv state zeroed", |s| s.states = |_, state| state.fill(0.0)),
    ("layers' states swapped", |s| s.states = swap_layers),
    ("gate dropped", |s| remove(&mut s.plan, |op| matches!(op, Op::HeadGate { .. }))),
    ("head norm dropped", |s| remove(&mut s.plan, |op| matches!(op, Op::HeadNorm { .. }))),
    ("a scale's sign ignored", |s| drop_signs(&mut s.weights)),
    ("a position skipped", |s| s.shift = 1),
    ("a token lost at a turn's end", |s| s.lost = 1),
    ("epsilon of 1e-3", |s| s.plan.norm_eps = 1e-3),
];

#[test]
fn planted_faults_turn_the_comparison_red() {
    let good = Setup::new();
    let width = good.plan.width(good.plan.taps[0].1);
    let expected = good.run(&mut ReferenceBackend::new(Arc::new(good.plan.clone())));
    let clean = distance(&expected, &good.on_cpu(), width);
    println!("{clean:.1e} without a fault, {BOUND:.0e} allowed");
    assert!(clean < BOUND, "without a fault: {clean:e}");
    for (name, plant) in FAULTS {
        let mut faulty = Setup::new();
        plant(&mut faulty);
        let found = distance(&expected, &faulty.on_cpu(), width);
        println!("{found:.1e} with {name}");
        assert!(found > 2.0 * BOUND, "{name}: {found:e}");
    }
}
