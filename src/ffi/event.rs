//! Events: what a reply comes in.

use super::args::{Out, Struct};
use super::handle;
use super::status::{LFM3_DONE, LFM3_OK, LFM3_PENDING};
use super::stream::{OpenStream, lfm3_stream};
use crate::error::{Code, Error};
use crate::stream::{DoneReason, Event, Next, StreamStats};
use std::ffi::c_char;

/// All that was appended is filled in, and all that was to be scored is scored. Taken back by later input, if it was
/// not read yet.
pub const LFM3_EVENT_READY: i32 = 1;
/// A piece of the answer: whole UTF-8 characters.
pub const LFM3_EVENT_TEXT: i32 = 2;
/// A piece of the thinking before the answer, with the white space behind it: whole UTF-8 characters.
pub const LFM3_EVENT_REASONING: i32 = 3;
/// A whole call of a tool. What is malformed, longer than 1 MiB, or does not fit the tool's schema comes as TEXT.
pub const LFM3_EVENT_TOOL_CALL: i32 = 4;
/// A generated token, where asked for.
pub const LFM3_EVENT_TOKEN: i32 = 5;
/// A token scored by `lfm3_stream_score`.
pub const LFM3_EVENT_SCORE: i32 = 6;
/// The reply ended, or what was asked for was cancelled or failed; `done_reason` says why.
pub const LFM3_EVENT_DONE: i32 = 7;

/// A stop token came. It is part of the stream and not of the text.
pub const LFM3_DONE_STOP_TOKEN: i32 = 1;
/// A stop string came. It is not part of the text.
pub const LFM3_DONE_STOP_STRING: i32 = 2;
/// `max_tokens` was reached.
pub const LFM3_DONE_LENGTH: i32 = 3;
/// The stream's context limit was reached.
pub const LFM3_DONE_CONTEXT_FULL: i32 = 4;
/// The host cancelled.
pub const LFM3_DONE_CANCELLED: i32 = 5;
/// Something failed; `lfm3_stream_error` says what.
pub const LFM3_DONE_ERROR: i32 = 6;

/// Counts and times of a stream. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct lfm3_stats {
    /// sizeof(lfm3_stats).
    pub struct_size: u32,
    /// 0.
    pub reserved: u32,
    /// Tokens of the last prompt.
    pub prompt_tokens: u64,
    /// Of those, tokens the stream held already and did not compute again.
    pub cached_tokens: u64,
    /// Tokens generated in the last reply.
    pub generated_tokens: u64,
    /// Tokens drafted in the last reply.
    pub drafted_tokens: u64,
    /// Of those, tokens kept.
    pub accepted_tokens: u64,
    /// Microseconds from `lfm3_stream_generate` to the first token.
    pub time_to_first_token_us: u64,
    /// Microseconds spent in the last prompt's rounds.
    pub prefill_us: u64,
    /// Microseconds spent in the last reply's rounds.
    pub decode_us: u64,
    /// Bytes of pages, states and snapshots.
    pub bytes: u64,
    /// Tokens the stream holds, queued ones included.
    pub length: u64,
}

// SAFETY: `repr(C)` without padding, numbers only, begins with its size.
unsafe impl Struct for lfm3_stats {
    const NAME: &'static str = "lfm3_stats";
}

impl lfm3_stats {
    /// The engine's counts as C reads them.
    pub(super) fn of(stats: &StreamStats) -> Self {
        lfm3_stats {
            struct_size: size_of::<Self>() as u32,
            reserved: 0,
            prompt_tokens: stats.prompt_tokens,
            cached_tokens: stats.cached_tokens,
            generated_tokens: stats.generated_tokens,
            drafted_tokens: stats.drafted_tokens,
            accepted_tokens: stats.accepted_tokens,
            time_to_first_token_us: stats.time_to_first_token_us,
            prefill_us: stats.prefill_us,
            decode_us: stats.decode_us,
            bytes: stats.bytes,
            length: stats.length,
        }
    }
}

