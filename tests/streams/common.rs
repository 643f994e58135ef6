//! A demo model, and a host's loop around it.

#[path = "../common/rng.rs"]
mod rng;

pub use rng::Rng;

use lfm3::engine::{Model, ModelOptions, Work};
use lfm3::sampler::Sampling;
use lfm3::stream::{DoneReason, Event, GenerateOptions, Next, Stream, StreamOptions, StreamStats};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub fn demo_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo-model")
}

pub fn open_with(options: &ModelOptions) -> Arc<Model> {
    Model::open(&demo_folder(), options, &mut |_, _| true).unwrap()
}

pub fn open(threads: usize) -> Arc<Model> {
    open_with(&ModelOptions { threads, ..ModelOptions::default() })
}

pub fn stream(model: &Arc<Model>) -> Arc<Stream> {
    Stream::new(model, &StreamOptions::default()).unwrap()
}

pub fn greedy() -> GenerateOptions {
    GenerateOptions { max_tokens: Some(64), ..GenerateOptions::new(Sampling::GREEDY) }
}

pub fn sampled(seed: u64) -> GenerateOptions {
    let mut options = greedy();
    options.sampling.temperature = 1.0;
    options.sampling.repetition_penalty = 1.1;
    options.sampling.seed = seed;
    options
}

/// Everything a stream said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Heard {
    pub text: String,
    pub reasoning: String,
    /// Name, arguments and text of each tool call.
    pub calls: Vec<[String; 3]>,
    pub ready: usize,
    pub tokens: Vec<(u64, u32, u32)>,
    /// Position, id and bits of the log-probability.
    pub scores: Vec<(u64, u32, u32)>,
    pub done: Option<DoneReason>,
    pub usage: StreamStats,
}

impl Heard {
    pub fn take(&mut self, event: Event) {
        match event {
            Event::Ready => self.ready += 1,
            Event::Text(text) => self.text += &text,
            Event::Reasoning(text) => self.reasoning += &text,
            Event::ToolCall { name, arguments, text } => self.calls.push([name, arguments, text]),
            Event::Token { position, id, logprob, .. } => self.tokens.push((position, id, logprob.to_bits())),
            Event::Score { position, id, logprob } => self.scores.push((position, id, logprob.to_bits())),
            Event::Done { reason, stats } => {
                self.done = Some(reason);
                self.usage = stats;
            }
        }
    }

    /// Takes what is there; true when nothing more will come.
    pub fn drain(&mut self, stream: &Stream) -> bool {
        loop {
            match stream.next().unwrap() {
                Next::Event(event) => self.take(event),
                Next::Pending => return false,
                Next::Done => return true,
            }
        }
    }
}

/// Steps until `stream` has nothing more to say.
pub fn run(model: &Model, stream: &Stream) -> Heard {
    run_with(model, stream, || Duration::from_millis(50))
}

pub fn run_with(model: &Model, stream: &Stream, mut budget: impl FnMut() -> Duration) -> Heard {
    let mut heard = Heard::default();
    while !heard.drain(stream) {
        model.step(budget()).unwrap();
    }
    heard
}

/// Steps until no stream has work.
pub fn settle(model: &Model) {
    while model.step(Duration::from_millis(50)).unwrap().0 == Work::More {}
}

/// Bits of the logits after the stream's last token.
pub fn logit_bits(model: &Model, stream: &Stream) -> Vec<u32> {
    loop {
        if let Some(logits) = stream.logits().unwrap() {
            return logits.iter().map(|x| x.to_bits()).collect();
        }
        model.step(Duration::from_millis(50)).unwrap();
    }
}

/// `count` tokens of words the demo model knows, without control tokens.
pub fn words(model: &Model, rng: &mut Rng, count: usize) -> Vec<u32> {
    const WORDS: [&str; 12] =
        ["Ivan", "gives", "the", "mirror", "to", "Priya", "in", "the", "tower.", "Rosa", "walks", "away"];
    let mut tokens = Vec::new();
    while tokens.len() < count {
        tokens.extend(model.tokenize(&format!(" {}", WORDS[rng.range(0, 11)]), false).unwrap());
    }
    tokens.truncate(count);
    tokens
}

pub const STORY: &str = concat!(
    r#"{"messages": [{"role": "user", "content": "Ivan finds a green mirror in the tower. "#,
    r#"Paul finds a red pen in the workshop. Ivan walks to the library.\n\nWhere is Ivan?"}], "#,
    r#""enable_thinking": false}"#
);
