//! Chat JSON: every part of it checked, the place named where it is wrong.

use super::media::MediaText;
use crate::error::{Code, Error, Result};
use serde_json::{Map, Value};

/// Longest chat JSON, in bytes.
const MAX_CHAT_BYTES: usize = 16 << 20;
/// Deepest nesting of lists and objects, those of tool-call arguments given as text included.
const MAX_CHAT_DEPTH: usize = 64;
/// Most messages.
const MAX_MESSAGES: usize = 100_000;
/// Fields of the chat JSON.
const FIELDS: [&str; 5] = ["messages", "tools", "enable_thinking", "add_generation_prompt", "template_args"];
/// Fields of a message.
const MESSAGE_FIELDS: [&str; 7] =
    ["role", "content", "tool_calls", "tool_call_id", "name", "reasoning_content", "thinking"];
/// Who may speak.
const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
/// Fields of a part of text.
const TEXT_FIELDS: [&str; 2] = ["type", "text"];
/// Fields of a picture or video. Where it came from is the host's note: nothing is read from there.
const MEDIA_FIELDS: [&str; 2] = ["type", "path"];

/// The template's variables from the chat JSON, every part of it checked.
pub(super) fn parse(json: &str) -> Result<Map<String, Value>> {
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

fn invalid(what: impl Into<String>) -> Error {
    Error::new(Code::InvalidArgument, what)
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
    if list.is_empty() {
        return Err(invalid("messages is empty: expected at least one"));
    }
    if list.len() > MAX_MESSAGES {
        return Err(Error::new(Code::Limit, format!("messages: {} of them, more than {MAX_MESSAGES}", list.len())));
    }
    for (i, message) in list.iter_mut().enumerate() {
        check_message(message, &format!("messages[{i}]"))?;
    }
    Ok(messages)
}

fn check_message(message: &mut Value, place: &str) -> Result<()> {
    let Value::Object(message) = message else { return Err(wrong(place, "an object", message)) };
    check_fields(message, &MESSAGE_FIELDS, "a message", place)?;
    match message.get("role") {
        Some(Value::String(role)) if ROLES.contains(&role.as_str()) => {}
        Some(Value::String(role)) => {
            return Err(invalid(format!("{place}.role: {role:?} is no role; they are {}", ROLES.join(", "))));
        }
        Some(other) => return Err(wrong(&format!("{place}.role"), "a string", other)),
        None => return Err(invalid(format!("{place}.role is missing"))),
    }
    for field in ["tool_call_id", "name", "reasoning_content", "thinking"] {
        match message.get(field) {
            None | Some(Value::Null | Value::String(_)) => {}
            Some(other) => return Err(wrong(&format!("{place}.{field}"), "a string", other)),
        }
    }
    let has_calls = match message.get_mut("tool_calls") {
        None | Some(Value::Null) => false,
        Some(Value::Array(calls)) => {
            for (j, call) in calls.iter_mut().enumerate() {
                check_call(call, &format!("{place}.tool_calls[{j}]"))?;
            }
            !calls.is_empty()
        }
        Some(other) => return Err(wrong(&format!("{place}.tool_calls"), "a list", other)),
    };
    match message.get("content") {
        None | Some(Value::Null) if has_calls => Ok(()),
        None | Some(Value::Null) => Err(invalid(format!("{place}.content is missing"))),
        Some(content) => check_content(content, place),
    }
}

/// Refuses fields of `object`, which is `what`, that are not `known`.
fn check_fields(object: &Map<String, Value>, known: &[&str], what: &str, place: &str) -> Result<()> {
    match object.keys().find(|field| !known.contains(&field.as_str())) {
        Some(field) => {
            let known = known.join(", ");
            Err(invalid(format!("{place}.{field}: no field of {what}; they are {known}")))
        }
        None => Ok(()),
    }
}

fn check_content(content: &Value, place: &str) -> Result<()> {
    let parts = match content {
        Value::Null | Value::String(_) => return Ok(()),
        Value::Array(parts) => parts,
        other => return Err(wrong(&format!("{place}.content"), "a string or a list of parts", other)),
    };
    for (i, part) in parts.iter().enumerate() {
        let place = format!("{place}.content[{i}]");
        let Value::Object(part) = part else { return Err(wrong(&place, "an object", part)) };
        let kind = match part.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            other => {
                return Err(wrong(&format!("{place}.type"), "text, image or video", other.unwrap_or(&Value::Null)));
            }
        };
        match (kind, part.get("text")) {
            ("text", Some(Value::String(_))) => check_fields(part, &TEXT_FIELDS, "a part of type text", &place)?,
            ("text", other) => {
                return Err(wrong(&format!("{place}.text"), "a string", other.unwrap_or(&Value::Null)));
            }
            ("image" | "video", _) => check_fields(part, &MEDIA_FIELDS, &format!("a part of type {kind}"), &place)?,
            _ => {
                return Err(invalid(format!("{place}.type: expected text, image or video, found {kind:?}")));
            }
        }
    }
    Ok(())
}

/// Checks the parts of type image and video of a checked chat against what was given for them.
pub(super) fn check_media(chat: &Map<String, Value>, media: &[MediaText]) -> Result<()> {
    let mut parts = 0;
    for (i, message) in chat["messages"].as_array().into_iter().flatten().enumerate() {
        for (j, part) in message["content"].as_array().into_iter().flatten().enumerate() {
            let is_image = match part["type"].as_str() {
                Some("image") => true,
                Some("video") => false,
                _ => continue,
            };
            let (index, kind) = (parts, if is_image { "an image" } else { "a video" });
            parts += 1;
            match media.get(index) {
                Some(medium) if matches!(medium, MediaText::Image { .. }) != is_image => {
                    let other = if is_image { "a video" } else { "an image" };
                    let place = format!("messages[{i}].content[{j}]");
                    return Err(invalid(format!("{place} is {kind}, but media {index} is {other}")));
                }
                _ => {}
            }
        }
    }
    if parts != media.len() {
        let given = media.len();
        return Err(invalid(format!("the chat has {parts} parts of type image or video, and {given} media are given")));
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
