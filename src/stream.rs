//! One conversation: tokens, state, stop rules, events.

use crate::engine::Model;
use crate::error::Result;
use crate::sampler::Sampling;
use std::sync::Arc;

/// How to make a stream.
#[derive(Clone, Debug, Default)]
pub struct StreamOptions {
    /// Most positions; at most the model's limit.
    pub context_limit: Option<usize>,
    /// Most events waiting for `next` before the stream pauses.
    pub event_limit: Option<usize>,
}

/// How to generate. `None` fields of the host became the checkpoint's defaults before this.
#[derive(Clone, Debug)]
pub struct GenerateOptions {
    /// Most tokens of the reply; `None` is up to the context limit.
    pub max_tokens: Option<usize>,
    /// How to choose tokens.
    pub sampling: Sampling,
    /// Stop tokens beside the checkpoint's.
    pub stop_tokens: Vec<u32>,
    /// Emit a token event for each token.
    pub token_events: bool,
    /// Likeliest ids each token event lists.
    pub top_logprobs: usize,
    /// Least match for copy drafts; 0 is off. Has no effect on replies.
    pub copy_match: usize,
}

/// Why a reply ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DoneReason {
    /// A stop token came.
    StopToken,
    /// A stop string came.
    StopString,
    /// `max_tokens` was reached.
    Length,
    /// The context is full.
    ContextFull,
    /// The host cancelled.
    Cancelled,
    /// The stream's error text says why.
    Error,
}

/// Counts and times of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamStats {
    /// Tokens of the last prompt.
    pub prompt_tokens: u64,
    /// Of those, tokens not computed again.
    pub cached_tokens: u64,
    /// Tokens generated in the last reply.
    pub generated_tokens: u64,
    /// Tokens drafted.
    pub drafted_tokens: u64,
    /// Drafts accepted.
    pub accepted_tokens: u64,
    /// From `generate` to the first token.
    pub time_to_first_token_us: u64,
    /// Time spent in the last prompt's rounds.
    pub prefill_us: u64,
    /// Time spent in the last reply's rounds.
    pub decode_us: u64,
    /// Bytes of pages, states and snapshots.
    pub bytes: u64,
    /// Tokens the stream holds, queued ones included.
    pub length: u64,
}

/// What a host reads with `next`.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// The queue is filled in.
    Ready,
    /// Whole characters of the answer.
    Text(String),
    /// Whole characters of the thinking.
    Reasoning(String),
    /// A generated token, when asked for.
    Token {
        /// Where it stands in the stream.
        position: u64,
        /// Token id.
        id: u32,
        /// Natural logarithm of its probability under the model's own logits.
        logprob: f32,
        /// Likeliest tokens with theirs, likeliest first.
        top: Vec<(u32, f32)>,
    },
    /// A scored token.
    Score {
        /// Where it stands in the stream.
        position: u64,
        /// Token id.
        id: u32,
        /// Natural logarithm of its probability after the tokens before it.
        logprob: f32,
    },
    /// The reply (or the scoring) ended.
    Done {
        /// Why.
        reason: DoneReason,
        /// Usage.
        stats: StreamStats,
    },
}

/// What `next` found.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// An event.
    Event(Event),
    /// None yet; step the model.
    Pending,
    /// Nothing more will come until something is asked for.
    Done,
}

/// One conversation with a model.
pub struct Stream {}

impl Stream {
    /// A stream of `model`.
    pub fn new(_model: &Arc<Model>, _options: &StreamOptions) -> Result<Arc<Stream>> {
        unimplemented!()
    }

    /// The checkpoint's own sampling, as `generation_config.json` gives it.
    pub fn default_sampling(&self) -> Sampling {
        unimplemented!()
    }

    /// Queues text; control tokens are recognized only when `control`.
    pub fn append_text(&self, _text: &str, _control: bool) -> Result<()> {
        unimplemented!()
    }

    /// Queues tokens.
    pub fn append_tokens(&self, _tokens: &[u32]) -> Result<()> {
        unimplemented!()
    }

    /// Renders a chat, keeps the common prefix with what the stream holds, queues the rest.
    pub fn set_chat(&self, _json: &str) -> Result<()> {
        unimplemented!()
    }

    /// Adds a stop string for the replies that follow; the empty string removes all.
    pub fn add_stop(&self, _stop: &str) -> Result<()> {
        unimplemented!()
    }

    /// Sets what is added to logits of the replies that follow, replacing earlier biases.
    pub fn set_bias(&self, _bias: &[(u32, f32)]) -> Result<()> {
        unimplemented!()
    }

    /// Starts a reply after the queue is filled in.
    pub fn generate(&self, _options: &GenerateOptions) -> Result<()> {
        unimplemented!()
    }

    /// Asks for log-probabilities of the stream's tokens from position `from` (the first token has none).
    pub fn score(&self, _from: usize) -> Result<()> {
        unimplemented!()
    }

    /// The next event.
    pub fn next(&self) -> Result<Next> {
        unimplemented!()
    }

    /// Stops the reply or the fill at the next slice.
    pub fn cancel(&self) -> Result<()> {
        unimplemented!()
    }

    /// Lets the stream's pages and states go; the model forgets it.
    pub fn close(&self) {
        unimplemented!()
    }

    /// Tokens held, queued ones included.
    pub fn length(&self) -> Result<usize> {
        unimplemented!()
    }

    /// The tokens held.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        unimplemented!()
    }

    /// Drops everything from position `length` on, queued input too.
    pub fn rewind(&self, _length: usize) -> Result<()> {
        unimplemented!()
    }

    /// Logits after the last token; `None` while tokens are still to be filled in (step, then ask again).
    pub fn logits(&self) -> Result<Option<Vec<f32>>> {
        unimplemented!()
    }

    /// Counts and times.
    pub fn stats(&self) -> Result<StreamStats> {
        unimplemented!()
    }

    /// Text of the last error, empty when there was none.
    pub fn last_error(&self) -> String {
        unimplemented!()
    }
}
