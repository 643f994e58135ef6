//! Text and tokens, without a stream.

use super::args;
use super::handle;
use super::model::{OpenModel, lfm3_model};
use super::stream::control;
use std::ffi::c_char;

/// Turns text into tokens.
///
/// - `text`: `len` bytes of UTF-8. `flags`: 0 or `LFM3_TEXT_CONTROL_TOKENS`. No token is put in front.
/// - `out`: gets the ids, if all fit in `capacity` of them; NULL with 0 to ask for the count.
/// - `needed`: gets the count of ids, also where they do not fit; may be NULL.
/// - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` and nothing is written.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_tokenize(
    model: *const lfm3_model,
    text: *const c_char,
    len: usize,
    flags: u32,
    out: *mut u32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: the host promises a live model, `len` bytes of text and `capacity` ids of room.
    unsafe {
        handle::call::<OpenModel>(model, |inner| {
            let tokens = inner.model.tokenize(args::text(text, len, "the text")?, control(flags)?)?;
            args::fill(&tokens, out, capacity, needed)
        })
    }
}

/// Turns tokens into the bytes of their text, control tokens as they are spelled. A character may be cut where its
/// other tokens are missing, so the bytes are not always whole UTF-8.
///
/// - `tokens`: `count` ids.
/// - `out`: gets the bytes, if all fit in `capacity`, with a 0 behind where there is room; NULL with 0 to ask.
/// - `needed`: gets the count of bytes without the 0; may be NULL.
/// - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` and nothing is written; `LFM3_ERR_INVALID_ARGUMENT` for an id
///   outside the vocabulary.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_detokenize(
    model: *const lfm3_model,
    tokens: *const u32,
    count: usize,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: the host promises a live model, `count` ids and `capacity` bytes of room.
    unsafe {
        handle::call::<OpenModel>(model, |inner| {
            let text = inner.model.detokenize(args::slice(tokens, count, "the tokens")?)?;
            args::fill_text(&text, out, capacity, needed)
        })
    }
}

/// Renders a chat as text: what `lfm3_stream_set_chat` would tokenize, but for pictures and videos, which are one
/// placeholder each.
///
/// - `json`: `len` bytes, as for `lfm3_stream_set_chat`.
/// - `out`, `capacity`, `needed`: as for `lfm3_model_detokenize`.
/// - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` and nothing is written; `LFM3_ERR_INVALID_ARGUMENT` for JSON
///   that does not fit, `LFM3_ERR_LIMIT`, `LFM3_ERR_TEMPLATE`.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_render_chat(
    model: *const lfm3_model,
    json: *const c_char,
    len: usize,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: the host promises a live model, `len` bytes of JSON and `capacity` bytes of room.
    unsafe {
        handle::call::<OpenModel>(model, |inner| {
            let text = inner.model.render_chat(args::text(json, len, "the chat")?)?;
            args::fill_text(text.as_bytes(), out, capacity, needed)
        })
    }
}
