//! An open model: weights, backend and the streams it steps.

use crate::backend::cpu::{self, CpuBackend, CpuOptions, FpGuard};
use crate::backend::{Encoding, Slot};
use crate::error::{Code, Error, Result};
use crate::model::checkpoint::Checkpoint;
use crate::model::config::GenerationDefaults;
use crate::model::forward::text_plan;
use crate::model::load::load_weights;
use crate::plan::{AttentionId, Plan};
use crate::sampler::Sampling;
use crate::scheduler::Scheduler;
use crate::state::{ByteBudget, Context, PageArena, Reservation, Shape};
use crate::stream::Stream;
use crate::text::{
    self, ChatTemplate, Prompt, REASONING_CLOSE, REASONING_OPEN, SpecialTokens, Tokenizer, choose_template,
    special_tokens,
};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Most streams of a model.
pub const STREAM_LIMIT: usize = 1024;
/// Most threads of a model.
pub const THREAD_LIMIT: usize = 256;

/// Which instruction set the CPU kernels use.
pub use crate::backend::cpu::Isa;

/// The clock a chat template may ask for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock {
    /// Seconds since 1970-01-01 UTC; `None` reads the system's clock.
    pub unix_seconds: Option<i64>,
    /// Offset of the host's local time from UTC.
    pub utc_offset_seconds: i32,
}

/// How to open a model.
#[derive(Clone, Debug)]
pub struct ModelOptions {
    /// Threads that compute, the stepping thread included; 1 makes none.
    pub threads: usize,
    /// Forces an instruction set.
    pub isa: Option<Isa>,
    /// Rounds unquantized matrices to 8 bits on loading.
    pub round_to_8_bits: bool,
    /// Most positions of a stream; at most the checkpoint's own limit.
    pub context_limit: Option<usize>,
    /// Most bytes of weights, pages, states and scratch together.
    pub host_bytes: Option<u64>,
    /// The clock templates see.
    pub clock: Clock,
}

impl Default for ModelOptions {
    /// One thread, the best instruction set, the checkpoint's own limits.
    fn default() -> Self {
        ModelOptions {
            threads: 1,
            isa: None,
            round_to_8_bits: false,
            context_limit: None,
            host_bytes: None,
            clock: Clock::default(),
        }
    }
}

/// Bytes a model needs, before it is loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct MemoryReport {
    /// Packed weights.
    pub weights: u64,
    /// Scratch of rounds and tokenizer, made at load.
    pub scratch: u64,
    /// Passing need while loading, on top of the rest.
    pub loading: u64,
    /// Each stream's constant part.
    pub stream: u64,
    /// Each 1,000 tokens of a stream's context.
    pub per_1000_tokens: u64,
    /// Bytes of the checkpoint's tensors.
    pub file: u64,
}

/// What a model is.
#[derive(Clone, Debug)]
pub struct ModelInfo {
    /// `model_type` of the config.
    pub kind: String,
    /// Tokens.
    pub vocab_size: usize,
    /// Most positions of a stream.
    pub context_limit: usize,
    /// Layers.
    pub layers: usize,
    /// Hidden width.
    pub hidden: usize,
    /// Parameters of the text model.
    pub parameters: u64,
    /// Bits of most weights as stored.
    pub bits: u32,
    /// First token of a chat.
    pub bos: Option<u32>,
    /// Stop tokens.
    pub eos: Vec<u32>,
    /// Whether the checkpoint has a vision tower.
    pub has_vision: bool,
    /// Bytes held by weights and scratch.
    pub bytes: u64,
    /// Instruction set in use.
    pub isa: &'static str,
    /// Threads in use.
    pub threads: usize,
}

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

#[derive(Debug, Default)]
struct Slots {
    /// With their bytes: the backend keeps a slot's conv states for its next stream.
    free: Vec<(u32, Reservation)>,
    made: u32,
}

