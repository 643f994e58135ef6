//! What a stream has computed: pages of keys and values, conv states, and snapshots to go back to.

mod bytes;
mod context;
mod pages;
mod sights;
mod snapshot;

pub use bytes::{ByteBudget, Reservation};
pub use context::{Context, Restore, Shape};
pub use pages::{Page, PageArena, SPARE_PAGES};
pub use sights::{Placed, SeenRows, Sights};
