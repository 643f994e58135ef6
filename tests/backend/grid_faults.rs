//! A small tower on random weights: the CPU against the float64 reference, and faults planted in the plan or the
//! weights, each of which must turn that comparison red.

use crate::common::*;
use lfm3::backend::cpu::Isa;
use lfm3::backend::reference::ReferenceBackend;
use lfm3::backend::{Backend, Grid, Limit};
use lfm3::model::vision::vision_plan;
use lfm3::plan::{AttentionId, Op, Plan, StoreId};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A row after a stage, 2-norm, relative: a few times what the CPU's f16 keys and values cost these towers.
const BOUND: f64 = 2e-3;
const GRIDS: [[u32; 2]; 5] = [[2, 2], [2, 6], [6, 2], [14, 10], [30, 22]];

/// Rows by stage and position.
type Rows = BTreeMap<(usize, usize), Vec<f32>>;

/// What one run uses; a fault changes one field.
struct Setup {
    plan: Plan,
    weights: Vec<Tensor>,
    picture: Picture,
}

impl Setup {
    fn new(kinds: &str, [rows, cols]: [u32; 2]) -> Setup {
        let config = small_tower(kinds, 2);
        let plan = vision_plan(&config);
        let mut rng = Rng(80);
        let weights = random_weights(&plan, &mut rng, 0);
        let grid = Grid { rows, cols, merge: 2 };
        let patches = rng.values(grid.len() * config.patch_values(), 1.0);
        Setup { plan, weights, picture: Picture { grid, patches } }
    }

    /// Rows after each stage in windows of 50, which end inside of grid rows.
    fn run(&self, backend: &mut dyn Backend) -> Rows {
        load(backend, &self.weights);
        let mut run = GridRun::new(&self.plan, backend, vec![self.picture.clone()]);
        // A grid of other blocks does not fit the stage behind the merge.
        let stages = self.plan.stages.len() - usize::from(self.picture.grid.merge == 1);
        for stage in 0..stages {
            let rows = run.rows(0, stage);
            for start in (0..rows).step_by(50) {
                run.round(stage, &[(0, start, 50.min(rows - start))], || Limit::End);
            }
        }
        run.seen.into_iter().map(|((_, stage, position), values)| ((stage, position), values)).collect()
    }

    fn on_cpu(&self) -> Rows {
        self.run(&mut cpu_backend(&Arc::new(self.plan.clone()), Isa::best(), 2))
    }

    fn on_reference(&self) -> Rows {
        self.run(&mut ReferenceBackend::new(Arc::new(self.plan.clone())))
    }

    /// The tensors of weights whose names end so.
    fn tensors(&mut self, ends: &[&str]) -> Vec<&mut Tensor> {
        let named = self.weights.iter_mut().zip(&self.plan.weights);
        let found = named.filter(|(_, spec)| ends.iter().any(|end| spec.names[0].ends_with(end)));
        let found: Vec<_> = found.map(|(tensor, _)| tensor).collect();
        assert!(!found.is_empty(), "no weight {ends:?}");
        found
    }
}

/// The worst row's distance after any stage, relative to the expected row; rows that were not run do not count.
fn distance(expected: &Rows, found: &Rows) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>().sqrt();
    let row = |(at, found): (&(usize, usize), &Vec<f32>)| {
        let expected = &expected[at];
        let error = norm(&mut expected.iter().zip(found).map(|(e, f)| f64::from(e - f)));
        error / norm(&mut expected.iter().map(|&e| f64::from(e)))
    };
    assert!(!found.is_empty());
    found.iter().map(row).fold(0.0, f64::max)
}

#[test]
fn a_small_tower_agrees_with_the_reference_in_every_grid() {
    for (kinds, grid) in ["ccaac", "ac", "aacc", "ca", "cac"].into_iter().zip(GRIDS) {
        for kinds in [kinds, "ccaac"] {
            let setup = Setup::new(kinds, grid);
            let found = distance(&setup.on_reference(), &setup.on_cpu());
            println!("{kinds} over {grid:?}: {found:.1e}");
            assert!(found < BOUND, "{kinds} over {grid:?}: {found:e}");
        }
    }
}

/// A tensor's bytes, part by part.
fn parts(tensor: &mut Tensor) -> [&mut Vec<u8>; 3] {
    [&mut tensor.data, &mut tensor.scales, &mut tensor.biases]
}

