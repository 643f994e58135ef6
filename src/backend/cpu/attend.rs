//! Attention over stored keys, chunk by chunk from position 0: each chunk has its own maximum and sum, and the chunks
//! are folded left to right. What a row computes depends on its position alone, not on the rows beside it.

use super::Isa;
use super::dense::CHAINS;
use super::norm::{LANES, tree};
use super::pages::{self, KEY_TILE, Pages};
use super::pool::Shared;
use super::round::{Active, Block};
use super::simd::{Simd, kernel};
use crate::backend::{KEY_CHUNK, PAGE_ROWS};
use crate::math;
use crate::plan::AttentionShape;
use std::ops::Range;

/// Most rows of a lane that share a chunk's conversion to float32.
pub const BLOCK_ROWS: usize = 8;
/// Keys a unit of work walks before others may go on.
pub const SPAN: usize = 8 * KEY_CHUNK;
/// Values of a head's running state beside its sum of values: maximum and sum.
pub const STATE_EXTRA: usize = 2;

/// One chunk as float32.
pub struct Chunk {
    /// Tiles of `head_dim` x 16.
    pub keys: Vec<[f32; KEY_TILE]>,
    /// Rows of `head_dim`.
    pub values: Vec<f32>,
}

impl Chunk {
    /// Room for heads up to `head_dim`.
    pub fn new(head_dim: usize) -> Chunk {
        let keys = vec![[0.0; KEY_TILE]; KEY_CHUNK / KEY_TILE * head_dim];
        Chunk { keys, values: vec![0.0; KEY_CHUNK * head_dim] }
    }
}

kernel! {
    /// Converts a chunk of a page.
    fn widen_chunk(keys: &[u16], values: &[u16], chunk: &mut Chunk) = simd widen
}

#[inline(always)]
fn widen<S: Simd>(keys: &[u16], values: &[u16], chunk: &mut Chunk) {
    let outs = [chunk.keys.as_flattened_mut(), chunk.values.as_mut_slice()];
    for (out, halves) in outs.into_iter().zip([keys, values]) {
        let (eights, rest) = halves.as_chunks::<8>();
        for (out, eight) in out.as_chunks_mut::<8>().0.iter_mut().zip(eights) {
            *out = S::widen_f16(eight);
        }
        for (out, half) in out[eights.len() * 8..].iter_mut().zip(rest) {
            *out = math::f16_to_f32(*half);
        }
    }
}

/// Before a head's first chunk.
fn start(state: &mut [f32], head_dim: usize) {
    for head in state.chunks_exact_mut(head_dim + STATE_EXTRA) {
        head.fill(0.0);
        head[0] = f32::NEG_INFINITY;
    }
}

kernel! {
    /// Folds the keys `visible` of a chunk into the states of one row's query heads (`q`: scaled, head after head).
    fn fold_chunk(q: &[f32], chunk: &Chunk, visible: Range<usize>, head_dim: usize, state: &mut [f32]) = simd fold
}

#[inline(always)]
fn fold<S: Simd>(q: &[f32], chunk: &Chunk, visible: Range<usize>, head_dim: usize, state: &mut [f32]) {
    let states = state.chunks_exact_mut(head_dim + STATE_EXTRA);
    for (q, state) in q.chunks_exact(head_dim).zip(states) {
        let mut scores = [0.0; KEY_CHUNK];
        let tiles = chunk.keys.chunks_exact(head_dim);
        for (scores, keys) in scores.as_chunks_mut::<KEY_TILE>().0.iter_mut().zip(tiles) {
            *scores = tile_scores::<S>(keys, q);
        }
        let most = largest(&only(scores, &visible, f32::NEG_INFINITY));
        for score in &mut scores {
            *score = math::exp(*score - most);
        }
        let weights = only(scores, &visible, 0.0);
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = weights[i] + weights[i + LANES];
        }
        let (extra, sums) = state.split_at_mut(STATE_EXTRA);
        let top = if extra[0] > most { extra[0] } else { most };
        let (old, new) = (math::exp(extra[0] - top), math::exp(most - top));
        extra[0] = top;
        extra[1] = tree(lanes).mul_add(new, extra[1] * old);
        add_values::<S>(&weights, visible.clone(), &chunk.values, [old, new], sums);
    }
}

