//! What slices cost: measured nanoseconds for a unit of work, by kind of step and row count.

use std::time::Duration;

/// About how long a slice should take.
pub const SLICE_TARGET_NS: f64 = 500_000.0;
/// Slices expected to take less on one thread are not shared out.
pub const SHARE_NS: f64 = 25_000.0;
/// Row counts are told apart by powers of two: 1, 2, 3-4, 5-8 … 33-64.
const CLASSES: usize = 8;
/// Part of the old estimate that a new measurement leaves.
const KEEP: f64 = 0.75;
/// A measurement counts for at most this times the estimate: threads are interrupted now and then.
const MAX_JUMP: f64 = 4.0;

/// Kinds of step that cost alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// One pass over a row.
    Pass,
    /// Rows of the embedding.
    Embed,
    /// Norms.
    Norm,
    /// Activations to integers.
    Prepare,
    /// 4-bit matrices.
    Four,
    /// 6-bit matrices.
    Six,
    /// 8-bit matrices.
    Eight,
    /// Plain matrices.
    Dense,
    /// Positions.
    Rope,
    /// Keys and values stored.
    Store,
    /// Attention.
    Attend,
    /// Convolution.
    Conv,
    /// SwiGLU.
    SwiGlu,
    /// GELU.
    Gelu,
}

const KINDS: usize = Kind::Gelu as usize + 1;

/// Thread-nanoseconds of a unit of work.
pub struct Costs {
    ns: [[f64; CLASSES]; KINDS],
    worst: Duration,
}

impl Default for Costs {
    fn default() -> Costs {
        // Before anything was measured: a slow machine's figures.
        let mut ns = [[0.5; CLASSES]; KINDS];
        for kind in [Kind::Four, Kind::Six, Kind::Eight, Kind::Dense, Kind::Attend] {
            ns[kind as usize] = [0.2; CLASSES];
        }
        for kind in [Kind::Embed, Kind::Prepare, Kind::Rope, Kind::Store, Kind::Conv, Kind::SwiGlu, Kind::Gelu] {
            ns[kind as usize] = [2.0; CLASSES];
        }
        Costs { ns, worst: Duration::ZERO }
    }
}

fn class(rows: usize) -> usize {
    (rows.max(1).next_power_of_two().trailing_zeros() as usize).min(CLASSES - 1)
}

impl Costs {
    /// Expected thread-nanoseconds of `work` in a round of `rows` rows.
    pub fn expect(&self, kind: Kind, rows: usize, work: f64) -> f64 {
        self.ns[kind as usize][class(rows)] * work
    }

    /// Learns from a thread that spent `wall` on `work`.
    pub fn learn(&mut self, kind: Kind, rows: usize, work: f64, wall: Duration) {
        self.worst = self.worst.max(wall);
        let cost = &mut self.ns[kind as usize][class(rows)];
        let seen = (wall.as_nanos() as f64 / work.max(1.0)).min(*cost * MAX_JUMP);
        *cost = *cost * KEEP + seen * (1.0 - KEEP);
    }

    /// The longest slice so far.
    pub fn worst(&self) -> Duration {
        self.worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_follow_measurements_and_an_outlier_moves_them_little() {
        let mut costs = Costs::default();
        for _ in 0..40 {
            costs.learn(Kind::Four, 3, 500.0, Duration::from_micros(4));
        }
        assert!((costs.expect(Kind::Four, 4, 1.0) - 8.0).abs() < 0.1);
        costs.learn(Kind::Four, 3, 500.0, Duration::from_secs(1));
        assert!(costs.expect(Kind::Four, 3, 1.0) <= 8.0 * 1.76);
        assert_eq!(costs.worst(), Duration::from_secs(1));
        assert!(costs.expect(Kind::Four, 64, 1.0) < 1.0, "other row counts are untouched");
    }
}
