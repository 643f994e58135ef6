//! Pictures and videos: configs, decoding, sizes, resizing, patches.

#[path = "picture/formula.rs"]
mod formula;
#[path = "picture/oracle.rs"]
mod oracle;
#[path = "common/rng.rs"]
mod rng;
