//! The C interface: check, call, map. One file a C type; `include/lfm3.h` is generated from them in this order, which
//! rises from the simple to the advanced.

// C's names, and C's way to say what the caller must promise: the docs below are the header's.
#![allow(non_camel_case_types, clippy::missing_safety_doc)]

mod args;
mod guard;
mod handle;

pub mod status;

pub mod library;

pub mod model;

pub mod stream;

pub mod media;

pub mod generate;

pub mod event;

pub mod text;

pub mod position;

pub mod device;
pub mod model_info;
