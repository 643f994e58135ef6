//! The forward pass on every backend: ops, the bit contract, planted faults, trained checkpoints.

mod common;
#[path = "../common/rng.rs"]
mod rng;

mod cpu;
mod faults;
mod grid_bits;
mod grid_faults;
mod grid_kernels;
mod hostile_rounds;
mod kernels;
mod long_prompt;
mod oracle;
mod oracle_vision;
mod row_bits;
mod speed;
mod speed_tower;