/// A stream's slot in the backend until dropped.
#[derive(Debug)]
pub struct SlotLease {
    slot: Slot,
    slots: Arc<Mutex<Slots>>,
    /// Given back with the slot.
    bytes: Option<Reservation>,
}

impl SlotLease {
    /// The slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}

impl Drop for SlotLease {
    fn drop(&mut self) {
        if let Some(bytes) = self.bytes.take() {
            self.slots.lock().free.push((self.slot.0, bytes));
        }
    }
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
        check_options(options)?;
        let checkpoint = Checkpoint::open(path)?;
        let context_limit = context_limit(&checkpoint, options)?;
        let plan = Arc::new(text_plan(&checkpoint.config.text));
        let sizes = Sizes::of(&checkpoint, &plan, options)?;
        let limit = options.host_bytes.unwrap_or(u64::MAX);
        let fixed = sizes.report.weights + sizes.report.scratch;
        if fixed > limit {
            let message = format!("the model needs {fixed} bytes for weights and scratch, host_bytes allows {limit}");
            return Err(Error::new(Code::Limit, message));
        }
        let tokenizer = Arc::new(Tokenizer::load(&checkpoint.tokenizer_json, "tokenizer.json")?);
        let template = load_template(&checkpoint)?;
        let mut backend = CpuBackend::new(plan.clone(), &cpu_options(options))?;
        load_weights(&checkpoint, &plan, &mut backend, progress)?;
        let budget = ByteBudget::new(limit, fixed);
        let arena = PageArena::new(budget.clone(), sizes.page_bytes);
        let conv_bytes = cpu::conv_state_bytes(&plan);
        Ok(Arc::new(Model {
            info: model_info(&checkpoint, &sizes, options, context_limit),
            sampling: sampling(&checkpoint.generation),
            tokenizer,
            template,
            clock: options.clock,
            placeholders: checkpoint.config.placeholders.clone(),
            shape: Arc::new(Shape::new(&plan, conv_bytes)),
            arena: arena.clone(),
            budget,
            conv_bytes,
            slots: Arc::default(),
            streams: Mutex::default(),
            stream_ids: AtomicU64::new(1),
            scheduler: Mutex::new(Some(Scheduler::new(Box::new(backend), arena))),
            stepping: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            poisoned: AtomicBool::new(false),
        }))
    }

