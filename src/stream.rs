//! One conversation: tokens, state, stop rules, events.

use crate::backend::Slot;
use crate::engine::{Model, SlotLease};
use crate::error::{Code, Error, Result};
use crate::picture::media::{Given, Medium};
use crate::sampler::{Sampler, Sampling};
use crate::state::Placed;
use crate::text::{MediaText, ReplyFilter, check_stop};
use core::Core;
use parking_lot::{Mutex, MutexGuard};
use reply::{Reply, ReplySetup};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) mod core;
mod reply;

/// Events that wait for `next` before a stream pauses, unless the host asks for another number.
pub const DEFAULT_EVENT_LIMIT: usize = 256;
/// Most stop tokens a host may add.
pub const MAX_STOP_TOKENS: usize = 1024;
/// Most likeliest ids of a token event.
pub const MAX_TOP_LOGPROBS: usize = 64;

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
}

impl GenerateOptions {
    /// Tokens chosen by `sampling` up to the checkpoint's stop tokens or the context limit, without token events.
    pub fn new(sampling: Sampling) -> Self {
        GenerateOptions { max_tokens: None, sampling, stop_tokens: Vec::new(), token_events: false, top_logprobs: 0 }
    }
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
    /// A call of a tool, which the host answers with a message of the role tool.
    ToolCall {
        /// The tool; not always one of the chat's.
        name: String,
        /// A JSON object, its values of the types the tool's schema names.
        arguments: String,
        /// The call as written; of several calls between one pair of tags, the first has it all.
        text: String,
    },
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
    /// The reply ended, or what was asked for was cancelled or failed.
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
pub struct Stream {
    id: u64,
    model: Arc<Model>,
    slot: SlotLease,
    core: Mutex<Core>,
    cancel: AtomicBool,
    closed: AtomicBool,
}

impl Stream {
    /// A stream of `model`. Fails past the model's stream or byte limit.
    pub fn new(model: &Arc<Model>, options: &StreamOptions) -> Result<Arc<Stream>> {
        model.check_open()?;
        let most = model.context_limit();
        let context_limit = options.context_limit.unwrap_or(most);
        if context_limit == 0 || context_limit > most {
            return Err(invalid(format!("context_limit is {context_limit}, expected 1 to the model's {most}")));
        }
        let event_limit = options.event_limit.unwrap_or(DEFAULT_EVENT_LIMIT);
        if event_limit == 0 {
            return Err(invalid("event_limit is 0, expected at least 1".into()));
        }
        let slot = model.lease_slot()?;
        let core = Core::new(model.new_context(), context_limit, event_limit);
        let stream = Arc::new(Stream {
            id: model.next_stream_id(),
            model: model.clone(),
            slot,
            core: Mutex::new(core),
            cancel: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        });
        model.register(&stream);
        Ok(stream)
    }

    /// The checkpoint's own sampling, as `generation_config.json` gives it.
    pub fn default_sampling(&self) -> Sampling {
        self.model.default_sampling().clone()
    }

    /// Queues text; control tokens are recognized only when `control`.
    pub fn append_text(&self, text: &str, control: bool) -> Result<()> {
        let tokens = self.model.tokenize(text, control)?;
        self.append(&tokens, |_| Vec::new(), "append_text")
    }

    /// Queues tokens. Ids past the vocabulary and placeholders of pictures are refused.
    pub fn append_tokens(&self, tokens: &[u32]) -> Result<()> {
        self.model.check_tokens(tokens)?;
        self.append(tokens, |_| Vec::new(), "append_tokens")
    }

    /// Queues a picture or a video between its start and end tokens. Headers are checked now, decoding is work of
    /// steps.
    pub fn append_media(&self, given: &Given) -> Result<()> {
        drop(self.idle("append_media")?);
        let medium = self.take(given)?;
        let (tokens, runs) = self.model.media_run(&medium.text)?;
        let placed = placed(std::slice::from_ref(&medium), &[runs]);
        let behind = |start| placed.iter().map(|p| Placed { start: start + p.start, view: p.view.clone() }).collect();
        self.append(&tokens, behind, "append_media")
    }

    /// A medium of what the host gives; what the stream holds of it already is not copied again.
    fn take(&self, given: &Given) -> Result<Medium> {
        let take = || self.model.take_media(given, &|key| self.core.lock().context.sights().view(key));
        take().or_else(|error| {
            if error.code != Code::Limit {
                return Err(error);
            }
            self.model.make_room();
            take()
        })
    }

