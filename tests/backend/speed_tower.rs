//! Speed of the vision tower's ops at full size on the CPU backend, printed.
//! `cargo test --release --test backend speed_tower -- --ignored --nocapture --test-threads 1`.

use crate::common::*;
use lfm3::backend::cpu::{CpuBackend, Isa};
use lfm3::backend::{Backend, Encoding, Float, Grid, Limit, ROUND_ROWS};
use lfm3::model::vision::vision_plan;
use lfm3::model::vision_config::{VisionConfig, VisionLayer};
use lfm3::plan::{AttentionId, AttentionShape, BufferId, Op, Plan, RowSet, WeightRole};
use std::hint::black_box;
use std::time::{Duration, Instant};

/// 3072 patches: a picture of 1024 x 768.
const GRID: Grid = Grid { rows: 48, cols: 64, merge: 2 };
const HIDDEN: usize = 1024;
const SHAPE: AttentionShape =
    AttentionShape { heads: 16, kv_heads: 8, head_dim: 64, window: None, bidirectional: true };

fn four_bits() -> Encoding {
    Encoding::Affine { bits: 4, group: 64, scales: Float::Bf16 }
}

/// The best of a second's runs of a plan without stages over the first 64 rows of the grid.
fn best(plan: &Plan, threads: usize, isa: Isa) -> Duration {
    let mut backend = random_backend(plan, four_bits(), &cpu_options(threads, isa));
    let mut rng = Rng(70);
    let (mut best, begin) = (Duration::MAX, Instant::now());
    while begin.elapsed() < Duration::from_millis(1000) {
        let cut = GridCut { slot: 0, grid: GRID, start: 0, rows: ROUND_ROWS };
        backend.submit(grid_round(plan, 0, &[cut])).expect("a good round");
        for (id, buffer) in plan.buffers.iter().enumerate() {
            backend.write_buffer(BufferId(id), &rng.values(ROUND_ROWS * buffer.width, 1.0));
        }
        let start = Instant::now();
        backend.advance(Limit::End).expect("no error");
        best = best.min(start.elapsed());
        backend.abandon();
    }
    best
}

fn attention() -> Plan {
    let mut plan = Plan { attentions: vec![SHAPE], ..Plan::default() };
    let q = plan.buffer("q", SHAPE.heads * SHAPE.head_dim, RowSet::All);
    plan.ops.push(Op::Attend { q, layer: AttentionId(0), out: q });
    plan
}

/// Multiply-adds a nanosecond in twelve chains of eight lanes that stay in registers.
#[cfg(target_arch = "x86_64")]
fn peak() -> f64 {
    #[target_feature(enable = "avx2,fma")]
    fn chains(turns: usize, factor: f32) -> f32 {
        let mut acc = [[1.0_f32; 8]; 12];
        for _ in 0..turns {
            for chain in &mut acc {
                for lane in chain {
                    *lane = lane.mul_add(factor, 1.0);
                }
            }
        }
        acc.as_flattened().iter().sum()
    }
    const TURNS: usize = 1_000_000;
    let run = || {
        let start = Instant::now();
        // SAFETY: called where the CPU has AVX2 and FMA.
        black_box(unsafe { chains(black_box(TURNS), black_box(0.5)) });
        (TURNS * 12 * 8) as f64 / start.elapsed().as_nanos() as f64
    };
    (0..200).map(|_| run()).fold(0.0, f64::max)
}

#[test]
#[ignore = "a measurement"]
#[cfg(target_arch = "x86_64")]
fn attention_over_a_whole_picture() {
    if !Isa::Avx2.available() {
        return;
    }
    let keys = GRID.len();
    let work = (2 * ROUND_ROWS * SHAPE.heads * SHAPE.head_dim * keys) as f64;
    println!("{ROUND_ROWS} rows over {keys} keys; GFLOP/s: two a multiply-add, exp not counted");
    println!("fma chains in registers, one thread: {:.1}", 2.0 * peak());
    for isa in [Isa::Avx2, Isa::Portable] {
        for threads in [1, 2] {
            let time = best(&attention(), threads, isa);
            let speed = 2.0 * work / time.as_nanos() as f64;
            println!("{:8} {threads} threads: {speed:6.1}, {:.2} ms", isa.name(), time.as_secs_f64() * 1e3);
        }
    }
}

