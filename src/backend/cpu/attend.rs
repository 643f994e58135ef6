//! Attention over stored keys, chunk by chunk from position 0: each chunk has its own maximum and sum, and the chunks
//! are folded left to right. What a row computes depends on its position alone, not on the rows beside it.

use super::Isa;
use super::dense::{self, CHAINS, Chains};
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
    fn fold_chunk(q: &[f32], chunk: &Chunk, visible: Range<usize>, head_dim: usize, state: &mut [f32]) = plain fold
}

#[inline(always)]
fn fold(q: &[f32], chunk: &Chunk, visible: Range<usize>, head_dim: usize, state: &mut [f32]) {
    let states = state.chunks_exact_mut(head_dim + STATE_EXTRA);
    for (q, state) in q.chunks_exact(head_dim).zip(states) {
        let mut scores = [0.0; KEY_CHUNK];
        let tiles = chunk.keys.chunks_exact(head_dim);
        for (scores, keys) in scores.as_chunks_mut::<KEY_TILE>().0.iter_mut().zip(tiles) {
            let mut chains: Chains = [[0.0; KEY_TILE]; CHAINS];
            dense::multiply(keys, q, &mut chains);
            *scores = dense::total(&chains);
        }
        let mut most = f32::NEG_INFINITY;
        for score in &scores[visible.clone()] {
            most = if *score > most { *score } else { most };
        }
        let mut weights = [0.0; KEY_CHUNK];
        for i in 0..KEY_CHUNK {
            let weight = math::exp(scores[i] - most);
            weights[i] = if i >= visible.start && i < visible.end { weight } else { 0.0 };
        }
        let mut lanes = [0.0; LANES];
        for i in 0..LANES {
            lanes[i] = weights[i] + weights[i + LANES];
        }
        let (extra, sums) = state.split_at_mut(STATE_EXTRA);
        let top = if extra[0] > most { extra[0] } else { most };
        let (old, new) = (math::exp(extra[0] - top), math::exp(most - top));
        extra[0] = top;
        extra[1] = tree(lanes).mul_add(new, extra[1] * old);
        add_values(&weights, visible.clone(), &chunk.values, head_dim, [old, new], sums);
    }
}

/// `sums = sums * old + (weights x values) * new`, one chain over the visible keys for each value of the head.
#[inline(always)]
fn add_values(
    weights: &[f32; KEY_CHUNK],
    visible: Range<usize>,
    values: &[f32],
    head_dim: usize,
    factors: [f32; 2],
    sums: &mut [f32],
) {
    let mut at = 0;
    while at + 64 <= head_dim {
        add_columns::<64>(weights, visible.clone(), &values[at..], head_dim, factors, &mut sums[at..]);
        at += 64;
    }
    while at + 8 <= head_dim {
        add_columns::<8>(weights, visible.clone(), &values[at..], head_dim, factors, &mut sums[at..]);
        at += 8;
    }
    while at < head_dim {
        add_columns::<1>(weights, visible.clone(), &values[at..], head_dim, factors, &mut sums[at..]);
        at += 1;
    }
}

#[inline(always)]
fn add_columns<const COLUMNS: usize>(
    weights: &[f32; KEY_CHUNK],
    visible: Range<usize>,
    values: &[f32],
    head_dim: usize,
    [old, new]: [f32; 2],
    sums: &mut [f32],
) {
    let mut acc = [0.0_f32; COLUMNS];
    for key in visible {
        let row: &[f32; COLUMNS] = values[key * head_dim..].first_chunk().expect("a whole row");
        for d in 0..COLUMNS {
            acc[d] = weights[key].mul_add(row[d], acc[d]);
        }
    }
    for d in 0..COLUMNS {
        sums[d] = acc[d].mul_add(new, sums[d] * old);
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