/// Kernel rows and columns change places.
fn transpose_kernels(setup: &mut Setup) {
    for tensor in setup.tensors(&["spatial_conv.weight"]) {
        for kernel in tensor.data.chunks_mut(9 * 4) {
            let old = kernel.to_vec();
            for (i, tap) in kernel.chunks_mut(4).enumerate() {
                tap.copy_from_slice(&old[(i % 3 * 3 + i / 3) * 4..][..4]);
            }
        }
    }
}

/// The pairs of a head that turn by the row and those that turn by the column change places, in queries and keys, which
/// is as if row and column did.
fn swap_axes(setup: &mut Setup) {
    let axis = setup.plan.attentions[0].head_dim / 4;
    for tensor in setup.tensors(&["q_proj", "k_proj", "q_layernorm.weight", "k_layernorm.weight"]) {
        let rows = tensor.desc.rows;
        for part in parts(tensor) {
            let bytes = part.len() / rows * axis;
            for two in part.chunks_mut((2 * bytes).max(1)) {
                let (first, second) = two.split_at_mut(bytes);
                first.swap_with_slice(second);
            }
        }
    }
}

/// All conv layers keep their input at one place.
fn one_store(setup: &mut Setup) {
    let gated: Vec<StoreId> = setup.plan.ops.iter().filter_map(gated_of).collect();
    assert!(gated.iter().any(|id| *id != gated[0]), "there are two");
    for op in &mut setup.plan.ops {
        if let Op::StoreGated { gated: store, .. } | Op::GridConv { gated: store, .. } = op {
            *store = gated[0];
        }
    }
}

fn gated_of(op: &Op) -> Option<StoreId> {
    if let Op::StoreGated { gated, .. } = op { Some(*gated) } else { None }
}

/// All attention layers keep their keys in one layer's pages.
fn one_layer_of_pages(setup: &mut Setup) {
    assert_eq!(setup.plan.attentions.len(), 2);
    for op in &mut setup.plan.ops {
        if let Op::StoreKv { layer, .. } | Op::Attend { layer, .. } = op {
            *layer = AttentionId(0);
        }
    }
}

/// Layers of the tower, what is wrong, how.
type Fault = (&'static str, &'static str, fn(&mut Setup));

const FAULTS: [Fault; 10] = [
    ("cc", "a convolution in merge order", |s| s.picture.grid.merge = 1),
    ("cc", "the kernel transposed", transpose_kernels),
    ("cc", "one store for two convolutions", one_store),
    ("aa", "row and column swapped in the rope", swap_axes),
    ("aa", "the rope of a picture on its side", |s| {
        (s.picture.grid.rows, s.picture.grid.cols) = (s.picture.grid.cols, s.picture.grid.rows)
    }),
    ("aa", "causal attention", |s| s.plan.attentions.iter_mut().for_each(|shape| shape.bidirectional = false)),
    ("aa", "one layer's pages for two", one_layer_of_pages),
    ("ca", "the norm after the merge", |setup| norm_after_merge(&mut setup.plan, &mut setup.weights)),
    ("ca", "no GELU", |s| s.plan.ops.retain(|op| !matches!(op, Op::Gelu { .. }))),
    ("ca", "the norm's weight for its bias", |s| {
        let norm = |op: &mut Op| {
            if let Op::LayerNorm { weight, bias, .. } = op {
                *bias = *weight
            }
        };
        s.plan.ops.iter_mut().for_each(norm);
    }),
];

#[test]
fn planted_faults_turn_the_comparison_red() {
    for (kinds, name, plant) in FAULTS {
        let good = Setup::new(kinds, [14, 10]);
        let expected = good.on_reference();
        let clean = distance(&expected, &good.on_cpu());
        assert!(clean < BOUND, "{kinds} without a fault: {clean:e}");
        let mut faulty = Setup::new(kinds, [14, 10]);
        plant(&mut faulty);
        if let Some(last) = faulty.plan.stages.last_mut() {
            last.ops.end = faulty.plan.ops.len();
        }
        let found = distance(&expected, &faulty.on_cpu());
        println!("{found:.1e} with {name}, {clean:.1e} without");
        assert!(found > 5.0 * BOUND, "{name}: {found:e}");
    }
}
