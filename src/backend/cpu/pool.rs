//! Worker threads that share out the units of a slice, and the shared view of what units write.

use super::fpenv::FpGuard;
use crate::error::{Code, Error, Result};
use parking_lot::{Condvar, Mutex};
use std::any::Any;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// Most threads a pool may have, the caller included.
pub const MAX_THREADS: usize = 256;
/// Bytes of a worker's stack; given, so that the standard library asks no environment variable.
const STACK_BYTES: usize = 1 << 20;
/// Turns of the spinning wait before a thread sleeps; some tens of microseconds.
const SPINS: usize = 1_000;

/// Does the units of a range on the thread of this index.
type Work<'a> = dyn Fn(usize, Range<usize>) + Sync + 'a;

/// What the workers are asked to do. Valid from `Pool::run`'s start until it has seen `running` at zero.
#[derive(Clone, Copy)]
struct Job {
    work: *const Work<'static>,
    end: usize,
    chunk: usize,
}

// SAFETY: the pointee is Sync, and `Pool::run` keeps it alive for as long as any thread may hold the job.
unsafe impl Send for Job {}

#[derive(Default)]
struct State {
    job: Option<Job>,
    parked: usize,
    stop: bool,
    panic: Option<Box<dyn Any + Send>>,
}

/// What workers and caller share.
#[derive(Default)]
struct Board {
    state: Mutex<State>,
    wake: Condvar,
    idle: Condvar,
    /// Counts jobs; changed under the lock, read outside by spinning workers.
    epoch: AtomicU64,
    /// Workers inside the job; changed under the lock, read outside by the spinning caller.
    running: AtomicUsize,
    /// The next unit to claim.
    next: AtomicUsize,
    /// Whether waiting workers may spin.
    busy: AtomicBool,
}

