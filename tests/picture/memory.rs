//! Counts what a thread allocates, so that tests beside each other do not disturb the count.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static LIVE: Cell<i64> = const { Cell::new(0) };
    static PEAK: Cell<i64> = const { Cell::new(0) };
}

struct Counting;

fn count(bytes: i64) {
    // A thread that ends no longer has its counters.
    let live = LIVE.try_with(|live| {
        live.set(live.get() + bytes);
        live.get()
    });
    let _ = live.map(|live| PEAK.try_with(|peak| peak.set(peak.get().max(live))));
}

// SAFETY: passes everything on to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as i64);
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as i64));
        // SAFETY: the caller's pointer and layout, unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// What `work` gives, and the most bytes this thread held more than before while it ran.
pub fn peak<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, (PEAK.get() - before).max(0) as u64)
}

#[test]
fn what_is_held_is_counted() {
    let (kept, most) = peak(|| {
        drop(vec![1_u8; 3_000_000]);
        vec![0_u8; 1_000_000]
    });
    assert!((3_000_000..3_001_000).contains(&most), "{most}");
    assert_eq!(peak(|| drop(kept)).1, 0);
}
