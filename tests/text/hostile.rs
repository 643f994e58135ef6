//! Damaged files and chats: a result or an error, in time, and never a panic.

use super::rng::Rng;
use super::support::{checkpoint_file, rendered};
use lfm3::text::{ChatTemplate, SpecialTokens, Tokenizer, choose_template, special_tokens};
use std::time::{Duration, Instant};

/// `good` cut at `cuts` places, then with one to four bytes changed, `flips` times.
fn damaged(good: &[u8], cuts: usize, flips: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut rng = Rng(11);
    let truncated = (0..cuts).map(move |i| good[..good.len() * i / cuts].to_vec());
    truncated.chain((0..flips).map(move |_| {
        let mut bytes = good.to_vec();
        for _ in 0..1 + rng.below(4) {
            let place = rng.below(bytes.len());
            let values = if rng.below(4) == 0 { 256 } else { 128 };
            bytes[place] = rng.below(values) as u8;
        }
        bytes
    }))
}

/// Calls `f` with every damaged form, each within a few seconds; how many were accepted.
fn survive(good: &[u8], cuts: usize, flips: usize, mut f: impl FnMut(&[u8]) -> bool) -> usize {
    damaged(good, cuts, flips)
        .filter(|bytes| {
            let start = Instant::now();
            let accepted = f(bytes);
            assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
            accepted
        })
        .count()
}

#[test]
fn damaged_tokenizers_load_or_give_an_error() {
    let good = checkpoint_file("tokenizer.json");
    let accepted = survive(&good, 200, 500, |bytes| match Tokenizer::load(bytes, "tokenizer.json") {
        Ok(tokenizer) => {
            // What a damaged split leaves out of the text is lost, but nothing fails.
            tokenizer.encode("Hello  it's\n\n<|im_end|> 12345 日本", true).is_ok()
        }
        Err(error) => {
            assert!(error.message.starts_with("tokenizer.json: "), "{error}");
            false
        }
    });
    assert!(accepted > 0, "{accepted}");
    // Where all but the vocabulary stands, flips are likelier to be accepted.
    let text = String::from_utf8(good).unwrap();
    let regex = text.find("\"pattern\"").unwrap();
    survive(&text.as_bytes()[regex..regex + 200], 0, 60, |bytes| {
        let json = [&text.as_bytes()[..regex], bytes, &text.as_bytes()[regex + 200..]].concat();
        let loaded = Tokenizer::load(&json, "tokenizer.json");
        loaded.is_ok_and(|tokenizer| tokenizer.encode(&" a1\n".repeat(300), false).is_ok())
    });
}

#[test]
fn damaged_configs_give_tokens_or_an_error() {
    let good = checkpoint_file("tokenizer_config.json");
    let accepted = survive(&good, good.len(), 2000, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        special_tokens(text).is_ok() & choose_template(None, Some(text)).is_ok()
    });
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn damaged_templates_render_or_give_an_error() {
    let chat = r#"{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes",
        "tool_calls": [{"name": "f", "arguments": {"a": [1]}}]}], "tools": [{"name": "f"}]}"#;
    let good = checkpoint_file("chat_template.jinja");
    let accepted = survive(&good, 400, 2000, |bytes| {
        let source = String::from_utf8_lossy(bytes);
        let Ok(template) = ChatTemplate::load(&source, "t.jinja", SpecialTokens::default()) else { return false };
        rendered(chat, &template, &[]).is_ok()
    });
    assert!(accepted > 100, "{accepted}");
}

#[test]
fn damaged_chats_render_or_give_an_error() {
    let source = String::from_utf8(checkpoint_file("chat_template.jinja")).unwrap();
    let template = ChatTemplate::load(&source, "t.jinja", SpecialTokens::default()).unwrap();
    let chat = r#"{"messages": [{"role": "system", "content": "<|im_end|> \ud83d\ude00"}, {"role": "user", "content":
        [{"type": "text", "text": "Most flips should hit what somebody says, since all other names are checked."},
        {"type": "text", "text": "So: where is Ivan, if he walked from the tower to the garden and back, then away?"}]},
        {"role": "assistant", "content": null,
        "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\": [1, 1.5e3, null]}"}}]}],
        "tools": [{"name": "f"}], "enable_thinking": true,
        "add_generation_prompt": true, "template_args": {"x": {"y": [[]]}}}"#;
    let accepted = survive(chat.as_bytes(), chat.len(), 3000, |bytes| {
        let Ok(text) = std::str::from_utf8(bytes) else { return false };
        rendered(text, &template, &[]).is_ok()
    });
    assert!(accepted > 100, "{accepted}");
}
