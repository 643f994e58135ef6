//! A chat as JSON, through the template, to tokens.
//!
//! What users, systems and tools write must not become control tokens. So a mark, a character that stands nowhere in
//! the chat, is put inside whatever could be part of one; after rendering, only spellings without a mark are control
//! tokens, and the marks are taken out again.

use crate::error::{Code, Error, Result};
use crate::text::{ChatTemplate, Clock, Tokenizer};
use serde_json::{Map, Value};

/// Longest chat JSON, in bytes.
const MAX_CHAT_BYTES: usize = 16 << 20;
/// Deepest nesting of lists and objects, those of tool-call arguments given as text included.
const MAX_CHAT_DEPTH: usize = 64;
/// Most messages.
const MAX_MESSAGES: usize = 100_000;
/// Characters Unicode keeps for such use: no text has them.
const MARKS: std::ops::RangeInclusive<char> = '\u{fdd0}'..='\u{fdef}';
/// Fields of the chat JSON.
const FIELDS: [&str; 5] = ["messages", "tools", "enable_thinking", "add_generation_prompt", "template_args"];
/// Fields of an assistant's message whose tags are kept: what was generated tokenizes to what it was.
const GENERATED: [&str; 3] = ["content", "reasoning_content", "thinking"];

/// A rendered chat.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// What the template wrote.
    pub text: String,
    /// The same as tokens.
    pub tokens: Vec<u32>,
}

fn invalid(what: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, what)
}

/// Renders a chat: `{"messages", "tools", "enable_thinking", "add_generation_prompt", "template_args"}`. Fails with
/// `InvalidArgument` and the place in the JSON, with `Unsupported` for pictures, or with `Template`.
pub fn render(json: &str, template: &ChatTemplate, tokenizer: &Tokenizer, clock: &Clock) -> Result<Prompt> {
    let chat = parse(json)?;
    if let Some(place) = first_picture(&chat) {
        return Err(Error::new(Code::Unsupported, format!("{place}: this version reads no pictures or videos")));
    }
    render_parsed(chat, template, tokenizer, clock)
}

/// As [`render`], with parts of type image and video left to the template, which writes a placeholder for each.
pub fn render_with_media(json: &str, template: &ChatTemplate, tokenizer: &Tokenizer, clock: &Clock) -> Result<Prompt> {
    render_parsed(parse(json)?, template, tokenizer, clock)
}

fn render_parsed(
    mut chat: Map<String, Value>,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    clock: &Clock,
) -> Result<Prompt> {
    let mark = MARKS.into_iter().find(|&mark| !template.contains(mark) && !chat.values().any(|v| contains(v, mark)));
    let mark = mark.ok_or_else(|| invalid("the chat uses all of U+FDD0 to U+FDEF; leave one out"))?;
    Guard::new(tokenizer, mark).chat(&mut chat);
    let marked = template.render(&chat, Some(mark), clock).map_err(|mut error| {
        error.message = error.message.replace(mark, "");
        error
    })?;
    let tokens = tokens_of(&marked, mark, tokenizer)?;
    Ok(Prompt { text: marked.replace(mark, ""), tokens })
}

/// Tokens of a rendered chat: control tokens where nothing is marked, and ordinary runs between them.
fn tokens_of(marked: &str, mark: char, tokenizer: &Tokenizer) -> Result<Vec<u32>> {
    let mut tokens = Vec::new();
    let (mut run_start, mut at) = (0, 0);
    while let Some((start, len, id)) = tokenizer.find_control(&marked[at..]) {
        let (start, end) = (at + start, at + start + len);
        at = end;
        // No mark fits inside a spelling of one character: it follows.
        if marked[start..end].chars().nth(1).is_none() && marked[end..].starts_with(mark) {
            continue;
        }
        tokenizer.encode_plain(&marked[run_start..start].replace(mark, ""), &mut tokens)?;
        tokens.push(id);
        run_start = end;
    }
    tokenizer.encode_plain(&marked[run_start..].replace(mark, ""), &mut tokens)?;
    Ok(tokens)
}

