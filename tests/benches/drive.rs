//! What the measuring programs share: opening a model, filling in a prompt, making a reply.

use lfm3::engine::{Model, ModelOptions};
use lfm3::error::Result;
use lfm3::sampler::Sampling;
use lfm3::stream::{Event, GenerateOptions, Next, Stream, StreamOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The most a step may take where only throughput counts.
pub const LONG: Duration = Duration::from_secs(1);

/// The value after `name` among the arguments.
pub fn option(args: &[String], name: &str) -> Option<usize> {
    let at = args.iter().position(|a| a == name)?;
    args.get(at + 1)?.parse().ok()
}

/// How the programs open a model.
pub fn options(threads: usize, round_to_8_bits: bool) -> ModelOptions {
    ModelOptions { threads, round_to_8_bits, ..ModelOptions::default() }
}

/// Opens without progress.
pub fn open(path: &Path, options: &ModelOptions) -> Result<Arc<Model>> {
    Model::open(path, options, &mut |_, _| true)
}

/// A stream that never stops by itself: stop tokens are banned.
pub fn endless(model: &Arc<Model>) -> Result<Arc<Stream>> {
    let stream = Stream::new(model, &StreamOptions::default())?;
    let banned: Vec<(u32, f32)> = model.info().eos.iter().map(|id| (*id, f32::NEG_INFINITY)).collect();
    stream.set_bias(&banned)?;
    Ok(stream)
}

/// `count` made-up tokens from the lower nine tenths of the vocabulary, where no control tokens stand.
pub fn tokens(model: &Model, count: usize) -> Vec<u32> {
    let vocab = model.info().vocab_size as u64 * 9 / 10;
    (0..count as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as u32 % vocab as u32).collect()
}

/// A greedy reply of `count` tokens.
pub fn greedy(count: usize) -> GenerateOptions {
    GenerateOptions { max_tokens: Some(count), token_events: true, ..GenerateOptions::new(Sampling::GREEDY) }
}

/// What [`drain`] found.
#[derive(Default)]
pub struct Seen {
    /// The queue was filled in.
    pub ready: bool,
    /// Tokens made.
    pub tokens: usize,
    /// The reply ended.
    pub done: bool,
}

/// Reads all events that wait.
pub fn drain(stream: &Stream) -> Result<Seen> {
    let mut seen = Seen::default();
    while let Next::Event(event) = stream.next()? {
        match event {
            Event::Ready => seen.ready = true,
            Event::Token { .. } => seen.tokens += 1,
            Event::Done { .. } => seen.done = true,
            _ => {}
        }
    }
    Ok(seen)
}
