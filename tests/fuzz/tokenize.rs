//! Any text through the demo's tokenizer: the tokens' bytes are the text again, and no control token comes of it.

#![no_main]

use lfm3::text::Tokenizer;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let json = include_bytes!("../../examples/demo-model/tokenizer.json");
    Tokenizer::load(json, "tokenizer.json").expect("the demo's tokenizer loads")
});

fuzz_target!(|text: &str| {
    let plain = TOKENIZER.encode(text, false).expect("short text has tokens");
    assert!(!plain.iter().any(|id| TOKENIZER.is_control(*id)));
    assert_eq!(TOKENIZER.decode(&plain).expect("they have bytes"), text.as_bytes());
    let with_control = TOKENIZER.encode(text, true).expect("short text has tokens");
    assert_eq!(TOKENIZER.decode(&with_control).expect("they have bytes"), text.as_bytes());
});
