//! The bit contract: a row's result depends on its own tokens, its stream's state and the weights, and on nothing else.
//!
//! One row at a time, one thread, plain Rust gives the bits; every other way of running the same streams must give
//! them again.

use crate::common::*;
use lfm3::backend::cpu::Isa;
use lfm3::backend::{Backend, ConvState, Limit, PAGE_ROWS, Progress, ROUND_ROWS, Slot};
use lfm3::model::config::TextConfig;
use lfm3::model::forward::text_plan;
use lfm3::plan::Plan;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Round sizes around the tiles.
const ROUNDS: [usize; 11] = [1, 2, 3, 7, 8, 9, 16, 31, 32, 33, 64];
/// Length of each stream: over two pages, the window and several chunks.
const LENGTH: usize = 150;
/// Streams of a world.
const STREAMS: usize = 5;

/// A model, its streams and the bits they must give.
struct World {
    plan: Arc<Plan>,
    weights: Vec<Tensor>,
    streams: Vec<Vec<u32>>,
    expected: Seen,
}

/// Bits by stream and position.
#[derive(Default)]
struct Seen {
    hidden: HashMap<(usize, usize), Vec<u32>>,
    logits: HashMap<(usize, usize), Vec<u32>>,
    /// Conv states after that many rows.
    states: HashMap<(usize, usize), Vec<u32>>,
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// At most 16 rows of a round with five lanes.
fn wanted(position: usize) -> bool {
    position % 7 == 3
}

impl World {
    fn new(config: &TextConfig, seed: u64) -> World {
        let plan = Arc::new(text_plan(config));
        let mut rng = Rng(seed);
        let weights = random_weights(&plan, &mut rng, seed as usize * 4);
        let streams = (0..STREAMS).map(|_| tokens(&mut rng, LENGTH)).collect();
        let mut world = World { plan, weights, streams, expected: Seen::default() };
        let mut backend = world.backend(Isa::Portable, 1);
        let mut seen = Seen::default();
        for stream in 0..STREAMS {
            for at in 0..LENGTH {
                world.round(&mut *backend, &[(stream, at, 1)], || Limit::End, &mut seen);
            }
        }
        world.expected = seen;
        world
    }

    fn backend(&self, isa: Isa, threads: usize) -> Box<dyn Backend> {
        let mut backend = cpu_backend(&self.plan, isa, threads);
        load(&mut backend, &self.weights);
        Box::new(backend)
    }

    fn cut(&self, (stream, start, rows): (usize, usize, usize)) -> Cut {
        let row = |p: usize| (self.streams[stream][p], wanted(p));
        Cut { stream, start, rows: (start..start + rows).map(row).collect() }
    }

    /// Runs and commits `(stream, start, rows)` lanes and notes all they give.
    fn round(
        &self,
        backend: &mut dyn Backend,
        lanes: &[(usize, usize, usize)],
        limit: impl FnMut() -> Limit,
        seen: &mut Seen,
    ) {
        let cuts: Vec<Cut> = lanes.iter().map(|&lane| self.cut(lane)).collect();
        backend.submit(round(&self.plan, &cuts)).expect("a good round");
        finish(backend, limit);
        let all: Vec<usize> = lanes.iter().map(|lane| lane.2).collect();
        self.note(backend, lanes, &all, seen);
        backend.commit(&all);
    }

    /// Notes the first `kept` rows of each lane of the finished round.
    fn note(&self, backend: &dyn Backend, lanes: &[(usize, usize, usize)], kept: &[usize], seen: &mut Seen) {
        let (hidden, width) = (backend.read_buffer(self.plan.taps[0].1), self.plan.width(self.plan.taps[0].1));
        let (mut row, mut logits) = (0, 0);
        for (index, &(stream, start, rows)) in lanes.iter().enumerate() {
            assert!(kept[index] == 0 || !backend.faulted(index));
            for p in start..start + rows {
                if p < start + kept[index] {
                    seen.hidden.insert((stream, p), bits(&hidden[row * width..(row + 1) * width]));
                    let state = backend.conv_state_after(index, p + 1 - start);
                    seen.states.insert((stream, p + 1), bits(&state.0));
                    if wanted(p) {
                        seen.logits.insert((stream, p), bits(backend.logits(logits)));
                    }
                }
                row += 1;
                logits += usize::from(wanted(p));
            }
        }
    }

