//! An open model: weights, backend and the streams it steps.
//!
//! `options` is what the host asks for, `sizes` what that takes, `info` what the model then is; `vision` is the part
//! that sees; `slots` are the streams' places in the backend.

mod info;
mod options;
mod sizes;
mod slots;
mod vision;

pub use crate::backend::cpu::{Isa, MAX_THREADS};
pub use crate::text::Clock;
pub use info::ModelInfo;
pub use options::ModelOptions;
pub use sizes::MemoryReport;
pub use slots::{MAX_STREAMS, SlotLease};

use crate::backend::Backend;
use crate::backend::cpu::{CpuBackend, FpGuard};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::Checkpoint;
use crate::model::forward::text_plan;
use crate::model::load::load_weights;
use crate::model::vision::vision_plan;
use crate::picture::media::{Given, Key, Medium, View};
use crate::sampler::Sampling;
use crate::scheduler::Scheduler;
use crate::state::{ByteBudget, Context, PageArena, Shape};
use crate::stream::Stream;
use crate::text::{self, ChatTemplate, MediaText, Prompt, RenderContext, SpecialTokens, Tokenizer};
use crate::text::{choose_template, special_tokens};
use parking_lot::Mutex;
use sizes::Sizes;
use slots::Slots;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use vision::Eyes;

/// Longest budget of a step; longer ones are cut to it.
const MAX_BUDGET: Duration = Duration::from_secs(3600);

/// What is left to do after a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Call again now.
    More,
    /// Nothing to do.
    Idle,
}

/// What a step did.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepReport {
    /// Time spent.
    pub used: Duration,
    /// What the next slice is expected to take.
    pub next_slice: Duration,
    /// The longest slice seen.
    pub worst_slice: Duration,
    /// How long the host may wait before the next step without losing time.
    pub wait_hint: Duration,
    /// Streams with work left.
    pub busy_streams: usize,
}

/// An open model. Methods take `&self`; `step` excludes itself.
pub struct Model {
    info: ModelInfo,
    sampling: Sampling,
    tokenizer: Arc<Tokenizer>,
    template: Option<ChatTemplate>,
    clock: Clock,
    eyes: Eyes,
    /// Placeholder tokens that only pictures and videos may put into a stream.
    placeholders: Vec<u32>,
    shape: Arc<Shape>,
    arena: Arc<PageArena>,
    budget: Arc<ByteBudget>,
    conv_bytes: u64,
    slots: Arc<Mutex<Slots>>,
    streams: Mutex<Vec<Weak<Stream>>>,
    stream_ids: AtomicU64,
    /// Gone once the model is closed.
    scheduler: Mutex<Option<Scheduler>>,
    stepping: AtomicBool,
    closed: AtomicBool,
    poisoned: AtomicBool,
}

/// A step in progress, until dropped.
struct Stepping<'a>(&'a AtomicBool);

impl<'a> Stepping<'a> {
    fn begin(flag: &'a AtomicBool) -> Option<Self> {
        (!flag.swap(true, Ordering::Acquire)).then_some(Stepping(flag))
    }
}

impl Drop for Stepping<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Marks the model when a step unwinds.
struct PoisonOnUnwind<'a>(&'a AtomicBool);

impl Drop for PoisonOnUnwind<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Release);
        }
    }
}

impl Model {
    /// Opens a checkpoint folder. `progress(done, total)` in bytes may return false to cancel.
    pub fn open(path: &Path, options: &ModelOptions, progress: &mut dyn FnMut(u64, u64) -> bool) -> Result<Arc<Model>> {
        options.check()?;
        let checkpoint = Checkpoint::open(path)?;
        let context_limit = options.context_limit(checkpoint.config.text.max_positions)?;
        let plan = Arc::new(text_plan(&checkpoint.config.text));
        let tower_plan = checkpoint.config.vision.as_ref().map(|config| Arc::new(vision_plan(config)));
        let sizes = Sizes::of(&checkpoint, &plan, tower_plan.as_deref(), options)?;
        let limit = options.host_bytes.unwrap_or(u64::MAX);
        let fixed = sizes.report.weights + sizes.report.scratch;
        if fixed > limit {
            let message = format!("the model needs {fixed} bytes for weights and scratch, host_bytes allows {limit}");
            return Err(Error::new(Code::Limit, message));
        }
        let tokenizer = Arc::new(Tokenizer::load(&checkpoint.tokenizer_json, "tokenizer.json")?);
        let template = load_template(&checkpoint)?;
        let mut backend = CpuBackend::new(plan.clone(), &options.cpu())?;
        let tower_backend = tower_plan.as_ref().map(|plan| backend.sharing(plan.clone())).transpose()?;
        let mut tower = tower_plan.zip(tower_backend);
        let vision = tower.as_mut().map(|(plan, backend)| (&**plan, backend as &mut dyn Backend));
        load_weights(&checkpoint, (&plan, &mut backend), vision, progress)?;
        let budget = ByteBudget::new(limit, fixed);
        let tower = tower.map(|(plan, backend)| vision::tower(plan, backend, &sizes, &budget));
        let arena = PageArena::new(budget.clone(), sizes.page_bytes);
        Ok(Arc::new(Model {
            info: info::model_info(&checkpoint, &sizes, options, context_limit),
            sampling: info::default_sampling(&checkpoint.generation),
            tokenizer,
            template,
            clock: options.clock,
            eyes: Eyes::new(&checkpoint, options, &budget),
            placeholders: checkpoint.config.placeholders(),
            shape: Arc::new(Shape::new(&plan, sizes.conv_bytes)),
            arena: arena.clone(),
            budget,
            conv_bytes: sizes.conv_bytes,
            slots: Arc::default(),
            streams: Mutex::default(),
            stream_ids: AtomicU64::new(1),
            scheduler: Mutex::new(Some(Scheduler::new(Box::new(backend), arena, tower))),
            stepping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
        }))
    }