    /// Predicts what `open` will need, reading headers only.
    pub fn memory(path: &Path, options: &ModelOptions) -> Result<MemoryReport> {
        check_options(options)?;
        let checkpoint = Checkpoint::open(path)?;
        context_limit(&checkpoint, options)?;
        let plan = text_plan(&checkpoint.config.text);
        Ok(Sizes::of(&checkpoint, &plan, options)?.report)
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

    /// The chat as the template renders it.
    pub fn render_chat(&self, json: &str) -> Result<String> {
        Ok(self.prompt(json)?.text)
    }

    /// Tokens of a chat.
    pub(crate) fn chat_tokens(&self, json: &str) -> Result<Vec<u32>> {
        let tokens = self.prompt(json)?.tokens;
        self.check_tokens(&tokens)?;
        Ok(tokens)
    }

    fn prompt(&self, json: &str) -> Result<Prompt> {
        let Some(template) = &self.template else {
            let message =
                "the checkpoint has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json)";
            return Err(Error::new(Code::Template, message));
        };
        text::render(json, template, &self.tokenizer, &self.clock)
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
        let vocab = self.info.vocab_size;
        for (index, id) in tokens.iter().enumerate() {
            let message = if *id as usize >= vocab {
                format!("token {index} is {id}, the vocabulary has {vocab}")
            } else if self.placeholders.contains(id) {
                format!("token {index} is {id}, a placeholder that only a picture or video may stand for")
            } else {
                continue;
            };
            return Err(Error::new(Code::InvalidArgument, message));
        }
        Ok(())
    }

    /// Whether a reply after `tokens` starts inside a thinking block: one was opened since the last turn's end.
    pub(crate) fn reasoning_open(&self, tokens: &[u32]) -> bool {
        let start = tokens.iter().rposition(|id| self.is_eos(*id)).map_or(0, |i| i + 1);
        let place = |tag: &str| {
            let id = self.tokenizer.id_of(tag)?;
            tokens[start..].iter().rposition(|token| *token == id)
        };
        place(REASONING_OPEN).is_some_and(|opened| place(REASONING_CLOSE).is_none_or(|closed| closed < opened))
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
        let lease = |slot, bytes| SlotLease { slot: Slot(slot), slots: self.slots.clone(), bytes: Some(bytes) };
        if let Some((slot, bytes)) = self.slots.lock().free.pop() {
            return Ok(lease(slot, bytes));
        }
        let reserve = || self.budget.reserve(self.conv_bytes, "a stream's conv states");
        let bytes = reserve().or_else(|_| {
            self.make_room();
            reserve()
        })?;
        let mut slots = self.slots.lock();
        if slots.made as usize >= STREAM_LIMIT {
            let message = format!("a model has at most {STREAM_LIMIT} streams: free some");
            return Err(Error::new(Code::Limit, message));
        }
        slots.made += 1;
        Ok(lease(slots.made - 1, bytes))
    }

    /// Lets go of what is only kept to save work: snapshots, and free pages unless another thread steps.
    fn make_room(&self) {
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

/// Longest budget of a step.
const MAX_BUDGET: Duration = Duration::from_secs(3600);

fn closed() -> Error {
    Error::new(Code::Closed, "the model was freed")
}

fn check_options(options: &ModelOptions) -> Result<()> {
    if options.threads == 0 || options.threads > THREAD_LIMIT {
        let message = format!("threads is {}, expected 1 to {THREAD_LIMIT}", options.threads);
        return Err(Error::new(Code::InvalidArgument, message));
    }
    match options.isa {
        Some(isa) if !isa.available() => {
            let message = format!("this processor cannot run the {} kernels", isa.name());
            Err(Error::new(Code::Unsupported, message))
        }
        _ => Ok(()),
    }
}

fn context_limit(checkpoint: &Checkpoint, options: &ModelOptions) -> Result<usize> {
    let most = checkpoint.config.text.max_positions;
    match options.context_limit {
        None => Ok(most),
        Some(limit) if (1..=most).contains(&limit) => Ok(limit),
        Some(limit) => {
            let message = format!("context_limit is {limit}, expected 1 to the checkpoint's {most}");
            Err(Error::new(Code::InvalidArgument, message))
        }
    }
}

/// The checkpoint's chat template, wherever it keeps one.
fn load_template(checkpoint: &Checkpoint) -> Result<Option<ChatTemplate>> {
    let config = checkpoint.tokenizer_config.as_deref();
    let special = config.map_or(Ok(SpecialTokens::default()), special_tokens)?;
    let chosen = choose_template(checkpoint.chat_template.as_deref(), config)?;
    chosen.map(|(source, file)| ChatTemplate::load(&source, file, special)).transpose()
}

fn cpu_options(options: &ModelOptions) -> CpuOptions {
    CpuOptions { threads: options.threads, isa: options.isa, round_to_8_bits: options.round_to_8_bits }
}

/// What a model will take, from its headers.
struct Sizes {
    report: MemoryReport,
    page_bytes: u64,
    parameters: u64,
    bits: u32,
}

impl Sizes {
    fn of(checkpoint: &Checkpoint, plan: &Plan, options: &ModelOptions) -> Result<Sizes> {
        let cpu = cpu_options(options);
        let tensors = checkpoint.bind(plan)?;
        let (mut weights, mut parameters, mut largest, mut bits, mut loading) = (0, 0, 0, 16, 0);
        for (tensor, spec) in tensors.iter().zip(&plan.weights) {
            weights += cpu::packed_bytes(&tensor.desc, spec.role, &cpu);
            let count = tensor.desc.rows as u64 * tensor.desc.cols as u64;
            parameters += count;
            loading = loading.max(tensor.bytes().min(LOAD_BYTES));
            if count > largest {
                largest = count;
                bits = stored_bits(tensor.desc.encoding);
            }
        }
        let page_bytes = (0..plan.attentions.len()).map(|i| cpu::page_bytes(plan, AttentionId(i))).max().unwrap_or(0);
        let full = plan.attentions.iter().filter(|a| a.window.is_none()).count() as u64;
        let windows: u64 = plan.attentions.iter().filter_map(|a| a.window).map(|w| w as u64 / PAGE_ROWS + 2).sum();
        let report = MemoryReport {
            weights,
            scratch: cpu::scratch_bytes(plan, &cpu) + TOKENIZER_FACTOR * checkpoint.tokenizer_json.len() as u64,
            loading,
            stream: cpu::conv_state_bytes(plan) + windows * page_bytes,
            per_1000_tokens: full * page_bytes * 1000 / PAGE_ROWS,
            file: checkpoint.tensor_bytes,
        };
        Ok(Sizes { report, page_bytes, parameters, bits })
    }
}

/// Positions of a page.
const PAGE_ROWS: u64 = crate::backend::PAGE_ROWS as u64;
/// Bytes of a tensor's rows on their way from the file to their packed form.
const LOAD_BYTES: u64 = 8 << 20;
/// Bytes the tokenizer takes for each byte of tokenizer.json, measured.
const TOKENIZER_FACTOR: u64 = 10;

fn stored_bits(encoding: Encoding) -> u32 {
    match encoding {
        Encoding::Dense(float) => 8 * float.bytes() as u32,
        Encoding::Affine { bits, .. } => u32::from(bits),
    }
}

fn model_info(checkpoint: &Checkpoint, sizes: &Sizes, options: &ModelOptions, context_limit: usize) -> ModelInfo {
    let config = &checkpoint.config;
    let mut eos = checkpoint.generation.eos.clone();
    eos.extend(config.eos.iter().filter(|id| !checkpoint.generation.eos.contains(id)));
    ModelInfo {
        kind: config.kind.clone(),
        vocab_size: config.text.vocab_size,
        context_limit,
        layers: config.text.layers.len(),
        hidden: config.text.hidden,
        parameters: sizes.parameters,
        bits: sizes.bits,
        bos: config.bos,
        eos,
        has_vision: config.has_vision,
        bytes: sizes.report.weights + sizes.report.scratch,
        isa: options.isa.unwrap_or_else(Isa::best).name(),
        threads: options.threads,
    }
}

/// The vendor's sampling where the checkpoint says nothing; where it says something, its framework's defaults for the
/// rest.
fn sampling(given: &GenerationDefaults) -> Sampling {
    let vendor = Sampling {
        temperature: 0.1,
        top_k: 50,
        top_p: 1.0,
        min_p: 0.0,
        repetition_penalty: 1.1,
        presence_penalty: 0.0,
        frequency_penalty: 0.0,
        penalty_reach: u32::MAX,
        seed: 0,
    };
    let silent = given.do_sample.is_none()
        && given.temperature.is_none()
        && given.top_k.is_none()
        && given.top_p.is_none()
        && given.repetition_penalty.is_none();
    if silent {
        return vendor;
    }
    let greedy = given.do_sample == Some(false);
    Sampling {
        temperature: if greedy { 0.0 } else { given.temperature.unwrap_or(1.0) },
        top_k: given.top_k.unwrap_or(50),
        top_p: given.top_p.unwrap_or(1.0),
        min_p: given.min_p.unwrap_or(0.0),
        repetition_penalty: given.repetition_penalty.unwrap_or(1.0),
        ..vendor
    }
}