/// Puts marks into the texts of a chat.
struct Guard<'a> {
    tokenizer: &'a Tokenizer,
    mark: char,
    /// Punctuation that control tokens begin with: followed by a mark, it begins none.
    first: Vec<char>,
    /// Punctuation that control tokens end with: after a mark, it ends none.
    last: Vec<char>,
}

impl<'a> Guard<'a> {
    fn new(tokenizer: &'a Tokenizer, mark: char) -> Self {
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

    fn chat(&self, chat: &mut Map<String, Value>) {
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

/// Whether any text of `value` has `c`.
fn contains(value: &Value, c: char) -> bool {
    match value {
        Value::String(s) => s.contains(c),
        Value::Array(items) => items.iter().any(|item| contains(item, c)),
        Value::Object(fields) => fields.iter().any(|(key, item)| key.contains(c) || contains(item, c)),
        _ => false,
    }
}

/// The template's variables from the chat JSON, every part of it checked.
fn parse(json: &str) -> Result<Map<String, Value>> {
    if json.len() > MAX_CHAT_BYTES {
        let found = json.len();
        return Err(Error::new(Code::Limit, format!("the chat has {found} bytes, more than {MAX_CHAT_BYTES}")));
    }
    let root: Value = serde_json::from_str(json).map_err(|e| invalid(format!("chat JSON: {e}")))?;
    let Value::Object(mut root) = root else { return Err(wrong("the chat", "an object", &root)) };
    if let Some(field) = root.keys().find(|field| !FIELDS.contains(&field.as_str())) {
        let known = FIELDS.join(", ");
        return Err(invalid(format!("{field:?} is no field of a chat; they are {known}")));
    }
    let messages = root.remove("messages").ok_or_else(|| invalid("messages is missing"))?;
    let mut chat = Map::new();
    chat.insert("messages".into(), checked_messages(messages)?);
    chat.insert("tools".into(), checked_tools(root.remove("tools").unwrap_or_default())?);
    chat.insert("documents".into(), Value::Null);
    let to_reply = match root.remove("add_generation_prompt").unwrap_or_default() {
        Value::Null => Value::Bool(true),
        flag if flag.is_boolean() => flag,
        other => return Err(wrong("add_generation_prompt", "true or false", &other)),
    };
    chat.insert("add_generation_prompt".into(), to_reply);
    match root.remove("enable_thinking").unwrap_or_default() {
        Value::Null => {}
        flag if flag.is_boolean() => drop(chat.insert("enable_thinking".into(), flag)),
        other => return Err(wrong("enable_thinking", "true or false", &other)),
    }
    match root.remove("template_args").unwrap_or_default() {
        Value::Null => {}
        Value::Object(args) => {
            for (name, value) in args {
                if chat.contains_key(&name) {
                    return Err(invalid(format!("template_args.{name}: the chat gives this itself")));
                }
                chat.insert(name, value);
            }
        }
        other => return Err(wrong("template_args", "an object", &other)),
    }
    chat.iter().try_for_each(|(field, value)| check_depth(value, field, MAX_CHAT_DEPTH))?;
    Ok(chat)
}

fn wrong(place: &str, expected: &str, found: &Value) -> Error {
    let found = match found {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    };
    invalid(format!("{place}: expected {expected}, found {found}"))
}

fn check_depth(value: &Value, field: &str, left: usize) -> Result<()> {
    let inner: Box<dyn Iterator<Item = &Value>> = match value {
        Value::Array(items) => Box::new(items.iter()),
        Value::Object(fields) => Box::new(fields.values()),
        _ => return Ok(()),
    };
    if left == 0 {
        return Err(invalid(format!("{field}: nested more than {MAX_CHAT_DEPTH} deep")));
    }
    inner.into_iter().try_for_each(|item| check_depth(item, field, left - 1))
}

fn checked_tools(tools: Value) -> Result<Value> {
    match &tools {
        Value::Null => {}
        Value::Array(list) => {
            if let Some(place) = list.iter().position(|tool| !tool.is_object()) {
                return Err(wrong(&format!("tools[{place}]"), "an object", &list[place]));
            }
        }
        other => return Err(wrong("tools", "a list", other)),
    }
    Ok(tools)
}

fn checked_messages(mut messages: Value) -> Result<Value> {
    let Value::Array(list) = &mut messages else { return Err(wrong("messages", "a list", &messages)) };
    if list.len() > MAX_MESSAGES {
        return Err(Error::new(Code::Limit, format!("messages: {} of them, more than {MAX_MESSAGES}", list.len())));
    }
    for (i, message) in list.iter_mut().enumerate() {
        let place = format!("messages[{i}]");
        let Value::Object(message) = message else { return Err(wrong(&place, "an object", message)) };
        match message.get("role") {
            Some(Value::String(_)) => {}
            Some(other) => return Err(wrong(&format!("{place}.role"), "a string", other)),
            None => return Err(invalid(format!("{place}.role is missing"))),
        }
        check_content(message.get("content").unwrap_or(&Value::Null), &place)?;
        match message.get_mut("tool_calls") {
            None | Some(Value::Null) => {}
            Some(Value::Array(calls)) => {
                for (j, call) in calls.iter_mut().enumerate() {
                    check_call(call, &format!("{place}.tool_calls[{j}]"))?;
                }
            }
            Some(other) => return Err(wrong(&format!("{place}.tool_calls"), "a list", other)),
        }
    }
    Ok(messages)
}

fn check_content(content: &Value, place: &str) -> Result<()> {
    let parts = match content {
        Value::Null | Value::String(_) => return Ok(()),
        Value::Array(parts) => parts,
        other => return Err(wrong(&format!("{place}.content"), "a string or a list of parts", other)),
    };
    for (i, part) in parts.iter().enumerate() {
        let place = format!("{place}.content[{i}]");
        if !part.is_object() {
            return Err(wrong(&place, "an object", part));
        }
        match (&part["type"], &part["text"]) {
            (Value::String(kind), Value::String(_)) if kind == "text" => {}
            (Value::String(kind), other) if kind == "text" => {
                return Err(wrong(&format!("{place}.text"), "a string", other));
            }
            (Value::String(kind), _) if kind == "image" || kind == "video" => {}
            (Value::String(kind), _) => {
                return Err(invalid(format!("{place}.type: expected text, image or video, found {kind:?}")));
            }
            (other, _) => return Err(wrong(&format!("{place}.type"), "text, image or video", other)),
        }
    }
    Ok(())
}

/// Checks `{"function": {"name", "arguments"}}`, or the inner object alone; arguments given as text become an object.
fn check_call(call: &mut Value, place: &str) -> Result<()> {
    if !call.is_object() {
        return Err(wrong(place, "an object", call));
    }
    let inside = call.get("function").is_some();
    let place = if inside { format!("{place}.function") } else { place.to_owned() };
    let function = if inside { &mut call["function"] } else { call };
    let Value::Object(function) = function else { return Err(wrong(&place, "an object", function)) };
    match function.get("name") {
        Some(Value::String(_)) => {}
        other => return Err(wrong(&format!("{place}.name"), "a string", other.unwrap_or(&Value::Null))),
    }
    let place = format!("{place}.arguments");
    match function.get_mut("arguments") {
        None | Some(Value::Object(_)) => Ok(()),
        Some(Value::String(text)) => {
            let parsed = if text.trim().is_empty() {
                Value::Object(Map::new())
            } else {
                serde_json::from_str(text).map_err(|e| invalid(format!("{place}: not JSON: {e}")))?
            };
            if !parsed.is_object() {
                return Err(wrong(&place, "an object", &parsed));
            }
            function.insert("arguments".into(), parsed);
            Ok(())
        }
        Some(other) => Err(wrong(&place, "an object, or one as a JSON string", other)),
    }
}

/// The place of the first part of type image or video.
fn first_picture(chat: &Map<String, Value>) -> Option<String> {
    let messages = chat["messages"].as_array()?;
    messages.iter().enumerate().find_map(|(i, message)| {
        let parts = message["content"].as_array()?;
        let part = parts.iter().position(|part| part["type"] == "image" || part["type"] == "video")?;
        Some(format!("messages[{i}].content[{part}]"))
    })
}
