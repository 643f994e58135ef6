//! A checkpoint: its configuration, its weights, and the forward pass they feed.

pub mod config;
pub mod forward;
