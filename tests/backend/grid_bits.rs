//! The bit contract of a tower: a row's result depends on its picture and the weights, and on nothing else.
//!
//! One row a round, one thread, plain Rust gives the bits of every row after every stage; every other way of running
//! the same pictures must give them again.

use crate::common::*;
use lfm3::backend::cpu::{CpuBackend, Isa};
use lfm3::backend::{Backend, Grid, Limit, ROUND_ROWS, Slot};
use lfm3::model::vision::vision_plan;
use lfm3::plan::Plan;
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Round sizes around the tiles.
const ROUNDS: [usize; 11] = [1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 64];
/// Two blocks of rows and less; more rows than two rounds.
const GRIDS: [[u32; 2]; 4] = [[2, 2], [2, 6], [6, 2], [14, 10]];
/// More keys than a span, more rows than pages and rounds.
const LARGE: [u32; 2] = [30, 22];

/// Bits by picture, stage and position.
type Bits = BTreeMap<(usize, usize, usize), Vec<u32>>;

/// A tower, its pictures and the bits they must give.
struct World {
    plan: Arc<Plan>,
    weights: Vec<Tensor>,
    pictures: Vec<Picture>,
    expected: Bits,
}

fn bits(run: &GridRun) -> Bits {
    run.seen.iter().map(|(at, values)| (*at, values.iter().map(|v| v.to_bits()).collect())).collect()
}

impl World {
    fn new(kinds: &str, merge: usize, grids: &[[u32; 2]], seed: u64) -> World {
        let config = small_tower(kinds, merge);
        let plan = Arc::new(vision_plan(&config));
        let mut rng = Rng(seed);
        let weights = random_weights(&plan, &mut rng, seed as usize);
        let mut picture = |&[rows, cols]: &[u32; 2]| {
            let grid = Grid { rows, cols, merge: merge as u32 };
            Picture { grid, patches: rng.values(grid.len() * config.patch_values(), 1.0) }
        };
        let pictures = grids.iter().map(&mut picture).collect();
        let mut world = World { plan, weights, pictures, expected: Bits::new() };
        let mut backend = world.backend(Isa::Portable, 1);
        let mut run = world.run(&mut backend);
        (0..grids.len()).for_each(|picture| run.whole(picture, 1, || Limit::End));
        world.expected = bits(&run);
        world
    }

    fn backend(&self, isa: Isa, threads: usize) -> CpuBackend {
        let mut backend = cpu_backend(&self.plan, isa, threads);
        load(&mut backend, &self.weights);
        backend
    }

    fn run<'a>(&'a self, backend: &'a mut dyn Backend) -> GridRun<'a> {
        GridRun::new(&self.plan, backend, self.pictures.clone())
    }

    /// Every row of these pictures was seen after every stage, with the expected bits.
    fn check(&self, what: &str, found: &Bits, pictures: &[usize]) {
        let expected: Vec<_> = self.expected.iter().filter(|(at, _)| pictures.contains(&at.0)).collect();
        let differing: Vec<_> = expected.iter().filter(|(at, bits)| found.get(at) != Some(bits)).collect();
        let first: Vec<_> = differing.iter().take(4).map(|(at, _)| at).collect();
        assert!(!expected.is_empty() && found.len() == expected.len(), "{what}: {} rows", found.len());
        assert!(differing.is_empty(), "{what}: {} rows differ, at (picture, stage, row) {first:?}", differing.len());
    }

    /// `test` on every instruction set with 1, 2 and 3 threads.
    fn everywhere(&self, mut test: impl FnMut(&str, &mut dyn Backend)) {
        for (name, mut backend) in cpu_backends(&self.plan) {
            load(&mut *backend, &self.weights);
            test(&name, &mut *backend);
        }
    }
}

/// Every pair of layers that may meet, and blocks of nine.
fn worlds() -> &'static [World; 2] {
    static WORLDS: OnceLock<[World; 2]> = OnceLock::new();
    WORLDS.get_or_init(|| [World::new("ccaac", 2, &GRIDS, 1), World::new("ac", 3, &[[3, 9], [9, 6]], 7)])
}

/// The large picture, whose single rows are slow.
fn large() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| World::new("ccaac", 2, &[LARGE], 3))
}

#[test]
fn windows_of_any_size_equal_single_rows() {
    for world in worlds() {
        world.everywhere(|name, backend| {
            for size in ROUNDS {
                for picture in 0..world.pictures.len() {
                    let mut run = world.run(backend);
                    run.whole(picture, size, || Limit::End);
                    world.check(&format!("{name}, windows of {size}"), &bits(&run), &[picture]);
                    backend.release_stores(Slot(picture as u32));
                }
            }
        });
    }
}

#[test]
fn windows_of_a_large_picture_equal_single_rows() {
    let world = large();
    let mut sizes = [64, 33, 8, 47, 31, 9].into_iter().cycle();
    world.everywhere(|name, backend| {
        let size = sizes.next().expect("a cycle has no end");
        let mut run = world.run(backend);
        run.whole(0, size, || Limit::End);
        world.check(&format!("{name}, windows of {size}"), &bits(&run), &[0]);
    });
}

