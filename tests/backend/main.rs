//! The forward pass on every backend: ops, the bit contract, planted faults, trained checkpoints.

mod common;
#[path = "../common/rng.rs"]
mod rng;

mod cpu;
mod faults;
mod kernels;
mod long_prompt;
mod oracle;
mod oracle_vision;
mod row_bits;
mod speed;
