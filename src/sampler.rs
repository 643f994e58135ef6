//! From logits to a token: penalties, bias, filters, and a draw that only the seed and the position decide.
//!
//! All arithmetic is float64 in plain IEEE operations and a fixed order, so a draw is the same to the bit on every
//! machine. Float64 also means that no float32 logit and parameter can overflow on the way.

use crate::error::{Code, Error, Result};
use crate::math;
use std::cmp::Ordering;

/// Candidates sorted at a time while the nucleus of `top_p` is searched; each further part is four times as long.
const NUCLEUS_PART: usize = 256;

/// Least room of the list that selects the best `k`, so that a small `k` is not selected anew all the time.
const SELECTION_ROOM: usize = 128;

/// How to choose tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f32,
    /// Keep the k most likely; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of likeliest tokens whose probabilities reach this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this times as likely as the likeliest; 0 keeps all.
    pub min_p: f32,
    /// Divides (or multiplies, if negative) logits of tokens seen within reach; 1 does nothing.
    pub repetition_penalty: f32,
    /// Subtracted once from logits of tokens seen within reach.
    pub presence_penalty: f32,
    /// Subtracted per occurrence within reach.
    pub frequency_penalty: f32,
    /// How many tokens back penalties look; `u32::MAX` is all.
    pub penalty_reach: u32,
    /// With the position, the key of every draw.
    pub seed: u64,
}

impl Sampling {
    /// The likeliest token, untouched by penalties and filters.
    pub const GREEDY: Sampling = Sampling {
        temperature: 0.0,
        top_k: 0,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.0,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_reach: u32::MAX,
        seed: 0,
    };

    /// Checks every parameter; the error (`InvalidArgument`) names the one that does not fit.
    pub fn check(&self) -> Result<()> {
        let at_least_0 = |x: f32| x >= 0.0 && x.is_finite();
        let part = |x: f32| (0.0..=1.0).contains(&x);
        let above_0 = |x: f32| x > 0.0 && x.is_finite();
        check("temperature", self.temperature, at_least_0, "a finite number of at least 0")?;
        check("top_p", self.top_p, part, "a number from 0 to 1")?;
        check("min_p", self.min_p, part, "a number from 0 to 1")?;
        check("repetition_penalty", self.repetition_penalty, above_0, "a finite number above 0")?;
        check("presence_penalty", self.presence_penalty, f32::is_finite, "a finite number")?;
        check("frequency_penalty", self.frequency_penalty, f32::is_finite, "a finite number")
    }

    /// Whether the tokens before a position change its logits.
    fn has_penalties(&self) -> bool {
        let neutral = self.repetition_penalty == 1.0 && self.presence_penalty == 0.0 && self.frequency_penalty == 0.0;
        !neutral && self.penalty_reach > 0
    }
}

fn check(name: &str, found: f32, fits: impl Fn(f32) -> bool, expected: &str) -> Result<()> {
    if fits(found) {
        return Ok(());
    }
    Err(Error::new(Code::InvalidArgument, format!("{name}: expected {expected}, found {found}")))
}

/// A token that may be drawn.
#[derive(Clone, Copy)]
struct Candidate {
    id: u32,
    /// Its logit, after penalties and bias where they apply.
    score: f64,
    /// Its probability over that of the likeliest token.
    weight: f64,
}

impl Candidate {
    /// Best score first; of equal scores the lowest id.
    fn order(&self, other: &Candidate) -> Ordering {
        other.score.partial_cmp(&self.score).unwrap_or(Ordering::Equal).then(self.id.cmp(&other.id))
    }
}

