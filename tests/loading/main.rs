//! Opening and loading checkpoints: every naming and storage that is accepted, everything that is refused, hostile
//! files.

mod accepted;
mod configs;
mod hostile;
mod mock;
mod processors;
mod refused;
mod released;
#[path = "../common/rng.rs"]
mod rng;
mod shards;
mod values;
mod vision;
mod vision_configs;
mod writer;
