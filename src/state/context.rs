//! A stream's tokens and how far the model has read them.

use super::snapshot::{Snapshot, Snapshots};
use super::{ByteBudget, Page, PageArena, Placed, Sights};
use crate::backend::{ConvState, PAGE_ROWS, PageId};
use crate::error::{Code, Error, Result};
use crate::plan::Plan;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Positions between snapshots.
pub const SNAPSHOT_STRIDE: usize = 256;

/// What state a plan's streams have.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The window of each attention layer.
    windows: Vec<Option<usize>>,
    /// Bytes of one stream's conv states.
    conv_bytes: u64,
}

impl Shape {
    /// The shape of `plan`, whose conv states take `conv_bytes` a stream.
    pub fn new(plan: &Plan, conv_bytes: u64) -> Self {
        Shape { windows: plan.attentions.iter().map(|a| a.window).collect(), conv_bytes }
    }
}

/// Tokens, pages and snapshots of one stream. Rows `..computed` are in the pages and the backend's conv states, but
/// for a pending [`Context::take_restore`].
#[derive(Debug)]
pub struct Context {
    shape: Arc<Shape>,
    arena: Arc<PageArena>,
    budget: Arc<ByteBudget>,
    tokens: Vec<u32>,
    sights: Sights,
    computed: usize,
    /// For each attention layer, the page of positions `i * PAGE_ROWS ..`; `None` behind the window.
    pages: Vec<Vec<Option<Page>>>,
    snapshots: Snapshots,
    restore: Option<Restore>,
    epoch: u64,
}

/// Conv states to set before the stream's next round.
#[derive(Clone, Debug)]
pub enum Restore {
    /// As at a stream's start.
    Zero,
    /// As kept.
    State(ConvState),
}

impl Context {
    /// An empty context.
    pub fn new(shape: Arc<Shape>, arena: Arc<PageArena>, budget: Arc<ByteBudget>) -> Self {
        let pages = shape.windows.iter().map(|_| Vec::new()).collect();
        Context {
            shape,
            arena,
            budget,
            tokens: Vec::new(),
            sights: Sights::default(),
            computed: 0,
            pages,
            snapshots: Snapshots::default(),
            restore: Some(Restore::Zero),
            epoch: 0,
        }
    }

    /// All tokens, those not yet read by the model included.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// How many tokens the model has read.
    pub fn computed(&self) -> usize {
        self.computed
    }

    /// Changes whenever computed rows are given up, so that a round in flight notices.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Pictures among the tokens.
    pub fn sights(&self) -> &Sights {
        &self.sights
    }

    /// The same, to keep rows.
    pub fn sights_mut(&mut self) -> &mut Sights {
        &mut self.sights
    }

