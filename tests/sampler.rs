//! The sampler against a naive float64 oracle that sorts everything, and its draws against their distribution.

use lfm3::error::Code;
use lfm3::sampler::{LogProbs, Sampler, Sampling, log_probs};

fn plain() -> Sampling {
    Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY }
}

/// A small generator of its own, so that the tests share nothing with the sampler.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        self.next() as usize % n
    }

    /// From -1 to 1.
    fn signed(&mut self) -> f32 {
        (self.next() % 2_000_001) as f32 / 1e6 - 1.0
    }

    fn logits(&mut self, vocab: usize, spread: f32) -> Vec<f32> {
        (0..vocab).map(|_| self.signed() * spread).collect()
    }

    fn history(&mut self, vocab: usize, len: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab) as u32).collect()
    }
}

/// Logits after penalties and bias, token by token and occurrence by occurrence.
fn oracle_scores(logits: &[f32], history: &[u32], s: &Sampling, bias: &[(u32, f32)]) -> Vec<f64> {
    let reach = if s.penalty_reach == u32::MAX { history.len() } else { s.penalty_reach as usize };
    let recent: Vec<u32> = history.iter().rev().take(reach).copied().collect();
    (0..logits.len() as u32)
        .map(|id| {
            let mut score = f64::from(logits[id as usize]);
            let count = recent.iter().filter(|t| **t == id).count();
            if count > 0 {
                let r = f64::from(s.repetition_penalty);
                score = if score < 0.0 { score * r } else { score / r };
                score -= f64::from(s.presence_penalty);
            }
            score -= f64::from(s.frequency_penalty) * count as f64;
            score + bias.iter().filter(|b| b.0 == id).map(|b| f64::from(b.1)).sum::<f64>()
        })
        .collect()
}

/// The probability of each token, 0 for those that are filtered out.
fn oracle_probabilities(scores: &[f64], s: &Sampling) -> Vec<f64> {
    let mut order: Vec<usize> = (0..scores.len()).filter(|i| scores[*i] > f64::NEG_INFINITY).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
    if s.top_k > 0 {
        order.truncate(s.top_k as usize);
    }
    let best = scores[order[0]];
    let weight = |i: &usize| ((scores[*i] - best) / f64::from(s.temperature)).exp();
    if s.top_p < 1.0 {
        let total: f64 = order.iter().map(weight).sum();
        let mut reached = 0.0;
        let mut keep = 0;
        for i in &order {
            keep += 1;
            reached += weight(i) / total;
            if reached >= f64::from(s.top_p) {
                break;
            }
        }
        order.truncate(keep);
    }
    order.retain(|i| weight(i) >= f64::from(s.min_p));
    let total: f64 = order.iter().map(weight).sum();
    let mut out = vec![0.0; scores.len()];
    for i in &order {
        out[*i] = weight(i) / total;
    }
    out
}

/// Checks the draws of `positions` positions against the oracle's probabilities by Pearson's chi-square.
fn assert_draws_follow(logits: &[f32], history: &[u32], s: &Sampling, bias: &[(u32, f32)], positions: u64) {
    let expected = oracle_probabilities(&oracle_scores(logits, history, s, bias), s);
    let mut sampler = Sampler::new(logits.len(), s.clone(), bias).unwrap();
    let mut seen = vec![0u64; logits.len()];
    for position in 0..positions {
        seen[sampler.sample(logits, history, position).unwrap() as usize] += 1;
    }
    // Cells with fewer than 5 expected draws are put together, as the test asks for.
    let (mut chi, mut cells, mut rest, mut rest_seen) = (0.0, 0.0, 0.0, 0u64);
    for (p, n) in expected.iter().zip(&seen) {
        assert!(*p > 0.0 || *n == 0, "a filtered token was drawn {n} times: {s:?}");
        let want = p * positions as f64;
        if want < 5.0 {
            rest += want;
            rest_seen += n;
            continue;
        }
        chi += (*n as f64 - want).powi(2) / want;
        cells += 1.0;
    }
    if rest >= 5.0 {
        chi += (rest_seen as f64 - rest).powi(2) / rest;
        cells += 1.0;
    }
    // Mean and spread of chi-square with cells - 1 degrees of freedom; 4.5 sigma and a little for few cells.
    let freedom: f64 = cells - 1.0;
    let limit = freedom + 4.5 * (2.0 * freedom).sqrt() + 8.0;
    assert!(chi <= limit, "chi-square {chi:.1} over {limit:.1} ({freedom} degrees): {s:?}");
}

