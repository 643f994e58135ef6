//! Points a stream can go back to. A hybrid model can only resume where its conv states were kept.

use super::{Page, Reservation};
use crate::backend::ConvState;

/// Most snapshots a stream keeps; past it the closest-standing old ones go.
const SNAPSHOTS: usize = 64;

/// A stream's state after `position` tokens, beside the full layers' pages, which the stream itself keeps.
#[derive(Debug)]
pub struct Snapshot {
    pub position: usize,
    pub conv: ConvState,
    /// For each attention layer, the window's pages with the index of the first; empty for full layers.
    pub windows: Vec<(usize, Vec<Page>)>,
    /// The conv states' share of the byte budget.
    pub bytes: Reservation,
}

/// Snapshots of one stream in order of position.
#[derive(Debug, Default)]
pub struct Snapshots(Vec<Snapshot>);

impl Snapshots {
    /// Adds one past all others.
    pub fn push(&mut self, snapshot: Snapshot) {
        debug_assert!(self.0.last().is_none_or(|last| last.position < snapshot.position));
        self.0.push(snapshot);
        if self.0.len() > SNAPSHOTS {
            self.thin();
        }
    }

    /// Whether one stands at `position`.
    pub fn has(&self, position: usize) -> bool {
        self.0.iter().any(|s| s.position == position)
    }

    /// Drops those past `length`.
    pub fn truncate(&mut self, length: usize) {
        self.0.retain(|s| s.position <= length);
    }

    /// The newest at or before `length`.
    pub fn newest(&self, length: usize) -> Option<&Snapshot> {
        self.0.iter().rev().find(|s| s.position <= length)
    }

    /// Places of the pages that the windows of an attention layer hold; those of several snapshots come as often.
    pub fn window_pages(&self, layer: usize) -> impl Iterator<Item = usize> {
        self.0.iter().flat_map(move |snapshot| {
            let (first, pages) = &snapshot.windows[layer];
            *first..first + pages.len()
        })
    }

    /// Bytes of conv states.
    pub fn bytes(&self) -> u64 {
        self.0.iter().map(|s| s.bytes.bytes()).sum()
    }

    /// Drops the snapshot of the older half whose neighbours stand closest.
    fn thin(&mut self) {
        let gap = |i: usize| self.0[i + 1].position - if i == 0 { 0 } else { self.0[i - 1].position };
        let victim = (0..self.0.len() / 2).min_by_key(|i| gap(*i));
        if let Some(i) = victim {
            self.0.remove(i);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::ByteBudget;

    fn at(position: usize) -> Snapshot {
        let bytes = ByteBudget::new(100, 0).reserve(8, "a snapshot").unwrap();
        Snapshot { position, conv: ConvState(Vec::new()), windows: Vec::new(), bytes }
    }

    #[test]
    fn thinning_bounds_the_count_and_keeps_the_newest_and_a_spread() {
        let mut snapshots = Snapshots::default();
        for i in 1..=1000 {
            snapshots.push(at(i * 256));
        }
        assert_eq!(snapshots.0.len(), SNAPSHOTS);
        assert_eq!(snapshots.newest(usize::MAX).unwrap().position, 256_000);
        assert_eq!(snapshots.newest(255_999).unwrap().position, 255_744);
        assert!(snapshots.newest(128_000).unwrap().position > 64_000);
        snapshots.truncate(200_000);
        assert!(snapshots.newest(usize::MAX).unwrap().position <= 200_000);
    }
}
