//! A tokenizer.json of any content, then text: an error or tokens, never a panic out of the library.

#![no_main]

use lfm3::text::Tokenizer;
use libfuzzer_sys::fuzz_target;

fuzz_target!(
    // The library catches panics of the tokenizer crate; only those that leave it count.
    init: drop(std::panic::take_hook()),
    |bytes: &[u8]| {
        let (json, text) = bytes.split_at(bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len()));
        if let Ok(tokenizer) = Tokenizer::load(json, "tokenizer.json") {
            let text = String::from_utf8_lossy(text);
            for control in [false, true] {
                if let Ok(tokens) = tokenizer.encode(&text, control) {
                    tokenizer.decode(&tokens).expect("its own tokens have bytes");
                }
            }
        }
    }
);