#[test]
fn draws_follow_the_distribution_of_a_naive_oracle() {
    let mut random = Random(1);
    let logits = random.logits(40, 3.0);
    let history = random.history(40, 30);
    let some = [(3, 1.5), (7, -2.0), (11, f32::NEG_INFINITY)];
    let cases = [
        plain(),
        Sampling { temperature: 0.7, seed: 1, ..plain() },
        Sampling { temperature: 3.0, seed: 2, ..plain() },
        Sampling { top_k: 5, seed: 3, ..plain() },
        Sampling { top_k: 1_000_000, seed: 3, ..plain() },
        Sampling { top_p: 0.8, seed: 4, ..plain() },
        Sampling { min_p: 0.1, seed: 5, ..plain() },
        Sampling { top_k: 20, top_p: 0.9, min_p: 0.02, temperature: 1.5, seed: 6, ..plain() },
        Sampling { repetition_penalty: 1.3, seed: 8, ..plain() },
        Sampling { repetition_penalty: 0.7, presence_penalty: -0.5, seed: 9, ..plain() },
        Sampling { presence_penalty: 0.8, frequency_penalty: 0.4, penalty_reach: 12, seed: 10, ..plain() },
        Sampling {
            temperature: 0.8,
            top_k: 30,
            top_p: 0.95,
            min_p: 0.01,
            repetition_penalty: 1.1,
            presence_penalty: 0.2,
            frequency_penalty: 0.1,
            penalty_reach: 20,
            seed: u64::MAX,
        },
    ];
    for s in &cases {
        assert_draws_follow(&logits, &history, s, &[], 20_000);
        assert_draws_follow(&logits, &history, s, &some, 20_000);
    }
}

#[test]
fn the_kept_set_is_the_oracles_for_large_vocabularies() {
    let mut random = Random(2);
    for case in 0..30u64 {
        let vocab = 1 + random.below(4000);
        let spread = 1.0 + random.below(8) as f32;
        let mut logits = random.logits(vocab, spread);
        // Equal logits, as quantized heads give them: ties must go to low ids.
        logits.iter_mut().for_each(|l| *l = (*l * 4.0).round() / 4.0);
        let s = Sampling {
            temperature: 0.2 + random.below(30) as f32 / 10.0,
            top_k: [0, 1, 2, 50, 129, 300, 3000][random.below(7)],
            top_p: [1.0, 0.999, 0.9, 0.5, 0.01, 0.0][random.below(6)],
            min_p: [0.0, 1e-4, 0.05, 1.0][random.below(4)],
            repetition_penalty: 1.2,
            seed: case,
            ..plain()
        };
        let history = random.history(vocab, 50);
        let expected = oracle_probabilities(&oracle_scores(&logits, &history, &s, &[]), &s);
        let mut sampler = Sampler::new(vocab, s.clone(), &[]).unwrap();
        let mut seen = vec![false; vocab];
        for position in 0..1500 {
            let id = sampler.sample(&logits, &history, position).unwrap() as usize;
            assert!(expected[id] > 0.0, "token {id} should be filtered: {s:?}, vocab {vocab}");
            seen[id] = true;
        }
        for (id, p) in expected.iter().enumerate() {
            // (1 - 0.02)^1500 is 1e-13.
            assert!(*p < 0.02 || seen[id], "token {id} of probability {p} never drawn: {s:?}, vocab {vocab}");
        }
    }
}

