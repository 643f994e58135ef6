//! Speed of the CPU backend, printed: matrix products, and rounds of a full-size model with 4 bits and random weights.
//! `cargo test --release --test cpu_speed -- --ignored --nocapture --test-threads 1`.

#[path = "support/cpu.rs"]
#[allow(dead_code)]
mod support;

use lfm3::backend::cpu::{CpuBackend, CpuOptions, Isa};
use lfm3::backend::{
    Backend, Band, Encoding, Float, Lane, Limit, PAGE_ROWS, PageId, Progress, Round, Row, Slot, TensorDesc,
    WeightSource,
};
use lfm3::error::Result;
use lfm3::model::config::{LayerKind, RopeConfig, TextConfig};
use lfm3::model::forward::text_plan;
use lfm3::plan::{Op, Plan, RowSet, WeightId, WeightRole};
use std::sync::Arc;
use std::time::{Duration, Instant};

const OUTPUTS: usize = 7680;
const INPUTS: usize = 2048;

fn one_product() -> Plan {
    let mut plan = Plan::default();
    let x = plan.buffer("x", INPUTS, RowSet::All);
    let out = plan.buffer("out", OUTPUTS, RowSet::All);
    let weight = plan.weight(vec!["w".into()], OUTPUTS, INPUTS, WeightRole::Matrix);
    plan.ops.push(Op::Matmul { x, weight, bias: None, out });
    plan
}

fn round(rows: usize) -> Round {
    let row = |i: usize| Row { token: 0, position: i as u32, lane: 0, wanted: false };
    let lane = Lane { slot: Slot(0), first_row: 0, rows, pages: Vec::new() };
    Round { rows: (0..rows).map(row).collect(), lanes: vec![lane] }
}

/// The best of several seconds' worth, in multiply-adds a nanosecond.
fn speed(backend: &mut CpuBackend, rows: usize) -> f64 {
    let mut best = Duration::MAX;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(600) {
        backend.submit(round(rows)).expect("a round");
        let x: Vec<f32> = (0..rows * INPUTS).map(|i| (i % 251) as f32 - 120.0).collect();
        backend.write_buffer(lfm3::plan::BufferId(0), &x);
        let start = Instant::now();
        backend.advance(Limit::End).expect("progress");
        best = best.min(start.elapsed());
        backend.abandon();
    }
    (rows * OUTPUTS * INPUTS) as f64 / best.as_nanos() as f64
}

#[test]
#[ignore = "a measurement"]
fn products_per_second() {
    let affine = |bits| Encoding::Affine { bits, group: 64, scales: Float::Bf16 };
    println!("{OUTPUTS} x {INPUTS}, GMAC/s, best run (1 row reads the matrix once: bytes/s follow)");
    for isa in [Isa::Avx2, Isa::Portable] {
        let encodings = [("4 bits", affine(4)), ("6 bits", affine(6)), ("8 bits", affine(8))];
        for (name, encoding) in encodings.into_iter().chain([("bf16", Encoding::Dense(Float::Bf16))]) {
            for threads in [1, 2] {
                if !isa.available() {
                    continue;
                }
                let options = CpuOptions { threads, isa: Some(isa), round_to_8_bits: false };
                let mut backend = support::backend(&one_product(), encoding, 1, &options);
                let figures: Vec<String> =
                    [1, 8, 64].iter().map(|&rows| format!("{rows} rows {:6.1}", speed(&mut backend, rows))).collect();
                println!("{:8} {name:6} {threads} threads: {}", isa.name(), figures.join("  "));
            }
        }
    }
}

/// Random rows made as they are asked for, so that the whole model is never held twice.
struct Stream {
    desc: TensorDesc,
    state: u64,
}

impl Stream {
    fn fill(&mut self, out: &mut Vec<u8>, len: usize) {
        out.clear();
        while out.len() < len {
            self.state ^= self.state << 13;
            self.state ^= self.state >> 7;
            self.state ^= self.state << 17;
            out.extend(self.state.to_le_bytes());
        }
        out.truncate(len);
    }
}

impl WeightSource for Stream {
    fn desc(&self) -> &TensorDesc {
        &self.desc
    }

    fn read_rows(&mut self, _first: usize, count: usize, band: &mut Band) -> Result<()> {
        match self.desc.encoding {
            Encoding::Dense(float) => {
                band.data.clear();
                let value = if self.desc.cols == 1 { 1.0 } else { 0.3 };
                (0..count * self.desc.cols).for_each(|_| support::float_bytes(float, value, &mut band.data));
                band.scales.clear();
                band.biases.clear();
            }
            Encoding::Affine { bits, group, .. } => {
                self.fill(&mut band.data, count * self.desc.cols * usize::from(bits) / 8);
                let floats = count * self.desc.cols / group;
                // 2^-8 a step, the middle at zero.
                band.scales = [0x80, 0x3b].repeat(floats);
                band.biases = [0xf0, 0xbc].repeat(floats);
            }
        }
        Ok(())
    }
}