    /// Predicts what `open` will need, reading headers only.
    pub fn memory(path: &Path, options: &ModelOptions) -> Result<MemoryReport> {
        options.check()?;
        let checkpoint = Checkpoint::open(path)?;
        options.context_limit(checkpoint.config.text.max_positions)?;
        let plan = text_plan(&checkpoint.config.text);
        let tower = checkpoint.config.vision.as_ref().map(vision_plan);
        Ok(Sizes::of(&checkpoint, &plan, tower.as_ref(), options)?.report)
    }

    /// What the model is.
    pub fn info(&self) -> ModelInfo {
        self.info.clone()
    }

    /// Works for at most `budget`, at least one slice. `Busy` while another thread steps.
    pub fn step(&self, budget: Duration) -> Result<(Work, StepReport)> {
        self.check_open()?;
        let start = Instant::now();
        let Some(stepping) = Stepping::begin(&self.stepping) else {
            return Err(Error::new(Code::Busy, "another thread is stepping this model"));
        };
        let mut guard = self.scheduler.lock();
        let scheduler = guard.as_mut().ok_or_else(closed)?;
        let stepped = self.step_streams(scheduler, start + budget.min(MAX_BUDGET));
        let times = scheduler.slice_times();
        drop(guard);
        drop(stepping);
        self.finish_close();
        let more = stepped?;
        let report = StepReport {
            used: start.elapsed(),
            next_slice: times.next,
            worst_slice: times.worst,
            wait_hint: if more { Duration::ZERO } else { Duration::MAX },
            busy_streams: self.live_streams().iter().filter(|s| s.is_busy()).count(),
        };
        Ok((if more { Work::More } else { Work::Idle }, report))
    }

    /// Steps until `deadline` or no stream has work, those made meanwhile included. True when work is left.
    fn step_streams(&self, scheduler: &mut Scheduler, deadline: Instant) -> Result<bool> {
        let _poison = PoisonOnUnwind(&self.poisoned);
        let _floats = FpGuard::new();
        loop {
            if scheduler.step(&self.live_streams(), deadline)? {
                return Ok(true);
            }
            if !self.has_work() {
                return Ok(false);
            }
            if Instant::now() >= deadline {
                return Ok(true);
            }
        }
    }

    fn has_work(&self) -> bool {
        self.live_streams().iter().any(|s| s.has_task())
    }

    /// Whether a step would find work, without doing any.
    pub fn poll(&self) -> Result<Work> {
        self.check_open()?;
        Ok(if self.has_work() { Work::More } else { Work::Idle })
    }