#[test]
fn a_draw_depends_on_seed_and_position_alone() {
    let mut random = Random(3);
    let logits = random.logits(500, 2.0);
    let draw = |positions: &[u64]| {
        let mut sampler = Sampler::new(500, plain(), &[]).unwrap();
        positions.iter().map(|p| sampler.sample(&logits, &[], *p).unwrap()).collect::<Vec<_>>()
    };
    let forward: Vec<u64> = (0..400).collect();
    let backward: Vec<u64> = (0..400).rev().collect();
    let mut turned = draw(&backward);
    turned.reverse();
    assert_eq!(draw(&forward), turned);
    let again: Vec<u64> = forward.iter().flat_map(|p| [*p, 399, *p]).collect();
    let picked: Vec<u32> = draw(&again).into_iter().step_by(3).collect();
    assert_eq!(draw(&forward), picked);
}

#[test]
fn positions_and_seeds_are_independent() {
    // Pairs of draws from two equally likely tokens: each of the four pairs is a quarter.
    let pairs = |key: &dyn Fn(u64) -> [(u64, u64); 2]| {
        let mut seen = [0u64; 4];
        for i in 0..40_000 {
            let [a, b] = key(i).map(|(seed, position)| {
                Sampler::new(2, Sampling { seed, ..plain() }, &[]).unwrap().sample(&[0.0; 2], &[], position).unwrap()
            });
            seen[(2 * a + b) as usize] += 1;
        }
        // Four cells of 10,000: three degrees of freedom, 30 is past 1 in 100,000.
        let chi: f64 = seen.iter().map(|n| (*n as f64 - 1e4).powi(2) / 1e4).sum();
        assert!(chi < 30.0, "{seen:?}");
    };
    pairs(&|i| [(7, 2 * i), (7, 2 * i + 1)]);
    pairs(&|i| [(i, 5), (i + 1_000_000, 5)]);
    pairs(&|i| [(i, i), (i, i + 1)]);
    pairs(&|i| [(i, 0), (i.wrapping_add(0x9e37_79b9_7f4a_7c15), 0)]);
}

#[test]
fn draws_keep_their_bits() {
    // Another machine, another compiler and the next version give the same tokens for the same seed.
    let logits: Vec<f32> = (0..1000).map(|i| ((i * 37) % 101) as f32 / 10.0).collect();
    let s = Sampling { top_p: 0.97, temperature: 0.8, ..plain() };
    let mut sampler = Sampler::new(1000, s, &[]).unwrap();
    let ids: Vec<u32> = (0..12).map(|p| sampler.sample(&logits, &[], p * p).unwrap()).collect();
    assert_eq!(ids, DRAWN);
}

const DRAWN: [u32; 12] = [458, 726, 611, 868, 838, 775, 565, 412, 898, 865, 636, 906];

#[test]
fn greedy_is_the_best_after_penalties_and_bias_lowest_id_first() {
    let logits = [1.0, 4.0, 4.0, 3.9, -1.0];
    let greedy = |s: Sampling, history: &[u32], bias: &[(u32, f32)]| {
        Sampler::new(5, s, bias).unwrap().sample(&logits, history, 9).unwrap()
    };
    let zero = Sampling { temperature: 0.0, ..plain() };
    assert_eq!(greedy(zero.clone(), &[], &[]), 1);
    assert_eq!(greedy(zero.clone(), &[], &[(2, 0.1)]), 2);
    assert_eq!(greedy(zero.clone(), &[], &[(1, f32::NEG_INFINITY), (2, f32::NEG_INFINITY)]), 3);
    assert_eq!(greedy(Sampling { presence_penalty: 0.5, ..zero.clone() }, &[1, 1], &[]), 2);
    assert_eq!(greedy(Sampling { repetition_penalty: 2.0, ..zero.clone() }, &[1, 2], &[]), 3);
    assert_eq!(greedy(Sampling { frequency_penalty: 0.04, ..zero.clone() }, &[1, 1, 1, 2], &[]), 2);
    // A token past the bias: the penalty is a factor on the logit, the bias is not.
    assert_eq!(greedy(Sampling { repetition_penalty: 4.0, ..zero.clone() }, &[0, 1, 2, 3], &[(0, 0.7)]), 1);
    // Negative logits are multiplied.
    let mut s = Sampler::new(2, Sampling { repetition_penalty: 2.0, ..zero }, &[]).unwrap();
    assert_eq!(s.sample(&[-1.0, -1.5], &[0], 0).unwrap(), 1);
}

