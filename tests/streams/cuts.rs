//! However a prompt is cut, budgeted or threaded, the same bits come out.

use crate::common::*;
use lfm3::engine::{Isa, Model, ModelOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Log-probability bits of every token but the first, and the last row's logit bits.
type Bits = (Vec<u32>, Vec<u32>);

/// Scores `tokens` appended in pieces of the lengths `cut` gives.
fn score_in_cuts(model: &Arc<Model>, tokens: &[u32], mut cut: impl FnMut() -> usize, budget: Duration) -> Bits {
    let stream = stream(model);
    let (mut done, mut scores) = (0, Vec::new());
    while done < tokens.len() {
        let end = (done + cut()).min(tokens.len());
        stream.append_tokens(&tokens[done..end]).unwrap();
        stream.score(done).unwrap();
        let heard = run_with(model, &stream, || budget);
        let expected: Vec<u64> = (done.max(1) as u64..end as u64).collect();
        assert_eq!(heard.scores.iter().map(|s| s.0).collect::<Vec<u64>>(), expected);
        assert!(heard.scores.iter().all(|(position, id, _)| tokens[*position as usize] == *id));
        scores.extend(heard.scores.iter().map(|s| s.2));
        done = end;
    }
    let logits = logit_bits(model, &stream);
    stream.close();
    (scores, logits)
}

fn whole(model: &Arc<Model>, tokens: &[u32]) -> Bits {
    score_in_cuts(model, tokens, || usize::MAX / 2, Duration::from_secs(10))
}

#[test]
fn a_prompt_cut_anywhere_scores_the_same_bits() {
    let model = open(2);
    let tokens = words(&model, &mut Rng(1), 400);
    let expected = whole(&model, &tokens);
    for cut in [1, 5, 6, 7, 63, 64, 65, 257] {
        let got = score_in_cuts(&model, &tokens, || cut, Duration::from_millis(20));
        assert!(got == expected, "cut {cut}");
    }
    for seed in 0..5 {
        let mut rng = Rng(seed);
        let mut budgets = Rng(seed + 1);
        let budget = Duration::from_micros(budgets.range(0, 900) as u64);
        let got = score_in_cuts(&model, &tokens, || rng.range(1, 90), budget);
        assert!(got == expected, "seed {seed}, budget {budget:?}");
    }
}

#[test]
fn threads_budgets_instruction_sets_and_host_float_modes_change_no_bit() {
    let tokens = words(&open(1), &mut Rng(2), 150);
    let expected = whole(&open(1), &tokens);
    for threads in [1, 2, 3] {
        for isa in [Isa::Portable, Isa::Avx2].into_iter().filter(|isa| isa.available()) {
            let model = open_with(&ModelOptions { threads, isa: Some(isa), ..ModelOptions::default() });
            for budget in [0, 150] {
                let got = score_in_cuts(&model, &tokens, || 70, Duration::from_micros(budget));
                assert!(got == expected, "{threads} threads, {isa:?}, budget {budget} us");
            }
            let got = with_odd_float_mode(|| whole(&model, &tokens));
            assert!(got == expected, "{threads} threads, {isa:?}, odd float mode");
        }
    }
}

/// Runs `work` with flush-to-zero, denormals-are-zero and rounding towards zero set, as a host might have them.
#[cfg(target_arch = "x86_64")]
fn with_odd_float_mode<T>(work: impl FnOnce() -> T) -> T {
    let mut saved = 0u32;
    // SAFETY: stores and loads the MXCSR register through valid pointers; all exceptions stay masked (0x1f80).
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut saved) };
    let odd = 0x1f80 | 0x8000 | 0x0040 | 0x6000u32;
    // SAFETY: as above.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &odd) };
    let result = work();
    let mut after = 0u32;
    // SAFETY: as above.
    unsafe { std::arch::asm!("stmxcsr [{}]", in(reg) &mut after) };
    // SAFETY: as above.
    unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &saved) };
    assert_eq!(after & 0xffc0, odd & 0xffc0, "the host's float mode was not restored");
    result
}

#[cfg(not(target_arch = "x86_64"))]
fn with_odd_float_mode<T>(work: impl FnOnce() -> T) -> T {
    work()
}

/// The prompt of 1,224 tokens of the long oracle case, where the answers lie beside the project.
#[test]
#[ignore = "long: minutes"]
fn the_long_prompt_scores_the_same_bits_however_it_is_run() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/oracle-long/lfm3-vl-demo-4bit/cases.json");
    let tokens = match std::fs::read(&file) {
        Ok(json) => {
            let cases: serde_json::Value = serde_json::from_slice(&json).unwrap();
            let ids = cases[0]["prompt_ids"].as_array().unwrap();
            ids.iter().map(|id| id.as_u64().unwrap() as u32).collect()
        }
        Err(_) => words(&open(1), &mut Rng(3), 1224),
    };
    let expected = whole(&open(1), &tokens);
    for threads in [1, 2, 3] {
        let model = open(threads);
        for cut in [1, 5, 6, 7, 63, 64, 65, 257, tokens.len()] {
            for budget in [0, 300, 20_000] {
                let got = score_in_cuts(&model, &tokens, || cut, Duration::from_micros(budget));
                assert!(got == expected, "{threads} threads, cut {cut}, budget {budget} us");
            }
        }
        for seed in 0..10 {
            let mut rng = Rng(seed);
            let got = score_in_cuts(&model, &tokens, || rng.range(1, 200), Duration::from_micros(seed * 100));
            assert!(got == expected, "{threads} threads, seed {seed}");
        }
        let got = with_odd_float_mode(|| whole(&model, &tokens));
        assert!(got == expected, "{threads} threads, odd float mode");
    }
    println!("{} tokens: the same bits in 3 x (9 cuts x 3 budgets + 10 random + odd float mode) runs", tokens.len());
}
