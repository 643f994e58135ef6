//! Any template and any chat: an error or a prompt, in bounded time, never a panic out of the library.
//!
//! The input is a template, a zero byte, and chat JSON; without a zero byte it is chat JSON for the demo's template.

#![no_main]

use lfm3::engine::Clock;
use lfm3::text::{ChatTemplate, MediaText, MediaTokens, RenderContext, SpecialTokens, Tokenizer, render};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let json = include_bytes!("../../examples/demo-model/tokenizer.json");
    Tokenizer::load(json, "tokenizer.json").expect("the demo's tokenizer loads")
});

fuzz_target!(
    // The library catches panics of the template crate; only those that leave it count.
    init: drop(std::panic::take_hook()),
    |text: &str| {
        let demo = include_str!("../../examples/demo-model/chat_template.jinja");
        let (source, json) = text.split_once('\0').unwrap_or((demo, text));
        let clock = Clock { unix_seconds: Some(1_800_000_000), utc_offset_seconds: 3600 };
        if let Ok(template) = ChatTemplate::load(source, "chat_template.jinja", SpecialTokens::default()) {
            // As many pictures and videos as the chat has of each, where all pictures come first.
            let count = |kind: &str| json.matches(kind).count().min(8);
            let image = MediaText::Image { tokens: 3 };
            let video = MediaText::Video { pairs: vec![(0.25, 2), (1.5, 1)] };
            let media = [vec![image; count("\"image\"")], vec![video; count("\"video\"")]].concat();
            let id = |spelling: &str| TOKENIZER.id_of(spelling);
            let media_tokens = MediaTokens {
                image: id("<|image|>"),
                video: id("<|video|>"),
                start: id("<|vision_start|>"),
                end: id("<|vision_end|>"),
            };
            let (template, tokenizer, clock, media) = (&template, &*TOKENIZER, &clock, &*media);
            let _ = render(json, &RenderContext { template, tokenizer, clock, media, media_tokens });
        }
    }
);
