//! Trained checkpoints against float64 answers of another implementation: layers, logits, greedy replies.
//!
//! The repository ships one checkpoint and a trimmed set of answers; a folder `shared` beside the repository, where
//! there is one, holds more of both. Cases with pictures are `oracle_vision`'s.

use crate::common::*;
use lfm3::backend::Backend;
use lfm3::backend::cpu::{CpuBackend, CpuOptions};
use lfm3::backend::reference::ReferenceBackend;
use lfm3::model::checkpoint::Checkpoint;
use lfm3::model::config::RopeConfig;
use lfm3::model::forward::{inverse_frequencies, text_plan};
use lfm3::model::load::load_weights;
use lfm3::plan::{Op, Plan};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// What a backend may be off.
#[derive(Clone, Copy)]
pub struct Bounds {
    /// A layer's rows, 2-norm, relative.
    pub layer: f64,
    /// Any logit.
    pub logit: f64,
}

/// f16 keys and values cost about 1.3e-3 in logits, 16-bit activations 8e-4.
pub const CPU: Bounds = Bounds { layer: 2e-4, logit: 0.004 };
/// The answers have norms in float32; 1.6e-7 and 3.9e-6 are the worst seen.
pub const REFERENCE: Bounds = Bounds { layer: 1e-6, logit: 2e-5 };

/// One case of cases.json, as far as it is used here.
#[derive(serde::Deserialize)]
pub struct Case {
    pub name: String,
    pub prompt_ids: Vec<u32>,
    top_ids: Vec<usize>,
    top_logits: Vec<f64>,
    greedy_ids: Vec<u32>,
    /// Frames, rows and columns of each picture's patches; only cases with pictures have it.
    pub grid_thw: Option<Vec<[u32; 3]>>,
}

/// A checkpoint and answers to hold it to.
pub struct Set {
    pub name: String,
    pub checkpoint: PathBuf,
    pub cases: Vec<Case>,
    /// Bytes of a safetensors file, or none.
    pub rows: Vec<u8>,
}

/// Rows of a case's prompt that are given as values, by position.
pub type Given<'a> = &'a mut dyn FnMut(&Case) -> BTreeMap<usize, Vec<f32>>;

/// The largest deviations seen, and where.
#[derive(Default)]
struct Worst {
    layer: (f64, String),
    logit: (f64, String),
    cases: usize,
    layers: usize,
    greedy: usize,
}

pub fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

impl Set {
    /// The cases without pictures.
    fn read(checkpoint: PathBuf, answers: &Path) -> Set {
        let mut set = Set::read_all(checkpoint, answers, "rows.safetensors");
        set.cases.retain(|case| case.grid_thw.is_none());
        set
    }

    /// Every case, with the rows in a file of that name.
    pub fn read_all(checkpoint: PathBuf, answers: &Path, rows: &str) -> Set {
        let text = std::fs::read(answers.join("cases.json")).expect("cases.json");
        let cases: Vec<Case> = serde_json::from_slice(&text).expect("cases");
        let rows = std::fs::read(answers.join(rows)).unwrap_or_default();
        let name =
            format!("{}", answers.strip_prefix(repository().parent().expect("a parent")).unwrap_or(answers).display());
        Set { name, checkpoint, cases, rows }
    }

    /// What the repository ships.
    fn shipped() -> [Set; 2] {
        let answers = repository().join("tests/data/oracle");
        ["short", "long"].map(|kind| {
            Set::read(repository().join("examples/demo-model"), &answers.join(kind).join("lfm3-vl-demo-4bit"))
        })
    }

    /// What lies beside the repository: every checkpoint that has answers.
    fn beside() -> Vec<Set> {
        Set::all_beside(&["oracle", "oracle-long"], Set::read)
    }

    /// As `read` reads them, those of some kinds.
    pub fn all_beside(kinds: &[&str], read: impl Fn(PathBuf, &Path) -> Set) -> Vec<Set> {
        let shared = repository().parent().expect("a parent").join("shared");
        let mut sets = Vec::new();
        for kind in kinds {
            let Ok(folder) = std::fs::read_dir(shared.join(kind)) else { continue };
            let mut names: Vec<_> = folder.map(|entry| entry.expect("an entry").file_name()).collect();
            names.sort();
            for name in names {
                let (checkpoint, answers) = (shared.join("checkpoints").join(&name), shared.join(kind).join(&name));
                if checkpoint.is_dir() && answers.join("cases.json").is_file() {
                    sets.push(read(checkpoint, &answers));
                }
            }
        }
        println!("{} sets of answers in {}", sets.len(), shared.display());
        sets
    }

