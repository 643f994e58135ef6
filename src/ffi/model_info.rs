//! What a model is, and what it would need.

use super::args::{self, Out, Struct};
use super::guard;
use super::handle;
use super::model::{self, OpenModel, lfm3_model, lfm3_model_params};
use super::status::LFM3_OK;
use crate::engine::{Model, ModelInfo};
use std::ffi::{CString, c_char};
use std::path::Path;

/// Stands where a model has no such token.
pub const LFM3_NO_TOKEN: u32 = 0xFFFF_FFFF;

/// What a model is. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lfm3_model_desc {
    /// sizeof(lfm3_model_desc).
    pub struct_size: u32,
    /// Tokens of the vocabulary; token ids are below it.
    pub vocab_size: u32,
    /// Most positions of a stream.
    pub context_limit: u64,
    /// Parameters of the text model.
    pub parameters: u64,
    /// Bytes of host memory held by weights and scratch.
    pub host_bytes: u64,
    /// Bytes of device memory held; 0 on the CPU.
    pub device_bytes: u64,
    /// Layers of the text model.
    pub layers: u32,
    /// Width of its hidden rows.
    pub hidden: u32,
    /// Bits of most weights as stored.
    pub bits: u32,
    /// First token of a chat, or `LFM3_NO_TOKEN`.
    pub bos: u32,
    /// Threads in use.
    pub threads: u32,
    /// 1 if the checkpoint has a vision tower.
    pub has_vision: u32,
    /// 1 if results do not depend, to the bit, on how work is cut and shared. Always 1 on the CPU.
    pub bit_exact: u32,
    /// Stop tokens at `eos`.
    pub eos_count: u32,
    /// The checkpoint's stop tokens. Valid until the model is freed.
    pub eos: *const u32,
    /// `model_type` of the checkpoint, 0-terminated. Valid until the model is freed.
    pub kind: *const c_char,
    /// The instruction set in use, 0-terminated. Valid until the model is freed.
    pub isa: *const c_char,
}

// SAFETY: `repr(C)` without padding, numbers and raw pointers only, begins with its size.
unsafe impl Struct for lfm3_model_desc {
    const NAME: &'static str = "lfm3_model_desc";
}

/// Bytes a model needs. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lfm3_memory_report {
    /// sizeof(lfm3_memory_report).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Packed weights.
    pub weights: u64,
    /// Scratch of rounds and the tokenizer.
    pub scratch: u64,
    /// Needed while loading only, on top of the rest.
    pub loading: u64,
    /// Each stream's constant part: its conv states and the pages of its sliding windows.
    pub stream: u64,
    /// Each 1,000 tokens of a stream's context. Snapshots to rewind to come on top, where `host_bytes` leaves room.
    pub per_1000_tokens: u64,
    /// The checkpoint's tensors on disk.
    pub file: u64,
    /// Of weights and scratch, bytes on the device; 0 on the CPU.
    pub device: u64,
    /// Each 1,000 tokens of a picture while a stream looks at it, its file and its pixels in full size aside.
    /// Afterwards 3 bytes of each resized pixel stay with the stream.
    pub per_1000_picture_tokens: u64,
}

// SAFETY: `repr(C)` without padding, numbers only, begins with its size.
unsafe impl Struct for lfm3_memory_report {
    const NAME: &'static str = "lfm3_memory_report";
}

/// Says what an open model is.
///
/// - `info`: gets it. Its pointers stay valid until the model is freed.
/// - Returns: `LFM3_OK`.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_info(model: *const lfm3_model, info: *mut lfm3_model_desc) -> i32 {
    // SAFETY: the host promises a live model and a struct of the size it states.
    unsafe {
        handle::call::<OpenModel>(model, |inner| {
            Out::required(info)?.write(inner.info.as_struct());
            Ok(LFM3_OK)
        })
    }
}

/// Predicts what a model will need, reading headers only: nothing is loaded.
///
/// - `path`, `path_len`, `params`: as for `lfm3_model_open`. `memory`: gets the bytes.
/// - Returns: `LFM3_OK`, or the error `lfm3_model_open` would give for the headers, its text in `params->error`.
/// - Numbers: within 5 % of what is held after loading.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_memory(
    path: *const c_char,
    path_len: usize,
    params: *const lfm3_model_params,
    memory: *mut lfm3_memory_report,
) -> i32 {
    guard::status(|| {
        // SAFETY: the host promises structs of the sizes they state, and the texts it points to.
        unsafe {
            let params = args::read(params, lfm3_model_params::default())?;
            args::explain((params.error, params.error_size), || {
                let memory = Out::required(memory)?;
                let path = args::text(path, path_len, "the path")?;
                let bytes = Model::memory(Path::new(path), &model::options(&params)?)?;
                memory.write(lfm3_memory_report {
                    struct_size: 0,
                    reserved: 0,
                    weights: bytes.weights,
                    scratch: bytes.scratch,
                    loading: bytes.loading,
                    stream: bytes.stream,
                    per_1000_tokens: bytes.per_1000_tokens,
                    file: bytes.file,
                    device: 0,
                    per_1000_picture_tokens: bytes.per_1000_picture_tokens,
                });
                Ok(LFM3_OK)
            })
        }
    })
}

/// The engine's info with its strings as C reads them.
pub(super) struct KeptInfo {
    info: ModelInfo,
    kind: CString,
    isa: CString,
}

impl KeptInfo {
    /// Keeps `info`.
    pub(super) fn new(info: ModelInfo) -> Self {
        let c_string = |text: &str| CString::new(text.replace('\0', "")).unwrap_or_default();
        KeptInfo { kind: c_string(&info.kind), isa: c_string(info.isa), info }
    }

    /// Tokens of the vocabulary.
    pub(super) fn vocab_size(&self) -> usize {
        self.info.vocab_size
    }

    /// For the log.
    pub(super) fn summary(&self) -> String {
        let info = &self.info;
        format!(
            "{}, {} layers, {} million parameters, {} bits, {} MB, {} threads, {}",
            info.kind,
            info.layers,
            info.parameters / 1_000_000,
            info.bits,
            info.bytes / 1_000_000,
            info.threads,
            info.isa
        )
    }

    fn as_struct(&self) -> lfm3_model_desc {
        let info = &self.info;
        let small = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
        lfm3_model_desc {
            struct_size: 0,
            vocab_size: small(info.vocab_size),
            context_limit: info.context_limit as u64,
            parameters: info.parameters,
            host_bytes: info.bytes,
            device_bytes: 0,
            layers: small(info.layers),
            hidden: small(info.hidden),
            bits: info.bits,
            bos: info.bos.unwrap_or(LFM3_NO_TOKEN),
            threads: small(info.threads),
            has_vision: u32::from(info.has_vision),
            bit_exact: 1,
            eos_count: small(info.eos.len()),
            eos: info.eos.as_ptr(),
            kind: self.kind.as_ptr(),
            isa: self.isa.as_ptr(),
        }
    }
}
