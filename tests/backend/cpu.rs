//! The CPU backend keeps the bit contract and its promises about memory, faults and rollback, on small random models.

use crate::common::{Rng, cpu_options, random_backend};
use lfm3::backend::cpu::{CpuBackend, CpuOptions, Isa};
use lfm3::backend::{Backend, Encoding, Float, Input, Lane, Limit, PAGE_ROWS, PageId, Progress, Round, Row, Slot};
use lfm3::model::config::{LayerKind, RopeConfig, TextConfig};
use lfm3::model::forward::text_plan;
use lfm3::plan::{BufferId, Plan};
use std::time::{Duration, Instant};

const VOCAB: usize = 203;

fn config() -> TextConfig {
    TextConfig {
        vocab_size: VOCAB,
        hidden: 192,
        ffn: 320,
        layers: vec![LayerKind::Conv, LayerKind::FullAttention, LayerKind::Conv, LayerKind::SlidingAttention],
        heads: 6,
        kv_heads: 2,
        head_dim: 40,
        taps: 7,
        conv_bias: true,
        attention_bias: true,
        window: 50,
        norm_eps: 1e-5,
        sandwich: true,
        gate: true,
        tied: true,
        max_positions: 1000,
        rope_full: RopeConfig { theta: 1e6, partial: 0.5 },
        rope_sliding: RopeConfig { theta: 1e4, partial: 1.0 },
    }
}

/// Hidden 192 is 3 blocks of 64; heads 6 x 40 = 240 leaves a short one, so that only plain matrices run there.
fn affine_config() -> TextConfig {
    TextConfig { heads: 4, head_dim: 48, conv_bias: false, attention_bias: false, tied: false, ..config() }
}

fn four_bits() -> Encoding {
    Encoding::Affine { bits: 4, group: 32, scales: Float::Bf16 }
}

/// A stream as the engine would keep it: its pages are its own.
struct Stream {
    slot: u32,
    tokens: Vec<u32>,
    at: usize,
    /// Bits of the logits of each position.
    logits: Vec<Vec<u32>>,
}

impl Stream {
    fn new(slot: u32, count: usize) -> Stream {
        let mut rng = Rng(u64::from(slot) + 77);
        let tokens = (0..count).map(|_| rng.below(VOCAB) as u32).collect();
        Stream { slot, tokens, at: 0, logits: vec![Vec::new(); count] }
    }

    fn lane(&self, plan: &Plan, first_row: usize, rows: usize) -> Lane {
        let layers = plan.attentions.len() as u32;
        let pages = ((self.at + rows).div_ceil(PAGE_ROWS)) as u32;
        let page = |layer: u32, i: u32| PageId(self.slot * 100 + layer * 20 + i);
        let pages = (0..layers).map(|layer| (0..pages).map(|i| page(layer, i)).collect()).collect();
        Lane { slot: Slot(self.slot), first_row, rows, pages, grid: None }
    }
}

/// Takes the next `counts[i]` tokens of each stream in one round, advanced by `limit`; keeps the logits of as many
/// last rows as may be wanted.
fn step(backend: &mut CpuBackend, plan: &Plan, streams: &mut [&mut Stream], counts: &[usize], limit: Limit) {
    let mut round = Round::default();
    let wanted_each = 16 / streams.len();
    for (lane, (stream, &count)) in streams.iter().zip(counts).enumerate() {
        round.lanes.push(stream.lane(plan, round.rows.len(), count));
        for i in 0..count {
            let (position, token) = ((stream.at + i) as u32, stream.tokens[stream.at + i]);
            round.rows.push(Row {
                input: Input::Token(token),
                position,
                lane: lane as u32,
                wanted: i + wanted_each >= count,
            });
        }
    }
    let rows = round.rows.clone();
    backend.submit(round).expect("a good round");
    while backend.advance(limit).expect("progress") == Progress::Working {}
    for (index, row) in rows.iter().filter(|row| row.wanted).enumerate() {
        let stream = &mut streams[row.lane as usize];
        stream.logits[row.position as usize] = backend.logits(index).iter().map(|v| v.to_bits()).collect();
    }
    for (lane, (stream, count)) in streams.iter_mut().zip(counts).enumerate() {
        assert!(!backend.faulted(lane));
        stream.at += count;
    }
    backend.commit(counts);
}

