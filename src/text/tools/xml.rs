//! Calls as tags: `<tool_call>`, `<function=NAME>`, for each parameter `<parameter=KEY>`, its value and
//! `</parameter>`, then `</function>`, `</tool_call>`; white space between tags says nothing.
//!
//! A value that begins on the line after its tag ends at the first `</parameter>` that begins a line, and the line
//! breaks before and after it are not part of it. One that begins on the tag's own line ends at the first
//! `</parameter>`. Whatever else it holds, other tags included, is the value's.

use super::{Arguments, Call, MAX_NAME_BYTES, Seen, Tag, ToolSchemas, is_space, tag};
use std::ops::Range;

pub(super) const START: &str = "<tool_call>";
const VALUE_END: &str = "</parameter>";
/// The tags that may come after `START`.
const FUNCTION: &[&str] = &["<function="];
/// After the function's name or a parameter.
const PARAMETER_OR_END: &[&str] = &["<parameter=", "</function>"];
/// After the last.
const END: &[&str] = &["</tool_call>"];

/// Where in a call reading stands.
#[derive(Clone, Copy)]
enum Place {
    /// White space, then one of these tags.
    Between(&'static [&'static str]),
    /// In one of these tags, which began at this byte.
    InTag(usize, &'static [&'static str]),
    /// In the function's name from this byte on.
    Function(usize),
    /// In a parameter's name from this byte on.
    Key(usize),
    /// Behind a parameter's tag.
    ValueStart,
    Value(Value),
}

/// A value that has not ended.
#[derive(Clone, Copy)]
struct Value {
    start: usize,
    /// It began on the line after its tag.
    on_lines: bool,
    /// The next character begins a line.
    at_line: bool,
    /// Bytes of the end tag read.
    end_read: usize,
}

impl Value {
    fn new(start: usize, on_lines: bool) -> Value {
        Value { start, on_lines, at_line: on_lines, end_read: 0 }
    }

    /// Takes the next character; whether the end tag ends with it.
    fn take(&mut self, c: char) -> bool {
        if self.end_read > 0 && c == char::from(VALUE_END.as_bytes()[self.end_read]) {
            self.end_read += 1;
            return self.end_read == VALUE_END.len();
        }
        let may_end = self.at_line || !self.on_lines;
        self.end_read = usize::from(c == '<' && may_end);
        self.at_line = c == '\n';
        false
    }

    /// Its bytes, where the end tag ends at byte `end`.
    fn range(self, end: usize) -> Range<usize> {
        let end = end - VALUE_END.len();
        // On lines, the byte before the tag is a line break: the value's last or, without a value, its first.
        self.start..if self.on_lines { end.saturating_sub(1).max(self.start) } else { end }
    }
}

/// A call that has not ended.
pub(super) struct Xml {
    place: Place,
    name: Range<usize>,
    keys: Vec<Range<usize>>,
    values: Vec<Range<usize>>,
}

impl Xml {
    /// Behind `START`.
    pub fn new() -> Xml {
        Xml { place: Place::Between(FUNCTION), name: 0..0, keys: Vec::new(), values: Vec::new() }
    }

    /// Takes the character at byte `at`, with which `text` ends.
    pub fn take(&mut self, c: char, at: usize, text: &str) -> Seen {
        match self.place {
            Place::Between(_) if is_space(c) => {}
            Place::Between(tags) => {
                self.place = Place::InTag(at, tags);
                return self.take(c, at, text);
            }
            Place::InTag(start, tags) => match tag(&text[start..], tags) {
                Tag::Begun => {}
                Tag::None => return Seen::Not(start),
                Tag::Whole(_) if tags == END => return Seen::End,
                Tag::Whole(place) => self.place = behind(tags[place], text.len()),
            },
            Place::Function(start) | Place::Key(start) if c == '>' && at > start => self.named(start..at),
            Place::Function(start) | Place::Key(start) => {
                if c == '<' || c == '>' || c.is_control() || text.len() - start > MAX_NAME_BYTES {
                    return Seen::Not(at);
                }
            }
            Place::ValueStart if c == '\n' => self.place = Place::Value(Value::new(at + 1, true)),
            Place::ValueStart => {
                self.place = Place::Value(Value::new(at, false));
                return self.take(c, at, text);
            }
            Place::Value(mut value) => {
                let ended = value.take(c);
                self.place = if ended { Place::Between(PARAMETER_OR_END) } else { Place::Value(value) };
                if ended {
                    self.values.push(value.range(text.len()));
                }
            }
        }
        Seen::More
    }

    /// A name ended.
    fn named(&mut self, range: Range<usize>) {
        if matches!(self.place, Place::Function(_)) {
            self.name = range;
            self.place = Place::Between(PARAMETER_OR_END);
        } else {
            self.keys.push(range);
            self.place = Place::ValueStart;
        }
    }

    /// The call that `text` is; `None` where a value does not fit or a parameter is there twice.
    pub fn call(&self, text: &str, tools: &ToolSchemas) -> Option<Call> {
        let name = &text[self.name.clone()];
        let mut arguments = Arguments::default();
        for (key, value) in self.keys.iter().zip(&self.values) {
            let (key, value) = (&text[key.clone()], &text[value.clone()]);
            arguments.add(key, &tools.typed_text(name, key, value)?)?;
        }
        Some(Call { name: name.to_owned(), arguments: arguments.finish() })
    }
}

/// Where reading stands behind a tag that ends at byte `at`.
fn behind(tag: &str, at: usize) -> Place {
    match tag {
        "<function=" => Place::Function(at),
        "<parameter=" => Place::Key(at),
        _ => Place::Between(END),
    }
}