    fn plan(&self) -> (Checkpoint, Plan) {
        let checkpoint = Checkpoint::open(&self.checkpoint).expect("a good checkpoint");
        let plan = text_plan(&checkpoint.config.text);
        (checkpoint, plan)
    }

    /// Runs the cases that `pick` wants on `backend` and gives the worst deviations.
    fn run(&self, plan: &Plan, backend: &mut dyn Backend, pick: impl Fn(&Case) -> bool, given: Given) -> Worst {
        let rows = (!self.rows.is_empty()).then(|| SafeTensors::deserialize(&self.rows).expect("rows"));
        let mut worst = Worst::default();
        for case in self.cases.iter().filter(|case| pick(case)) {
            let at = format!("{} case {}", self.name, case.name);
            let mut stream = Stream::new(plan, backend);
            stream.given = given(case);
            let stored = rows.as_ref().filter(|rows| rows.tensor(&format!("{}.logits", case.name)).is_ok());
            let logits = match stored {
                None => stream.feed(&case.prompt_ids),
                Some(rows) => {
                    let (layers, logits) = stream.feed_tapped(&case.prompt_ids);
                    worst.hold_layers(case, rows, &layers, &at);
                    worst.hold_logits(case, rows, &logits, &at);
                    logits
                }
            };
            for (&id, expected) in case.top_ids.iter().zip(&case.top_logits) {
                raise(&mut worst.logit, (f64::from(logits[id]) - expected).abs(), format!("{at} token {id}"));
            }
            greedy(&mut stream, logits, &case.greedy_ids, &at);
            worst.greedy += case.greedy_ids.len();
            worst.cases += 1;
        }
        worst
    }

    /// As `run`, and holds the result to `bounds`.
    fn check(&self, plan: &Plan, backend: &mut dyn Backend, bounds: Bounds, pick: impl Fn(&Case) -> bool) {
        self.check_given(plan, backend, bounds, pick, &mut |_| BTreeMap::new());
    }

    /// As `check`, some rows being given.
    pub fn check_given(
        &self,
        plan: &Plan,
        backend: &mut dyn Backend,
        bounds: Bounds,
        pick: impl Fn(&Case) -> bool,
        given: Given,
    ) {
        let start = std::time::Instant::now();
        let worst = self.run(plan, backend, pick, given);
        println!("{}: {} cases, {} greedy tokens, {:.1?}", self.name, worst.cases, worst.greedy, start.elapsed());
        println!("  worst of {} layers {:.2e} ({})", worst.layers, worst.layer.0, worst.layer.1);
        println!("  worst logit {:.2e} ({})", worst.logit.0, worst.logit.1);
        assert!(worst.cases > 0, "{}: no case", self.name);
        assert!(worst.layer.0 <= bounds.layer, "{:.2e}: {}", worst.layer.0, worst.layer.1);
        assert!(worst.logit.0 <= bounds.logit, "{:.2e}: {}", worst.logit.0, worst.logit.1);
    }

    fn check_on_cpu(&self) {
        let (checkpoint, plan) = self.plan();
        let mut backend = cpu(&checkpoint, &plan);
        self.check(&plan, &mut backend, CPU, |_| true);
    }

    fn check_on_reference(&self, longest: usize) {
        let (checkpoint, plan) = self.plan();
        let mut backend = ReferenceBackend::new(Arc::new(plan.clone()));
        load_weights(&checkpoint, (&plan, &mut backend), None, &mut |_, _| true).expect("good weights");
        self.check(&plan, &mut backend, REFERENCE, |case| case.prompt_ids.len() <= longest);
    }
}

impl Worst {
    fn hold_layers(&mut self, case: &Case, rows: &SafeTensors, layers: &[Vec<f32>], at: &str) {
        let kept = rows.tensor(&format!("{}.rows", case.name)).ok().map(|view| indices(view.data()));
        for (layer, found) in layers.iter().enumerate() {
            let expected = rows.tensor(&format!("{}.layer.{layer}", case.name)).expect("a layer");
            let found = select(found, kept.as_deref(), case.prompt_ids.len());
            raise(&mut self.layer, distance(&floats(expected.data()), &found), format!("{at} layer {layer}"));
            self.layers += 1;
        }
    }