/// `threads - 1` workers; the caller of `run` is the remaining thread.
pub struct Pool {
    board: Arc<Board>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// Starts the workers. `threads` counts the caller.
    pub fn new(threads: usize) -> Result<Pool> {
        if threads == 0 || threads > MAX_THREADS {
            let message = format!("threads is {threads}; it must be 1 to {MAX_THREADS}");
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let mut pool = Pool { board: Arc::default(), workers: Vec::new() };
        for index in 1..threads {
            let board = Arc::clone(&pool.board);
            let builder = std::thread::Builder::new().name(format!("lfm3-{index}")).stack_size(STACK_BYTES);
            let worker = builder
                .spawn(move || worker(&board, index))
                .map_err(|e| Error::new(Code::Limit, format!("worker thread {index} could not be started: {e}")))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that compute, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Work follows at once: workers may spin between jobs.
    pub fn begin(&self) {
        self.board.busy.store(true, Ordering::Relaxed);
    }

    /// No work follows soon: workers go to sleep.
    pub fn rest(&self) {
        self.board.busy.store(false, Ordering::Relaxed);
    }

    /// Does all units, `chunk` at a time on whichever thread is free, and returns when every one is done. With all
    /// units in one chunk the caller works alone. A panic in any thread is passed on to the caller.
    pub fn run(&mut self, units: Range<usize>, chunk: usize, work: &Work<'_>) {
        if self.workers.is_empty() || units.len() <= chunk {
            return work(0, units);
        }
        // SAFETY: only the lifetime changes; `finish` below returns after the last worker has left the job, and
        // no worker enters it later, so that the reference outlives its uses.
        let work: *const Work<'static> = unsafe { std::mem::transmute::<&Work<'_>, &'static Work<'static>>(work) };
        let job = Job { work, end: units.end, chunk };
        self.post(job, units.start);
        let own = catch_unwind(AssertUnwindSafe(|| self.board.claim(job, 0)));
        let theirs = self.finish();
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        if let Some(panic) = theirs {
            resume_unwind(panic);
        }
    }

    fn post(&self, job: Job, first: usize) {
        let mut state = self.board.state.lock();
        self.board.next.store(first, Ordering::Relaxed);
        state.job = Some(job);
        self.board.epoch.fetch_add(1, Ordering::Release);
        if state.parked > 0 {
            self.board.wake.notify_all();
        }
    }

    /// Closes the job to workers that have not entered it and waits for those that have.
    fn finish(&self) -> Option<Box<dyn Any + Send>> {
        self.board.state.lock().job = None;
        for _ in 0..SPINS {
            if self.board.running.load(Ordering::Acquire) == 0 {
                break;
            }
            std::hint::spin_loop();
        }
        let mut state = self.board.state.lock();
        while self.board.running.load(Ordering::Acquire) > 0 {
            self.board.idle.wait(&mut state);
        }
        state.panic.take()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.board.state.lock().stop = true;
        self.board.wake.notify_all();
        self.rest();
        for worker in self.workers.drain(..) {
            // A worker catches its panics, so there is nothing to learn from its end.
            let _ = worker.join();
        }
    }
}

fn worker(board: &Board, index: usize) {
    let _fp = FpGuard::new();
    let mut seen = 0;
    while let Some(job) = board.enter(&mut seen) {
        let result = catch_unwind(AssertUnwindSafe(|| board.claim(job, index)));
        let mut state = board.state.lock();
        if let Err(panic) = result {
            state.panic.get_or_insert(panic);
        }
        if board.running.fetch_sub(1, Ordering::Release) == 1 {
            board.idle.notify_one();
        }
    }
}

impl Board {
    /// Waits for a job newer than `seen` and enters it; `None` when the pool ends.
    fn enter(&self, seen: &mut u64) -> Option<Job> {
        loop {
            for _ in 0..SPINS {
                if self.epoch.load(Ordering::Acquire) != *seen || !self.busy.load(Ordering::Relaxed) {
                    break;
                }
                std::hint::spin_loop();
            }
            let mut state = self.state.lock();
            while !state.stop && self.epoch.load(Ordering::Acquire) == *seen {
                state.parked += 1;
                self.wake.wait(&mut state);
                state.parked -= 1;
            }
            if state.stop {
                return None;
            }
            *seen = self.epoch.load(Ordering::Acquire);
            if let Some(job) = state.job {
                self.running.fetch_add(1, Ordering::Release);
                return Some(job);
            }
        }
    }

    /// Takes chunks of units until none is left.
    fn claim(&self, job: Job, thread: usize) {
        // SAFETY: this thread is inside the job (`Pool::run` itself, or counted in `running`), so `work` is alive.
        let work = unsafe { &*job.work };
        loop {
            let first = self.next.fetch_add(job.chunk, Ordering::Relaxed);
            if first >= job.end {
                break;
            }
            work(thread, first..job.end.min(first + job.chunk));
        }
    }
}

/// A slice that several units write, each its own part.
pub struct Shared<'a, T> {
    start: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for an exclusive borrow of the slice; who takes parts promises that they do not overlap.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Takes the slice for as long as units run.
    pub fn new(slice: &'a mut [T]) -> Self {
        Shared { start: slice.as_mut_ptr(), len: slice.len(), slice: PhantomData }
    }

    /// The part `first .. first + len`.
    ///
    /// # Safety
    /// No other part that overlaps it is alive.
    pub unsafe fn part(&self, first: usize, len: usize) -> &'a mut [T] {
        assert!(first <= self.len && len <= self.len - first, "part {first}+{len} of {}", self.len);
        // SAFETY: inside the slice by the check above, and not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(first), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_done_exactly_once() {
        for threads in [1, 2, 3, 5] {
            let mut pool = Pool::new(threads).unwrap();
            for (first, count, chunk) in [(0, 1, 1), (3, 100, 1), (0, 1000, 7), (5, 64, 64), (0, 0, 1)] {
                pool.begin();
                let done: Vec<AtomicUsize> = (0..first + count).map(|_| AtomicUsize::new(0)).collect();
                pool.run(first..first + count, chunk, &|thread, units| {
                    assert!(thread < threads);
                    units.for_each(|u| _ = done[u].fetch_add(1, Ordering::Relaxed));
                });
                let done: Vec<usize> = done.into_iter().map(AtomicUsize::into_inner).collect();
                assert!(done[..first].iter().all(|&n| n == 0) && done[first..].iter().all(|&n| n == 1));
                pool.rest();
            }
        }
    }

    #[test]
    fn many_short_jobs_in_a_row_end() {
        let mut pool = Pool::new(3).unwrap();
        let sum = AtomicUsize::new(0);
        for job in 0..20_000 {
            if job % 1_000 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            pool.run(0..4, 1, &|_, units| _ = sum.fetch_add(units.len(), Ordering::Relaxed));
        }
        assert_eq!(sum.into_inner(), 80_000);
    }

    #[test]
    fn a_panic_in_any_thread_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(2).unwrap();
        for bad in 0..8 {
            let result = catch_unwind(AssertUnwindSafe(|| {
                pool.run(0..8, 1, &|_, units| {
                    std::thread::sleep(std::time::Duration::from_micros(200));
                    assert!(!units.contains(&bad), "planted");
                });
            }));
            assert!(result.is_err());
            pool.run(0..8, 1, &|_, _| ());
        }
    }

    #[test]
    fn thread_counts_out_of_range_are_refused() {
        assert_eq!(Pool::new(0).err().unwrap().code, Code::InvalidArgument);
        assert_eq!(Pool::new(MAX_THREADS + 1).err().unwrap().code, Code::InvalidArgument);
        assert_eq!(Pool::new(1).unwrap().workers.len(), 0);
    }
}