/// Logits of every position, one row a round.
fn alone(plan: &Plan, encoding: Encoding, slot: u32, count: usize, options: &CpuOptions) -> Vec<Vec<u32>> {
    let mut backend = random_backend(plan, encoding, options);
    let mut stream = Stream::new(slot, count);
    for _ in 0..count {
        step(&mut backend, plan, &mut [&mut stream], &[1], Limit::End);
    }
    stream.logits
}

fn check(stream: &Stream, truth: &[Vec<u32>], what: &str) {
    for (position, bits) in stream.logits.iter().enumerate().filter(|(_, bits)| !bits.is_empty()) {
        assert!(*bits == truth[position], "{what}: logits of position {position} differ");
    }
}

#[test]
fn cuts_threads_slices_and_instruction_sets_leave_the_bits_alone() {
    const COUNT: usize = 330;
    let every = |encoding, config: TextConfig| {
        let plan = text_plan(&config);
        let truth = alone(&plan, encoding, 0, COUNT, &cpu_options(1, Isa::best()));
        for (threads, isa) in [(1, Isa::best()), (2, Isa::best()), (3, Isa::best()), (2, Isa::Portable)] {
            let cuts: &[usize] = if isa == Isa::Portable { &[33] } else { &[2, 3, 7, 8, 9, 16, 31, 32, 33, 63, 64] };
            for &cut in cuts {
                let mut backend = random_backend(&plan, encoding, &cpu_options(threads, isa));
                let mut stream = Stream::new(0, COUNT);
                while stream.at < COUNT {
                    let count = cut.min(COUNT - stream.at);
                    let soon = Instant::now() + Duration::from_micros(200);
                    let limits = [Limit::Slices(3), Limit::End, Limit::Until(soon), Limit::Slices(1)];
                    let limit = limits[(stream.at / cut) % 4];
                    step(&mut backend, &plan, &mut [&mut stream], &[count], limit);
                }
                check(&stream, &truth, &format!("cut {cut}, {threads} threads, {isa:?}"));
            }
        }
    };
    every(Encoding::Dense(Float::Bf16), config());
    every(four_bits(), affine_config());
}

/// The sums were made on x86-64 with AVX2. A change of the arithmetic changes them on purpose; a machine never does.
#[test]
fn every_machine_gives_the_same_bits() {
    let sum = |encoding, config: TextConfig| {
        let logits = alone(&text_plan(&config), encoding, 0, 70, &cpu_options(1, Isa::best()));
        let fold = |sum: u64, bits: &u32| (sum ^ u64::from(*bits)).wrapping_mul(0x0100_0000_01b3);
        logits.iter().flatten().fold(0xcbf2_9ce4_8422_2325, fold)
    };
    let affine = |bits, scales| Encoding::Affine { bits, group: 64, scales };
    let sums = [
        sum(four_bits(), affine_config()),
        sum(affine(6, Float::F16), affine_config()),
        sum(affine(8, Float::F32), affine_config()),
        sum(Encoding::Dense(Float::Bf16), config()),
    ];
    assert_eq!(
        sums.map(|sum| format!("{sum:016x}")),
        ["4289160572b14924", "714ad99b3179d880", "b339e3d289e13138", "e797f18d0ef10b9f"]
    );
}

