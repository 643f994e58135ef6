//! KV pages by reference count: ids here, rows in the backend.
//!
//! Pages are handed out only while no round is in flight, so a page freed during a round cannot be written by another
//! stream before the round has ended.

use super::{ByteBudget, Reservation};
use crate::backend::{Backend, PageId};
use crate::error::Result;
use parking_lot::Mutex;
use std::sync::Arc;

/// Free pages whose memory is kept for the next stream.
pub const SPARE_PAGES: usize = 64;

/// Hands out pages of one size.
#[derive(Debug)]
pub struct PageArena {
    budget: Arc<ByteBudget>,
    page_bytes: u64,
    lists: Mutex<Lists>,
}

#[derive(Debug, Default)]
struct Lists {
    /// Bytes of each id that has memory in the backend.
    held: Vec<Option<Reservation>>,
    /// Ids with memory, ready for use.
    spare: Vec<PageId>,
    /// Ids without memory.
    vacant: Vec<PageId>,
    live: usize,
}

/// One owner's share of a page; the page is free when the last share is dropped.
#[derive(Clone, Debug)]
pub struct Page(Arc<Owned>);

#[derive(Debug)]
struct Owned {
    id: PageId,
    arena: Arc<PageArena>,
}

impl PageArena {
    /// An arena of pages of `page_bytes` under `budget`.
    pub fn new(budget: Arc<ByteBudget>, page_bytes: u64) -> Arc<Self> {
        Arc::new(PageArena { budget, page_bytes, lists: Mutex::default() })
    }

    /// A page nobody else has.
    pub fn allocate(self: &Arc<Self>) -> Result<Page> {
        let mut lists = self.lists.lock();
        let id = match lists.spare.pop() {
            Some(id) => id,
            None => {
                let bytes = self.budget.reserve(self.page_bytes, "a page of keys and values")?;
                let id = lists.vacant.pop().unwrap_or_else(|| {
                    lists.held.push(None);
                    PageId(lists.held.len() as u32 - 1)
                });
                lists.held[id.0 as usize] = Some(bytes);
                id
            }
        };
        lists.live += 1;
        Ok(Page(Arc::new(Owned { id, arena: self.clone() })))
    }

    /// Lets the memory of free pages past the `spare` ones go; call with no round in flight.
    pub fn trim(&self, backend: &mut dyn Backend, spare: usize) {
        let mut lists = self.lists.lock();
        while lists.spare.len() > spare {
            let Some(id) = lists.spare.pop() else { return };
            backend.release_page(id);
            lists.held[id.0 as usize] = None;
            lists.vacant.push(id);
        }
    }

    /// Pages some stream or snapshot refers to.
    pub fn live(&self) -> usize {
        self.lists.lock().live
    }

    /// Bytes of one page.
    pub fn page_bytes(&self) -> u64 {
        self.page_bytes
    }
}

impl Page {
    /// Its id in the backend.
    pub fn id(&self) -> PageId {
        self.0.id
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        let mut lists = self.arena.lists.lock();
        lists.live -= 1;
        lists.spare.push(self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_when_its_last_share_is_dropped() {
        let arena = PageArena::new(ByteBudget::new(250, 0), 100);
        let first = arena.allocate().unwrap();
        let share = first.clone();
        let second = arena.allocate().unwrap();
        assert_ne!(first.id(), second.id());
        assert!(arena.allocate().is_err());
        drop(first);
        assert!(arena.allocate().is_err());
        let id = share.id();
        drop(share);
        assert_eq!(arena.allocate().unwrap().id(), id);
        assert_eq!(arena.live(), 1);
    }
}
