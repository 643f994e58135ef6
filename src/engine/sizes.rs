//! What a model takes in memory, from its headers alone.

use super::options::ModelOptions;
use crate::backend::{PAGE_ROWS, cpu};
use crate::error::Result;
use crate::model::checkpoint::Checkpoint;
use crate::model::tensors::{Tensor, stored_bits};
use crate::plan::{AttentionId, Plan};

/// Bytes a model needs, before it is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryReport {
    /// Packed weights.
    pub weights: u64,
    /// Scratch of rounds and tokenizer, made at load.
    pub scratch: u64,
    /// Passing need while loading, on top of the rest.
    pub loading: u64,
    /// Each stream's constant part: its conv states and the pages of its sliding windows.
    pub stream: u64,
    /// Each 1,000 tokens of a stream's context; snapshots come on top.
    pub per_1000_tokens: u64,
    /// Bytes of the checkpoint's tensors.
    pub file: u64,
}

/// Most bytes of a tensor's rows on their way from the file to their packed form.
const LOAD_BYTES: u64 = 8 << 20;
/// Bytes the tokenizer takes for each byte of tokenizer.json, measured.
const TOKENIZER_FACTOR: u64 = 10;

/// Sizes of a model that is opened with some options.
pub(super) struct Sizes {
    pub report: MemoryReport,
    /// Bytes of one stream's conv states.
    pub conv_bytes: u64,
    /// Bytes of a page of any attention layer.
    pub page_bytes: u64,
    /// Values of all weights.
    pub parameters: u64,
    /// Bits per value in which most of them are stored.
    pub bits: u32,
}

impl Sizes {
    /// Reads headers only. Fails where the checkpoint's tensors do not fit `plan`.
    pub fn of(checkpoint: &Checkpoint, plan: &Plan, options: &ModelOptions) -> Result<Sizes> {
        let cpu_options = options.cpu();
        let tensors = checkpoint.bind(plan, None)?.text;
        let packed = tensors.iter().zip(&plan.weights);
        let packed = packed.map(|(tensor, spec)| cpu::packed_bytes(&tensor.desc, spec.role, &cpu_options));
        let page_bytes = (0..plan.attentions.len()).map(|i| cpu::page_bytes(plan, AttentionId(i))).max().unwrap_or(0);
        let full_layers = plan.attentions.iter().filter(|a| a.window.is_none()).count() as u64;
        // A window that begins and ends inside pages, and a page for the rows being computed.
        let window_pages: usize = plan.attentions.iter().filter_map(|a| a.window).map(|w| w / PAGE_ROWS + 2).sum();
        let tokenizer = TOKENIZER_FACTOR * checkpoint.tokenizer_json.len() as u64;
        let conv_bytes = cpu::conv_state_bytes(plan);
        let report = MemoryReport {
            weights: packed.sum(),
            scratch: cpu::scratch_bytes(plan, &cpu_options) + tokenizer,
            loading: tensors.iter().map(|tensor| tensor.bytes().min(LOAD_BYTES)).max().unwrap_or(0),
            stream: conv_bytes + window_pages as u64 * page_bytes,
            per_1000_tokens: full_layers * page_bytes * 1000 / PAGE_ROWS as u64,
            file: checkpoint.tensor_bytes,
        };
        let parameters = tensors.iter().map(Tensor::parameters).sum();
        Ok(Sizes { report, conv_bytes, page_bytes, parameters, bits: stored_bits(&tensors) })
    }
}
