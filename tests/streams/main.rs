//! Streams of an open model: what a host sees through `Model` and `Stream`, held to the bit contract.

mod beside;
mod common;
mod cuts;
mod interleaved;
mod limits;
mod pictures;
mod pictures_oracle;
mod pictures_room;
mod replies;
mod rewinds;
mod together;
mod tools;
