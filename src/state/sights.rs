//! Where pictures stand in a stream.

use super::Reservation;
use crate::picture::media::View;
use std::ops::Range;
use std::sync::Arc;

/// A view and the position of its first placeholder.
#[derive(Clone, Debug)]
pub struct Placed {
    /// Position.
    pub start: usize,
    /// What stands there.
    pub view: Arc<View>,
}

/// A view's rows as the text model reads them, `width` values each.
#[derive(Debug)]
pub struct SeenRows {
    /// Row after row.
    pub values: Vec<f32>,
    /// Values of a row.
    pub width: usize,
    /// Their share of the byte budget.
    pub bytes: Reservation,
}

/// A view in a stream. A rewind may have cut it.
#[derive(Debug)]
struct Sight {
    start: usize,
    end: usize,
    view: Arc<View>,
    rows: Option<SeenRows>,
}

/// A stream's views in order of position.
#[derive(Debug, Default)]
pub struct Sights(Vec<Sight>);

impl Sights {
    /// Adds views behind the others; the first may stand in the place of one that was cut.
    pub fn add(&mut self, placed: impl IntoIterator<Item = Placed>) {
        for Placed { start, view } in placed {
            if self.0.last().is_some_and(|last| last.start == start) {
                self.0.pop();
            }
            debug_assert!(self.0.last().is_none_or(|last| last.end <= start));
            self.0.push(Sight { start, end: start + view.tokens(), view, rows: None });
        }
    }

    /// Drops what stands from `length` on.
    pub fn truncate(&mut self, length: usize) {
        self.0.retain(|sight| sight.start < length);
        if let Some(last) = self.0.last_mut() {
            last.end = last.end.min(length);
        }
    }

    /// How many of the first `common` positions, whose tokens are alike, also show the same pictures.
    pub fn agree(&self, placed: &[Placed], common: usize) -> usize {
        let here = self.0.iter().map(|sight| (sight.start, sight.view.key()));
        let there = placed.iter().map(|placed| (placed.start, placed.view.key()));
        let ours: Vec<_> = here.filter(|(start, _)| *start < common).collect();
        let theirs: Vec<_> = there.filter(|(start, _)| *start < common).collect();
        let same = ours.iter().zip(&theirs).take_while(|(a, b)| a == b).count();
        let next = |list: &[(usize, _)]| list.get(same).map_or(common, |(start, _)| *start);
        next(&ours).min(next(&theirs))
    }

    /// The view with this key.
    pub fn view(&self, key: &[u8; 32]) -> Option<Arc<View>> {
        self.0.iter().find(|sight| sight.view.key() == key).map(|sight| sight.view.clone())
    }

    /// Whether the token at `position` stands for a picture.
    pub fn covers(&self, position: usize) -> bool {
        self.find(position).is_some()
    }

    /// The row at `position`, where it stands for a picture that was seen.
    pub fn row(&self, position: usize) -> Option<&[f32]> {
        let sight = self.find(position)?;
        let rows = sight.rows.as_ref()?;
        Some(&rows.values[(position - sight.start) * rows.width..][..rows.width])
    }

    /// The first view in `range` whose rows are not there.
    pub fn unseen(&self, range: Range<usize>) -> Option<Placed> {
        let mut sights = self.0.iter().filter(|sight| sight.start < range.end && sight.end > range.start);
        let sight = sights.find(|sight| sight.rows.is_none())?;
        Some(Placed { start: sight.start, view: sight.view.clone() })
    }

    /// Keeps the rows of a view; false where it is gone.
    pub fn see(&mut self, placed: &Placed, rows: SeenRows) -> bool {
        let mut sights = self.0.iter_mut();
        let found = sights.find(|sight| sight.start == placed.start && Arc::ptr_eq(&sight.view, &placed.view));
        found.map(|sight| sight.rows = Some(rows)).is_some()
    }

    /// Whether a view is still there and its rows are not.
    pub fn misses(&self, placed: &Placed) -> bool {
        let same = |sight: &&Sight| sight.start == placed.start && Arc::ptr_eq(&sight.view, &placed.view);
        self.0.iter().find(same).is_some_and(|sight| sight.rows.is_none())
    }

    /// Lets rows before `computed` go: they are in the pages now.
    pub fn release(&mut self, computed: usize) {
        self.0.iter_mut().filter(|sight| sight.end <= computed).for_each(|sight| sight.rows = None);
    }

    /// Where views end between `start` and the stream's end.
    pub fn ends(&self, start: usize) -> impl Iterator<Item = usize> + '_ {
        self.0.iter().map(|sight| sight.end).filter(move |end| *end > start)
    }

    /// Bytes of pictures and rows.
    pub fn bytes(&self) -> u64 {
        let rows = |sight: &Sight| sight.rows.as_ref().map_or(0, |rows| rows.bytes.bytes());
        self.0.iter().map(|sight| sight.view.bytes() + rows(sight)).sum()
    }

    fn find(&self, position: usize) -> Option<&Sight> {
        let after = self.0.partition_point(|sight| sight.start <= position);
        self.0[..after].last().filter(|sight| position < sight.end)
    }
}
