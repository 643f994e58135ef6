//! What a stream is doing, under its lock: the host's calls and the scheduler's rounds meet here.

use super::reply::Reply;
use super::{DoneReason, Event, StreamStats};
use crate::backend::{ConvState, Input, PageId, ROUND_LOGITS, ROUND_ROWS};
use crate::error::{Code, Error, Result};
use crate::sampler::log_probs;
use crate::state::{Context, Placed, Restore, SeenRows};
use crate::text::ToolSchemas;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// What the scheduler can do for a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Nothing.
    None,
    /// Draw a token or end the fill, from logits that are there: no round needed.
    Settle,
    /// A picture that the next rows stand for is to be looked at first.
    Look,
    /// One row of a running reply.
    Decode,
    /// Rows of a prompt: this many are left.
    Fill(usize),
}

/// Rows of one stream for a round.
pub struct Share {
    /// What the rows are given as.
    pub inputs: Vec<Input>,
    /// Values of those that stand for pictures, row after row.
    pub vectors: Vec<f32>,
    /// Position of the first.
    pub start: usize,
    /// For each row, whether its logits are wanted.
    pub wanted: Vec<bool>,
    /// Pages of each attention layer.
    pub pages: Vec<Vec<PageId>>,
    /// Conv states to set first.
    pub restore: Option<Restore>,
    /// To be compared when the round ends.
    pub epoch: u64,
}

/// A stream's state.
pub struct Core {
    pub context: Context,
    pub context_limit: usize,
    pub event_limit: usize,
    /// Tokens to be computed; those past it wait for a reason to be (a stop token after its reply).
    pub fill_to: usize,
    pub reply: Option<Reply>,
    /// Next position to score.
    pub score: Option<usize>,
    pub ready_wanted: bool,
    /// The host asked for logits that were not there.
    pub logits_wanted: bool,
    pub events: VecDeque<Event>,
    pub stops: Vec<String>,
    /// What the tools of the last chat take.
    pub tools: Arc<ToolSchemas>,
    pub bias: Vec<(u32, f32)>,
    /// Positions worth a snapshot: where turns end in what is being filled in.
    pub marks: BTreeSet<usize>,
    pub error: String,
    pub stats: StreamStats,
    /// Tokens that were once filled in or generated: what a cancel keeps.
    settled: usize,
    /// Rows of the prompt computed since the last reply.
    filled: usize,
    /// Whether work went into a prompt since the last reply.
    filling: bool,
    logits: Vec<f32>,
    /// `logits` follow this many tokens.
    logits_after: Option<usize>,
}

impl Core {
    /// An empty stream.
    pub fn new(context: Context, context_limit: usize, event_limit: usize) -> Self {
        Core {
            context,
            context_limit,
            event_limit,
            fill_to: 0,
            reply: None,
            score: None,
            ready_wanted: false,
            logits_wanted: false,
            events: VecDeque::new(),
            stops: Vec::new(),
            tools: Arc::default(),
            bias: Vec::new(),
            marks: BTreeSet::new(),
            error: String::new(),
            stats: StreamStats::default(),
            settled: 0,
            filled: 0,
            filling: false,
            logits: Vec::new(),
            logits_after: None,
        }
    }

    /// Whether anything was asked for that has not happened yet.
    pub fn is_busy(&self) -> bool {
        self.context.computed() < self.fill_to
            || self.reply.is_some()
            || self.score.is_some()
            || self.ready_wanted
            || self.logits_wanted
    }

    /// What to do next.
    pub fn task(&self) -> Task {
        let left = self.fill_to.saturating_sub(self.context.computed());
        if !self.is_busy() || self.events.len() >= self.event_limit {
            Task::None
        } else if left == 0 && (self.fill_to == 0 || self.logits().is_some()) {
            Task::Settle
        } else if self.unseen().is_some() {
            Task::Look
        } else if left == 1 && self.reply.as_ref().is_some_and(|r| r.produced() > 0) {
            Task::Decode
        } else {
            Task::Fill(left.max(1))
        }
    }

    /// Logits after the last token to be computed, if they are there.
    pub fn logits(&self) -> Option<&[f32]> {
        (self.logits_after == Some(self.fill_to) && self.context.computed() == self.fill_to).then_some(&self.logits)
    }

    /// The first picture the next round's rows need and have not.
    pub fn unseen(&self) -> Option<Placed> {
        let computed = self.context.computed();
        self.context.sights().unseen(computed..self.fill_to.min(computed + ROUND_ROWS))
    }