    fn hold_logits(&mut self, case: &Case, rows: &SafeTensors, logits: &[f32], at: &str) {
        let expected = floats(rows.tensor(&format!("{}.logits", case.name)).expect("logits").data());
        let errors = expected.iter().zip(logits).map(|(e, f)| f64::from((e - f).abs()));
        let found = errors.fold(0.0, |most: f64, e| if e <= most { most } else { e });
        raise(&mut self.logit, found, format!("{at}, all logits"));
    }
}

/// Goes on with the best token each time, which must be the expected one.
fn greedy(stream: &mut Stream, mut logits: Vec<f32>, expected: &[u32], at: &str) {
    for (index, &expected) in expected.iter().enumerate() {
        let best = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).expect("logits") as u32;
        assert_eq!(best, expected, "{at}: greedy token {index}");
        logits = stream.feed(&[best]);
    }
}

/// The CPU backend as it would be chosen, with two threads.
fn cpu(checkpoint: &Checkpoint, plan: &Plan) -> CpuBackend {
    let options = CpuOptions { threads: 2, isa: None, round_to_8_bits: false };
    let mut backend = CpuBackend::new(Arc::new(plan.clone()), &options).expect("a backend");
    load_weights(checkpoint, (plan, &mut backend), None, &mut |_, _| true).expect("good weights");
    backend
}

pub fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn indices(bytes: &[u8]) -> Vec<usize> {
    bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]) as usize).collect()
}

/// The rows of `values` (of `count` in all) that are stored.
fn select(values: &[f32], kept: Option<&[usize]>, count: usize) -> Vec<f32> {
    let width = values.len() / count;
    let Some(kept) = kept else { return values.to_vec() };
    kept.iter().flat_map(|r| &values[r * width..(r + 1) * width]).copied().collect()
}

/// 2-norm of the difference, relative to the expected rows.
pub fn distance(expected: &[f32], found: &[f32]) -> f64 {
    assert_eq!(expected.len(), found.len());
    let error: f64 = expected.iter().zip(found).map(|(e, f)| f64::from(e - f).powi(2)).sum();
    (error / expected.iter().map(|&e| f64::from(e).powi(2)).sum::<f64>()).sqrt()
}

/// Notes the larger deviation; NaN is the largest.
pub fn raise(worst: &mut (f64, String), found: f64, at: String) {
    let found = if found.is_nan() { f64::INFINITY } else { found };
    if found > worst.0 {
        *worst = (found, at);
    }
}

#[test]
fn shipped_answers_hold_on_the_cpu() {
    Set::shipped().iter().for_each(Set::check_on_cpu);
}

#[test]
fn shipped_short_answers_hold_on_the_reference() {
    Set::shipped()[0].check_on_reference(45);
}

#[test]
#[ignore = "minutes; needs the folder beside the repository"]
fn every_answer_holds_on_the_cpu() {
    Set::beside().iter().for_each(Set::check_on_cpu);
}

#[test]
#[ignore = "minutes; needs the folder beside the repository"]
fn every_answer_holds_on_the_reference() {
    Set::beside().iter().for_each(|set| set.check_on_reference(usize::MAX));
}

#[test]
fn planted_faults_break_the_bounds() {
    let [set, _] = Set::shipped();
    let (checkpoint, good) = set.plan();
    let sliding = good.attentions.iter().position(|shape| shape.window.is_some()).expect("a window");
    type Fault<'a> = (&'a str, &'a dyn Fn(&mut Plan));
    let faults: [Fault; 3] = [
        ("full rotation for partial", &|plan| {
            let RopeConfig { theta, .. } = checkpoint.config.text.rope_full;
            plan.ropes[0] = inverse_frequencies(checkpoint.config.text.head_dim, RopeConfig { theta, partial: 1.0 });
        }),
        ("window 63 for 64", &|plan| plan.attentions[sliding].window = Some(63)),
        ("gate dropped", &|plan| plan.ops.retain(|op| !matches!(op, Op::HeadGate { .. }))),
    ];
    for (name, plant) in faults {
        let mut plan = good.clone();
        plant(&mut plan);
        let mut backend = cpu(&checkpoint, &plan);
        let mut worst = Worst::default();
        for case in &set.cases {
            let logits = Stream::new(&plan, &mut backend).feed(&case.prompt_ids);
            for (&id, expected) in case.top_ids.iter().zip(&case.top_logits) {
                raise(&mut worst.logit, (f64::from(logits[id]) - expected).abs(), case.name.clone());
            }
        }
        println!("{name}: logits off by {:.3}", worst.logit.0);
        assert!(worst.logit.0 > 2.0 * CPU.logit, "{name}: logits off by {:.4}", worst.logit.0);
    }
}
