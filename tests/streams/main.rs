//! Streams of an open model: what a host sees through `Model` and `Stream`, held to the bit contract.

mod common;
mod cuts;
mod limits;
mod replies;
mod rewinds;
mod together;