    /// Queues tokens with the pictures that `placed` gives for where they begin.
    fn append(&self, tokens: &[u32], placed: impl Fn(usize) -> Vec<Placed>, call: &str) -> Result<()> {
        let mut core = self.idle(call)?;
        let limit = core.context_limit;
        core.context.check_room(tokens.len(), limit)?;
        let placed = placed(core.context.tokens().len());
        core.append(tokens, placed, |id| self.model.is_eos(id));
        Ok(())
    }

    /// Renders a chat, keeps the common prefix with what the stream holds, queues the rest. Parts of type image and
    /// video take the next of `media`.
    pub fn set_chat(&self, json: &str, media: &[Given]) -> Result<()> {
        drop(self.idle("set_chat")?);
        let take = |(index, given)| {
            let taken = self.take(given);
            taken.map_err(|error| Error::new(error.code, format!("media {index}: {}", error.message)))
        };
        let media = media.iter().enumerate().map(take).collect::<Result<Vec<Medium>>>()?;
        let texts: Vec<MediaText> = media.iter().map(|medium| medium.text.clone()).collect();
        let prompt = self.model.chat(json, &texts)?;
        let (tokens, placed) = (prompt.tokens, placed(&media, &prompt.media));
        let mut core = self.idle("set_chat")?;
        if tokens.len() > core.context_limit {
            let limit = core.context_limit;
            let message = format!("the chat is {} tokens long, the stream's context limit is {limit}", tokens.len());
            return Err(Error::new(Code::ContextFull, message));
        }
        let common = core.context.common(&tokens, &placed);
        core.rewind(common);
        let later = placed.into_iter().filter(|placed| placed.start + placed.view.tokens() > common);
        core.append(&tokens[common..], later.collect(), |id| self.model.is_eos(id));
        core.tools = prompt.tools;
        Ok(())
    }

    /// Adds a stop string for the replies that follow; the empty string removes all.
    pub fn add_stop(&self, stop: &str) -> Result<()> {
        let mut core = self.open()?;
        if stop.is_empty() {
            core.stops.clear();
            return Ok(());
        }
        check_stop(stop, core.stops.len())?;
        core.stops.push(stop.to_string());
        Ok(())
    }

    /// Sets what is added to logits of the replies that follow, replacing earlier biases.
    pub fn set_bias(&self, bias: &[(u32, f32)]) -> Result<()> {
        Sampler::new(self.model.vocab_size(), self.default_sampling(), bias)?;
        self.open()?.bias = bias.to_vec();
        Ok(())
    }

    /// Starts a reply after the queue is filled in.
    pub fn generate(&self, options: &GenerateOptions) -> Result<()> {
        if options.stop_tokens.len() > MAX_STOP_TOKENS || options.top_logprobs > MAX_TOP_LOGPROBS {
            let message = format!("at most {MAX_STOP_TOKENS} stop tokens and {MAX_TOP_LOGPROBS} top log-probabilities");
            return Err(Error::new(Code::Limit, message));
        }
        let mut core = self.idle("generate")?;
        if core.context.tokens().is_empty() {
            let message = "nothing to go on from: queue text, tokens or a chat first";
            return Err(Error::new(Code::State, message));
        }
        let sampler = Sampler::new(self.model.vocab_size(), options.sampling.clone(), &core.bias)?;
        let reasoning = self.model.reasoning_open(core.context.tokens());
        let mut stop_tokens = self.model.eos().to_vec();
        stop_tokens.extend_from_slice(&options.stop_tokens);
        let filter = ReplyFilter::new(&core.stops, reasoning, core.tools.clone())?;
        let tokenizer = self.model.tokenizer().clone();
        core.begin(Reply::new(ReplySetup { sampler, filter, tokenizer, stop_tokens }, options));
        Ok(())
    }

    /// Asks for log-probabilities of the stream's tokens from position `from` (the first token has none).
    pub fn score(&self, from: usize) -> Result<()> {
        let mut core = self.idle("score")?;
        let length = core.context.tokens().len();
        if from >= length {
            return Err(invalid(format!("score from {from}: the stream holds {length} tokens")));
        }
        let first = from.max(1);
        if core.context.computed() >= first {
            core.context.resume(first - 1);
        } else {
            core.context.give_up_round();
        }
        core.score = Some(first);
        core.want_ready();
        core.fill_all();
        Ok(())
    }