#[test]
fn streams_together_equal_each_alone() {
    const COUNT: usize = 120;
    let plan = text_plan(&affine_config());
    for encoding in [four_bits(), Encoding::Affine { bits: 6, group: 64, scales: Float::F16 }] {
        let truth: Vec<_> =
            (0..3).map(|slot| alone(&plan, encoding, slot, COUNT, &cpu_options(1, Isa::best()))).collect();
        let mut backend = random_backend(&plan, encoding, &cpu_options(2, Isa::best()));
        let mut streams: Vec<Stream> = (0..3).map(|slot| Stream::new(slot, COUNT)).collect();
        let mut rng = Rng(9);
        while streams.iter().any(|s| s.at < COUNT) {
            let mut lanes: Vec<&mut Stream> = streams.iter_mut().filter(|s| s.at < COUNT).collect();
            let shift = rng.below(lanes.len());
            lanes.rotate_left(shift);
            let counts: Vec<usize> = lanes.iter().map(|s| (1 + rng.below(20)).min(COUNT - s.at)).collect();
            step(&mut backend, &plan, &mut lanes, &counts, Limit::Slices(50));
        }
        for (stream, truth) in streams.iter().zip(&truth) {
            check(stream, truth, "together");
        }
    }
}

#[test]
fn rows_not_kept_leave_no_trace() {
    const COUNT: usize = 100;
    let plan = text_plan(&affine_config());
    let options = cpu_options(1, Isa::best());
    let truth = alone(&plan, four_bits(), 0, COUNT, &options);
    let mut backend = random_backend(&plan, four_bits(), &options);
    let mut stream = Stream::new(0, COUNT);
    let mut rng = Rng(4);
    while stream.at < COUNT {
        let count = (1 + rng.below(12)).min(COUNT - stream.at);
        let kept = rng.below(count + 1);
        let mut round = Round { rows: Vec::new(), lanes: vec![stream.lane(&plan, 0, count)], ..Round::default() };
        for i in 0..count {
            // Rows past those kept are wrong guesses.
            let token = if i < kept { stream.tokens[stream.at + i] } else { rng.below(VOCAB) as u32 };
            round.rows.push(Row {
                input: Input::Token(token),
                position: (stream.at + i) as u32,
                lane: 0,
                wanted: true,
            });
        }
        backend.submit(round).expect("a good round");
        backend.advance(if kept > 0 { Limit::End } else { Limit::Slices(400) }).expect("progress");
        for i in 0..kept {
            stream.logits[stream.at + i] = backend.logits(i).iter().map(|v| v.to_bits()).collect();
        }
        if kept > 0 {
            let after = backend.conv_state_after(0, kept);
            backend.commit(&[kept]);
            assert_eq!(backend.conv_state(Slot(0)), after);
        } else {
            backend.abandon();
        }
        stream.at += kept;
    }
    check(&stream, &truth, "rolled back");
}

#[test]
fn a_stream_moved_to_other_pages_and_slot_goes_on_alike() {
    let plan = text_plan(&affine_config());
    let options = cpu_options(1, Isa::best());
    let truth = alone(&plan, four_bits(), 0, 90, &options);
    let mut backend = random_backend(&plan, four_bits(), &options);
    let mut stream = Stream::new(0, 90);
    step(&mut backend, &plan, &mut [&mut stream], &[60], Limit::End);
    let old = stream.lane(&plan, 0, 1).pages;
    let state = backend.conv_state(Slot(0));
    stream.slot = 3;
    for (from, to) in old.into_iter().flatten().zip(stream.lane(&plan, 0, 1).pages.into_iter().flatten()) {
        backend.copy_page(from, to);
        backend.release_page(from);
    }
    backend.reset_conv_state(Slot(0));
    assert!(backend.conv_state(Slot(0)).0.iter().all(|v| *v == 0.0));
    backend.set_conv_state(Slot(3), &state);
    step(&mut backend, &plan, &mut [&mut stream], &[30], Limit::End);
    check(&stream, &truth, "moved");
}