    /// Every bit seen is the expected one, and at least `rows` rows were seen.
    fn check(&self, what: &str, seen: &Seen, rows: usize) {
        assert!(seen.hidden.len() >= rows, "{what}: {} rows", seen.hidden.len());
        for (name, seen, expected) in [
            ("states", &seen.states, &self.expected.states),
            ("hidden", &seen.hidden, &self.expected.hidden),
            ("logits", &seen.logits, &self.expected.logits),
        ] {
            assert!(!seen.is_empty());
            let mut differing: Vec<_> = seen.iter().filter(|(at, bits)| expected[at] != **bits).map(|s| s.0).collect();
            differing.sort();
            let first = &differing[..differing.len().min(4)];
            assert!(differing.is_empty(), "{what}: {} {name} differ, at (stream, position) {first:?}", differing.len());
        }
    }

    /// `test` on every instruction set with 1, 2 and 3 threads.
    fn everywhere(&self, mut test: impl FnMut(&str, &mut dyn Backend)) {
        for (name, mut backend) in cpu_backends(&self.plan) {
            load(&mut *backend, &self.weights);
            test(&name, &mut *backend);
        }
    }
}

fn finish(backend: &mut dyn Backend, mut limit: impl FnMut() -> Limit) {
    while backend.advance(limit()).expect("no error") == Progress::Working {}
}

/// One model as released and one with everything optional the other way round; made once, since single rows are slow.
fn worlds() -> &'static [World; 2] {
    static WORLDS: OnceLock<[World; 2]> = OnceLock::new();
    WORLDS.get_or_init(|| {
        let other = TextConfig {
            conv_bias: true,
            attention_bias: true,
            sandwich: false,
            gate: false,
            tied: false,
            taps: 3,
            window: 40,
            ..small_config()
        };
        [World::new(&small_config(), 1), World::new(&other, 2)]
    })
}

/// Lanes of two to five streams in shuffled order with random lengths, until all streams are at their end.
fn shuffled(rng: &mut Rng) -> Vec<Vec<(usize, usize, usize)>> {
    let mut at = [0; STREAMS];
    let mut rounds = Vec::new();
    loop {
        let mut open: Vec<usize> = (0..STREAMS).filter(|&s| at[s] < LENGTH).collect();
        if open.is_empty() {
            return rounds;
        }
        let lanes = (2 + rng.below(STREAMS - 1)).min(open.len());
        let mut left = ROUND_ROWS;
        let mut round = Vec::new();
        for lane in 0..lanes {
            let stream = open.swap_remove(rng.below(open.len()));
            let most = (left - (lanes - lane - 1)).min(LENGTH - at[stream]);
            let short = rng.below(2) == 0;
            let rows = 1 + rng.below(if short { most.min(5) } else { most });
            round.push((stream, at[stream], rows));
            at[stream] += rows;
            left -= rows;
        }
        rounds.push(round);
    }
}

#[test]
fn rounds_of_any_size_equal_single_rows() {
    for world in worlds() {
        world.everywhere(|name, backend| {
            for size in ROUNDS {
                let mut seen = Seen::default();
                backend.reset_conv_state(Slot(0));
                for at in (0..LENGTH).step_by(size) {
                    world.round(backend, &[(0, at, size.min(LENGTH - at))], || Limit::End, &mut seen);
                }
                world.check(&format!("{name}, rounds of {size}"), &seen, LENGTH);
            }
        });
    }
}

#[test]
fn streams_together_equal_each_alone() {
    for world in worlds() {
        let mut rng = Rng(20);
        world.everywhere(|name, backend| {
            let mut seen = Seen::default();
            for lanes in shuffled(&mut rng) {
                world.round(backend, &lanes, || Limit::End, &mut seen);
            }
            world.check(name, &seen, STREAMS * LENGTH);
        });
    }
}