    /// The next event.
    pub fn next(&self) -> Result<Next> {
        self.model.check_open()?;
        let mut core = self.core.lock();
        Ok(match core.events.pop_front() {
            Some(event) => Next::Event(event),
            None if core.is_busy() => Next::Pending,
            None => Next::Done,
        })
    }

    /// Stops the reply or the fill at the next slice. Only sets a flag: any thread, any time.
    pub fn cancel(&self) -> Result<()> {
        self.cancel.store(true, Ordering::Release);
        self.model.check_open()
    }

    /// Lets the stream's pages and states go; the model forgets it.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Release);
        let mut core = self.core.lock();
        core.context.clear();
        core.end(DoneReason::Cancelled);
    }

    /// Tokens held, queued ones included.
    pub fn length(&self) -> Result<usize> {
        Ok(self.open()?.context.tokens().len())
    }

    /// The tokens held.
    pub fn tokens(&self) -> Result<Vec<u32>> {
        Ok(self.open()?.context.tokens().to_vec())
    }

    /// Drops everything from position `length` on, queued input too.
    pub fn rewind(&self, length: usize) -> Result<()> {
        let mut core = self.idle("rewind")?;
        let held = core.context.tokens().len();
        if length > held {
            return Err(invalid(format!("rewind to {length}: the stream holds {held} tokens")));
        }
        core.rewind(length);
        Ok(())
    }

    /// Logits after the last token; `None` while tokens are still to be filled in (step, then ask again).
    pub fn logits(&self) -> Result<Option<Vec<f32>>> {
        let mut core = self.idle("logits")?;
        if core.context.tokens().is_empty() {
            return Err(Error::new(Code::State, "an empty stream has no logits: queue tokens first"));
        }
        core.fill_all();
        let logits = core.logits().map(<[f32]>::to_vec);
        core.logits_wanted = logits.is_none();
        Ok(logits)
    }

    /// Counts and times.
    pub fn stats(&self) -> Result<StreamStats> {
        Ok(self.open()?.stats())
    }

    /// Text of the last error, empty when there was none.
    pub fn last_error(&self) -> String {
        self.core.lock().error.clone()
    }

    /// Where its conv states are.
    pub(crate) fn slot(&self) -> Slot {
        self.slot.slot()
    }

    /// For the scheduler: the state, unless the stream or its model is closed. A cancel asked for since is carried out
    /// first.
    pub(crate) fn scheduled(&self) -> Option<MutexGuard<'_, Core>> {
        if self.closed.load(Ordering::Acquire) || self.model.is_closed() {
            return None;
        }
        let mut core = self.core.lock();
        if self.cancel.swap(false, Ordering::AcqRel) {
            core.cancel();
        }
        Some(core)
    }

    /// Gives the memory of its snapshots back.
    pub(crate) fn drop_snapshots(&self) {
        if let Some(mut core) = self.scheduled() {
            core.context.drop_snapshots();
        }
    }

    /// Whether something asked for has not happened yet.
    pub(crate) fn is_busy(&self) -> bool {
        self.scheduled().is_some_and(|core| core.is_busy())
    }

    /// Whether the scheduler could do something for it now.
    pub(crate) fn has_task(&self) -> bool {
        self.scheduled().is_some_and(|core| core.task() != core::Task::None)
    }

    /// Ascends with age.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    fn open(&self) -> Result<MutexGuard<'_, Core>> {
        self.model.check_open()?;
        Ok(self.core.lock())
    }

    /// The state of a stream on which no reply runs. What is asked for now is not what an earlier cancel meant.
    fn idle(&self, call: &str) -> Result<MutexGuard<'_, Core>> {
        let mut core = self.open()?;
        if self.cancel.swap(false, Ordering::AcqRel) {
            core.cancel();
        }
        if core.reply.is_some() {
            let message = format!("{call} while a reply runs: read its events to the end or cancel it first");
            return Err(Error::new(Code::State, message));
        }
        Ok(core)
    }
}

/// Views where their medium's runs of placeholders stand.
fn placed(media: &[Medium], runs: &[Vec<Range<usize>>]) -> Vec<Placed> {
    let views = media.iter().flat_map(|medium| medium.views.iter().cloned());
    let starts = runs.iter().flatten().map(|run| run.start);
    starts.zip(views).map(|(start, view)| Placed { start, view }).collect()
}

fn invalid(message: String) -> Error {
    Error::new(Code::InvalidArgument, message)
}
