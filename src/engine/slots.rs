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
    /// Given back, to be used again, with their bytes: the backend keeps a slot's conv states for its next stream.
    free: Vec<(u32, Reservation)>,
    /// How many there are; their numbers are below it.
    made: u32,
}

/// A stream's slot in the backend until dropped.
#[derive(Debug)]
pub struct SlotLease {
    slot: Slot,
    slots: Arc<Mutex<Slots>>,
    /// The conv states' share of the byte budget, given back with the slot.
    bytes: Option<Reservation>,
}

impl SlotLease {
    /// Takes a slot that was given back.
    pub(super) fn reuse(slots: &Arc<Mutex<Slots>>) -> Option<SlotLease> {
        let (slot, bytes) = slots.lock().free.pop()?;
        Some(SlotLease { slot: Slot(slot), slots: slots.clone(), bytes: Some(bytes) })
    }

    /// Takes a new slot, whose conv states `bytes` pays for.
    pub(super) fn make(slots: &Arc<Mutex<Slots>>, bytes: Reservation) -> Result<SlotLease> {
        let mut list = slots.lock();
        if list.made >= MAX_STREAMS {
            let message = format!("a model has at most {MAX_STREAMS} streams: free some");
            return Err(Error::new(Code::Limit, message));
        }
        list.made += 1;
        Ok(SlotLease { slot: Slot(list.made - 1), slots: slots.clone(), bytes: Some(bytes) })
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
