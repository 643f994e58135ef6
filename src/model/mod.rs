//! A checkpoint: its configuration, its weights, and the forward pass they feed.
//!
//! `checkpoint` opens a folder: `config` and `quantization` check what it says, `header` what tensors it has. `forward`
//! writes the plan; `tensors` finds the plan's weights among the checkpoint's; `load` hands them to a backend.

pub mod checkpoint;
pub mod config;
pub mod files;
pub mod forward;
pub mod header;
pub mod load;
pub mod quantization;
pub mod tensors;
