//! What a checkpoint says of itself: its sizes, its stop tokens, and how it wants to be sampled.

use super::options::ModelOptions;
use super::sizes::Sizes;
use crate::backend::cpu::Isa;
use crate::model::checkpoint::Checkpoint;
use crate::model::config::GenerationDefaults;
use crate::sampler::Sampling;

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

/// What the model opened from `checkpoint` is.
pub(super) fn model_info(
    checkpoint: &Checkpoint,
    sizes: &Sizes,
    options: &ModelOptions,
    context_limit: usize,
) -> ModelInfo {
    let config = &checkpoint.config;
    let mut eos = checkpoint.generation.eos.clone();
    eos.extend(config.eos.iter().filter(|id| !checkpoint.generation.eos.contains(id)));
    ModelInfo {
        kind: config.kind.clone(),
        vocab_size: config.text.vocab_size,
        context_limit,
        layers: config.text.layers.len(),
        hidden: config.text.hidden,
        parameters: sizes.parameters,
        bits: sizes.bits,
        bos: config.bos,
        eos,
        has_vision: config.vision.is_some(),
        bytes: sizes.report.weights + sizes.report.scratch,
        isa: options.isa.unwrap_or_else(Isa::best).name(),
        threads: options.threads,
    }
}

/// The vendor's sampling where the checkpoint says nothing; where it says something, its framework's defaults for the
/// rest.
pub(super) fn default_sampling(given: &GenerationDefaults) -> Sampling {
    let vendor = Sampling { temperature: 0.1, top_k: 50, repetition_penalty: 1.1, ..Sampling::GREEDY };
    let silent = given.do_sample.is_none()
        && given.temperature.is_none()
        && given.top_k.is_none()
        && given.top_p.is_none()
        && given.repetition_penalty.is_none();
    if silent {
        return vendor;
    }
    let greedy = given.do_sample == Some(false);
    Sampling {
        temperature: if greedy { 0.0 } else { given.temperature.unwrap_or(1.0) },
        top_k: given.top_k.unwrap_or(50),
        top_p: given.top_p.unwrap_or(1.0),
        min_p: given.min_p.unwrap_or(0.0),
        repetition_penalty: given.repetition_penalty.unwrap_or(1.0),
        ..Sampling::GREEDY
    }
}
