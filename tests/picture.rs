//! Pictures and videos: configs, decoding, sizes, resizing, patches.

#[path = "picture/config.rs"]
mod config;
#[path = "picture/decoding.rs"]
mod decoding;
#[path = "picture/faults.rs"]
mod faults;
#[path = "picture/files.rs"]
mod files;
#[path = "picture/formula.rs"]
mod formula;
#[path = "picture/hostile.rs"]
mod hostile;
#[path = "picture/memory.rs"]
mod memory;
#[path = "picture/oracle.rs"]
mod oracle;
#[path = "picture/resizing.rs"]
mod resizing;
#[path = "common/rng.rs"]
mod rng;
#[path = "picture/views.rs"]
mod views;