/// What happened on a stream. Set `struct_size` before the call. What it points to is the library's and stays valid
/// until the next `lfm3_stream_next` on that stream, or its free.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lfm3_event {
    /// sizeof(lfm3_event).
    pub struct_size: u32,
    /// `LFM3_EVENT_*`. Skip kinds you do not know.
    pub kind: i32,
    /// TEXT, REASONING: `text_len` bytes of UTF-8, 0-terminated. TOOL_CALL: the call as the model wrote it, tags
    /// included, for the turn's `content` in the next chat, where a message of the role tool answers it; of several
    /// calls between one pair of tags, the first has it all and that of the others is empty.
    pub text: *const c_char,
    /// Bytes at `text`, without the 0.
    pub text_len: usize,
    /// TOKEN, SCORE: where the token stands in the stream.
    pub position: u64,
    /// TOKEN, SCORE: its id.
    pub token: u32,
    /// TOKEN, SCORE: natural logarithm of its probability under the model's own logits, before sampling.
    pub logprob: f32,
    /// TOKEN: the likeliest ids, likeliest first; NULL without.
    pub top_ids: *const u32,
    /// TOKEN: their logarithms.
    pub top_logprobs: *const f32,
    /// TOKEN: how many there are.
    pub top_count: u32,
    /// DONE: `LFM3_DONE_*`.
    pub done_reason: i32,
    /// DONE: the stream's counts and times; NULL otherwise.
    pub usage: *const lfm3_stats,
    /// TOOL_CALL: the tool's name, `name_len` bytes of UTF-8, 0-terminated; not always one of the chat's tools.
    pub name: *const c_char,
    /// Bytes at `name`, without the 0.
    pub name_len: usize,
    /// TOOL_CALL: a JSON object, 0-terminated: the arguments in the order written, each of a type that the tool's
    /// schema names for it. Which there must be, and what lists and objects hold, is yours to check.
    pub arguments: *const c_char,
    /// Bytes at `arguments`, without the 0.
    pub arguments_len: usize,
}

// SAFETY: `repr(C)` without padding, numbers and raw pointers only, begins with its size.
unsafe impl Struct for lfm3_event {
    const NAME: &'static str = "lfm3_event";
}

/// Takes the stream's next event.
///
/// - `event`: gets it; untouched without one.
/// - Returns: `LFM3_OK` with an event; `LFM3_PENDING`: step the model, then ask again; `LFM3_DONE`: nothing more will
///   come until something is asked for; `LFM3_ERR_BUSY` while another thread is in this call on the same stream.
/// - Threads: one a stream at a time, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_next(stream: *mut lfm3_stream, event: *mut lfm3_event) -> i32 {
    // SAFETY: the host promises a live stream and a struct of the size it states.
    unsafe {
        handle::call_whole::<OpenStream>(stream, |handle| {
            let inner = handle.inner();
            let out = Out::required(event)?;
            let busy = || Error::new(Code::Busy, "another thread is taking an event of this stream");
            let mut slot = inner.event.try_lock().ok_or_else(busy)?;
            match inner.stream.next()? {
                Next::Pending => Ok(LFM3_PENDING),
                Next::Done => Ok(LFM3_DONE),
                Next::Event(event) => {
                    if matches!(event, Event::Done { reason: DoneReason::Error, .. }) {
                        handle.forget_error();
                    }
                    out.write(slot.keep(event));
                    Ok(LFM3_OK)
                }
            }
        })
    }
}

/// What the last event points to.
#[derive(Default)]
pub(super) struct Slot {
    text: Vec<u8>,
    name: Vec<u8>,
    arguments: Vec<u8>,
    ids: Vec<u32>,
    logprobs: Vec<f32>,
    usage: Box<lfm3_stats>,
}

impl Slot {
    /// Keeps an event's parts in place of the last one's, and points to them.
    fn keep(&mut self, event: Event) -> lfm3_event {
        match event {
            Event::Ready => of_kind(LFM3_EVENT_READY),
            Event::Text(text) => self.text(LFM3_EVENT_TEXT, text),
            Event::Reasoning(text) => self.text(LFM3_EVENT_REASONING, text),
            Event::ToolCall { name, arguments, text } => {
                let (name_len, arguments_len) = (name.len(), arguments.len());
                (self.name, self.arguments) = (terminated(name), terminated(arguments));
                lfm3_event {
                    name: self.name.as_ptr().cast(),
                    name_len,
                    arguments: self.arguments.as_ptr().cast(),
                    arguments_len,
                    ..self.text(LFM3_EVENT_TOOL_CALL, text)
                }
            }
            Event::Token { position, id, logprob, top } => {
                (self.ids, self.logprobs) = top.into_iter().unzip();
                let listed = !self.ids.is_empty();
                lfm3_event {
                    position,
                    token: id,
                    logprob,
                    top_ids: if listed { self.ids.as_ptr() } else { std::ptr::null() },
                    top_logprobs: if listed { self.logprobs.as_ptr() } else { std::ptr::null() },
                    top_count: self.ids.len() as u32,
                    ..of_kind(LFM3_EVENT_TOKEN)
                }
            }
            Event::Score { position, id, logprob } => {
                lfm3_event { position, token: id, logprob, ..of_kind(LFM3_EVENT_SCORE) }
            }
            Event::Done { reason, stats } => {
                *self.usage = lfm3_stats::of(&stats);
                lfm3_event {
                    done_reason: done_reason(reason),
                    usage: &raw const *self.usage,
                    ..of_kind(LFM3_EVENT_DONE)
                }
            }
        }
    }