    /// Keeps the rows of a picture that was looked at; `took` of the tower's time went into it.
    pub fn see(&mut self, placed: &Placed, rows: SeenRows, took: Duration) {
        if self.context.sights_mut().see(placed, rows) {
            self.count_prefill(0, took);
        }
    }

    /// Asks for all tokens to be computed.
    pub fn fill_all(&mut self) {
        self.fill_to = self.context.tokens().len();
    }

    /// Queues tokens and the pictures among them, at positions of the stream; `is_turn_end` finds the tokens after
    /// which a snapshot is worth keeping.
    pub fn append(&mut self, tokens: &[u32], placed: Vec<Placed>, is_turn_end: impl Fn(u32) -> bool) {
        let start = self.context.tokens().len();
        self.context.append_placed(tokens, placed);
        self.fill_all();
        self.marks.extend(self.context.sights().ends(start));
        let last_turn = tokens.iter().rposition(|id| is_turn_end(*id)).map(|i| start + i + 1);
        self.marks.extend(last_turn);
        self.marks.insert((start + tokens.len()).saturating_sub(1));
        self.want_ready();
    }

    /// Asks for a READY; one that nobody has read yet would be told too early.
    pub fn want_ready(&mut self) {
        self.forget_ready();
        self.ready_wanted = true;
    }

    fn forget_ready(&mut self) {
        if self.events.back() == Some(&Event::Ready) {
            self.events.pop_back();
        }
    }

    /// Drops tokens from `length` on with whatever was queued.
    pub fn rewind(&mut self, length: usize) {
        if length < self.context.tokens().len() {
            self.context.rewind(length);
            self.forget_ready();
        }
        self.fill_to = self.fill_to.min(length);
        self.settled = self.settled.min(length);
        self.marks.split_off(&(length + 1));
        self.ready_wanted = false;
        self.score = None;
        if self.logits_after.is_some_and(|after| after > length) {
            self.logits_after = None;
        }
    }

    /// Takes up to `most` rows for a round; none where a picture is to be looked at first.
    pub fn share(&mut self, most: usize) -> Result<Option<Share>> {
        if self.context.computed() >= self.fill_to {
            // All is computed but the last row's logits were not kept: read the last token again.
            self.context.resume(self.fill_to - 1);
        }
        if self.unseen().is_some() {
            return Ok(None);
        }
        let start = self.context.computed();
        let mut rows = most.min(self.fill_to - start);
        if let Some(next) = self.score {
            let unscored = (next - 1).saturating_sub(start);
            rows = rows.min(unscored + ROUND_LOGITS);
        }
        self.context.reserve(rows)?;
        let wanted = |p: usize| p + 1 == self.fill_to || self.score.is_some_and(|next| p + 1 >= next);
        let (inputs, vectors) = self.inputs(start..start + rows);
        Ok(Some(Share {
            inputs,
            vectors,
            start,
            wanted: (start..start + rows).map(wanted).collect(),
            pages: self.context.page_ids(),
            restore: self.context.take_restore(),
            epoch: self.context.epoch(),
        }))
    }

    /// What rows are given as: tokens, or values where they stand for a picture.
    fn inputs(&self, positions: Range<usize>) -> (Vec<Input>, Vec<f32>) {
        let (mut vectors, mut count) = (Vec::new(), 0);
        let input = |position: usize| match self.context.sights().row(position) {
            None => Input::Token(self.context.tokens()[position]),
            Some(row) => {
                vectors.extend_from_slice(row);
                count += 1;
                Input::Vector(count - 1)
            }
        };
        (positions.map(input).collect(), vectors)
    }

    /// Reads the logits of the row at `position`.
    pub fn read_logits(&mut self, position: usize, logits: &[f32]) {
        let after = position + 1;
        if after >= self.fill_to {
            self.logits.clear();
            self.logits.extend_from_slice(logits);
            self.logits_after = Some(after);
        }
        let Some(next) = self.score else { return };
        // What stands for a picture was never drawn, so it has no probability.
        let scored = after >= next && !self.context.sights().covers(after);
        if let Some(&id) = self.context.tokens().get(after).filter(|_| scored) {
            let logprob = log_probs(logits, id, 0).logprob;
            self.events.push_back(Event::Score { position: after as u64, id, logprob });
        }
        self.score = (after < self.fill_to).then_some(next.max(after + 1));
    }

