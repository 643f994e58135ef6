//! A reply's bytes as whole characters: thinking apart from the answer, tool calls read, stop strings kept back.
//!
//! Four steps, each of which may keep a little back until it knows more: bytes to characters, tags out of characters,
//! calls out of what stands between their tags, stop strings over what is left.
//!
//! Calls stand in the answer; in thinking they are thinking. One that is malformed, too long, of a value that does not
//! fit its tool's schema, or unfinished at the reply's end is text, all of it; so is white space around calls. Stop
//! strings do not act in calls, nor over one. Tags count where the text spells them, be they one token or several.

use super::Tokenizer;
use super::stops::Stops;
use super::tools::{CALL_STARTS, OpenCall, Outcome, Tag, ToolSchemas, tag};
use crate::error::Result;
use std::sync::Arc;

/// Opens a block of thinking.
const REASONING_OPEN: &str = "<think>";
/// Closes it.
const REASONING_CLOSE: &str = "</think>";
/// What is looked for: in thinking the first two.
const TAGS: [&str; 4] = [REASONING_OPEN, REASONING_CLOSE, CALL_STARTS[0], CALL_STARTS[1]];

/// Whether a reply behind `tokens` begins inside a block of thinking: one was opened and not closed since the last of
/// `eos`, the tokens that end a turn.
pub fn reasoning_open(tokens: &[u32], tokenizer: &Tokenizer, eos: &[u32]) -> bool {
    let start = tokens.iter().rposition(|id| eos.contains(id)).map_or(0, |i| i + 1);
    let last = |tag: &str| {
        let id = tokenizer.id_of(tag)?;
        tokens[start..].iter().rposition(|token| *token == id)
    };
    last(REASONING_OPEN).is_some_and(|opened| last(REASONING_CLOSE).is_none_or(|closed| closed < opened))
}

/// A part of a reply. Texts are never empty, but for that of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Of the answer.
    Text(String),
    /// Of the thinking, with the white space that follows its end.
    Reasoning(String),
    /// A call of a tool.
    ToolCall {
        /// The tool, which need not be one of the chat's.
        name: String,
        /// A JSON object, keys in the order written.
        arguments: String,
        /// The call as written, tags included. Of several calls between one pair of tags, the first has it all and the
        /// others' is empty.
        text: String,
    },
}

/// Splits a reply as it comes. However the bytes are cut, the pieces put together are the same.
pub struct ReplyFilter {
    /// Bytes that may begin a character.
    partial_char: Vec<u8>,
    /// Text that may begin a tag.
    partial_tag: String,
    reasoning: bool,
    /// Nothing but white space came after the last `</think>`.
    after_close: bool,
    call: Option<OpenCall>,
    tools: Arc<ToolSchemas>,
    stops: Stops,
    /// Certain, and not given out yet.
    pieces: Vec<Piece>,
}

impl ReplyFilter {
    /// A filter for one reply; `reasoning_open` where the prompt ends inside a block of thinking; `tools` type the
    /// arguments of calls. Fails on stop strings that [`check_stop`](super::check_stop) refuses.
    pub fn new(stops: &[String], reasoning_open: bool, tools: Arc<ToolSchemas>) -> Result<ReplyFilter> {
        Ok(ReplyFilter {
            partial_char: Vec::new(),
            partial_tag: String::new(),
            reasoning: reasoning_open,
            after_close: false,
            call: None,
            tools,
            stops: Stops::new(stops)?,
            pieces: Vec::new(),
        })
    }

