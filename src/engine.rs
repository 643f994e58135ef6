//! An open model: weights, backend and the streams it steps.

use crate::error::Result;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Which instruction set the CPU kernels use.
pub use crate::backend::cpu::Isa;

/// The clock a chat template may ask for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Seconds since 1970-01-01 UTC; `None` reads the system's clock.
    pub unix_seconds: Option<i64>,
    /// Offset of the host's local time from UTC.
    pub utc_offset_seconds: i32,
}

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
    /// Most bytes of weights, pages, states and scratch together.
    pub host_bytes: Option<u64>,
    /// The clock templates see.
    pub clock: Clock,
}

/// Bytes a model needs, before it is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryReport {
    /// Packed weights.
    pub weights: u64,
    /// Scratch of rounds and tokenizer, made at load.
    pub scratch: u64,
    /// Passing need while loading, on top of the rest.
    pub loading: u64,
    /// Each stream's constant part.
    pub stream: u64,
    /// Each 1,000 tokens of a stream's context.
    pub per_1000_tokens: u64,
    /// Bytes of the checkpoint's tensors.
    pub file: u64,
}

/// What a model is.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `model_type` of the config.
    pub kind: String,
    /// Tokens.
    pub vocab_size: usize,
    /// Most positions of a stream.
    pub context_limit: usize,
    /// Layers.
    pub layers: usize,
    /// Hidden width.
    pub hidden: usize,
    /// Parameters of the text model.
    pub parameters: u64,
    /// Bits of most weights as stored.
    pub bits: u32,
    /// First token of a chat.
    pub bos: Option<u32>,
    /// Stop tokens.
    pub eos: Vec<u32>,
    /// Whether the checkpoint has a vision tower.
    pub has_vision: bool,
    /// Bytes held by weights and scratch.
    pub bytes: u64,
    /// Instruction set in use.
    pub isa: &'static str,
    /// Threads in use.
    pub threads: usize,
}

/// What is left to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Call again now.
    More,
    /// Nothing to do.
    Idle,
}

/// What a step did.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepReport {
    /// Time spent.
    pub used: Duration,
    /// What the next slice is expected to take.
    pub next_slice: Duration,
    /// The longest slice seen.
    pub worst_slice: Duration,
    /// How long the host may wait before the next step without losing time.
    pub wait_hint: Duration,
    /// Streams with work left.
    pub busy_streams: usize,
}

/// An open model. Methods take `&self`; `step` excludes itself.
pub struct Model {}

impl Model {
    /// Opens a checkpoint folder. `progress(done, total)` in bytes may return false to cancel.
    pub fn open(
        _path: &Path,
        _options: &ModelOptions,
        _progress: &mut dyn FnMut(u64, u64) -> bool,
    ) -> Result<Arc<Model>> {
        unimplemented!()
    }

    /// Predicts what `open` will need, reading headers only.
    pub fn memory(_path: &Path, _options: &ModelOptions) -> Result<MemoryReport> {
        unimplemented!()
    }

    /// What the model is.
    pub fn info(&self) -> ModelInfo {
        unimplemented!()
    }

    /// Works for at most `budget`, at least one slice. `Busy` while another thread steps.
    pub fn step(&self, _budget: Duration) -> Result<(Work, StepReport)> {
        unimplemented!()
    }

    /// Whether a step would find work, without doing any.
    pub fn poll(&self) -> Result<Work> {
        unimplemented!()
    }

    /// Lets weights and threads go (after a step in flight ends) and makes the streams answer `Closed`.
    pub fn close(&self) {
        unimplemented!()
    }

    /// Tokens of `text`; control tokens are recognized only when `control`.
    pub fn tokenize(&self, _text: &str, _control: bool) -> Result<Vec<u32>> {
        unimplemented!()
    }

    /// Bytes of the tokens' text; not always whole UTF-8.
    pub fn detokenize(&self, _tokens: &[u32]) -> Result<Vec<u8>> {
        unimplemented!()
    }

    /// The chat as the template renders it.
    pub fn render_chat(&self, _json: &str) -> Result<String> {
        unimplemented!()
    }
}