#[test]
fn pages_behind_the_window_may_be_gone() {
    let mut config = affine_config();
    config.layers = vec![LayerKind::SlidingAttention];
    let plan = text_plan(&config);
    let options = cpu_options(1, Isa::best());
    let truth = alone(&plan, four_bits(), 0, 200, &options);
    let mut backend = random_backend(&plan, four_bits(), &options);
    let mut stream = Stream::new(0, 200);
    while stream.at < 200 {
        let mut round = Round { rows: Vec::new(), lanes: vec![stream.lane(&plan, 0, 8)], ..Round::default() };
        let gone = (stream.at + 1).saturating_sub(config.window) / PAGE_ROWS;
        for page in &mut round.lanes[0].pages[0][..gone] {
            backend.release_page(std::mem::replace(page, PageId::NONE));
        }
        for i in 0..8 {
            let token = stream.tokens[stream.at + i];
            round.rows.push(Row {
                input: Input::Token(token),
                position: (stream.at + i) as u32,
                lane: 0,
                wanted: true,
            });
        }
        backend.submit(round).expect("a good round");
        backend.advance(Limit::End).expect("progress");
        for i in 0..8 {
            stream.logits[stream.at + i] = backend.logits(i).iter().map(|v| v.to_bits()).collect();
        }
        backend.commit(&[8]);
        stream.at += 8;
    }
    check(&stream, &truth, "freed pages");
}

#[test]
fn values_that_are_not_finite_fault_their_lane_alone() {
    const ROWS: usize = 8;
    for encoding in [four_bits(), Encoding::Dense(Float::F32)] {
        let plan = text_plan(&affine_config());
        let options = cpu_options(2, Isa::best());
        let truth = alone(&plan, encoding, 0, ROWS, &options);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 3e38] {
            // After each op the first buffer it may have written is spoilt in lane 1, rows 8 to 15.
            for op in (1..plan.ops.len()).step_by(5) {
                let mut backend = random_backend(&plan, encoding, &options);
                let (stream, other) = (Stream::new(0, ROWS), Stream::new(1, ROWS));
                let mut round = Round::default();
                for (lane, stream) in [&stream, &other].into_iter().enumerate() {
                    round.lanes.push(stream.lane(&plan, lane * ROWS, ROWS));
                    for i in 0..ROWS {
                        let row = Row {
                            input: Input::Token(stream.tokens[i]),
                            position: i as u32,
                            lane: lane as u32,
                            wanted: true,
                        };
                        round.rows.push(row);
                    }
                }
                backend.submit(round).expect("a good round");
                backend.advance(Limit::Ops(op)).expect("progress");
                let hidden = if op <= plan.ops.len() - 3 { BufferId(0) } else { BufferId(10) };
                let mut values = backend.read_buffer(hidden);
                let at = values.len() / 2 + 17;
                values[at] = bad;
                backend.write_buffer(hidden, &values);
                assert_eq!(backend.advance(Limit::End).expect("progress"), Progress::Done);
                assert!(!backend.faulted(0), "{bad} after op {op}");
                assert!(backend.faulted(1), "{bad} after op {op}");
                for (row, truth) in truth.iter().enumerate() {
                    let bits: Vec<u32> = backend.logits(row).iter().map(|v| v.to_bits()).collect();
                    assert!(bits == *truth, "{bad} after op {op}: another lane's logits moved");
                }
                backend.abandon();
            }
        }
    }
}

