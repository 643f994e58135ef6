//! liblfm3: LFM3 language models inside other programs.
//!
//! The modules in the order a call becomes tokens: `ffi` checks and maps the C interface; `stream` is one conversation;
//! `engine` is an open model that steps its streams through `scheduler` rounds; `model` writes the network as a `plan`;
//! `backend` runs it; `sampler` draws tokens from logits.

pub mod error;
pub mod ffi;

pub mod engine;
pub mod stream;

pub mod text;

pub mod scheduler;
pub mod state;

pub mod model;
pub mod plan;

pub mod backend;
pub mod math;
pub mod sampler;
