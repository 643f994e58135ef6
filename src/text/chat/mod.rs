//! A chat as JSON, through the template, to tokens.
//!
//! What users, systems and tools write must not become control tokens. So a mark, a character that stands nowhere in
//! the chat, is put inside whatever could be part of one (`guard`); after rendering, only spellings without a mark are
//! control tokens, and the marks are taken out again. `json` checks the chat, `media` puts the tokens of pictures and
//! videos where the template wrote their placeholders.

mod guard;
mod json;
mod media;

use crate::error::{Code, Error, Result};
use crate::text::{ChatTemplate, Clock, Tokenizer, ToolSchemas};
use guard::Guard;
use media::{Expanded, Part};
pub use media::{MAX_MEDIA_TOKENS, MediaText, MediaTokens, media_run};
use serde_json::{Map, Value};
use std::ops::Range;
use std::sync::Arc;

/// Characters Unicode keeps for such use: no text has them.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';

/// What rendering needs beside the chat.
#[derive(Clone, Copy)]
pub struct RenderContext<'a> {
    /// The checkpoint's template.
    pub template: &'a ChatTemplate,
    /// Turns text into tokens.
    pub tokenizer: &'a Tokenizer,
    /// For templates that ask for the date.
    pub clock: &'a Clock,
    /// What each part of type image or video stands for, in the order of the parts.
    pub media: &'a [MediaText],
    /// The checkpoint's tokens around pictures.
    pub media_tokens: MediaTokens,
}

/// A rendered chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What the template wrote: one placeholder for each picture or video.
    pub text: String,
    /// The same as tokens, placeholders expanded.
    pub tokens: Vec<u32>,
    /// Of each picture and video, in the order given, where its placeholder tokens stand: one run for a picture, one
    /// for each pair of frames of a video.
    pub media: Vec<Vec<Range<usize>>>,
    /// What the chat's tools take.
    pub tools: Arc<ToolSchemas>,
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, what)
}

/// Renders a chat: `{"messages", "tools", "enable_thinking", "add_generation_prompt", "template_args"}`. Fails with
/// `InvalidArgument` and the place in the JSON, with `Unsupported` where the checkpoint has no tokens for a picture or
/// video, with `Limit`, or with `Template`.
pub fn render(json: &str, context: &RenderContext) -> Result<Prompt> {
    let chat = json::parse(json)?;
    json::check_media(&chat, context.media)?;
    context.media_tokens.check(context.media)?;
    let tools = Arc::new(ToolSchemas::new(&chat["tools"]));
    let (marked, mark) = marked(chat, context.template, context.tokenizer, context.clock)?;
    let parts = parts_of(&marked, mark, context.tokenizer);
    let Expanded { tokens, runs } = media::expand(parts, context.media, &context.media_tokens, context.tokenizer)?;
    Ok(Prompt { text: marked.replace(mark, ""), tokens, media: runs, tools })
}

/// What the template makes of a chat, pictures and videos as the placeholders it writes. Fails as [`render`] does.
pub fn render_text(json: &str, template: &ChatTemplate, tokenizer: &Tokenizer, clock: &Clock) -> Result<String> {
    let (marked, mark) = marked(json::parse(json)?, template, tokenizer, clock)?;
    Ok(marked.replace(mark, ""))
}

/// The rendered chat with marks in it, and the mark.
fn marked(
    mut chat: Map<String, Value>,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    clock: &Clock,
) -> Result<(String, char)> {
    let mark = MARKS.into_iter().find(|&mark| !template.contains(mark) && !chat.values().any(|v| contains(v, mark)));
    let mark = mark.ok_or_else(|| invalid("the chat uses all of U+FDD0 to U+FDEF; leave one out"))?;
    Guard::new(tokenizer, mark).chat(&mut chat);
    let marked = template.render(&chat, Some(mark), clock).map_err(|mut error| {
        error.message = error.message.replace(mark, "");
        error
    })?;
    Ok((marked, mark))
}

/// A rendered chat in parts: control tokens where nothing is marked, and ordinary text between them.
fn parts_of(marked: &str, mark: char, tokenizer: &Tokenizer) -> Vec<Part> {
    let mut parts = Vec::new();
    let (mut run_start, mut at) = (0, 0);
    let text = |range: Range<usize>| (!range.is_empty()).then(|| Part::Text(marked[range].replace(mark, "")));
    while let Some((start, len, id)) = tokenizer.find_control(&marked[at..]) {
        let (start, end) = (at + start, at + start + len);
        at = end;
        // No mark fits inside a spelling of one character: it follows.
        if marked[start..end].chars().nth(1).is_none() && marked[end..].starts_with(mark) {
            continue;
        }
        parts.extend(text(run_start..start));
        parts.push(Part::Control(id));
        run_start = end;
    }
    parts.extend(text(run_start..marked.len()));
    parts
}

/// Whether any text of `value` has `c`.
fn contains(value: &Value, c: char) -> bool {
    match value {
        Value::String(s) => s.contains(c),
        Value::Array(items) => items.iter().any(|item| contains(item, c)),
        Value::Object(fields) => fields.iter().any(|(key, item)| key.contains(c) || contains(item, c)),
        _ => false,
    }
}
