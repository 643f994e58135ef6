//! Calls as Python: `<|tool_call_start|>[f(a=1, b="x"), g()]<|tool_call_end|>`.
//!
//! The end tag inside a string is the string's. Arguments are given by name.

use super::literal::Reader;
use super::{Arguments, Call, MAX_BLOCK_CALLS, Seen, Tag, ToolSchemas, is_space, tag};

pub(super) const START: &str = "<|tool_call_start|>";
const END: &str = "<|tool_call_end|>";

/// Where in a block reading stands.
#[derive(Clone, Copy)]
enum Place {
    /// Before the list.
    Before,
    /// In the list, outside strings.
    Code,
    /// Behind so many quotes that may begin a string: one, or two of an empty string or of three.
    Quotes(char, usize),
    /// In a string.
    Text(Text),
    /// Behind the list.
    Behind,
    /// In the end tag, which began at this byte.
    InTag(usize),
}

/// A string that has not ended.
#[derive(Clone, Copy)]
struct Text {
    quote: char,
    /// Quotes that end it: one or three.
    quotes: usize,
    /// Quotes it ends with so far.
    seen: usize,
    escaped: bool,
}

/// A block that has not ended.
pub(super) struct Block {
    place: Place,
    /// Brackets open.
    depth: usize,
}

impl Block {
    /// Behind `START`.
    pub fn new() -> Block {
        Block { place: Place::Before, depth: 0 }
    }

    /// Takes the character at byte `at`, with which `text` ends.
    pub fn take(&mut self, c: char, at: usize, text: &str) -> Seen {
        match self.place {
            Place::Before | Place::Behind if is_space(c) => {}
            Place::Before if c == '[' => (self.place, self.depth) = (Place::Code, 1),
            Place::Before => return Seen::Not(at),
            Place::Code => return self.take_code(c, at),
            Place::Quotes(quote, seen) => match (c == quote, seen) {
                (true, 1) => self.place = Place::Quotes(quote, 2),
                (false, 2) => {
                    self.place = Place::Code;
                    return self.take_code(c, at);
                }
                (_, seen) => {
                    let quotes = if seen == 1 { 1 } else { 3 };
                    self.place = Place::Text(Text { quote, quotes, seen: 0, escaped: false });
                    if seen == 1 {
                        return self.take(c, at, text);
                    }
                }
            },
            Place::Text(mut string) => {
                let is_quote = c == string.quote && !string.escaped;
                string.seen = if is_quote { string.seen + 1 } else { 0 };
                string.escaped = c == '\\' && !string.escaped;
                self.place = if string.seen == string.quotes { Place::Code } else { Place::Text(string) };
            }
            Place::Behind => {
                self.place = Place::InTag(at);
                return self.take(c, at, text);
            }
            Place::InTag(start) => match tag(&text[start..], &[END]) {
                Tag::Whole(_) => return Seen::End,
                Tag::Begun => {}
                Tag::None => return Seen::Not(start),
            },
        }
        Seen::More
    }

    fn take_code(&mut self, c: char, at: usize) -> Seen {
        match c {
            '[' | '(' | '{' => self.depth += 1,
            ']' | ')' | '}' => {
                self.depth -= 1;
                if self.depth == 0 {
                    self.place = Place::Behind;
                }
            }
            '"' | '\'' => self.place = Place::Quotes(c, 1),
            '<' | '>' => return Seen::Not(at),
            _ => {}
        }
        Seen::More
    }
}

/// The calls of a whole block; `None` where it is not a list of calls, or a value does not fit.
pub(super) fn calls(text: &str, tools: &ToolSchemas) -> Option<Vec<Call>> {
    let mut list = Reader::new(text.strip_prefix(START)?.strip_suffix(END)?);
    let mut calls = Vec::new();
    list.expect('[')?;
    while !list.take_if(']') {
        if calls.len() == MAX_BLOCK_CALLS {
            return None;
        }
        calls.push(call(&mut list, tools)?);
        if !list.take_if(',') {
            list.expect(']')?;
            break;
        }
    }
    (list.is_at_end() && !calls.is_empty()).then_some(calls)
}

fn call(list: &mut Reader, tools: &ToolSchemas) -> Option<Call> {
    let name = list.name()?;
    let mut arguments = Arguments::default();
    list.expect('(')?;
    while !list.take_if(')') {
        let key = list.name()?;
        list.expect('=')?;
        arguments.add(key, &tools.typed_literal(name, key, list.literal()?)?)?;
        if !list.take_if(',') {
            list.expect(')')?;
            break;
        }
    }
    Some(Call { name: name.to_owned(), arguments: arguments.finish() })
}
