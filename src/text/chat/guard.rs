//! Marks in the texts of a chat, so that none of them becomes a control token.

use crate::text::Tokenizer;
use serde_json::{Map, Value};

/// Fields of an assistant's message whose tags are kept: what was generated tokenizes to what it was.
const GENERATED: [&str; 3] = ["content", "reasoning_content", "thinking"];

/// Puts marks into the texts of a chat.
pub(super) struct Guard<'a> {
    tokenizer: &'a Tokenizer,
    mark: char,
    /// Punctuation that control tokens begin with: followed by a mark, it begins none.
    first: Vec<char>,
    /// Punctuation that control tokens end with: after a mark, it ends none.
    last: Vec<char>,
}

impl<'a> Guard<'a> {
    pub fn new(tokenizer: &'a Tokenizer, mark: char) -> Self {
        let distinct = |pick: fn(&str) -> Option<char>| {
            let mut chars: Vec<char> = tokenizer.control_tokens().filter_map(|(s, _)| pick(s)).collect();
            chars.retain(char::is_ascii_punctuation);
            chars.sort_unstable();
            chars.dedup();
            chars
        };
        let first = distinct(|s| s.chars().next());
        Guard { tokenizer, mark, first, last: distinct(|s| s.chars().next_back()) }
    }

    /// Marks all of a chat.
    pub fn chat(&self, chat: &mut Map<String, Value>) {
        for (field, value) in chat.iter_mut() {
            match value {
                Value::Array(messages) if field == "messages" => messages.iter_mut().for_each(|m| self.message(m)),
                other => self.value(other, false),
            }
        }
    }

    fn message(&self, message: &mut Value) {
        let assistant = message["role"] == "assistant";
        let Value::Object(fields) = message else { return };
        let guarded = std::mem::take(fields).into_iter().map(|(field, mut value)| {
            self.value(&mut value, assistant && GENERATED.contains(&field.as_str()));
            (self.text(&field, false), value)
        });
        *fields = guarded.collect();
    }

    fn value(&self, value: &mut Value, keep_tags: bool) {
        match value {
            Value::String(s) => *s = self.text(s, keep_tags),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item, keep_tags)),
            Value::Object(fields) => {
                let guarded = std::mem::take(fields).into_iter().map(|(key, mut item)| {
                    self.value(&mut item, keep_tags);
                    (self.text(&key, false), item)
                });
                *fields = guarded.collect();
            }
            _ => {}
        }
    }

    /// `s` with marks; with `keep_tags`, whole control tokens of the form `<tag>` (not `<|…|>`) stay.
    fn text(&self, s: &str, keep_tags: bool) -> String {
        let mut out = String::with_capacity(s.len() + 16);
        let mut rest = s;
        while let Some(c) = rest.chars().next() {
            let control = self.tokenizer.control_at_start(rest).map(|(len, _)| &rest[..len]);
            let kept = control.filter(|spelling| keep_tags && spelling.starts_with('<') && !spelling.starts_with("<|"));
            if let Some(tag) = kept {
                out.push_str(tag);
                rest = &rest[tag.len()..];
                continue;
            }
            if self.last.contains(&c) {
                out.push(self.mark);
            }
            out.push(c);
            if control.is_some() || self.first.contains(&c) {
                out.push(self.mark);
            }
            rest = &rest[c.len_utf8()..];
        }
        out
    }
}
