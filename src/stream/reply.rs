//! A reply in the making: draws tokens, turns them into events, knows when to stop.

use super::{DoneReason, Event, GenerateOptions};
use crate::error::Result;
use crate::sampler::{Sampler, log_probs};
use crate::text::{Piece, ReplyFilter, Tokenizer};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One reply.
pub struct Reply {
    sampler: Sampler,
    filter: ReplyFilter,
    tokenizer: Arc<Tokenizer>,
    stop_tokens: Vec<u32>,
    max_tokens: Option<usize>,
    token_events: bool,
    top_logprobs: usize,
    produced: usize,
    started: Instant,
    first_token: Option<Duration>,
}

/// What a reply needs beside the host's options.
pub struct ReplySetup {
    /// Draws tokens.
    pub sampler: Sampler,
    /// Turns bytes into text, reasoning and tool calls.
    pub filter: ReplyFilter,
    /// Gives tokens their bytes.
    pub tokenizer: Arc<Tokenizer>,
    /// The checkpoint's stop tokens and the host's.
    pub stop_tokens: Vec<u32>,
}

impl Reply {
    /// A reply that has not begun.
    pub fn new(setup: ReplySetup, options: &GenerateOptions) -> Self {
        Reply {
            sampler: setup.sampler,
            filter: setup.filter,
            tokenizer: setup.tokenizer,
            stop_tokens: setup.stop_tokens,
            max_tokens: options.max_tokens,
            token_events: options.token_events,
            top_logprobs: options.top_logprobs,
            produced: 0,
            started: Instant::now(),
            first_token: None,
        }
    }

    /// Tokens drawn so far.
    pub fn produced(&self) -> usize {
        self.produced
    }

    /// From `generate` to the first token.
    pub fn time_to_first_token(&self) -> Duration {
        self.first_token.unwrap_or_default()
    }

    /// Draws the token that follows `tokens`, pushes its events, and says whether the reply is over.
    pub fn draw(
        &mut self,
        logits: &[f32],
        tokens: &[u32],
        room: usize,
        events: &mut impl Extend<Event>,
    ) -> Result<(Option<u32>, Option<DoneReason>)> {
        if self.max_tokens.is_some_and(|most| self.produced >= most) {
            return Ok((None, Some(DoneReason::Length)));
        }
        if room == 0 {
            return Ok((None, Some(DoneReason::ContextFull)));
        }
        let position = tokens.len() as u64;
        let id = self.sampler.sample(logits, tokens, position)?;
        self.produced += 1;
        self.first_token.get_or_insert_with(|| self.started.elapsed());
        if self.token_events {
            let probs = log_probs(logits, id, self.top_logprobs);
            events.extend([Event::Token { position, id, logprob: probs.logprob, top: probs.top }]);
        }
        let reason = self.take(id, events);
        let reason = reason.or_else(|| {
            let full = self.max_tokens.is_some_and(|most| self.produced >= most);
            full.then_some(DoneReason::Length).or((room == 1).then_some(DoneReason::ContextFull))
        });
        Ok((Some(id), reason))
    }

    /// Text of `id` to events; stop tokens are never shown.
    fn take(&mut self, id: u32, events: &mut impl Extend<Event>) -> Option<DoneReason> {
        if self.stop_tokens.contains(&id) {
            return Some(DoneReason::StopToken);
        }
        let bytes = self.tokenizer.token_bytes(id).unwrap_or_default();
        let pieces = self.filter.push(bytes);
        events.extend(pieces.into_iter().map(to_event));
        self.filter.stopped().map(|_| DoneReason::StopString)
    }

    /// Text still held back, at the reply's end.
    pub fn flush(&mut self, events: &mut impl Extend<Event>) {
        events.extend(self.filter.finish().into_iter().map(to_event));
    }
}

fn to_event(piece: Piece) -> Event {
    match piece {
        Piece::Text(text) => Event::Text(text),
        Piece::Reasoning(text) => Event::Reasoning(text),
        Piece::ToolCall { name, arguments, text } => Event::ToolCall { name, arguments, text },
    }
}
