//! The backend's places for streams.

use crate::backend::Slot;
use crate::error::{Code, Error, Result};
use crate::state::Reservation;
use parking_lot::Mutex;
use std::sync::Arc;

/// Most streams of a model.
pub const MAX_STREAMS: u32 = 1024;

/// The slots of one model.
#[derive(Debug, Default)]
pub(super) struct Slots {
    /// With their bytes: the backend keeps a slot's conv states for its next stream.
    free: Vec<(u32, Reservation)>,
    /// How many there are; their numbers are below it.
    made: u32,
}

/// A stream's slot in the backend until dropped.
#[derive(Debug)]
pub struct SlotLease {
    slot: Slot,
    slots: Arc<Mutex<Slots>>,
    /// Given back with the slot.
    bytes: Option<Reservation>,
}

impl SlotLease {
    /// Takes a free slot, or makes one, whose conv states `reserve` pays for.
    pub(super) fn take(slots: &Arc<Mutex<Slots>>, reserve: impl FnOnce() -> Result<Reservation>) -> Result<SlotLease> {
        let lease = |slot, bytes| SlotLease { slot: Slot(slot), slots: slots.clone(), bytes: Some(bytes) };
        if let Some((slot, bytes)) = slots.lock().free.pop() {
            return Ok(lease(slot, bytes));
        }
        let bytes = reserve()?;
        let mut list = slots.lock();
        if list.made >= MAX_STREAMS {
            let message = format!("a model has at most {MAX_STREAMS} streams: free some");
            return Err(Error::new(Code::Limit, message));
        }
        list.made += 1;
        Ok(lease(list.made - 1, bytes))
    }

    /// The slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            self.slots.lock().free.push((self.slot.0, bytes));
        }
    }
}
