//! The tokenizer: control tokens, bytes, and texts made to be slow.

use super::support::{checkpoint_file, demo_tokenizer};
use lfm3::error::Code;
use lfm3::text::Tokenizer;
use std::time::{Duration, Instant};

#[test]
fn control_tokens_appear_only_when_asked_for() {
    let tokenizer = demo_tokenizer();
    let text = "<|im_start|>user\nhi<|im_end|>";
    let with = tokenizer.encode(text, true).unwrap();
    let without = tokenizer.encode(text, false).unwrap();
    assert_eq!(with.first().copied(), tokenizer.id_of("<|im_start|>"));
    assert_eq!(with.last().copied(), tokenizer.id_of("<|im_end|>"));
    assert!(without.iter().all(|&id| !tokenizer.is_control(id)));
    for tokens in [with, without] {
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text.as_bytes());
    }
}

#[test]
fn the_leftmost_longest_spelling_wins() {
    let json =
        tiny(r#"[{"id": 300, "content": "<a"}, {"id": 301, "content": "<a>b"}, {"id": 303, "content": "<a>c"}]"#);
    let tokenizer = Tokenizer::load(json.as_bytes(), "tokenizer.json").unwrap();
    assert_eq!(tokenizer.encode("<a>b", true).unwrap(), [301]);
    assert_eq!(tokenizer.encode("<a>", true).unwrap(), [300, byte_id(b'>')]);
    assert_eq!(tokenizer.encode("<a><a>c<", true).unwrap(), [300, byte_id(b'>'), 303, byte_id(b'<')]);
    assert_eq!(tokenizer.encode("<a>zz", true).unwrap(), [300, byte_id(b'>'), byte_id(b'z'), byte_id(b'z')]);
    assert_eq!(tokenizer.encode("<a>", false).unwrap(), b"<a>".map(byte_id));
}

#[test]
fn control_tokens_inside_the_vocabulary_leave_the_bpe() {
    // "ab" is merged, and a control token too.
    let json = tiny(r#"[{"id": 256, "content": "ab"}]"#);
    let tokenizer = Tokenizer::load(json.as_bytes(), "tokenizer.json").unwrap();
    assert_eq!(tokenizer.encode("ab", false).unwrap(), [byte_id(b'a'), byte_id(b'b')]);
    assert_eq!(tokenizer.encode("ab", true).unwrap(), [256]);
    let plain = Tokenizer::load(tiny("[]").as_bytes(), "tokenizer.json").unwrap();
    assert_eq!(plain.encode("ab", true).unwrap(), [256]);
}

#[test]
fn every_text_decodes_to_itself() {
    let tokenizer = demo_tokenizer();
    let all: String = (1..0x3000).filter_map(char::from_u32).collect();
    for text in ["", " ", "Grüße 日本 😀\u{0}\r\n\t\u{fdd0}", "it's  the\n\n end ", &all] {
        let tokens = tokenizer.encode(text, false).unwrap();
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text.as_bytes());
    }
}

#[test]
fn ids_without_a_token_are_refused() {
    let tokenizer = demo_tokenizer();
    let beyond = tokenizer.vocab_size() as u32;
    assert_eq!(tokenizer.token_bytes(beyond), None);
    assert!(!tokenizer.is_control(u32::MAX));
    let error = tokenizer.decode(&[0, beyond]).unwrap_err();
    assert_eq!((error.code, error.message.contains("tokens[1]")), (Code::InvalidArgument, true), "{error}");
    let one = tokenizer.decode(&[1]).unwrap();
    assert_eq!(tokenizer.decode(&[1, 1]).unwrap(), one.repeat(2));
}

#[test]
fn a_megabyte_of_anything_is_encoded_in_time() {
    let tokenizer = demo_tokenizer();
    let megabyte = |s: &str| s.repeat((1 << 20) / s.len());
    let spaces = megabyte(" ");
    for text in [
        megabyte("a"),
        megabyte("the "),
        spaces.clone(),
        format!("{spaces}x"),
        format!("x{spaces}\nx"),
        megabyte("\n"),
        megabyte(" \n"),
        megabyte("'"),
        megabyte("<|im_end"),
        megabyte("<"),
        megabyte("😀"),
        megabyte("1"),
        megabyte("a,b.c;d "),
    ] {
        let start = Instant::now();
        let tokens = tokenizer.encode(&text, true).unwrap();
        let took = start.elapsed();
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text.as_bytes());
        println!("{:?}: {} tokens in {took:?}", &text[..8], tokens.len());
        assert!(took < Duration::from_secs(30), "{:?}: {took:?}", &text[..8]);
    }
    assert_eq!(tokenizer.encode(&"a".repeat(5 << 20), false).unwrap_err().code, Code::Limit);
}

