//! How a host wants a model opened.

use crate::backend::cpu::{CpuOptions, Isa, MAX_THREADS};
use crate::error::{Code, Error, Result};
use crate::text::Clock;

/// How to open a model.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Threads that compute, the stepping thread included; 1 makes none.
    pub threads: usize,
    /// Forces an instruction set.
    pub isa: Option<Isa>,
    /// Rounds unquantized matrices to 8 bits on loading.
    pub round_to_8_bits: bool,
    /// Most positions of a stream; at most the checkpoint's own limit.
    pub context_limit: Option<usize>,
    /// Most tokens of one picture, or of all frames of a video.
    pub max_picture_tokens: Option<u64>,
    /// Most bytes of weights, pages, states and scratch together.
    pub host_bytes: Option<u64>,
    /// The clock templates see.
    pub clock: Clock,
}

impl Default for ModelOptions {
    /// One thread, the best instruction set, the checkpoint's own limits.
    fn default() -> Self {
        ModelOptions {
            threads: 1,
            isa: None,
            round_to_8_bits: false,
            context_limit: None,
            max_picture_tokens: None,
            host_bytes: None,
            clock: Clock::default(),
        }
    }
}

impl ModelOptions {
    /// Fails on values that no checkpoint can be opened with.
    pub(super) fn check(&self) -> Result<()> {
        if !(1..=MAX_THREADS).contains(&self.threads) {
            let message = format!("threads is {}, expected 1 to {MAX_THREADS}", self.threads);
            return Err(Error::new(Code::InvalidArgument, message));
        }
        match self.isa {
            Some(isa) if !isa.available() => {
                let message = format!("this processor cannot run the {} kernels", isa.name());
                Err(Error::new(Code::Unsupported, message))
            }
            _ => Ok(()),
        }
    }

    /// Most positions of a stream, where the checkpoint itself has `most`.
    pub(super) fn context_limit(&self, most: usize) -> Result<usize> {
        match self.context_limit {
            None => Ok(most),
            Some(limit) if (1..=most).contains(&limit) => Ok(limit),
            Some(limit) => {
                let message = format!("context_limit is {limit}, expected 1 to the checkpoint's {most}");
                Err(Error::new(Code::InvalidArgument, message))
            }
        }
    }

    /// The backend's part.
    pub(super) fn cpu(&self) -> CpuOptions {
        CpuOptions { threads: self.threads, isa: self.isa, round_to_8_bits: self.round_to_8_bits }
    }
}