#[test]
fn ops_stop_where_asked_inside_shared_products() {
    let plan = text_plan(&affine_config());
    let mut backend = random_backend(&plan, four_bits(), &cpu_options(2, Isa::best()));
    let mut whole = random_backend(&plan, four_bits(), &cpu_options(1, Isa::best()));
    let stream = Stream::new(0, 40);
    let rows: Vec<Row> = (0..40)
        .map(|i| Row { input: Input::Token(stream.tokens[i]), position: i as u32, lane: 0, wanted: i > 30 })
        .collect();
    let round = Round { rows, lanes: vec![stream.lane(&plan, 0, 40)], ..Round::default() };
    backend.submit(round.clone()).expect("a good round");
    for op in 0..=plan.ops.len() {
        let progress = backend.advance(Limit::Ops(op)).expect("progress");
        assert_eq!(progress == Progress::Done, op == plan.ops.len(), "after {op} ops");
        whole.submit(round.clone()).expect("a good round");
        whole.advance(Limit::Ops(op)).expect("progress");
        for id in 0..plan.buffers.len() {
            assert!(
                op == 0 || backend.read_buffer(BufferId(id)) == whole.read_buffer(BufferId(id)),
                "op {op} buffer {id}"
            );
        }
        whole.abandon();
    }
}

#[test]
#[cfg(target_arch = "x86_64")]
fn the_hosts_floating_point_control_changes_nothing_and_is_kept() {
    use crate::common::{load, random_weights_as};
    use lfm3::backend::cpu::FpGuard;

    let plan = text_plan(&affine_config());
    let options = cpu_options(2, Isa::best());
    let truth = alone(&plan, four_bits(), 0, 40, &options);
    let weights = random_weights_as(&plan, &mut Rng(5), four_bits);
    let host = FpGuard::new();
    // Flush-to-zero, denormals-are-zero, rounding up, all exceptions masked.
    let odd = 0x1f80_u32 | 0x8000 | 0x0040 | 0x4000;
    // SAFETY: sets floating-point control of this thread; `host` puts back the old one.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &odd, options(nostack)) };
    let mut backend = CpuBackend::new(std::sync::Arc::new(plan.clone()), &options).expect("a backend");
    load(&mut backend, &weights);
    let mut stream = Stream::new(0, 40);
    while stream.at < 40 {
        step(&mut backend, &plan, &mut [&mut stream], &[8], Limit::Slices(100));
    }
    let mut after = 0_u32;
    // SAFETY: stores this thread's floating-point control.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut after, options(nostack)) };
    drop(host);
    assert_eq!(after & !0x3f, odd);
    check(&stream, &truth, "odd floating-point control");
}

#[test]
fn page_numbers_out_of_range_are_refused() {
    let plan = text_plan(&affine_config());
    let mut backend = random_backend(&plan, four_bits(), &cpu_options(1, Isa::best()));
    let stream = Stream::new(0, 100);
    let row = |i: usize| Row { input: Input::Token(stream.tokens[i]), position: i as u32, lane: 0, wanted: false };
    let round = Round { rows: (0..5).map(row).collect(), lanes: vec![stream.lane(&plan, 0, 5)], ..Round::default() };
    let mut far = round.clone();
    far.lanes[0].pages[1][0] = PageId(u32::MAX - 1);
    assert!(backend.submit(far).is_err());
    backend.submit(round).expect("a good round");
}

#[test]
fn a_budget_is_kept_and_one_slice_is_always_done() {
    let mut config = affine_config();
    config.layers = [LayerKind::Conv, LayerKind::FullAttention].repeat(8);
    let plan = text_plan(&config);
    let mut backend = random_backend(&plan, four_bits(), &cpu_options(1, Isa::best()));
    let stream = Stream::new(0, 64);
    let mut advances = 0;
    for _ in 0..4 {
        let row =
            |i: usize| Row { input: Input::Token(stream.tokens[i]), position: i as u32, lane: 0, wanted: i == 63 };
        let round =
            Round { rows: (0..64).map(row).collect(), lanes: vec![stream.lane(&plan, 0, 64)], ..Round::default() };
        backend.submit(round).expect("a good round");
        while backend.advance(Limit::Until(Instant::now())).expect("progress") == Progress::Working {
            advances += 1;
            assert!(backend.slice_times().next > Duration::ZERO && advances < 100_000);
        }
        backend.abandon();
    }
    assert!(advances > 4 * 60, "an elapsed deadline stops after every slice");
    assert!(backend.slice_times().worst > Duration::ZERO);
}