/// Draws the tokens of one reply. Holds scratch of up to about 40 bytes a token of the vocabulary.
///
/// A draw depends on the logits, the history, the position and what the sampler was made with, never on earlier
/// draws, so positions may be drawn in any order and again.
pub struct Sampler {
    vocab: usize,
    sampling: Sampling,
    bias: Vec<(u32, f32)>,
    /// Scratch: one a token, the logit after penalties and bias.
    scores: Vec<f64>,
    /// Scratch: occurrences within reach, all 0 between calls; empty when there are no penalties.
    counts: Vec<u32>,
    /// Scratch: what is left to draw from.
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// A sampler over `vocab` tokens. `bias` pairs (id, added to its logit) may ban a token with minus infinity.
    ///
    /// # Errors
    /// `InvalidArgument` naming a parameter out of range, a bias that is NaN or plus infinity, a bias id that is
    /// not below `vocab` or is given twice.
    pub fn new(vocab: usize, sampling: Sampling, bias: &[(u32, f32)]) -> Result<Sampler> {
        sampling.check()?;
        let invalid = |text: String| Err(Error::new(Code::InvalidArgument, text));
        if vocab == 0 || u32::try_from(vocab).is_err() {
            return invalid(format!("vocab: expected 1 to {} tokens, found {vocab}", u32::MAX));
        }
        if let Some((id, _)) = bias.iter().find(|(id, _)| *id as usize >= vocab) {
            return invalid(format!("bias: expected token ids below {vocab}, found {id}"));
        }
        if let Some((id, value)) = bias.iter().find(|(_, v)| v.is_nan() || *v == f32::INFINITY) {
            return invalid(format!("bias of token {id}: expected a finite number or minus infinity, found {value}"));
        }
        let mut bias = bias.to_vec();
        bias.sort_by_key(|(id, _)| *id);
        if let Some(pair) = bias.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return invalid(format!("bias: token {} is given twice", pair[0].0));
        }
        let counts = vec![0; if sampling.has_penalties() { vocab } else { 0 }];
        Ok(Sampler { vocab, sampling, bias, scores: Vec::new(), counts, candidates: Vec::new() })
    }

    /// The token for `position`, from its `logits` (one a token) and the stream's tokens before it.
    ///
    /// In this order: repetition, presence and frequency penalty, bias, temperature, top_k, top_p, min_p, draw.
    /// Of equally likely tokens the lowest id comes first everywhere. At temperature 0 it is the likeliest token
    /// after penalties and bias.
    ///
    /// # Errors
    /// `InvalidArgument` for logits of the wrong length or a history token outside the vocabulary; `Numeric` for a
    /// logit that is NaN or plus infinity, or when no token is left (all are minus infinity).
    pub fn sample(&mut self, logits: &[f32], history: &[u32], position: u64) -> Result<u32> {
        self.load(logits)?;
        self.penalize(history)?;
        for (id, value) in &self.bias {
            self.scores[*id as usize] += f64::from(*value);
        }
        let best = likeliest(&self.scores)?;
        if self.sampling.temperature == 0.0 {
            return Ok(best);
        }
        self.collect(self.scores[best as usize]);
        self.keep_nucleus();
        let min_p = f64::from(self.sampling.min_p);
        self.candidates.retain(|c| c.weight >= min_p);
        Ok(self.draw(uniform(self.sampling.seed, position)).unwrap_or(best))
    }

    /// Copies the logits into the scratch.
    fn load(&mut self, logits: &[f32]) -> Result<()> {
        if logits.len() != self.vocab {
            let text = format!("logits: expected {} values, found {}", self.vocab, logits.len());
            return Err(Error::new(Code::InvalidArgument, text));
        }
        if let Some(id) = logits.iter().position(|l| !is_usable(*l)) {
            return Err(Error::new(Code::Numeric, format!("logit of token {id} is {}", logits[id])));
        }
        self.scores.clear();
        self.scores.extend(logits.iter().map(|l| f64::from(*l)));
        Ok(())
    }

    /// Applies the penalties of the last `penalty_reach` tokens of `history`.
    fn penalize(&mut self, history: &[u32]) -> Result<()> {
        if self.counts.is_empty() {
            return Ok(());
        }
        let reach = match self.sampling.penalty_reach {
            u32::MAX => history.len(),
            reach => history.len().min(reach as usize),
        };
        let recent = &history[history.len() - reach..];
        if let Some(id) = recent.iter().find(|id| **id as usize >= self.vocab) {
            let text = format!("history: expected token ids below {}, found {id}", self.vocab);
            return Err(Error::new(Code::InvalidArgument, text));
        }
        for id in recent {
            self.counts[*id as usize] += 1;
        }
        let s = &self.sampling;
        for id in recent {
            let id = *id as usize;
            let count = std::mem::take(&mut self.counts[id]);
            if count == 0 {
                continue;
            }
            let repetition = f64::from(s.repetition_penalty);
            let score = &mut self.scores[id];
            *score = if *score > 0.0 { *score / repetition } else { *score * repetition };
            *score -= f64::from(s.presence_penalty);
            *score -= f64::from(s.frequency_penalty) * f64::from(count);
        }
        Ok(())
    }

    /// Fills the candidates, by id, with the `top_k` best and their weights.
    fn collect(&mut self, best: f64) {
        let k = match self.sampling.top_k {
            0 => self.vocab,
            k => self.vocab.min(k as usize),
        };
        keep_best(self.scores.iter().copied(), k, &mut self.candidates);
        let temperature = f64::from(self.sampling.temperature);
        for c in &mut self.candidates {
            c.weight = math::exp64((c.score - best) / temperature);
        }
        self.candidates.sort_unstable_by_key(|c| c.id);
    }

    /// Keeps the fewest likeliest candidates whose weights reach `top_p` of all.
    fn keep_nucleus(&mut self) {
        if self.sampling.top_p >= 1.0 {
            return;
        }
        let list = &mut self.candidates;
        let wanted = f64::from(self.sampling.top_p) * list.iter().map(|c| c.weight).sum::<f64>();
        let (mut sorted, mut part, mut reached) = (0, NUCLEUS_PART, 0.0);
        while sorted < list.len() {
            let rest = &mut list[sorted..];
            if part < rest.len() {
                rest.select_nth_unstable_by(part, Candidate::order);
            }
            let end = part.min(rest.len());
            rest[..end].sort_unstable_by(Candidate::order);
            for (i, c) in rest[..end].iter().enumerate() {
                reached += c.weight;
                if reached >= wanted {
                    list.truncate(sorted + i + 1);
                    list.sort_unstable_by_key(|c| c.id);
                    return;
                }
            }
            sorted += end;
            part *= 4;
        }
        list.sort_unstable_by_key(|c| c.id);
    }

    /// The candidate at `u` (0 up to 1) of the candidates' weights laid side by side by id.
    fn draw(&self, u: f64) -> Option<u32> {
        let target = u * self.candidates.iter().map(|c| c.weight).sum::<f64>();
        let mut reached = 0.0;
        for c in &self.candidates {
            reached += c.weight;
            if target < reached {
                return Some(c.id);
            }
        }
        None
    }
}

