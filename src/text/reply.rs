//! A reply's bytes as whole characters: thinking apart from the answer, stop strings kept back.
//!
//! Three steps, each of which may keep a little back until it knows more: bytes to characters, tags out of characters,
//! stop strings over what is left.

use super::Tokenizer;
use crate::error::{Code, Error, Result};
use std::collections::VecDeque;

/// Opens a block of thinking.
const REASONING_OPEN: &str = "<think>";
/// Closes it.
const REASONING_CLOSE: &str = "</think>";
/// Most stop strings.
pub const MAX_STOPS: usize = 64;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

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

/// A part of a reply; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Of the answer.
    Text(String),
    /// Of the thinking, with the white space that follows its end.
    Reasoning(String),
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
    stops: Vec<Stop>,
    /// Text not given out yet; in the end what may begin a stop string.
    pending: String,
    /// Bytes of `pending` in turn, and whether they are thinking.
    runs: VecDeque<(bool, usize)>,
    stopped: Option<usize>,
}

/// A stop string and how much of it the text so far ends with.
struct Stop {
    text: Box<str>,
    /// For each prefix, the length of its longest proper prefix that it also ends with (Knuth, Morris, Pratt).
    shorter: Box<[u16]>,
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Stop {
        let bytes = text.as_bytes();
        let mut shorter = vec![0u16; bytes.len()];
        let mut matched = 0;
        for i in 1..bytes.len() {
            while matched > 0 && bytes[i] != bytes[matched] {
                matched = shorter[matched - 1] as usize;
            }
            matched += (bytes[i] == bytes[matched]) as usize;
            shorter[i] = matched as u16;
        }
        Stop { text: text.into(), shorter: shorter.into(), matched: 0 }
    }

    /// Takes one more byte of text; whether the string now ends there.
    fn advance(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && byte != bytes[self.matched] {
            self.matched = self.shorter[self.matched - 1] as usize;
        }
        self.matched += (byte == bytes[self.matched]) as usize;
        self.matched == bytes.len()
    }
}

/// Checks one more stop string beside `count` others: 1 to 1024 bytes, at most 64 of them.
pub fn check_stop(stop: &str, count: usize) -> Result<()> {
    if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
        let found = stop.len();
        let message = format!("stop string: expected 1 to {MAX_STOP_BYTES} bytes, found {found}");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if count >= MAX_STOPS {
        return Err(Error::new(Code::Limit, format!("more than {MAX_STOPS} stop strings")));
    }
    Ok(())
}

impl ReplyFilter {
    /// A filter for one reply; `reasoning_open` where the prompt ends inside a block of thinking. Fails on stop strings
    /// that [`check_stop`] refuses.
    pub fn new(stops: &[String], reasoning_open: bool) -> Result<ReplyFilter> {
        for (count, stop) in stops.iter().enumerate() {
            check_stop(stop, count)?;
        }
        Ok(ReplyFilter {
            partial_char: Vec::new(),
            partial_tag: String::new(),
            reasoning: reasoning_open,
            after_close: false,
            stops: stops.iter().map(|stop| Stop::new(stop)).collect(),
            pending: String::new(),
            runs: VecDeque::new(),
            stopped: None,
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
        self.release(false)
    }

    /// Gives what was kept back: the reply is over.
    pub fn finish(&mut self) -> Vec<Piece> {
        if !std::mem::take(&mut self.partial_char).is_empty() {
            self.take_text("\u{fffd}");
        }
        let tag = std::mem::take(&mut self.partial_tag);
        self.take_untagged(&tag);
        self.release(true)
    }

    /// The stop string that ended the reply.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.map(|stop| &*self.stops[stop].text)
    }

    /// Takes tags out of `text`.
    fn take_text(&mut self, text: &str) {
        let joined = std::mem::take(&mut self.partial_tag) + text;
        let mut rest: &str = &joined;
        while let Some(start) = rest.find('<') {
            self.take_untagged(&rest[..start]);
            rest = &rest[start..];
            if let Some(after) = rest.strip_prefix(REASONING_OPEN) {
                (self.reasoning, self.after_close) = (true, false);
                rest = after;
            } else if let Some(after) = rest.strip_prefix(REASONING_CLOSE) {
                (self.reasoning, self.after_close) = (false, true);
                rest = after;
            } else if REASONING_OPEN.starts_with(rest) || REASONING_CLOSE.starts_with(rest) {
                self.partial_tag = rest.to_owned();
                return;
            } else {
                self.take_untagged("<");
                rest = &rest[1..];
            }
        }
        self.take_untagged(rest);
    }

    /// Takes text without tags: labels it and looks for stop strings.
    fn take_untagged(&mut self, text: &str) {
        let space = if self.after_close { text.len() - text.trim_start().len() } else { 0 };
        self.take_run(&text[..space], true);
        if space < text.len() {
            self.after_close = false;
            self.take_run(&text[space..], self.reasoning);
        }
    }

    fn take_run(&mut self, text: &str, reasoning: bool) {
        if text.is_empty() || self.stopped.is_some() {
            return;
        }
        let before = self.pending.len();
        self.pending.push_str(text);
        match self.runs.back_mut() {
            Some((kind, len)) if *kind == reasoning => *len += text.len(),
            _ => self.runs.push_back((reasoning, text.len())),
        }
        for (i, byte) in text.bytes().enumerate() {
            if let Some(place) = self.advance(byte) {
                self.pending.truncate(before + i + 1 - self.stops[place].text.len());
                self.stopped = Some(place);
                return;
            }
        }
    }

    /// Takes one more byte of text; the longest stop string that ends there.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut longest: Option<usize> = None;
        for place in 0..self.stops.len() {
            let ends = self.stops[place].advance(byte);
            if ends && longest.is_none_or(|other| self.stops[other].text.len() < self.stops[place].text.len()) {
                longest = Some(place);
            }
        }
        longest
    }

    /// Gives out `pending` but for what may begin a stop string; with `all`, that too.
    fn release(&mut self, all: bool) -> Vec<Piece> {
        let kept = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let end = if all || self.stopped.is_some() { self.pending.len() } else { self.pending.len() - kept };
        let mut pieces = Vec::new();
        let mut start = 0;
        while start < end
            && let Some((reasoning, len)) = self.runs.front_mut()
        {
            let taken = (*len).min(end - start);
            let text = self.pending[start..start + taken].to_owned();
            pieces.push(if *reasoning { Piece::Reasoning(text) } else { Piece::Text(text) });
            *len -= taken;
            start += taken;
            if *len == 0 {
                self.runs.pop_front();
            }
        }
        self.pending.drain(..end);
        pieces
    }
}