#[test]
fn penalties_reach_exactly_as_far_as_asked() {
    let logits = [2.0, 1.9, 0.0];
    let history = [0, 2, 2, 2];
    let first = |penalty_reach| {
        let s = Sampling { temperature: 0.0, presence_penalty: 1.0, penalty_reach, ..plain() };
        Sampler::new(3, s, &[]).unwrap().sample(&logits, &history, 4).unwrap()
    };
    assert_eq!([0, 1, 3, 4, 5, 1_000_000, u32::MAX].map(first), [0, 0, 0, 1, 1, 1, 1]);
    let none = Sampling { temperature: 0.0, presence_penalty: 1.0, ..plain() };
    let mut sampler = Sampler::new(3, none, &[]).unwrap();
    assert_eq!(sampler.sample(&logits, &[], 0).unwrap(), 0);
    // Counts of one call do not leak into the next.
    assert_eq!(sampler.sample(&logits, &history, 4).unwrap(), 1);
    assert_eq!(sampler.sample(&logits, &[], 0).unwrap(), 0);
}

#[test]
fn extremes_of_every_filter_meet_greedy_or_uniform() {
    let mut random = Random(5);
    let logits = random.logits(300, 5.0);
    let best = (0..300).max_by(|a, b| logits[*a].total_cmp(&logits[*b])).unwrap() as u32;
    let cold = [
        Sampling { temperature: 1e-6, ..plain() },
        Sampling { temperature: f32::from_bits(1), ..plain() },
        Sampling { top_k: 1, temperature: 9.0, ..plain() },
        Sampling { top_p: 1e-9, temperature: 9.0, ..plain() },
        Sampling { top_p: 0.0, temperature: 9.0, ..plain() },
        Sampling { min_p: 1.0, temperature: 9.0, ..plain() },
    ];
    for s in cold {
        let mut sampler = Sampler::new(300, s.clone(), &[]).unwrap();
        assert!((0..2000).all(|p| sampler.sample(&logits, &[], p).unwrap() == best), "{s:?}");
    }
    let flat = vec![0.0; 300];
    for temperature in [1e6, f32::MAX] {
        let s = Sampling { temperature, ..plain() };
        assert_draws_follow(&logits, &[], &s, &[], 30_000);
        assert_draws_follow(&flat, &[], &s, &[], 30_000);
    }
}

#[test]
fn extreme_but_finite_values_do_not_overflow() {
    let logits = [f32::MAX, f32::MIN, 0.0, f32::NEG_INFINITY];
    let s = Sampling {
        temperature: f32::from_bits(1),
        repetition_penalty: f32::from_bits(1),
        presence_penalty: f32::MAX,
        frequency_penalty: f32::MIN,
        ..plain()
    };
    let mut sampler = Sampler::new(4, s, &[(0, f32::MAX), (2, f32::MIN)]).unwrap();
    for p in 0..50 {
        assert_eq!(sampler.sample(&logits, &[0, 0, 1, 2, 3], p).unwrap(), 0);
    }
}

#[test]
fn minus_infinity_bans_and_nothing_left_is_an_error() {
    let ban = f32::NEG_INFINITY;
    let mut sampler = Sampler::new(3, plain(), &[(0, ban)]).unwrap();
    assert!((0..500).all(|p| sampler.sample(&[9.0, ban, 0.0], &[], p).unwrap() == 2));
    for logits in [[ban; 3], [5.0, ban, ban], [f32::NAN, 0.0, 0.0], [0.0, f32::INFINITY, 0.0], [0.0, 0.0, -f32::NAN]] {
        assert_eq!(sampler.sample(&logits, &[], 0).unwrap_err().code, Code::Numeric, "{logits:?}");
    }
    // The sampler goes on after an error.
    assert_eq!(sampler.sample(&[0.0, ban, 0.0], &[], 0).unwrap(), 2);
}