fn full_size() -> TextConfig {
    use LayerKind::{Conv, FullAttention, SlidingAttention};
    let kind = |i: usize| match i {
        2 | 6 | 10 | 14 | 18 | 22 => FullAttention,
        4 | 8 | 12 | 16 | 20 => SlidingAttention,
        _ => Conv,
    };
    TextConfig {
        vocab_size: 128_000,
        hidden: 2048,
        ffn: 7680,
        layers: (0..24).map(kind).collect(),
        heads: 16,
        kv_heads: 4,
        head_dim: 128,
        taps: 7,
        conv_bias: false,
        attention_bias: false,
        window: 256,
        norm_eps: 1e-5,
        sandwich: true,
        gate: true,
        tied: true,
        max_positions: 128_000,
        rope_full: RopeConfig { theta: 1e6, partial: 0.5 },
        rope_sliding: RopeConfig { theta: 1e4, partial: 1.0 },
    }
}

fn load_full_size(plan: &Arc<Plan>, threads: usize) -> CpuBackend {
    let options = CpuOptions { threads, isa: None, round_to_8_bits: false };
    let mut backend = CpuBackend::new(Arc::clone(plan), &options).expect("a backend");
    for (id, spec) in plan.weights.iter().enumerate() {
        let encoding = match spec.role {
            WeightRole::Matrix => Encoding::Affine { bits: 4, group: 64, scales: Float::Bf16 },
            WeightRole::Vector | WeightRole::Taps => Encoding::Dense(Float::Bf16),
        };
        let desc = TensorDesc { name: spec.names[0].clone(), rows: spec.rows, cols: spec.cols, encoding };
        backend.load(WeightId(id), &mut Stream { desc, state: id as u64 + 1 }).expect("weights load");
    }
    backend
}

/// Rows of a prompt at `at` in lane 0 and one row of another stream that decodes.
fn mixed_round(plan: &Plan, at: usize, rows: usize, other: usize) -> Round {
    let mut round = Round::default();
    for (lane, (first, rows)) in [(at, rows), (other, 1)].into_iter().enumerate().filter(|(_, (_, rows))| *rows > 0) {
        let lane_index = round.lanes.len() as u32;
        let page = |layer: usize, i: usize| PageId((lane * 1000 + layer * 80 + i) as u32);
        let count = (first + rows).div_ceil(PAGE_ROWS);
        let pages = (0..plan.attentions.len()).map(|layer| (0..count).map(|i| page(layer, i)).collect()).collect();
        round.lanes.push(Lane { slot: Slot(lane as u32), first_row: round.rows.len(), rows, pages });
        for i in 0..rows {
            let (token, position) = ((i * 977 + first) as u32 % 128_000, (first + i) as u32);
            round.rows.push(Row { token, position, lane: lane_index, wanted: i + 1 == rows });
        }
    }
    round
}

#[test]
#[ignore = "a measurement"]
fn full_size_steps_keep_their_budget() {
    let plan = Arc::new(text_plan(&full_size()));
    let begin = Instant::now();
    let mut backend = load_full_size(&plan, 2);
    println!("loaded {} MB in {:.1} s", backend.bytes() >> 20, begin.elapsed().as_secs_f64());
    let (mut steps, mut prompt, mut decode) = (Vec::new(), Duration::ZERO, Duration::ZERO);
    for i in 0..32 {
        for (rows, spent) in [(63, &mut prompt), (0, &mut decode)] {
            backend.submit(mixed_round(&plan, i * 63, rows, 2 * i + usize::from(rows == 0))).expect("a round");
            loop {
                let start = Instant::now();
                let progress = backend.advance(Limit::Until(start + Duration::from_millis(8))).expect("progress");
                steps.push(start.elapsed());
                *spent += start.elapsed();
                if progress == Progress::Done {
                    break;
                }
            }
            let kept = if rows > 0 { vec![rows, 1] } else { vec![1] };
            backend.commit(&kept);
        }
    }
    steps.sort();
    let at = |part: f64| steps[((steps.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e3;
    println!(
        "2 threads, 4 bits: prompt {:.0} rows/s, decode {:.1} rows/s",
        32.0 * 64.0 / prompt.as_secs_f64(),
        32.0 / decode.as_secs_f64()
    );
    println!(
        "{} steps of 8 ms: p50 {:.2}, p99 {:.2}, worst {:.2} ms; worst slice {:.2} ms",
        steps.len(),
        at(0.5),
        at(0.99),
        at(1.0),
        backend.slice_times().worst.as_secs_f64() * 1e3
    );
}