/// Scores of 16 keys: the chains of [`dense::multiply`] and their total, held in registers.
#[inline(always)]
fn tile_scores<S: Simd>(keys: &[[f32; KEY_TILE]], q: &[f32]) -> [f32; KEY_TILE] {
    let mut chains = [[S::splat_float(0.0); 2]; CHAINS];
    let step = |key: &[f32; KEY_TILE], q: f32, chain: &mut [S::Floats; 2]| {
        let (halves, q) = (key.as_chunks::<8>().0, S::splat_float(q));
        *chain = [S::fma(S::floats(&halves[0]), q, chain[0]), S::fma(S::floats(&halves[1]), q, chain[1])];
    };
    let (fours, rest) = keys.as_chunks::<CHAINS>();
    let (q_fours, q_rest) = q.as_chunks::<CHAINS>();
    for (keys, q) in fours.iter().zip(q_fours) {
        for c in 0..CHAINS {
            step(&keys[c], q[c], &mut chains[c]);
        }
    }
    // Chains are counted, not walked, or they would leave the registers.
    for c in 0..CHAINS {
        if c < rest.len() {
            step(&rest[c], q_rest[c], &mut chains[c]);
        }
    }
    let total = |half: usize| {
        let chain = |c: usize| chains[c][half];
        S::to_floats(S::add(S::add(chain(0), chain(1)), S::add(chain(2), chain(3))))
    };
    let mut scores = [0.0; KEY_TILE];
    for (half, scores) in scores.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *scores = total(half);
    }
    scores
}

/// `values` in `range`, `other` outside.
#[inline(always)]
fn only(mut values: [f32; KEY_CHUNK], range: &Range<usize>, other: f32) -> [f32; KEY_CHUNK] {
    let (start, len) = (range.start as u32, range.len() as u32);
    for (i, value) in (0_u32..).zip(&mut values) {
        *value = if i.wrapping_sub(start) < len { *value } else { other };
    }
    values
}

/// The largest value; with a NaN any, since its weight is NaN and faults the row.
#[inline(always)]
fn largest(values: &[f32; KEY_CHUNK]) -> f32 {
    let mut lanes = *values;
    let mut half = KEY_CHUNK / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = if lanes[i + half] > lanes[i] { lanes[i + half] } else { lanes[i] };
        }
        half /= 2;
    }
    lanes[0]
}

/// `sums = sums * old + (weights x values) * new`, one chain over the visible keys for each value of the head.
#[inline(always)]
fn add_values<S: Simd>(
    weights: &[f32; KEY_CHUNK],
    visible: Range<usize>,
    values: &[f32],
    factors: [f32; 2],
    sums: &mut [f32],
) {
    let head_dim = sums.len();
    let rows = &values[visible.start * head_dim..visible.end * head_dim];
    let weights = &weights[visible];
    let mut at = 0;
    while at + 64 <= head_dim {
        add_columns::<S, 8>(weights, rows, at, factors, sums);
        at += 64;
    }
    while at + 8 <= head_dim {
        add_columns::<S, 1>(weights, rows, at, factors, sums);
        at += 8;
    }
    for d in at..head_dim {
        let mut sum = 0.0_f32;
        for (weight, row) in weights.iter().zip(rows.chunks_exact(head_dim)) {
            sum = weight.mul_add(row[d], sum);
        }
        sums[d] = sum.mul_add(factors[1], sums[d] * factors[0]);
    }
}

/// The values from `at` on, `EIGHTS` times eight.
#[inline(always)]
fn add_columns<S: Simd, const EIGHTS: usize>(
    weights: &[f32],
    rows: &[f32],
    at: usize,
    [old, new]: [f32; 2],
    sums: &mut [f32],
) {
    let mut acc = [S::splat_float(0.0); EIGHTS];
    for (weight, row) in weights.iter().zip(rows.chunks_exact(sums.len())) {
        let row: &[[f32; 8]; EIGHTS] = row[at..].as_chunks::<8>().0.first_chunk().expect("a whole row");
        let weight = S::splat_float(*weight);
        for d in 0..EIGHTS {
            acc[d] = S::fma(weight, S::floats(&row[d]), acc[d]);
        }
    }
    let (old, new) = (S::splat_float(old), S::splat_float(new));
    for (sums, acc) in sums[at..].as_chunks_mut::<8>().0.iter_mut().zip(acc) {
        *sums = S::to_floats(S::fma(acc, new, S::multiply(S::floats(sums), old)));
    }
}