#[test]
fn other_vocabularies_are_refused_by_name() {
    let cases = [
        (r#""type": "BPE""#, r#""type": "Unigram""#, "Unigram"),
        (r#""byte_fallback": false"#, r#""byte_fallback": true"#, "byte_fallback"),
        (r#""unk_token": null"#, r#""unk_token": "<unk>""#, "unk_token"),
        (r#""normalizer": null"#, r#""normalizer": {"type": "Lowercase"}"#, "Lowercase"),
        (
            r#"{"type": "ByteLevel", "add_prefix_space": false"#,
            r#"{"type": "Metaspace", "add_prefix_space": false"#,
            "Metaspace",
        ),
        (r#""add_prefix_space": false"#, r#""add_prefix_space": true"#, "add_prefix_space"),
        (r#""decoder": {"type": "ByteLevel""#, r#""decoder": {"type": "WordPiece""#, "WordPiece"),
        (r#""behavior": "Isolated""#, r#""behavior": "Removed""#, "Removed"),
        (r#""\u0100": 0,"#, "", "byte 0"),
        ("\"added_tokens\": []", r#""added_tokens": [{"id": 400, "content": "x", "lstrip": true}]"#, "lstrip"),
    ];
    for (from, to, name) in cases {
        let json = tiny("[]");
        assert!(json.contains(from), "{from} in {json}");
        let error = Tokenizer::load(json.replace(from, to).as_bytes(), "t.json").err().expect(name);
        assert_eq!(error.code, Code::Unsupported, "{error}");
        assert!(error.message.starts_with("t.json: ") && error.message.contains(name), "{name}: {error}");
    }
}

#[test]
fn broken_tokenizers_give_errors() {
    let good = String::from_utf8(checkpoint_file("tokenizer.json")).unwrap();
    for (from, to) in [
        (r#""id": 3968"#, r#""id": 4294967296"#),
        (r#""id": 3968"#, r#""id": -1"#),
        (r#""id": 3968"#, r#""id": 3969"#),
        (r#""id": 3968"#, r#""id": 5"#),
        ("<|pad|>", "<|im_end|>"),
        ("<|pad|>", ""),
    ] {
        assert!(good.contains(from), "{from}");
        let error = Tokenizer::load(good.replacen(from, to, 1).as_bytes(), "t.json").err().expect(to);
        assert!(error.message.starts_with("t.json: "), "{error}");
    }
    for bad in
        ["", "{}", "[]", "null", "{\"model\": 3}", &"[".repeat(100_000), "{\"model\":{\"type\":\"BPE\",\"merges\":[]}}"]
    {
        assert!(Tokenizer::load(bad.as_bytes(), "t.json").is_err(), "{bad:.40}");
    }
}

/// Id of a byte in `tiny`.
fn byte_id(byte: u8) -> u32 {
    byte as u32
}

/// A tokenizer of the 256 bytes, one merge (a b, id 256) and `added`.
fn tiny(added: &str) -> String {
    let printable = |b: &u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let mut next = 256;
    let mut vocab = Vec::new();
    for byte in 0..=255u8 {
        let c = if printable(&byte) {
            byte as u32
        } else {
            next += 1;
            next - 1
        };
        vocab.push(format!("\"\\u{c:04x}\": {byte}"));
    }
    vocab.push("\"ab\": 256".into());
    let vocab = vocab.join(",");
    format!(
        r#"{{"added_tokens": {added}, "normalizer": null, "pre_tokenizer": {{"type": "Sequence", "pretokenizers": [
        {{"type": "Split", "pattern": {{"Regex": "[a-z]+|[^a-z]+"}}, "behavior": "Isolated", "invert": false}},
        {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}}]}},
        "decoder": {{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}},
        "model": {{"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false,
        "vocab": {{{vocab}}}, "merges": ["a b"]}}}}"#
    )
}