#[test]
fn parameters_out_of_range_are_refused_by_name() {
    let bad = [
        ("temperature", Sampling { temperature: -0.1, ..plain() }),
        ("temperature", Sampling { temperature: f32::NAN, ..plain() }),
        ("temperature", Sampling { temperature: f32::INFINITY, ..plain() }),
        ("top_p", Sampling { top_p: 1.001, ..plain() }),
        ("top_p", Sampling { top_p: -0.5, ..plain() }),
        ("top_p", Sampling { top_p: f32::NAN, ..plain() }),
        ("min_p", Sampling { min_p: 1.5, ..plain() }),
        ("min_p", Sampling { min_p: f32::NAN, ..plain() }),
        ("repetition_penalty", Sampling { repetition_penalty: 0.0, ..plain() }),
        ("repetition_penalty", Sampling { repetition_penalty: -1.0, ..plain() }),
        ("repetition_penalty", Sampling { repetition_penalty: f32::NAN, ..plain() }),
        ("presence_penalty", Sampling { presence_penalty: f32::NEG_INFINITY, ..plain() }),
        ("frequency_penalty", Sampling { frequency_penalty: f32::NAN, ..plain() }),
    ];
    let refuse = |vocab: usize, s: &Sampling, bias: &[(u32, f32)], name: &str| {
        let error = Sampler::new(vocab, s.clone(), bias).err().unwrap_or_else(|| panic!("accepted: {s:?} {bias:?}"));
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.starts_with(name), "{}", error.message);
    };
    for (name, s) in &bad {
        refuse(10, s, &[], name);
    }
    for bias in [[(10, 0.0), (1, 0.0)], [(1, f32::NAN), (2, 0.0)], [(0, 0.0), (3, f32::INFINITY)], [(4, 1.0), (4, 2.0)]]
    {
        refuse(10, &plain(), &bias, "bias");
    }
    refuse(0, &plain(), &[], "vocab");
    let mut sampler = Sampler::new(10, Sampling { repetition_penalty: 2.0, ..plain() }, &[]).unwrap();
    for (logits, history) in [(vec![0.0; 9], vec![]), (vec![0.0; 11], vec![]), (vec![0.0; 10], vec![3, 10])] {
        assert_eq!(sampler.sample(&logits, &history, 0).unwrap_err().code, Code::InvalidArgument);
    }
    assert!(sampler.sample(&[0.0; 10], &[3, 9], 0).is_ok());
}

#[test]
fn log_probabilities_are_those_of_the_logits() {
    let mut random = Random(6);
    for vocab in [1, 2, 50, 5000] {
        let mut logits = random.logits(vocab, 20.0);
        logits[vocab / 2] = f32::NEG_INFINITY;
        logits[vocab - 1] = 3.0;
        let total = logits.iter().map(|l| f64::from(*l).exp()).sum::<f64>().ln();
        let mut order: Vec<u32> = (0..vocab as u32).filter(|i| logits[*i as usize].is_finite()).collect();
        order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        for top in [0, 1, 7, 200, usize::MAX] {
            let id = random.below(vocab);
            let LogProbs { logprob, top: listed } = log_probs(&logits, id as u32, top);
            assert_eq!(logprob, (f64::from(logits[id]) - total) as f32);
            let ids: Vec<u32> = listed.iter().map(|t| t.0).collect();
            assert_eq!(ids, order[..top.min(order.len())]);
            assert!(listed.iter().all(|(id, l)| *l == (f64::from(logits[*id as usize]) - total) as f32));
        }
    }
    assert_eq!(log_probs(&[0.0; 2], 0, 0).logprob, 0.5f32.ln());
    assert_eq!(log_probs(&[0.0; 2], 2, 0).logprob, f32::NEG_INFINITY);
    for none in [vec![], vec![f32::NEG_INFINITY; 3], vec![0.0, f32::NAN], vec![f32::INFINITY, 0.0]] {
        let found = log_probs(&none, 0, 5);
        assert!(found.logprob.is_nan() && found.top.is_empty(), "{none:?}: {found:?}");
    }
}