    fn text(&mut self, kind: i32, text: String) -> lfm3_event {
        let text_len = text.len();
        self.text = terminated(text);
        lfm3_event { text: self.text.as_ptr().cast(), text_len, ..of_kind(kind) }
    }
}

/// Bytes with a 0 behind them.
fn terminated(text: String) -> Vec<u8> {
    let mut bytes = text.into_bytes();
    bytes.push(0);
    bytes
}

fn of_kind(kind: i32) -> lfm3_event {
    lfm3_event {
        struct_size: 0,
        kind,
        text: std::ptr::null(),
        text_len: 0,
        position: 0,
        token: 0,
        logprob: 0.0,
        top_ids: std::ptr::null(),
        top_logprobs: std::ptr::null(),
        top_count: 0,
        done_reason: 0,
        usage: std::ptr::null(),
        name: std::ptr::null(),
        name_len: 0,
        arguments: std::ptr::null(),
        arguments_len: 0,
    }
}

fn done_reason(reason: DoneReason) -> i32 {
    match reason {
        DoneReason::StopToken => LFM3_DONE_STOP_TOKEN,
        DoneReason::StopString => LFM3_DONE_STOP_STRING,
        DoneReason::Length => LFM3_DONE_LENGTH,
        DoneReason::ContextFull => LFM3_DONE_CONTEXT_FULL,
        DoneReason::Cancelled => LFM3_DONE_CANCELLED,
        DoneReason::Error => LFM3_DONE_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_point_to_what_the_slot_keeps() {
        let mut slot = Slot::default();
        let event = slot.keep(Event::Text("né".into()));
        // SAFETY: the slot still holds this event's text.
        let text = unsafe { std::ffi::CStr::from_ptr(event.text) };
        assert_eq!((event.kind, event.text_len, text.to_str()), (LFM3_EVENT_TEXT, 3, Ok("né")));
        let token = Event::Token { position: 9, id: 3, logprob: -0.5, top: vec![(3, -0.5), (4, -1.5)] };
        let event = slot.keep(token);
        // SAFETY: the slot still holds both lists.
        let top = unsafe { (*event.top_ids.add(1), *event.top_logprobs.add(1)) };
        assert_eq!((event.position, event.token, event.top_count, top), (9, 3, 2, (4, -1.5)));
        assert!(event.text.is_null() && event.usage.is_null());
        assert!(event.name.is_null() && event.arguments.is_null());
        let call = Event::ToolCall { name: "f".into(), arguments: "{\"a\":\"é\"}".into(), text: "[f(a='é')]".into() };
        let event = slot.keep(call);
        // SAFETY: the slot still holds the three texts.
        let parts = [event.name, event.arguments, event.text].map(|p| unsafe { std::ffi::CStr::from_ptr(p) });
        assert_eq!(parts.map(|part| part.to_str().unwrap()), ["f", "{\"a\":\"é\"}", "[f(a='é')]"]);
        assert_eq!(
            (event.kind, event.name_len, event.arguments_len, event.text_len),
            (LFM3_EVENT_TOOL_CALL, 1, 10, 11)
        );
        let stats = StreamStats { length: 12, ..Default::default() };
        let event = slot.keep(Event::Done { reason: DoneReason::Length, stats });
        // SAFETY: the slot still holds the usage.
        assert_eq!((event.done_reason, unsafe { (*event.usage).length }), (LFM3_DONE_LENGTH, 12));
    }

    #[test]
    fn a_second_thread_inside_next_is_told_so() {
        use crate::ffi::model::{lfm3_model_free, lfm3_model_open};
        use crate::ffi::stream::{lfm3_stream_free, lfm3_stream_new};
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/demo-model");
        let (mut model, mut stream) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: places, lengths and handles are this test's own, and an event of zeros is valid.
        unsafe {
            let path = folder.as_ptr().cast();
            assert_eq!(lfm3_model_open(path, folder.len(), std::ptr::null(), &mut model), LFM3_OK);
            assert_eq!(lfm3_stream_new(model, std::ptr::null(), &mut stream), LFM3_OK);
            let mut event: lfm3_event = std::mem::zeroed();
            event.struct_size = size_of::<lfm3_event>() as u32;
            let held = handle::call::<OpenStream>(stream, |inner| {
                let _taking = inner.event.lock();
                Ok(lfm3_stream_next(stream, &mut event))
            });
            assert_eq!(held, Code::Busy as i32);
            assert_eq!(lfm3_stream_next(stream, &mut event), LFM3_DONE);
            lfm3_stream_free(stream);
            lfm3_model_free(model);
        }
    }
}
