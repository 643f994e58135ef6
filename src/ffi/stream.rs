//! `lfm3_stream`: one conversation with a model.

use super::args::{self, Struct};
use super::event::Slot;
use super::guard;
use super::handle::{self, Health, Kind};
use super::media::{self, lfm3_media};
use super::model::{self, OpenModel, lfm3_model};
use super::status::LFM3_OK;
use crate::error::Result;
use crate::stream::{Stream, StreamOptions};
use parking_lot::Mutex;
use std::ffi::c_char;
use std::sync::Arc;

/// A flag of text: control tokens spelled in it, such as `<|im_end|>`, become those tokens. Never set it for text that
/// users wrote.
pub const LFM3_TEXT_CONTROL_TOKENS: u32 = 1;

/// One conversation: its tokens, its state and its events. Made by `lfm3_stream_new`, owned by the host, freed by
/// `lfm3_stream_free`.
pub struct lfm3_stream {
    _opaque: [u8; 0],
}

/// How to make a stream. Set by `lfm3_stream_params_init`, then changed field by field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lfm3_stream_params {
    /// sizeof(lfm3_stream_params).
    pub struct_size: u32,
    /// Most events that wait for `lfm3_stream_next`; a full queue pauses this stream alone. 0 is the default.
    pub event_limit: u32,
    /// Most positions; 0 is the model's limit.
    pub context_limit: u64,
    /// Gets the text of an error of `lfm3_stream_new`, 0-terminated, cut to fit; NULL for none.
    pub error: *mut c_char,
    /// Bytes at `error`.
    pub error_size: usize,
}

// SAFETY: `repr(C)` without padding, numbers and raw pointers only, begins with its size.
unsafe impl Struct for lfm3_stream_params {
    const NAME: &'static str = "lfm3_stream_params";
}

impl Default for lfm3_stream_params {
    fn default() -> Self {
        lfm3_stream_params {
            struct_size: size_of::<Self>() as u32,
            event_limit: 0,
            context_limit: 0,
            error: std::ptr::null_mut(),
            error_size: 0,
        }
    }
}

/// Writes the defaults into `params`.
///
/// - `params`: where; `size`: sizeof(lfm3_stream_params), which also sets `struct_size`.
/// - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_params_init(params: *mut lfm3_stream_params, size: usize) -> i32 {
    // SAFETY: the host promises `size` bytes at `params`.
    guard::status(|| unsafe { args::init(params, size, lfm3_stream_params::default()) })
}

/// Makes an empty stream.
///
/// - `params`: NULL for defaults. `stream`: gets the handle, which the host frees with `lfm3_stream_free`; NULL after
///   an error.
/// - Returns: `LFM3_OK`; `LFM3_ERR_LIMIT` where the model's bytes do not allow it. The text of an error is in
///   `params->error` and in `lfm3_model_error`.
/// - Threads: any, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_new(
    model: *mut lfm3_model,
    params: *const lfm3_stream_params,
    stream: *mut *mut lfm3_stream,
) -> i32 {
    guard::status(|| {
        // SAFETY: the host promises a live model, a struct of the size it states, and a place for the handle.
        unsafe {
            let stream = args::handle_out(stream)?;
            let params = args::read(params, lfm3_stream_params::default())?;
            let options = StreamOptions {
                context_limit: model::limit(params.context_limit),
                event_limit: model::limit(params.event_limit.into()),
            };
            Ok(handle::call::<OpenModel>(model, |open| {
                args::explain((params.error, params.error_size), || {
                    let made = Stream::new(&open.model, &options)?;
                    *stream = handle::new(OpenStream::new(made, open), Arc::default());
                    Ok(LFM3_OK)
                })
            }))
        }
    })
}

/// Frees a stream with all that waits in it. Freed during a step, it is gone after that step.
///
/// - `stream`: NULL is fine. No call may begin on it afterwards.
/// - Returns: `LFM3_OK`; `LFM3_ERR_REENTRANT` from a callback, and the stream stays.
/// - Threads: any; before or after its model. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_free(stream: *mut lfm3_stream) -> i32 {
    // SAFETY: the host promises a live stream or NULL, and to use it no more.
    unsafe { handle::free::<OpenStream>(stream, |inner| inner.stream.close()) }
}

/// The text of the last error of this stream: of a call with it, or of its work in a step. Also where it is closed or
/// poisoned.
///
/// - `out`, `capacity`, `needed`, returns: as `lfm3_model_error`.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_error(
    stream: *const lfm3_stream,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: the host promises a live stream and `capacity` bytes at `out`.
    unsafe { handle::last_error::<OpenStream>(stream, out, capacity, needed) }
}

