//! A checkpoint: its configuration, its weights, and the forward pass they feed.
//!
//! `checkpoint` opens a folder: `config`, `vision_config` and `quantization` check what it says, `processor` how it
//! wants its pictures, `header` what tensors it has. `forward` writes the text model's plan, `vision` the tower's;
//! `tensors` finds the plans' weights among the checkpoint's; `load` hands them to backends.

pub mod checkpoint;
pub mod config;
pub mod files;
pub mod forward;
pub mod header;
pub mod load;
pub mod processor;
pub mod quantization;
pub mod tensors;
pub mod vision;
pub mod vision_config;