#[test]
fn rounds_stopped_inside_ops_equal_whole_ones() {
    for world in worlds() {
        let mut rng = Rng(21);
        world.everywhere(|name, backend| {
            let (mut seen, mut most) = (Seen::default(), 0);
            for lanes in shuffled(&mut rng) {
                let mut stops = 0;
                let limit = || {
                    stops += 1;
                    match rng.below(2) {
                        0 => Limit::Slices(1 + rng.below(4)),
                        _ => Limit::Until(Instant::now() + Duration::from_micros(rng.below(50) as u64)),
                    }
                };
                world.round(backend, &lanes, limit, &mut seen);
                most = most.max(stops);
            }
            let ops = world.plan.ops.len();
            println!("{name}: at most {most} stops in a round of {ops} ops");
            world.check(name, &seen, STREAMS * LENGTH);
        });
    }
}

#[test]
fn abandoned_rounds_leave_no_trace() {
    for world in worlds() {
        let mut rng = Rng(22);
        world.everywhere(|name, backend| {
            let mut seen = Seen::default();
            for lanes in shuffled(&mut rng) {
                // Other tokens, at first part of the way, then to the end.
                for limit in [Limit::Slices(1 + rng.below(60)), Limit::End] {
                    let mut cuts: Vec<Cut> = lanes.iter().map(|&lane| world.cut(lane)).collect();
                    cuts.iter_mut().flat_map(|cut| &mut cut.rows).for_each(|row| row.0 = rng.below(VOCAB) as u32);
                    backend.submit(round(&world.plan, &cuts)).expect("a good round");
                    backend.advance(limit).expect("no error");
                    backend.abandon();
                }
                world.round(backend, &lanes, || Limit::End, &mut seen);
            }
            world.check(name, &seen, STREAMS * LENGTH);
        });
    }
}

#[test]
fn rows_taken_back_leave_no_trace() {
    for world in worlds() {
        let mut rng = Rng(23);
        world.everywhere(|name, backend| {
            let (mut seen, mut at) = (Seen::default(), [0; STREAMS]);
            while at != [LENGTH; STREAMS] {
                let open = (0..STREAMS).filter(|&s| at[s] < LENGTH);
                let lanes: Vec<_> = open.map(|s| (s, at[s], (1 + rng.below(12)).min(LENGTH - at[s]))).collect();
                // Some lanes keep nothing, some everything; what is not kept has wrong tokens.
                let kept: Vec<usize> = lanes.iter().map(|lane| rng.below(lane.2 + 1)).collect();
                let mut cuts: Vec<Cut> = lanes.iter().map(|&lane| world.cut(lane)).collect();
                for (cut, &keep) in cuts.iter_mut().zip(&kept) {
                    cut.rows[keep..].iter_mut().for_each(|row| row.0 = rng.below(VOCAB) as u32);
                }
                backend.submit(round(&world.plan, &cuts)).expect("a good round");
                finish(backend, || Limit::End);
                world.note(backend, &lanes, &kept, &mut seen);
                backend.commit(&kept);
                for (&(stream, start, _), keep) in lanes.iter().zip(&kept) {
                    at[stream] = start + keep;
                    let state = bits(&backend.conv_state(Slot(stream as u32)).0);
                    if at[stream] > 0 {
                        let expected = &world.expected.states[&(stream, at[stream])];
                        assert!(state == *expected, "{name}: committed state of stream {stream} at {}", at[stream]);
                    }
                }
            }
            world.check(name, &seen, STREAMS * LENGTH);
        });
    }
}

