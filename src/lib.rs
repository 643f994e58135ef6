//! liblfm3: LFM3 language models inside other programs.
//!
//! The modules in the order a call becomes tokens and tokens become events: `ffi` checks and maps the C interface;
//! `engine` is an open model; `stream` is one conversation with it; `text` makes tokens of chats and characters of
//! tokens; `scheduler` cuts the streams' work into rounds, over the pages and snapshots of `state`; `model` reads a
//! checkpoint and writes the network as a `plan`; `backend` runs the plan; `sampler` draws tokens from logits. `error`
//! and `math` serve all of them.

pub mod ffi;

pub mod engine;
pub mod stream;

pub mod text;

pub mod picture;

pub mod scheduler;
pub mod state;

pub mod model;
pub mod plan;

pub mod backend;
pub mod sampler;

pub mod error;
pub mod math;