#[test]
fn windows_stopped_inside_ops_equal_whole_ones() {
    for world in worlds() {
        let mut rng = Rng(60);
        world.everywhere(|name, backend| {
            let last = world.pictures.len() - 1;
            for single in [true, false] {
                let (mut run, mut stops) = (world.run(backend), 0);
                run.whole(last, 33, || {
                    stops += 1;
                    match rng.below(2) {
                        _ if single => Limit::Slices(1),
                        0 => Limit::Slices(1 + rng.below(9)),
                        _ => Limit::Until(Instant::now() + Duration::from_micros(rng.below(50) as u64)),
                    }
                });
                world.check(name, &bits(&run), &[last]);
                assert!(!single || stops > 3 * world.plan.ops.len(), "{name}: only {stops} stops");
                backend.release_stores(Slot(last as u32));
            }
        });
    }
}

/// Pictures at different places of the tower take turns, and share rounds where they are in the same stage.
#[test]
fn pictures_together_equal_each_alone() {
    for world in worlds() {
        let mut rng = Rng(61);
        world.everywhere(|name, backend| {
            let (stages, count) = (world.plan.stages.len(), world.pictures.len());
            let (mut run, mut at, mut shared) = (world.run(backend), vec![(0, 0); count], 0);
            while let Some(&stage) = at.iter().map(|(stage, _)| stage).filter(|stage| **stage < stages).min() {
                // Most often the hindmost, now and then one that is ahead.
                let ahead = at[rng.below(count)].0;
                let stage = if ahead < stages && rng.below(3) == 0 { ahead } else { stage };
                let mut open: Vec<usize> = (0..count).filter(|&picture| at[picture].0 == stage).collect();
                let (mut left, mut lanes) = (ROUND_ROWS, Vec::new());
                while !open.is_empty() && left > 0 && (lanes.is_empty() || rng.below(4) > 0) {
                    let picture = open.swap_remove(rng.below(open.len()));
                    let start = at[picture].1;
                    let rows = 1 + rng.below((run.rows(picture, stage) - start).min(left));
                    lanes.push((picture, start, rows));
                    left -= rows;
                }
                shared += usize::from(lanes.len() > 1);
                run.round(stage, &lanes, || Limit::Slices(1 + rng.below(40)));
                for (picture, start, rows) in lanes {
                    let end = start + rows == run.rows(picture, stage);
                    at[picture] = if end { (stage + 1, 0) } else { (stage, start + rows) };
                }
            }
            assert!(shared > stages, "{name}: {shared} rounds were shared");
            world.check(name, &bits(&run), &(0..count).collect::<Vec<_>>());
        });
    }
}

/// Where stores and pages come from another picture of the same grid, nothing of it is left to see.
#[test]
fn a_grid_used_again_leaves_no_trace() {
    let world = &worlds()[0];
    world.everywhere(|name, backend| {
        for released in [true, false] {
            let mut other = world.run(backend);
            other.pictures[3].patches.iter_mut().for_each(|v| *v = 0.25 - *v);
            other.whole(3, 64, || Limit::End);
            assert!(bits(&other).iter().any(|(at, bits)| world.expected[at] != *bits), "the same picture");
            if released {
                backend.release_stores(Slot(3));
            }
            let mut run = world.run(backend);
            run.whole(3, 64, || Limit::End);
            world.check(&format!("{name}, released: {released}"), &bits(&run), &[3]);
        }
    });
}

#[test]
fn windows_abandoned_and_begun_again_leave_no_trace() {
    let world = &worlds()[0];
    let mut rng = Rng(62);
    world.everywhere(|name, backend| {
        let mut run = world.run(backend);
        for stage in 0..world.plan.stages.len() {
            let rows = run.rows(3, stage);
            for start in (0..rows).step_by(50) {
                let lane = (3, start, 50.min(rows - start));
                run.backend.submit(run.lanes(stage, &[lane])).expect("a good round");
                run.backend.advance(Limit::Slices(rng.below(60))).expect("no error");
                run.backend.abandon();
                run.round(stage, &[lane], || Limit::End);
            }
        }
        world.check(name, &bits(&run), &[3]);
    });
}

#[test]
fn values_that_are_not_finite_fault_their_picture_alone() {
    let world = &worlds()[0];
    world.everywhere(|name, backend| {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut run = world.run(backend);
            let width = small_tower("ccaac", 2).patch_values();
            run.pictures[1].patches[5 * width + 17] = bad;
            run.round(0, &[(2, 0, 12), (1, 0, 12), (0, 0, 4)], || Limit::End);
            let seen: Vec<usize> =
                [0, 1, 2].map(|picture| run.seen.range((picture, 0, 0)..(picture, 1, 0)).count()).into();
            assert_eq!(seen, [4, 0, 12], "{name}: rows of pictures that did not fault, with {bad}");
            for (at, found) in bits(&run) {
                assert!(found == world.expected[&at], "{name}: {at:?} beside {bad}");
            }
            (0..3).for_each(|slot| backend.release_stores(Slot(slot)));
        }
    });
}

/// The sum was made on x86-64 with AVX2. A change of the arithmetic changes it on purpose; a machine never does.
#[test]
fn every_machine_gives_the_same_bits() {
    let fold = |sum: u64, bits: &u32| (sum ^ u64::from(*bits)).wrapping_mul(0x0100_0000_01b3);
    let sums = [&worlds()[0], &worlds()[1], large()]
        .map(|world| world.expected.values().flatten().fold(0xcbf2_9ce4_8422_2325, fold));
    assert_eq!(sums.map(|sum| format!("{sum:016x}")), ["3dd36f10250aaba2", "69cab778172267f5", "71aa197299c50dee"]);
}
