//! One limit on the bytes a model may hold.

use crate::error::{Code, Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts bytes against a limit. Shared by pages, states and snapshots.
#[derive(Debug)]
pub struct ByteBudget {
    limit: u64,
    used: AtomicU64,
}

/// Bytes taken from a budget until dropped.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<ByteBudget>,
    bytes: u64,
}

impl ByteBudget {
    /// A budget of `limit` bytes of which `used` are taken for good.
    pub fn new(limit: u64, used: u64) -> Arc<Self> {
        Arc::new(ByteBudget { limit, used: AtomicU64::new(used) })
    }

    /// Bytes taken.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, or says by how much the limit would be passed.
    pub fn reserve(self: &Arc<Self>, bytes: u64, what: &str) -> Result<Reservation> {
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= self.limit)
        });
        match taken {
            Ok(_) => Ok(Reservation { budget: self.clone(), bytes }),
            Err(used) => Err(Error::new(
                Code::Limit,
                format!(
                    "{what} needs {bytes} bytes, but {used} of the model's limit of {} are in use: \
                     free streams, shorten contexts or raise host_bytes",
                    self.limit
                ),
            )),
        }
    }
}

impl Reservation {
    /// How many bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_refuses_what_passes_it_and_gets_back_what_is_dropped() {
        let budget = ByteBudget::new(100, 30);
        let first = budget.reserve(70, "a page").unwrap();
        assert_eq!(budget.used(), 100);
        assert_eq!(budget.reserve(1, "a page").unwrap_err().code, Code::Limit);
        assert_eq!(budget.reserve(u64::MAX, "a page").unwrap_err().code, Code::Limit);
        drop(first);
        assert_eq!(budget.used(), 30);
    }
}
