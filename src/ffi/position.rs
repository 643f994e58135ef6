//! Where a stream stands: its tokens, logits and counts.

use super::args::{self, Out};
use super::event::lfm3_stats;
use super::handle;
use super::status::{LFM3_OK, LFM3_PENDING};
use super::stream::{OpenStream, call, lfm3_stream};

/// Counts the tokens the stream holds, queued ones included.
///
/// - `length`: gets the count.
/// - Returns: `LFM3_OK`.
/// - Threads: one a stream at a time, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_length(stream: *const lfm3_stream, length: *mut u64) -> i32 {
    // SAFETY: the host promises a live stream and a place for the length.
    unsafe {
        call(stream, |stream| {
            *args::place(length, "length")? = stream.length()? as u64;
            Ok(LFM3_OK)
        })
    }
}

/// The tokens the stream holds, queued ones included.
///
/// - `out`: gets the ids, if all fit in `capacity` of them; NULL with 0 to ask for the count.
/// - `needed`: gets the count of ids, also where they do not fit; may be NULL.
/// - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` and nothing is written.
/// - Threads: one a stream at a time, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_tokens(
    stream: *const lfm3_stream,
    out: *mut u32,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: the host promises a live stream and `capacity` ids of room.
    unsafe { call(stream, |stream| args::fill(&stream.tokens()?, out, capacity, needed)) }
}

/// Drops everything from position `length` on, queued input too. Events that wait stay.
///
/// - `length`: at most the stream's. What is kept is not computed again, but for the rows behind the last snapshot. A
///   length inside a picture keeps the tokens before it; `lfm3_stream_set_chat` makes such a picture whole again.
/// - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` past the stream's end; `LFM3_ERR_STATE` while a reply runs.
/// - Numbers: going on from there gives the same bits as a fresh stream would.
/// - Threads: one a stream at a time, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_rewind(stream: *mut lfm3_stream, length: u64) -> i32 {
    // SAFETY: the host promises a live stream.
    unsafe {
        call(stream, |stream| {
            stream.rewind(usize::try_from(length).map_err(|_| args::invalid("length is past the stream's end"))?)?;
            Ok(LFM3_OK)
        })
    }
}

/// The logits behind the stream's last token: one float for each token of the vocabulary, untouched by sampling.
///
/// - `logits`: gets them; `count`: how many there is room for, at least the vocabulary's size.
/// - Returns: `LFM3_OK`; `LFM3_PENDING` while tokens are still to be filled in: step the model, then ask again;
///   `LFM3_ERR_BUFFER_TOO_SMALL`; `LFM3_ERR_STATE` for an empty stream or while a reply runs.
/// - Numbers: the same bits for the same tokens, however they came about. CPU and GPU differ within a tolerance.
/// - Threads: one a stream at a time, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_logits(stream: *mut lfm3_stream, logits: *mut f32, count: usize) -> i32 {
    // SAFETY: the host promises a live stream and `count` floats of room.
    unsafe {
        handle::call::<OpenStream>(stream, |inner| {
            if logits.is_null() {
                return Err(args::invalid("logits is NULL"));
            }
            match inner.stream.logits()? {
                Some(values) => args::fill(&values, logits, count, std::ptr::null_mut()),
                None => Ok(LFM3_PENDING),
            }
        })
    }
}

/// The stream's counts and times.
///
/// - `stats`: gets them.
/// - Returns: `LFM3_OK`.
/// - Threads: any, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_stats(stream: *const lfm3_stream, stats: *mut lfm3_stats) -> i32 {
    // SAFETY: the host promises a live stream and a struct of the size it states.
    unsafe {
        call(stream, |stream| {
            let out = Out::required(stats)?;
            out.write(lfm3_stats::of(&stream.stats()?));
            Ok(LFM3_OK)
        })
    }
}
