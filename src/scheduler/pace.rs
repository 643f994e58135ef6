//! What a recurring piece of work is expected to take.

use std::time::{Duration, Instant};

/// A smoothed duration that follows increases at once and decreases slowly.
#[derive(Debug, Default)]
pub struct Pace(Duration);

impl Pace {
    /// Runs `work` and learns from its time.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0 = start.elapsed().max(self.0 * 15 / 16);
        result
    }

    /// Whether the next piece is expected to end by `deadline`.
    pub fn fits(&self, deadline: Instant) -> bool {
        Instant::now() + self.0 <= deadline
    }
}