    /// Takes the bytes of the next token, control tokens by their spelling, and gives what is certain by now. After a
    /// stop string nothing more comes.
    pub fn push(&mut self, bytes: &[u8]) -> Vec<Piece> {
        let mut unread = std::mem::take(&mut self.partial_char);
        unread.extend_from_slice(bytes);
        let mut text = String::new();
        let mut left: &[u8] = &unread;
        loop {
            match std::str::from_utf8(left) {
                Ok(valid) => {
                    text.push_str(valid);
                    break;
                }
                Err(error) => {
                    let (valid, rest) = left.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).unwrap_or(""));
                    match error.error_len() {
                        Some(broken) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            left = &rest[broken..];
                        }
                        None => {
                            self.partial_char = rest.to_vec();
                            break;
                        }
                    }
                }
            }
        }
        self.take_text(&text);
        self.stops.release(&mut self.pieces);
        std::mem::take(&mut self.pieces)
    }

    /// Gives what was kept back: the reply is over.
    pub fn finish(&mut self) -> Vec<Piece> {
        if !std::mem::take(&mut self.partial_char).is_empty() {
            self.take_text("\u{fffd}");
        }
        let tag = std::mem::take(&mut self.partial_tag);
        let call = self.call.take().map(OpenCall::into_text).unwrap_or_default();
        self.take_untagged(&call);
        self.take_untagged(&tag);
        self.stops.release_all(&mut self.pieces);
        std::mem::take(&mut self.pieces)
    }

    /// The stop string that ended the reply.
    pub fn stopped(&self) -> Option<&str> {
        self.stops.stopped()
    }

    /// Takes tags and calls out of `text`.
    fn take_text(&mut self, text: &str) {
        let mut rest = text;
        while !rest.is_empty() && self.stopped().is_none() {
            rest = match (self.call.is_some(), self.partial_tag.is_empty()) {
                (true, _) => self.take_call(rest),
                (false, true) => self.take_outside(rest),
                (false, false) => self.take_tag(rest),
            };
        }
    }

    /// Takes `text` up to where a tag may begin; what is left.
    fn take_outside<'a>(&mut self, text: &'a str) -> &'a str {
        let (before, rest) = text.split_once('<').unwrap_or((text, ""));
        self.take_untagged(before);
        if before.len() < text.len() {
            self.partial_tag.push('<');
        }
        rest
    }

    /// Takes one more character of what may be a tag; what is left.
    fn take_tag<'a>(&mut self, text: &'a str) -> &'a str {
        let Some(c) = text.chars().next() else { return text };
        let before = self.partial_tag.len();
        self.partial_tag.push(c);
        match tag(&self.partial_tag, if self.reasoning { &TAGS[..2] } else { &TAGS }) {
            Tag::Begun => return &text[c.len_utf8()..],
            Tag::Whole(0) => (self.reasoning, self.after_close) = (true, false),
            Tag::Whole(1) => (self.reasoning, self.after_close) = (false, true),
            Tag::Whole(start) => {
                self.after_close = false;
                self.call = Some(OpenCall::new(TAGS[start]));
            }
            Tag::None => {
                // The character may begin a tag of its own.
                let read = std::mem::take(&mut self.partial_tag);
                self.take_untagged(&read[..before]);
                return text;
            }
        }
        self.partial_tag.clear();
        &text[c.len_utf8()..]
    }

    /// Takes `text` up to the end of the open call; what is left.
    fn take_call<'a>(&mut self, text: &'a str) -> &'a str {
        let Some(mut call) = self.call.take() else { return text };
        for (at, c) in text.char_indices() {
            match call.take(c, &self.tools) {
                Outcome::Open => continue,
                Outcome::Calls { calls, text } => {
                    self.stops.release_all(&mut self.pieces);
                    let texts = std::iter::once(text).chain(std::iter::repeat(String::new()));
                    self.pieces.extend(calls.into_iter().zip(texts).map(|(call, text)| Piece::ToolCall {
                        name: call.name,
                        arguments: call.arguments,
                        text,
                    }));
                }
                Outcome::None { text, again } => {
                    self.take_untagged(&text);
                    self.take_text(&again);
                }
            }
            return &text[at + c.len_utf8()..];
        }
        self.call = Some(call);
        ""
    }

    /// Takes text without tags: labels it and looks for stop strings.
    fn take_untagged(&mut self, text: &str) {
        let space = if self.after_close { text.len() - text.trim_start().len() } else { 0 };
        self.stops.take(&text[..space], true);
        if space < text.len() {
            self.after_close = false;
            self.stops.take(&text[space..], self.reasoning);
        }
    }
}