    /// Lets weights and threads go (after a step in flight ends) and makes the streams answer `Closed`.
    pub fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        self.finish_close();
    }

    /// Drops the scheduler of a closed model unless a step runs, which then does it at its end.
    fn finish_close(&self) {
        if self.is_closed()
            && let Some(mut guard) = self.scheduler.try_lock()
        {
            drop(guard.take());
        }
    }

    /// Tokens of `text`; control tokens are recognized only when `control`.
    pub fn tokenize(&self, text: &str, control: bool) -> Result<Vec<u32>> {
        let tokens = self.tokenizer.encode(text, control)?;
        self.check_tokens(&tokens)?;
        Ok(tokens)
    }

    /// Bytes of the tokens' text; not always whole UTF-8.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<Vec<u8>> {
        self.tokenizer.decode(tokens)
    }

    /// The chat as the template renders it, pictures and videos as the placeholders it writes.
    pub fn render_chat(&self, json: &str) -> Result<String> {
        text::render_text(json, self.template()?, &self.tokenizer, &self.clock)
    }

    /// A chat with its pictures and videos.
    pub(crate) fn chat(&self, json: &str, media: &[MediaText]) -> Result<Prompt> {
        let context = RenderContext {
            template: self.template()?,
            tokenizer: &self.tokenizer,
            clock: &self.clock,
            media,
            media_tokens: self.eyes.tokens,
        };
        let prompt = text::render(json, &context)?;
        self.check_vocab(&prompt.tokens)?;
        Ok(prompt)
    }

    /// What the host gives as a medium of this model; of what `known` has a view for, nothing is copied.
    pub(crate) fn take_media(&self, given: &Given, known: &dyn Fn(&Key) -> Option<Arc<View>>) -> Result<Medium> {
        self.eyes.take(given, known)
    }

    /// Tokens of a medium outside a chat, and where its runs of placeholders are.
    pub(crate) fn media_run(&self, medium: &MediaText) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
        text::media_run(&self.tokenizer, medium, &self.eyes.tokens)
    }

    fn template(&self) -> Result<&ChatTemplate> {
        self.template.as_ref().ok_or_else(|| {
            let message =
                "the checkpoint has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)";
            Error::new(Code::Template, message)
        })
    }

    /// Fails when the model was closed or a step of it panicked.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.poisoned.load(Ordering::Acquire) {
            return Err(Error::new(Code::Poisoned, "an earlier step of this model failed inside; free it"));
        }
        if self.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Whether the model was closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Fails on ids past the vocabulary and on placeholders.
    pub(crate) fn check_tokens(&self, tokens: &[u32]) -> Result<()> {
        self.check_vocab(tokens)?;
        let found = tokens.iter().enumerate().find(|(_, id)| self.placeholders.contains(id));
        found.map_or(Ok(()), |(index, id)| {
            let message = format!("token {index} is {id}, which stands for a picture: append the picture itself");
            Err(Error::new(Code::InvalidArgument, message))
        })
    }

    /// Fails on ids past the vocabulary.
    fn check_vocab(&self, tokens: &[u32]) -> Result<()> {
        let vocab = self.info.vocab_size;
        let found = tokens.iter().enumerate().find(|(_, id)| **id as usize >= vocab);
        found.map_or(Ok(()), |(index, id)| {
            let message = format!("token {index} is {id}, the vocabulary has {vocab}");
            Err(Error::new(Code::InvalidArgument, message))
        })
    }

    /// Whether a reply behind `tokens` begins inside a block of thinking.
    pub(crate) fn reasoning_open(&self, tokens: &[u32]) -> bool {
        text::reasoning_open(tokens, &self.tokenizer, &self.info.eos)
    }

    /// Whether `id` ends a turn.
    pub(crate) fn is_eos(&self, id: u32) -> bool {
        self.info.eos.contains(&id)
    }

    /// The checkpoint's stop tokens.
    pub(crate) fn eos(&self) -> &[u32] {
        &self.info.eos
    }

    /// The tokenizer.
    pub(crate) fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.tokenizer
    }

    /// The checkpoint's sampling.
    pub(crate) fn default_sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Tokens.
    pub(crate) fn vocab_size(&self) -> usize {
        self.info.vocab_size
    }

    /// Most positions of a stream.
    pub(crate) fn context_limit(&self) -> usize {
        self.info.context_limit
    }

    /// An empty context of this model's shape.
    pub(crate) fn new_context(&self) -> Context {
        Context::new(self.shape.clone(), self.arena.clone(), self.budget.clone())
    }

    /// A number no other stream of this model has; they ascend.
    pub(crate) fn next_stream_id(&self) -> u64 {
        self.stream_ids.fetch_add(1, Ordering::Relaxed)
    }

    /// Takes a slot for a new stream.
    pub(crate) fn lease_slot(&self) -> Result<SlotLease> {
        if let Some(lease) = SlotLease::reuse(&self.slots) {
            return Ok(lease);
        }
        let reserve = || self.budget.reserve(self.conv_bytes, "a stream's conv states");
        let bytes = reserve().or_else(|_| {
            self.make_room();
            reserve()
        })?;
        SlotLease::make(&self.slots, bytes)
    }

    /// Lets go of what is only kept to save work: snapshots, and free pages unless another thread steps.
    pub(crate) fn make_room(&self) {
        self.live_streams().iter().for_each(|stream| stream.drop_snapshots());
        if let Some(mut guard) = self.scheduler.try_lock()
            && let Some(scheduler) = guard.as_mut()
        {
            scheduler.release_spare();
        }
        self.finish_close();
    }

    /// Makes a stream known to the scheduler.
    pub(crate) fn register(&self, stream: &Arc<Stream>) {
        let mut streams = self.streams.lock();
        streams.retain(|s| s.strong_count() > 0);
        streams.push(Arc::downgrade(stream));
    }

    /// Streams by age: two made at once may have come to the list in either order.
    fn live_streams(&self) -> Vec<Arc<Stream>> {
        let mut streams: Vec<Arc<Stream>> = self.streams.lock().iter().filter_map(Weak::upgrade).collect();
        streams.sort_by_key(|stream| stream.id());
        streams
    }
}

fn closed() -> Error {
    Error::new(Code::Closed, "the model was freed")
}

/// The checkpoint's chat template, wherever it keeps one.
fn load_template(checkpoint: &Checkpoint) -> Result<Option<ChatTemplate>> {
    let config = checkpoint.tokenizer_config.as_deref();
    let special = config.map_or(Ok(SpecialTokens::default()), special_tokens)?;
    let chosen = choose_template(checkpoint.chat_template.as_deref(), config)?;
    chosen.map(|(source, file)| ChatTemplate::load(&source, file, special)).transpose()
}