#[test]
#[ignore = "a measurement"]
fn row_ops_of_the_tower() {
    let plan = |width: usize, op: fn(&mut Plan, BufferId)| {
        let mut plan = Plan { norm_eps: 1e-5, ..Plan::default() };
        let x = plan.buffer("x", width, RowSet::All);
        op(&mut plan, x);
        plan
    };
    let conv = |plan: &mut Plan, out| {
        let (gated, gates) = (plan.store("gated", HIDDEN), plan.store("gates", HIDDEN));
        let taps = plan.weight(vec!["taps".into()], HIDDEN, 9, WeightRole::GridTaps);
        plan.ops.push(Op::GridConv { gated, gates, taps, out });
    };
    let norm = |plan: &mut Plan, x| {
        let mut vector = |name: &str| plan.weight(vec![name.into()], HIDDEN, 1, WeightRole::Vector);
        let (weight, bias) = (vector("w"), vector("b"));
        plan.ops.push(Op::LayerNorm { x, weight, bias, eps: 1e-6 });
    };
    let rope = |plan: &mut Plan, x| {
        plan.ropes = vec![(0..16).map(|i| 1e6_f32.powf(-(i as f32) / 16.0)).collect()];
        plan.ops.push(Op::GridRope { x, rope: 0 });
    };
    let store = |plan: &mut Plan, bcx| {
        let (gated, gates) = (plan.store("gated", HIDDEN), plan.store("gates", HIDDEN));
        plan.ops.push(Op::StoreGated { bcx, gated, gates });
    };
    let all = [
        ("grid_conv 3 x 3, 1024", plan(HIDDEN, conv)),
        ("layer_norm 1024", plan(HIDDEN, norm)),
        ("gelu 4096", plan(4096, |plan, x| plan.ops.push(Op::Gelu { x }))),
        ("grid_rope 16 x 64", plan(HIDDEN, rope)),
        ("store_gated 1024", plan(3 * HIDDEN, store)),
    ];
    for isa in [Isa::Avx2, Isa::Portable].into_iter().filter(|isa| isa.available()) {
        for (name, plan) in &all {
            let micros = best(plan, 1, isa).as_secs_f64() * 1e6 / ROUND_ROWS as f64;
            println!("{:8} {name}: {micros:.2} us a row", isa.name());
        }
    }
}

/// Two layers of each kind at full size, and a small projector.
fn tower() -> VisionConfig {
    use VisionLayer::{Attention, Conv};
    VisionConfig {
        hidden: HIDDEN,
        ffn: 2560,
        layers: vec![Conv, Conv, Attention, Attention],
        heads: SHAPE.heads,
        kv_heads: SHAPE.kv_heads,
        head_dim: SHAPE.head_dim,
        patch: 16,
        frames: 2,
        merge: 2,
        norm_eps: 1e-5,
        theta: 1e6,
        projector_hidden: 64,
        projector_bias: true,
        text_hidden: 64,
    }
}

#[test]
#[ignore = "a measurement"]
fn windows_of_the_tower() {
    let plan = vision_plan(&tower());
    let names = ["patches, to a conv", "conv to conv", "conv to attention", "attention to attention", "attention, out"];
    for threads in [1, 2] {
        let mut backend: CpuBackend = random_backend(&plan, four_bits(), &cpu_options(threads, Isa::best()));
        let patches = Rng(71).values(GRID.len() * tower().patch_values(), 1.0);
        let mut run = GridRun::new(&plan, &mut backend, vec![Picture { grid: GRID, patches }]);
        for (stage, name) in names.iter().enumerate() {
            let mut best = Duration::MAX;
            for start in (0..GRID.len()).step_by(ROUND_ROWS) {
                let mut time = Instant::now();
                run.round(stage, &[(0, start, ROUND_ROWS)], || {
                    time = Instant::now();
                    Limit::End
                });
                best = best.min(time.elapsed());
            }
            println!("{threads} threads, a window of {ROUND_ROWS} rows, {name}: {:.2} ms", best.as_secs_f64() * 1e3);
        }
    }
}