    /// Adds tokens to read.
    pub fn append(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// Adds tokens and the pictures among them, positions counted from the stream's start.
    pub fn append_placed(&mut self, tokens: &[u32], placed: impl IntoIterator<Item = Placed>) {
        self.append(tokens);
        self.sights.add(placed);
    }

    /// How much of `tokens` and the pictures among them the context holds.
    pub fn common(&self, tokens: &[u32], placed: &[Placed]) -> usize {
        let common = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.sights.agree(placed, common)
    }

    /// Drops tokens from `length` on, and what was computed of them.
    pub fn rewind(&mut self, length: usize) {
        self.tokens.truncate(length);
        self.sights.truncate(length);
        self.epoch += 1;
        if length < self.computed {
            self.resume(length);
        }
        // Pages a round in flight was given go back too: its rows are void.
        let kept = self.computed.div_ceil(PAGE_ROWS);
        self.pages.iter_mut().for_each(|table| table.truncate(kept));
    }

    /// Goes back to the newest state after at most `length` tokens; the tokens stay and are read again.
    pub fn resume(&mut self, length: usize) {
        self.epoch += 1;
        self.snapshots.truncate(length);
        let Some(snapshot) = self.snapshots.newest(length) else {
            self.computed = 0;
            self.restore = Some(Restore::Zero);
            self.pages.iter_mut().for_each(Vec::clear);
            return;
        };
        self.computed = snapshot.position;
        self.restore = Some(Restore::State(snapshot.conv.clone()));
        let kept = snapshot.position.div_ceil(PAGE_ROWS);
        for ((table, window), (first, pages)) in self.pages.iter_mut().zip(&self.shape.windows).zip(&snapshot.windows) {
            table.truncate(kept);
            if window.is_some() {
                table.iter_mut().take(*first).for_each(|page| *page = None);
                table[*first..].iter_mut().zip(pages).for_each(|(slot, page)| *slot = Some(page.clone()));
            }
        }
    }

    /// Gives the memory of all snapshots back: going back then computes more again.
    pub fn drop_snapshots(&mut self) {
        self.snapshots.truncate(0);
    }

    /// Makes a round in flight void: its rows are computed again, with other wishes.
    pub fn give_up_round(&mut self) {
        self.epoch += 1;
    }

    /// Conv states to set before the next round, once.
    pub fn take_restore(&mut self) -> Option<Restore> {
        self.restore.take()
    }

    /// Makes room for `rows` more rows. On failure nothing that was computed is lost.
    pub fn reserve(&mut self, rows: usize) -> Result<()> {
        let needed = (self.computed + rows).div_ceil(PAGE_ROWS);
        for table in &mut self.pages {
            while table.len() < needed {
                table.push(Some(self.arena.allocate()?));
            }
        }
        Ok(())
    }

    /// Page ids of each attention layer for a round.
    pub fn page_ids(&self) -> Vec<Vec<PageId>> {
        let id = |page: &Option<Page>| page.as_ref().map_or(PageId::NONE, Page::id);
        self.pages.iter().map(|table| table.iter().map(id).collect()).collect()
    }

    /// Notes that `rows` more rows are computed. `state_after(n)` gives the conv states after the first `n` of them;
    /// `marks` are positions worth a snapshot beside the stride.
    pub fn commit(&mut self, rows: usize, marks: &BTreeSet<usize>, state_after: &dyn Fn(usize) -> ConvState) {
        let (start, end) = (self.computed, self.computed + rows);
        debug_assert!(end <= self.tokens.len());
        self.computed = end;
        for position in start + 1..=end {
            if position % SNAPSHOT_STRIDE == 0 || marks.contains(&position) {
                self.snapshot(position, || state_after(position - start));
            }
        }
        self.sights.release(end);
        self.free_behind_windows();
    }

    /// Keeps the state after `position` tokens where the byte budget allows.
    fn snapshot(&mut self, position: usize, state: impl FnOnce() -> ConvState) {
        if self.snapshots.has(position) {
            return;
        }
        let Ok(bytes) = self.budget.reserve(self.shape.conv_bytes, "a snapshot") else { return };
        let windows = self.pages.iter().zip(&self.shape.windows).map(|(table, window)| match window {
            None => (0, Vec::new()),
            Some(window) => {
                let first = first_visible(position, *window) / PAGE_ROWS;
                let pages = &table[first..position.div_ceil(PAGE_ROWS)];
                (first, pages.iter().flatten().cloned().collect())
            }
        });
        let windows = windows.collect();
        self.snapshots.push(Snapshot { position, conv: state(), windows, bytes });
    }

    fn free_behind_windows(&mut self) {
        for (table, window) in self.pages.iter_mut().zip(&self.shape.windows) {
            if let Some(window) = window {
                let first = first_visible(self.computed, *window) / PAGE_ROWS;
                table.iter_mut().take(first).for_each(|page| *page = None);
            }
        }
    }

    /// Lets everything go.
    pub fn clear(&mut self) {
        self.tokens.clear();
        self.sights.truncate(0);
        self.resume(0);
    }

    /// Bytes of pages, snapshots and pictures this stream refers to.
    pub fn bytes(&self) -> u64 {
        let pages = self.pages.iter().enumerate().map(|(layer, table)| {
            let gone = |place: &usize| table.get(*place).is_none_or(Option::is_none);
            let behind: BTreeSet<usize> = self.snapshots.window_pages(layer).filter(gone).collect();
            table.iter().flatten().count() + behind.len()
        });
        pages.sum::<usize>() as u64 * self.arena.page_bytes() + self.snapshots.bytes() + self.sights.bytes()
    }

    /// Fails where `more` tokens would pass `limit`.
    pub fn check_room(&self, more: usize, limit: usize) -> Result<()> {
        if self.tokens.len() + more <= limit {
            return Ok(());
        }
        let held = self.tokens.len();
        Err(Error::new(
            Code::ContextFull,
            format!("{more} tokens do not fit: the stream holds {held} and its context limit is {limit}"),
        ))
    }
}

/// The oldest position the row at `position` can see through `window`.
fn first_visible(position: usize, window: usize) -> usize {
    (position + 1).saturating_sub(window)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::AttentionShape;

    fn context() -> (Context, Arc<PageArena>) {
        let shape = |window| AttentionShape { heads: 1, kv_heads: 1, head_dim: 2, window, bidirectional: false };
        let plan = Plan { attentions: vec![shape(None), shape(Some(100))], ..Plan::default() };
        let budget = ByteBudget::new(1 << 20, 0);
        let arena = PageArena::new(budget.clone(), 16);
        (Context::new(Arc::new(Shape::new(&plan, 4)), arena.clone(), budget), arena)
    }

    fn fill(context: &mut Context, rows: usize) {
        context.append(&vec![1; rows]);
        context.reserve(rows).unwrap();
        context.take_restore();
        let start = context.computed();
        context.commit(rows, &BTreeSet::new(), &|n| ConvState(vec![(start + n) as f32]));
    }

    #[test]
    fn pages_behind_the_window_are_freed_and_snapshots_keep_theirs() {
        let (mut context, arena) = context();
        for _ in 0..20 {
            fill(&mut context, 50);
        }
        // 16 pages of the full layer, 2 of the window, and those snapshots at 256, 512 and 768 hold.
        let table = &context.pages[1];
        assert!(table[..14].iter().all(Option::is_none) && table[14..].iter().all(Option::is_some));
        assert_eq!(arena.live(), 16 + 2 + 2 + 2 + 2);
        assert_eq!(context.bytes(), 24 * 16 + 3 * 4, "each page once, and three conv states");
        context.drop_snapshots();
        assert_eq!((arena.live(), context.bytes()), (18, 18 * 16));
        context.clear();
        assert_eq!(arena.live(), 0);
    }

    #[test]
    fn rewinding_resumes_at_a_snapshot_with_its_window_and_state() {
        let (mut context, _) = context();
        for _ in 0..20 {
            fill(&mut context, 50);
        }
        let before = context.epoch();
        context.rewind(700);
        assert!(context.epoch() > before);
        assert_eq!((context.computed(), context.tokens().len()), (512, 700));
        assert!(matches!(context.take_restore(), Some(Restore::State(ConvState(s))) if s == [512.0]));
        // The row at 512 sees positions 413 .. 512: pages 6 and 7.
        let present: Vec<bool> = context.pages[1].iter().map(Option::is_some).collect();
        assert_eq!(present, [false, false, false, false, false, false, true, true]);
        context.rewind(100);
        assert_eq!(context.computed(), 0);
        assert!(matches!(context.take_restore(), Some(Restore::Zero)));
    }
}
