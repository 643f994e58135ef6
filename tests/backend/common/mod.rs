//! What the tests of backends share: weights in memory, small models, rounds and backends.

pub mod cases;
mod grids;
mod model;
mod rounds;
mod stream;
mod tensor;

pub use crate::rng::Rng;
pub use grids::*;
pub use model::*;
pub use rounds::*;
pub use stream::*;
pub use tensor::*;

/// Half a unit in the last place of 1.0 in float32: the relative error of one rounding.
pub const U: f64 = 1.0 / (1 << 24) as f64;