    /// Notes that `rows` rows are computed, `took` of a round's time spent on them.
    pub fn commit(&mut self, rows: usize, took: Duration, state_after: &dyn Fn(usize) -> ConvState) {
        let decode = self.task() == Task::Decode;
        self.context.commit(rows, &self.marks, state_after);
        let computed = self.context.computed();
        self.marks = self.marks.split_off(&(computed + 1));
        if decode {
            self.stats.decode_us += took.as_micros() as u64;
        } else {
            self.count_prefill(rows, took);
        }
    }

    /// Adds to the prompt's counters, which begin anew after a reply.
    fn count_prefill(&mut self, rows: usize, took: Duration) {
        let earlier = if self.filling { self.stats.prefill_us } else { 0 };
        self.stats.prefill_us = earlier + took.as_micros() as u64;
        self.filling = true;
        self.filled += rows;
    }

    /// Draws a token where a reply runs, or ends a fill.
    pub fn settle(&mut self) {
        if std::mem::take(&mut self.ready_wanted) {
            self.events.push_back(Event::Ready);
        }
        self.score = None;
        self.logits_wanted = false;
        self.settled = self.fill_to;
        let Some(mut reply) = self.reply.take() else { return };
        if reply.produced() == 0 {
            self.stats.prompt_tokens = self.fill_to as u64;
            self.stats.cached_tokens = (self.fill_to as u64).saturating_sub(self.filled as u64);
            self.filled = 0;
            self.filling = false;
        }
        let tokens = self.context.tokens();
        let room = self.context_limit.saturating_sub(tokens.len());
        match reply.draw(&self.logits, tokens, room, &mut self.events) {
            Err(error) => {
                self.reply = Some(reply);
                self.fail(error);
            }
            Ok((id, reason)) => {
                self.context.append(id.as_slice());
                self.settled = self.context.tokens().len();
                self.reply = Some(reply);
                match reason {
                    Some(reason) => self.end(reason),
                    None => self.fill_all(),
                }
            }
        }
    }

    /// Ends what the stream is doing with a DONE event.
    pub fn end(&mut self, reason: DoneReason) {
        if let Some(mut reply) = self.reply.take() {
            reply.flush(&mut self.events);
            self.stats.generated_tokens = reply.produced() as u64;
            self.stats.time_to_first_token_us = reply.time_to_first_token().as_micros() as u64;
        }
        self.score = None;
        self.ready_wanted = false;
        self.logits_wanted = false;
        self.fill_to = self.fill_to.min(self.context.computed());
        let stats = self.stats();
        let cancelled = |event: &Event| matches!(event, Event::Done { reason: DoneReason::Cancelled, .. });
        if reason == DoneReason::Cancelled && self.events.back().is_some_and(cancelled) {
            // Requests that are taken back before they said anything share one event, or unread ones would pile up.
            self.events.pop_back();
        }
        self.events.push_back(Event::Done { reason, stats });
    }

    /// Ends what the stream is doing because of an error. Its tokens stay.
    pub fn fail(&mut self, error: Error) {
        self.error = error.message;
        let full = error.code == Code::ContextFull;
        self.end(if full { DoneReason::ContextFull } else { DoneReason::Error });
    }

    /// Ends a reply or a fill at the host's wish; queued tokens not read yet are dropped, those held before stay.
    pub fn cancel(&mut self) {
        if !self.is_busy() {
            return;
        }
        let in_prompt = self.reply.as_ref().is_none_or(|reply| reply.produced() == 0);
        if in_prompt {
            self.rewind(self.context.computed().max(self.settled));
        }
        self.end(DoneReason::Cancelled);
    }

    /// Starts the counters of a new reply.
    pub fn begin(&mut self, reply: Reply) {
        let prefill_us = if self.filling { self.stats.prefill_us } else { 0 };
        self.stats = StreamStats { prefill_us, ..StreamStats::default() };
        self.reply = Some(reply);
        self.fill_all();
    }

    /// Counts and times as they stand.
    pub fn stats(&self) -> StreamStats {
        let mut stats = self.stats;
        if let Some(reply) = &self.reply {
            stats.generated_tokens = reply.produced() as u64;
            stats.time_to_first_token_us = reply.time_to_first_token().as_micros() as u64;
        }
        stats.length = self.context.tokens().len() as u64;
        stats.bytes = self.context.bytes() + 4 * (self.logits.capacity() as u64 + stats.length);
        stats
    }
}