/// Log-probabilities of the model's own logits.
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// Natural logarithm of the token's probability.
    pub logprob: f32,
    /// The likeliest tokens with theirs, likeliest first; of equally likely ones the lowest id first.
    pub top: Vec<(u32, f32)>,
}

/// Natural log-probabilities of token `id` and of the `top` likeliest tokens under `logits`, without penalties or
/// bias. `logprob` is minus infinity for an id outside the logits, and NaN with an empty `top` when the logits have
/// no distribution: a NaN, plus infinity, or minus infinity throughout.
pub fn log_probs(logits: &[f32], id: u32, top: usize) -> LogProbs {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, l| max.max(*l));
    if !max.is_finite() || !logits.iter().all(|l| is_usable(*l)) {
        return LogProbs { logprob: f32::NAN, top: Vec::new() };
    }
    let max = f64::from(max);
    let total = max + math::ln64(logits.iter().map(|l| math::exp64(f64::from(*l) - max)).sum());
    let mut best = Vec::new();
    keep_best(logits.iter().map(|l| f64::from(*l)), top.min(logits.len()), &mut best);
    best.sort_unstable_by(Candidate::order);
    LogProbs {
        logprob: logits.get(id as usize).map_or(f32::NEG_INFINITY, |l| (f64::from(*l) - total) as f32),
        top: best.iter().map(|c| (c.id, (c.score - total) as f32)).collect(),
    }
}

/// Whether a logit is finite or minus infinity.
fn is_usable(logit: f32) -> bool {
    logit < f32::INFINITY
}

/// The id of the highest score, the lowest of equal ones.
fn likeliest(scores: &[f64]) -> Result<u32> {
    let (mut best, mut score) = (None, f64::NEG_INFINITY);
    for (id, s) in scores.iter().enumerate() {
        if *s > score {
            (best, score) = (Some(id as u32), *s);
        }
    }
    best.ok_or_else(|| Error::new(Code::Numeric, "no token is left: every logit is minus infinity"))
}

/// Fills `list` with the `k` best of `scores` (a score a token, in order of ids), without minus infinity, in any
/// order.
fn keep_best(scores: impl Iterator<Item = f64>, k: usize, list: &mut Vec<Candidate>) {
    list.clear();
    if k == 0 {
        return;
    }
    let room = (2 * k).max(SELECTION_ROOM);
    let mut floor = f64::NEG_INFINITY;
    for (id, score) in scores.enumerate() {
        // An equal score with a higher id comes after the k found so far.
        if score > floor {
            list.push(Candidate { id: id as u32, score, weight: 0.0 });
            if list.len() == room {
                floor = shrink(list, k);
            }
        }
    }
    if list.len() > k {
        shrink(list, k);
    }
}

/// Keeps the `k` best of a longer list; the worst score kept.
fn shrink(list: &mut Vec<Candidate>, k: usize) -> f64 {
    let (_, worst, _) = list.select_nth_unstable_by(k - 1, Candidate::order);
    let floor = worst.score;
    list.truncate(k);
    floor
}

/// A number from 0 up to 1 that belongs to `seed` and `position`: the output at index `position` of the SplitMix64
/// generator whose state is the mixed seed, its upper 53 bits.
fn uniform(seed: u64, position: u64) -> f64 {
    const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
    let state = mix(seed.wrapping_add(STEP));
    let bits = mix(state.wrapping_add(position.wrapping_mul(STEP)));
    (bits >> 11) as f64 / (1u64 << 53) as f64
}

/// SplitMix64's finalizer.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
