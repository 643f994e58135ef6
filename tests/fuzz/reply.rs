//! Any bytes, however cut, through the reply filter: the same pieces as uncut, no stop string in its texts, arguments
//! that are JSON, and no byte lost.
//!
//! The input is a byte of flags, stop strings each ended by 1, a zero byte, and the reply.

#![no_main]

use lfm3::text::{Piece, ReplyFilter, ToolSchemas};
use libfuzzer_sys::fuzz_target;
use std::sync::{Arc, LazyLock};

static TOOLS: LazyLock<Arc<ToolSchemas>> = LazyLock::new(|| {
    let properties = serde_json::json!({
        "s": {"type": "string"}, "i": {"type": "integer"}, "n": {"type": ["number", "null"]},
        "l": {"type": "array"}, "o": {"type": "object"}, "b": {"anyOf": [{"type": "boolean"}, {"enum": ["x"]}]},
    });
    Arc::new(ToolSchemas::new(&serde_json::json!([{"name": "f", "parameters": {"properties": properties}}])))
});

/// The pieces, neighbours of one kind joined, and the stop string found, when `reply` comes in parts of these lengths,
/// over and over.
fn filtered(stops: &[String], open: bool, mut reply: &[u8], parts: &[usize]) -> Option<(Vec<Piece>, Option<String>)> {
    let mut filter = ReplyFilter::new(stops, open, TOOLS.clone()).ok()?;
    let mut joined: Vec<Piece> = Vec::new();
    let mut take = |pieces: Vec<Piece>| {
        for piece in pieces {
            match (joined.last_mut(), &piece) {
                (Some(Piece::Text(before)), Piece::Text(text)) => before.push_str(text),
                (Some(Piece::Reasoning(before)), Piece::Reasoning(text)) => before.push_str(text),
                _ => joined.push(piece),
            }
        }
    };
    for part in parts.iter().cycle() {
        let (now, later) = reply.split_at((*part).min(reply.len()));
        take(filter.push(now));
        reply = later;
        if reply.is_empty() {
            break;
        }
    }
    take(filter.finish());
    let stopped = filter.stopped().map(str::to_string);
    Some((joined, stopped))
}

/// `text` without tags of thinking, nor what they become one around.
fn without_thinking_tags(text: &str) -> String {
    let shorter = text.replace("<think>", "").replace("</think>", "");
    if shorter.len() == text.len() { shorter } else { without_thinking_tags(&shorter) }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((flags, rest)) = bytes.split_first() else { return };
    let (stops, reply) = rest.split_at(rest.iter().position(|b| *b == 0).unwrap_or(0));
    let stops: Vec<String> =
        stops.split(|b| *b == 1).map(|s| String::from_utf8_lossy(s).into_owned()).filter(|s| !s.is_empty()).collect();
    let open = flags & 1 == 1;
    let Some(whole) = filtered(&stops, open, reply, &[usize::MAX]) else { return };
    let parts = [1 + usize::from(flags >> 1 & 7), 1 + usize::from(flags >> 4), 1];
    assert_eq!(filtered(&stops, open, reply, &parts).as_ref(), Some(&whole));
    let mut texts = String::new();
    for piece in &whole.0 {
        let (Piece::Text(text) | Piece::Reasoning(text) | Piece::ToolCall { text, .. }) = piece;
        texts += text;
        if let Piece::ToolCall { name, arguments, .. } = piece {
            assert!(!name.is_empty());
            serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(arguments).expect("an object");
        } else {
            assert!(stops.iter().all(|stop| !text.contains(stop)), "a stop string is shown: {text:?}");
        }
    }
    if whole.1.is_none() {
        let reply = String::from_utf8_lossy(reply);
        assert_eq!(without_thinking_tags(&texts), without_thinking_tags(&reply));
    }
});
