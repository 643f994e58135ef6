//! The long prompt of the shipped checkpoint, cut in every way: the same bits.

use crate::common::*;
use lfm3::backend::cpu::Isa;
use lfm3::backend::{Backend, Limit, ROUND_ROWS, Slot};
use lfm3::model::checkpoint::Checkpoint;
use lfm3::model::forward::text_plan;
use lfm3::model::load::load_weights;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// How prompts are cut; what is over a round's rows makes a full round and a short one.
const CUTS: [usize; 8] = [1, 5, 6, 7, 63, 64, 65, 257];

#[test]
fn the_long_prompt_gives_the_same_bits_however_it_is_cut() {
    let best = Isa::best();
    hold(best, (1..=3).map(|threads| (best, threads)).collect());
}

#[test]
#[ignore = "a minute"]
fn the_long_prompt_gives_the_same_bits_on_every_instruction_set() {
    let all = [Isa::Portable, Isa::Avx2].into_iter().filter(|isa| isa.available());
    hold(Isa::Portable, all.flat_map(|isa| (1..=3).map(move |threads| (isa, threads))).collect());
}

/// The bits of `first` in whole rounds, on every other kind of backend with every cut.
fn hold(first: Isa, others: Vec<(Isa, usize)>) {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR"));
    let answers = std::fs::read(repository.join("tests/data/oracle/long/lfm3-vl-demo-4bit/cases.json")).expect("cases");
    let answers: serde_json::Value = serde_json::from_slice(&answers).expect("cases");
    let ids = answers[0]["prompt_ids"].as_array().expect("ids");
    let tokens: Vec<u32> = ids.iter().map(|id| id.as_u64().expect("an id") as u32).collect();
    assert_eq!(tokens.len(), 1224);

    let checkpoint = Checkpoint::open(&repository.join("examples/demo-model")).expect("a good checkpoint");
    let plan = Arc::new(text_plan(&checkpoint.config.text));
    let mut rng = Rng(40);
    let mut run = |name: &str, backend: &mut dyn Backend, cut: Option<usize>, inside: bool| {
        let start = Instant::now();
        let (mut at, mut hidden, mut logits) = (0, Vec::new(), Vec::new());
        let mut stream = Stream::new(&plan, backend);
        while at < tokens.len() {
            let end = (at + cut.unwrap_or_else(|| 1 + rng.below(80))).min(tokens.len());
            for part in tokens[at..end].chunks(ROUND_ROWS) {
                let limit = || if inside { Limit::Slices(1 + rng.below(40)) } else { Limit::End };
                let (rows, last) = stream.feed_round(part, limit);
                hidden.extend(rows);
                logits = last;
            }
            at = end;
        }
        println!("{name}, cut {cut:?}, stopped inside ops: {inside}: {:.1?}", start.elapsed());
        let state = stream.backend.conv_state(Slot(0)).0;
        [hidden, logits, state].map(|values| values.iter().map(|v| v.to_bits()).collect::<Vec<u32>>())
    };
    let load = |(isa, threads): (Isa, usize)| {
        let mut backend = cpu_backend(&plan, isa, threads);
        load_weights(&checkpoint, (&plan, &mut backend), None, &mut |_, _| true).expect("good weights");
        (format!("{isa:?} x{threads}"), backend)
    };
    let expected = run("first", &mut load((first, 1)).1, Some(64), false);
    let mut backends: Vec<_> = others.into_iter().map(load).collect();
    let ways = CUTS.iter().map(|&cut| Some(cut)).chain([None, None, None, None]);
    let count = backends.len();
    for (index, cut) in ways.enumerate() {
        let (name, backend) = &mut backends[index % count];
        assert!(run(name, backend, cut, index % 2 == 0) == expected, "{name}, cut {cut:?}: other bits");
    }
}