/// Makes the stream hold a chat: renders it with the checkpoint's template, keeps what the stream already holds of it,
/// rewinds to there, and queues the rest. The way to do turns: append the reply and the next message to the JSON, and
/// set it again.
///
/// - `json`: `len` bytes of `{"messages": [{"role": "user", "content": "…"}, …], "tools": […],
///   "enable_thinking": true, "add_generation_prompt": true, "template_args": {…}}`; all but `messages` may be left
///   out. `content` may also be a list of parts: `{"type": "text", "text": "…"}`, `{"type": "image"}`,
///   `{"type": "video"}`. What messages and tools say never becomes a control token. Without
///   `enable_thinking` the template decides, and LFM3's thinks: `LFM3_EVENT_REASONING` comes first. A reply goes back
///   as `{"role": "assistant", "content": "…"}`, escaped as JSON asks, without its reasoning.
/// - `media`, `media_count`: the pictures and videos of the parts, in the order of the parts: those of earlier turns
///   too, in each call, at most 4,096. NULL and 0 without. What the stream holds already is neither copied nor computed
///   again.
/// - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` for JSON that does not fit, with the place in it, and for parts
///   and media that do not match; for a medium what `lfm3_stream_append_media` returns; `LFM3_ERR_LIMIT` for more JSON,
///   messages or media than are read; `LFM3_ERR_TEMPLATE`; `LFM3_ERR_CONTEXT_FULL`; `LFM3_ERR_STATE` while a reply
///   runs. After an error the stream holds what it held.
/// - Threads: one a stream at a time, also beside a step. Nothing is computed or decoded here, but media are copied and
///   hashed. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_set_chat(
    stream: *mut lfm3_stream,
    json: *const c_char,
    len: usize,
    media: *const lfm3_media,
    media_count: usize,
) -> i32 {
    // SAFETY: the host promises a live stream and `len` bytes at `json`.
    unsafe {
        call(stream, |stream| {
            stream.set_chat(args::text(json, len, "the chat")?, &media::given_all(media, media_count)?)?;
            Ok(LFM3_OK)
        })
    }
}

/// Queues text behind what the stream holds.
///
/// - `text`: `len` bytes of UTF-8. `flags`: 0 or `LFM3_TEXT_CONTROL_TOKENS`.
/// - Returns: `LFM3_OK`; `LFM3_ERR_CONTEXT_FULL`; `LFM3_ERR_STATE` while a reply runs.
/// - Threads: one a stream at a time, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_append_text(
    stream: *mut lfm3_stream,
    text: *const c_char,
    len: usize,
    flags: u32,
) -> i32 {
    // SAFETY: the host promises a live stream and `len` bytes at `text`.
    unsafe {
        call(stream, |stream| {
            stream.append_text(args::text(text, len, "the text")?, control(flags)?)?;
            Ok(LFM3_OK)
        })
    }
}

/// Queues tokens behind what the stream holds.
///
/// - `tokens`: `count` ids, each below the vocabulary's size; ids that stand for pictures are refused.
/// - Returns, threads: as `lfm3_stream_append_text`. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_append_tokens(stream: *mut lfm3_stream, tokens: *const u32, count: usize) -> i32 {
    // SAFETY: the host promises a live stream and `count` ids.
    unsafe {
        call(stream, |stream| {
            stream.append_tokens(args::slice(tokens, count, "the tokens")?)?;
            Ok(LFM3_OK)
        })
    }
}

/// Queues a picture or a video behind what the stream holds, between the tokens that begin and end it; a video with the
/// time before each pair of frames.
///
/// - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` for fields that do not fit each other; `LFM3_ERR_UNSUPPORTED` for
///   a file of another format, for a side more than 200 times the other, and where the model has no vision;
///   `LFM3_ERR_FORMAT` for a broken header; `LFM3_ERR_LIMIT` for too many bytes or pixels; `LFM3_ERR_CONTEXT_FULL`;
///   `LFM3_ERR_STATE` while a reply runs. After an error the stream holds what it held. A file that is broken behind
///   its header, or that memory does not suffice for, shows in a step: the stream ends with `LFM3_DONE_ERROR`, and
///   again at each reply until it is rewound to before it.
/// - Threads: one a stream at a time, also beside a step. The data is copied and hashed here, and decoded in steps: a
///   file's decoding is one slice, about 10 ms a megapixel; RGB needs none. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_append_media(stream: *mut lfm3_stream, media: *const lfm3_media) -> i32 {
    // SAFETY: the host promises a live stream, a struct of the size it states, and what it points to.
    unsafe {
        call(stream, |stream| {
            stream.append_media(&media::given(media)?)?;
            Ok(LFM3_OK)
        })
    }
}

/// What a stream's handle holds.
pub(super) struct OpenStream {
    /// The engine's.
    pub(super) stream: Arc<Stream>,
    /// Tokens of the model's vocabulary.
    pub(super) vocab_size: usize,
    /// What the last event points to. A second thread inside `next` is told so instead of waiting.
    pub(super) event: Mutex<Slot>,
    model: Arc<Health>,
}

impl OpenStream {
    fn new(stream: Arc<Stream>, model: &OpenModel) -> Self {
        let event = Mutex::new(Slot::default());
        OpenStream { stream, vocab_size: model.info.vocab_size(), event, model: model.health.clone() }
    }
}

impl Kind for OpenStream {
    type Opaque = lfm3_stream;
    const MAGIC: u64 = u64::from_le_bytes(*b"lfm3strm");
    const NAME: &'static str = "stream";

    fn owner(&self) -> Option<&Health> {
        Some(&self.model)
    }

    fn late_error(&self) -> String {
        self.stream.last_error()
    }
}

/// [`handle::call`] with the engine's stream.
///
/// # Safety
/// As [`handle::call`].
pub(super) unsafe fn call(stream: *const lfm3_stream, body: impl FnOnce(&Stream) -> Result<i32>) -> i32 {
    // SAFETY: the caller's promise is ours.
    unsafe { handle::call::<OpenStream>(stream, |inner| body(&inner.stream)) }
}

/// Whether text flags ask for control tokens.
pub(super) fn control(flags: u32) -> Result<bool> {
    match flags {
        0 => Ok(false),
        LFM3_TEXT_CONTROL_TOKENS => Ok(true),
        other => Err(args::invalid(format!("flags {other:#x} are not LFM3_TEXT_* of this version"))),
    }
}
