//! The C interface: its header, its binary form, and programs against it.

mod abi;
mod compile;
mod examples;
mod header;
mod programs;
