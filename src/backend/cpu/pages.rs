//! Keys and values: f16 pages of one attention layer each.
//!
//! For each kv head first the keys, in tiles of 16 positions laid out `head_dim` x 16 as the score kernel reads them,
//! then the values, `PAGE_ROWS` rows of `head_dim`.

use super::simd::kernel;
use crate::backend::{KEY_CHUNK, PAGE_ROWS, PageId};
use crate::error::{Code, Error, Result};
use crate::math;
use crate::plan::AttentionShape;

/// Positions of a key tile.
pub const KEY_TILE: usize = 16;
/// Page numbers are below this.
const MAX_PAGES: usize = 1 << 24;

/// Values of a page.
pub fn page_len(shape: &AttentionShape) -> usize {
    2 * shape.kv_heads * PAGE_ROWS * shape.head_dim
}

/// Pages by number, allocated when first used.
#[derive(Default)]
pub struct Pages {
    table: Vec<Option<Box<[u16]>>>,
}

impl Pages {
    /// Makes sure the page exists with room for `shape`, zeroed if new.
    pub fn ensure(&mut self, id: PageId, shape: &AttentionShape) -> Result<()> {
        let (index, len) = (id.0 as usize, page_len(shape));
        if index >= MAX_PAGES {
            return Err(Error::new(Code::Limit, format!("page {index}: page numbers end at {MAX_PAGES}")));
        }
        if index >= self.table.len() {
            self.table.resize_with(index + 1, || None);
        }
        match &self.table[index] {
            None => self.table[index] = Some(vec![0; len].into_boxed_slice()),
            Some(page) if page.len() == len => {}
            Some(page) => {
                let message = format!("page {index} holds {} values of another layer, not {len}", page.len());
                return Err(Error::new(Code::State, message));
            }
        }
        Ok(())
    }

    /// A page that `ensure` made.
    pub fn get(&self, id: PageId) -> &[u16] {
        self.table[id.0 as usize].as_deref().expect("submit made the page")
    }

    /// The same, to write.
    pub fn get_mut(&mut self, id: PageId) -> &mut [u16] {
        self.table[id.0 as usize].as_deref_mut().expect("submit made the page")
    }

    /// Makes `to` a copy of `from`; a page never written is a page of zeros.
    pub fn copy(&mut self, from: PageId, to: PageId) {
        let page = self.table.get(from.0 as usize).cloned().flatten();
        let to = to.0 as usize;
        if to < MAX_PAGES {
            if to >= self.table.len() {
                self.table.resize_with(to + 1, || None);
            }
            self.table[to] = page;
        }
    }

    /// Frees the page's memory.
    pub fn release(&mut self, id: PageId) {
        if let Some(page) = self.table.get_mut(id.0 as usize) {
            *page = None;
        }
    }

    /// Bytes of all pages.
    #[cfg(test)]
    pub fn bytes(&self) -> u64 {
        self.table.iter().flatten().map(|page| 2 * page.len() as u64).sum()
    }
}

/// Keys of one chunk of one kv head: two tiles.
pub fn chunk_keys<'a>(page: &'a [u16], shape: &AttentionShape, kv_head: usize, row: usize) -> &'a [u16] {
    let head = 2 * PAGE_ROWS * shape.head_dim * kv_head;
    &page[head + row * shape.head_dim..][..KEY_CHUNK * shape.head_dim]
}

/// Values of one chunk of one kv head: rows.
pub fn chunk_values<'a>(page: &'a [u16], shape: &AttentionShape, kv_head: usize, row: usize) -> &'a [u16] {
    let head = 2 * PAGE_ROWS * shape.head_dim * kv_head + PAGE_ROWS * shape.head_dim;
    &page[head + row * shape.head_dim..][..KEY_CHUNK * shape.head_dim]
}

kernel! {
    /// Rounds a row's keys and values to f16 and stores them as row `row` of the page.
    pub fn store_row(page: &mut [u16], head_dim: usize, row: usize, k: &[f32], v: &[f32]) = plain store
}

#[inline(always)]
fn store(page: &mut [u16], head_dim: usize, row: usize, k: &[f32], v: &[f32]) {
    let heads = k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim));
    for (page, (k, v)) in page.chunks_exact_mut(2 * PAGE_ROWS * head_dim).zip(heads) {
        let (keys, values) = page.split_at_mut(PAGE_ROWS * head_dim);
        let tile = &mut keys[row / KEY_TILE * KEY_TILE * head_dim..][..KEY_TILE * head_dim];
        for (place, k) in tile.as_chunks_mut::<KEY_TILE>().0.iter_mut().zip(k) {
            place[row % KEY_TILE] = math::f32_to_f16(*k);
        }
        for (place, v) in values[row * head_dim..][..head_dim].iter_mut().zip(v) {
            *place = math::f32_to_f16(*v);
        }
    }
}
