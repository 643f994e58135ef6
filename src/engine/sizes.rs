//! What a model takes in memory, from its headers alone.

use super::options::ModelOptions;
use crate::backend::{PAGE_ROWS, cpu};
use crate::error::Result;
use crate::model::checkpoint::Checkpoint;
use crate::model::tensors::{Tensor, stored_bits};
use crate::plan::{AttentionId, Op, Plan};

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
    /// Each 1,000 tokens of the picture a stream is looking at; of that, its resized pixels stay with the stream.
    pub per_1000_picture_tokens: u64,
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
    /// Bytes of a page of any attention layer of the vision tower.
    pub tower_page_bytes: u64,
    /// Bytes the tower keeps for each patch of a picture, pages aside.
    pub tower_store_bytes: u64,
    /// Values of all weights.
    pub parameters: u64,
    /// Bits per value in which most of them are stored.
    pub bits: u32,
}

impl Sizes {
    /// Reads headers only. Fails where the checkpoint's tensors do not fit `text`, and `tower` where there is one.
    pub fn of(checkpoint: &Checkpoint, text: &Plan, tower: Option<&Plan>, options: &ModelOptions) -> Result<Sizes> {
        let cpu_options = options.cpu();
        let bound = checkpoint.bind(text, tower)?;
        let tower_weights = tower.map_or(&[][..], |plan| &plan.weights);
        let specs = text.weights.iter().chain(tower_weights);
        let tensors: Vec<&Tensor> = bound.text.iter().chain(&bound.vision).collect();
        let packed = tensors.iter().zip(specs);
        let packed = packed.map(|(tensor, spec)| cpu::packed_bytes(&tensor.desc, spec.role, &cpu_options));
        let page_bytes = page_bytes(text);
        let full_layers = text.attentions.iter().filter(|a| a.window.is_none()).count() as u64;
        // A window that begins and ends inside pages, and a page for the rows being computed.
        let window_pages: usize = text.attentions.iter().filter_map(|a| a.window).map(|w| w / PAGE_ROWS + 2).sum();
        let tokenizer = TOKENIZER_FACTOR * checkpoint.tokenizer_json.len() as u64;
        let conv_bytes = cpu::conv_state_bytes(text);
        let scratch = |plan| cpu::scratch_bytes(plan, &cpu_options);
        let report = MemoryReport {
            weights: packed.sum(),
            scratch: scratch(text) + tower.map_or(0, scratch) + tokenizer,
            loading: tensors.iter().map(|tensor| tensor.bytes().min(LOAD_BYTES)).max().unwrap_or(0),
            stream: conv_bytes + window_pages as u64 * page_bytes,
            per_1000_tokens: full_layers * page_bytes * 1000 / PAGE_ROWS as u64,
            per_1000_picture_tokens: tower.map_or(0, |plan| 1000 * picture_token_bytes(plan)),
            file: checkpoint.tensor_bytes,
        };
        let parameters = tensors.iter().map(|tensor| tensor.parameters()).sum();
        Ok(Sizes {
            report,
            conv_bytes,
            page_bytes,
            tower_page_bytes: tower.map_or(0, self::page_bytes),
            tower_store_bytes: tower.map_or(0, cpu::store_bytes),
            parameters,
            bits: stored_bits(&bound.text),
        })
    }
}

/// Bytes of the largest page.
fn page_bytes(plan: &Plan) -> u64 {
    (0..plan.attentions.len()).map(|i| cpu::page_bytes(plan, AttentionId(i))).max().unwrap_or(0)
}

/// Bytes a picture takes in the tower for each of its tokens: stores and pages of its patches, its row, its pixels.
fn picture_token_bytes(plan: &Plan) -> u64 {
    let patches = plan.stages.last().map_or(1, |stage| stage.grid_rows) as u64;
    let pages = plan.attentions.len() as u64 * page_bytes(plan) / PAGE_ROWS as u64;
    let width = |op: &Op| match op {
        Op::Input { out } => plan.width(*out) as u64,
        _ => 0,
    };
    // A patch's values are bytes, each of a still picture's two times.
    let pixels = plan.ops.iter().map(width).sum::<u64>() / 2;
    let row = plan.output.map_or(0, |id| 4 * plan.width(id) as u64);
    patches * (cpu::store_bytes(plan) + pages + pixels) + row
}