kernel! {
    /// Writes the heads' results after their last chunk. False where a sum is not a positive number.
    fn finish(state: &[f32], head_dim: usize, out: &mut [f32]) -> bool = plain divide
}

#[inline(always)]
fn divide(state: &[f32], head_dim: usize, out: &mut [f32]) -> bool {
    let mut good = true;
    for (state, out) in state.chunks_exact(head_dim + STATE_EXTRA).zip(out.chunks_exact_mut(head_dim)) {
        let sum = state[1];
        good &= sum > 0.0 && sum < f32::INFINITY;
        for (out, value) in out.iter_mut().zip(&state[STATE_EXTRA..]) {
            *out = value / sum;
        }
    }
    good
}

/// One span of keys of one attention layer. A unit is a block of rows and a kv head with its query heads.
pub struct Attention<'a> {
    /// Instruction set.
    pub isa: Isa,
    /// Layer.
    pub shape: AttentionShape,
    /// Index of the layer.
    pub layer: usize,
    /// Which span: keys `span * SPAN ..`.
    pub span: usize,
    /// Keys and values.
    pub pages: &'a Pages,
    /// Round.
    pub round: &'a Active,
    /// Blocks that see keys of this span.
    pub blocks: Vec<Block>,
    /// Queries, replaced by results after a block's last span.
    pub out: Shared<'a, f32>,
    /// Running states by row and query head.
    pub states: Shared<'a, f32>,
}

impl Attention<'_> {
    /// Does one block and kv head.
    pub fn unit(&self, unit: usize, chunk: &mut Chunk, q: &mut [f32]) {
        let shape = &self.shape;
        let (block, kv_head) = (&self.blocks[unit / shape.kv_heads], unit % shape.kv_heads);
        let (head_dim, heads) = (shape.head_dim, shape.heads / shape.kv_heads);
        let group = heads * head_dim;
        // SAFETY: a block of rows and a kv head is one unit, done by one thread, and these are its columns.
        let out =
            |row: usize| unsafe { self.out.part((block.row + row) * shape.heads * head_dim + kv_head * group, group) };
        let state_len = heads * (head_dim + STATE_EXTRA);
        // SAFETY: as above.
        let state = |row: usize| unsafe {
            self.states.part(((block.row + row) * shape.kv_heads + kv_head) * state_len, state_len)
        };
        let spans = block.spans(shape);
        let scale = 1.0 / (head_dim as f32).sqrt();
        for (row, q) in q.chunks_exact_mut(group).enumerate().take(block.rows) {
            q.iter_mut().zip(&*out(row)).for_each(|(q, value)| *q = value * scale);
            if self.span == spans.start {
                start(state(row), head_dim);
            }
        }
        let visible = block.visible(shape);
        let first = visible.start.max(self.span * SPAN) / KEY_CHUNK;
        let end = visible.end.min((self.span + 1) * SPAN).div_ceil(KEY_CHUNK);
        for index in first..end {
            self.load(block, kv_head, index * KEY_CHUNK, chunk);
            for (row, q) in q.chunks_exact(group).enumerate().take(block.rows) {
                let visible = block.visible_in(shape, row, index * KEY_CHUNK);
                if !visible.is_empty() {
                    fold_chunk(self.isa, q, chunk, visible, head_dim, state(row));
                }
            }
        }
        if self.span + 1 == spans.end {
            for row in 0..block.rows {
                if !finish(self.isa, state(row), head_dim, out(row)) {
                    self.round.fault(block.row + row);
                }
            }
        }
    }

    /// Converts the chunk that begins at position `key`.
    fn load(&self, block: &Block, kv_head: usize, key: usize, chunk: &mut Chunk) {
        let page = self.pages.get(self.round.round.lanes[block.lane].pages[self.layer][key / PAGE_ROWS]);
        let keys = pages::chunk_keys(page, &self.shape, kv_head, key % PAGE_ROWS);
        let values = pages::chunk_values(page, &self.shape, kv_head, key % PAGE_ROWS);
        widen_chunk(self.isa, keys, values, chunk);
    }
}
