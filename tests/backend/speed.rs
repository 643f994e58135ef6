//! Speed of the CPU backend's matrix products, printed.
//! `cargo test --release --test backend speed -- --ignored --nocapture`.

use crate::common::{cpu_options, random_backend};
use lfm3::backend::cpu::{CpuBackend, Isa};
use lfm3::backend::{Backend, Encoding, Float, Input, Lane, Limit, Round, Row, Slot};
use lfm3::plan::{BufferId, Op, Plan, RowSet, WeightRole};
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
    let row = |i: usize| Row { input: Input::Stored, position: i as u32, lane: 0, wanted: false };
    let lane = Lane { slot: Slot(0), first_row: 0, rows, pages: Vec::new(), grid: None };
    Round { rows: (0..rows).map(row).collect(), lanes: vec![lane], ..Round::default() }
}

/// The best of several seconds' worth, in multiply-adds a nanosecond.
fn speed(backend: &mut CpuBackend, rows: usize) -> f64 {
    let mut best = Duration::MAX;
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_millis(600) {
        backend.submit(round(rows)).expect("a round");
        let x: Vec<f32> = (0..rows * INPUTS).map(|i| (i % 251) as f32 - 120.0).collect();
        backend.write_buffer(BufferId(0), &x);
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
                let mut backend = random_backend(&one_product(), encoding, &cpu_options(threads, isa));
                let figures: Vec<String> =
                    [1, 8, 64].iter().map(|&rows| format!("{rows} rows {:6.1}", speed(&mut backend, rows))).collect();
                println!("{:8} {name:6} {threads} threads: {}", isa.name(), figures.join("  "));
            }
        }
    }
}