#[test]
fn a_copy_of_a_stream_goes_on_as_the_stream() {
    for world in worlds() {
        world.everywhere(|name, backend| {
            let (half, copy) = (70, STREAMS);
            let mut seen = Seen::default();
            world.round(backend, &[(0, 0, 64)], || Limit::End, &mut seen);
            world.round(backend, &[(0, 64, half - 64)], || Limit::End, &mut seen);
            let state: ConvState = backend.conv_state(Slot(0));
            let layers = pages(&world.plan, 0, half).into_iter().zip(pages(&world.plan, copy, half));
            for (from, to) in layers.flat_map(|(from, to)| from.into_iter().zip(to)) {
                backend.copy_page(from, to);
                backend.release_page(from);
            }
            backend.reset_conv_state(Slot(0));
            backend.set_conv_state(Slot(copy as u32), &state);
            for at in (half..LENGTH - 1).step_by(PAGE_ROWS / 2) {
                let rows = (PAGE_ROWS / 2).min(LENGTH - at);
                let mut cut = world.cut((0, at, rows));
                cut.stream = copy;
                backend.submit(round(&world.plan, &[cut])).expect("a good round");
                finish(backend, || Limit::End);
                world.note(backend, &[(0, at, rows)], &[rows], &mut seen);
                backend.commit(&[rows]);
            }
            world.check(name, &seen, LENGTH);
        });
    }
}

#[test]
fn a_lane_that_is_not_finite_leaves_its_neighbours_alone() {
    // With tied tables every row's logits would meet it.
    let config = TextConfig { tied: false, ..small_config() };
    let mut world = World::new(&config, 3);
    // A token outside of the streams' reach has an embedding whose square is not finite in float32.
    world.streams.iter_mut().flatten().for_each(|token| *token = (*token).min(VOCAB as u32 - 2));
    let mut table = Tensor::vector(&Rng(4).values(VOCAB * config.hidden, 1.0));
    (table.desc.rows, table.desc.cols) = (VOCAB, config.hidden);
    let last = table.data.len() - 4;
    table.data[last..].copy_from_slice(&f32::MAX.to_le_bytes());
    world.weights[0] = table;
    let good = [(0, 0, 20), (2, 0, 25)];
    let mut expected = Seen::default();
    let mut backend = world.backend(Isa::Portable, 1);
    good.iter().for_each(|&lane| world.round(&mut *backend, &[lane], || Limit::End, &mut expected));
    world.expected = expected;
    world.everywhere(|name, backend| {
        let lanes = [good[0], (1, 0, 12), good[1]];
        let mut cuts: Vec<Cut> = lanes.iter().map(|&lane| world.cut(lane)).collect();
        cuts[1].rows[5].0 = VOCAB as u32 - 1;
        backend.submit(round(&world.plan, &cuts)).expect("a good round");
        finish(backend, || Limit::End);
        assert_eq!([0, 1, 2].map(|lane| backend.faulted(lane)), [false, true, false], "{name}");
        let mut seen = Seen::default();
        world.note(backend, &lanes, &[20, 0, 25], &mut seen);
        backend.commit(&[20, 0, 25]);
        world.check(name, &seen, 45);
    });
}

/// The calling thread's MXCSR: exceptions masked, toward zero, denormals flushed on both sides.
#[cfg(target_arch = "x86_64")]
const HOST_MODES: u32 = 0x1f80 | 0x6000 | 0x8000 | 0x0040;

#[cfg(target_arch = "x86_64")]
fn host_modes() -> u32 {
    let mut value = 0u32;
    // SAFETY: stores four bytes to `value`.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut value, options(nostack)) };
    value
}

#[cfg(target_arch = "x86_64")]
fn set_host_modes(value: u32) {
    // SAFETY: reads four bytes of `value`; no reserved bit is set, so nothing is raised.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &value, options(nostack)) };
}

#[cfg(target_arch = "x86_64")]
#[test]
fn a_hosts_rounding_and_flushing_change_nothing() {
    let world = &worlds()[0];
    world.everywhere(|name, backend| {
        let mut seen = Seen::default();
        for at in (0..LENGTH).step_by(30) {
            let lane = (0, at, 30);
            backend.submit(round(&world.plan, &[world.cut(lane)])).expect("a good round");
            let before = host_modes();
            set_host_modes(HOST_MODES);
            let mut slices = 0;
            while backend.advance(Limit::Slices(3)).is_ok_and(|progress| progress == Progress::Working) {
                slices += 3;
            }
            let after = host_modes();
            set_host_modes(before);
            assert_eq!(after & 0xffc0, HOST_MODES, "{name}: the host's modes after {slices} slices");
            world.note(backend, &[lane], &[30], &mut seen);
            backend.commit(&[30]);
        }
        world.check(name, &seen, LENGTH);
    });
}
