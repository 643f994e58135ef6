//! Rounds out of cuts of streams, and the backends under test.

use super::{Rng, load, random_weights_as};
use lfm3::backend::cpu::{CpuBackend, CpuOptions, Isa};
use lfm3::backend::{Backend, Encoding, Input, Lane, PAGE_ROWS, PageId, Round, Row, Slot};
use lfm3::plan::{Op, Plan};
use std::sync::Arc;

/// Pages each attention layer of a test stream may have.
const STREAM_PAGES: usize = 48;

/// Some consecutive rows of one stream: `(token, whether its logits are wanted)`.
pub struct Cut {
    pub stream: usize,
    pub start: usize,
    pub rows: Vec<(u32, bool)>,
}

impl Cut {
    /// `rows` rows without tokens or logits, for plans that read neither.
    pub fn blank(stream: usize, start: usize, rows: usize) -> Cut {
        Cut { stream, start, rows: vec![(0, false); rows] }
    }
}

/// The round that runs `cuts`, one lane each.
pub fn round(plan: &Plan, cuts: &[Cut]) -> Round {
    let mut round = Round::default();
    let reads_tokens = plan.ops.iter().any(|op| matches!(op, Op::Embed { .. }));
    for (index, cut) in cuts.iter().enumerate() {
        let first_row = round.rows.len();
        for (i, &(token, wanted)) in cut.rows.iter().enumerate() {
            round.rows.push(Row {
                input: if reads_tokens { Input::Token(token) } else { Input::Stored },
                position: (cut.start + i) as u32,
                lane: index as u32,
                wanted,
            });
        }
        let pages = pages(plan, cut.stream, cut.start + cut.rows.len());
        round.lanes.push(Lane { slot: Slot(cut.stream as u32), first_row, rows: cut.rows.len(), pages, grid: None });
    }
    round
}

/// The pages of a stream's first `end` positions, its own in each layer.
pub fn pages(plan: &Plan, stream: usize, end: usize) -> Vec<Vec<PageId>> {
    let layers = plan.attentions.len();
    let page = |layer: usize, i: usize| PageId(((stream * layers + layer) * STREAM_PAGES + i) as u32);
    (0..layers).map(|layer| (0..end.div_ceil(PAGE_ROWS)).map(|i| page(layer, i)).collect()).collect()
}

/// The CPU backend in each instruction set this machine has, with 1, 2 and 3 threads.
pub fn cpu_backends(plan: &Arc<Plan>) -> Vec<(String, Box<dyn Backend>)> {
    let mut all: Vec<(String, Box<dyn Backend>)> = Vec::new();
    for isa in [Isa::Portable, Isa::Avx2].into_iter().filter(|isa| isa.available()) {
        for threads in 1..=3 {
            let backend = cpu_backend(plan, isa, threads);
            all.push((format!("{isa:?} x{threads}"), Box::new(backend)));
        }
    }
    all
}

/// A CPU backend for `plan` with random weights, all matrices in one encoding.
pub fn random_backend(plan: &Plan, matrix: Encoding, options: &CpuOptions) -> CpuBackend {
    let mut backend = CpuBackend::new(Arc::new(plan.clone()), options).expect("an available instruction set");
    load(&mut backend, &random_weights_as(plan, &mut Rng(5), || matrix));
    backend
}

/// Options of the CPU backend.
pub fn cpu_options(threads: usize, isa: Isa) -> CpuOptions {
    CpuOptions { threads, isa: Some(isa), round_to_8_bits: false }
}

/// One CPU backend.
pub fn cpu_backend(plan: &Arc<Plan>, isa: Isa, threads: usize) -> CpuBackend {
    CpuBackend::new(Arc::clone(plan), &cpu_options(threads, isa)).expect("an available instruction set")
}
