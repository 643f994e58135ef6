//! What a recurring piece of work is expected to take.

use std::time::{Duration, Instant};

/// A smoothed duration that follows increases at once and decreases slowly.
#[derive(Debug, Default)]
pub struct Pace {
    expected: Duration,
    worst: Duration,
}

impl Pace {
    /// Runs `work` and learns from its time.
    pub fn time<T>(&mut self, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        let took = start.elapsed();
        self.expected = took.max(self.expected * 15 / 16);
        self.worst = self.worst.max(took);
        result
    }

    /// Whether the next piece is expected to end by `deadline`.
    pub fn fits(&self, deadline: Instant) -> bool {
        Instant::now() + self.expected <= deadline
    }

    /// The longest piece so far.
    pub fn worst(&self) -> Duration {
        self.worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_piece_is_remembered_while_the_expectation_falls() {
        let mut pace = Pace::default();
        pace.time(|| std::thread::sleep(Duration::from_millis(3)));
        let longest = pace.worst();
        assert!(longest >= Duration::from_millis(3));
        assert!(!pace.fits(Instant::now()));
        for _ in 0..100 {
            pace.time(|| ());
        }
        assert!(pace.worst() >= longest && pace.expected < longest);
    }
}
