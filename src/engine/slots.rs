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
    /// Given back, to be used again.
    free: Vec<u32>,
    /// How many there are; their numbers are below it.
    made: u32,
}

/// A stream's slot in the backend until dropped.
#[derive(Debug)]
pub struct SlotLease {
    slot: Slot,
    slots: Arc<Mutex<Slots>>,
    /// The conv states' share of the byte budget.
    _bytes: Reservation,
}

impl SlotLease {
    /// Takes a free slot, whose conv states `bytes` pays for.
    pub(super) fn take(slots: &Arc<Mutex<Slots>>, bytes: Reservation) -> Result<SlotLease> {
        let mut list = slots.lock();
        let slot = match list.free.pop() {
            Some(slot) => slot,
            None if list.made < MAX_STREAMS => {
                list.made += 1;
                list.made - 1
            }
            None => {
                let message = format!("a model has at most {MAX_STREAMS} streams: free some");
                return Err(Error::new(Code::Limit, message));
            }
        };
        Ok(SlotLease { slot: Slot(slot), slots: slots.clone(), _bytes: bytes })
    }

    /// The slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        self.slots.lock().free.push(self.slot.0);
    }
}
