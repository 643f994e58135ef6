//! Byte-level BPE: text to tokens and tokens to bytes. Control tokens are split off here, not in the BPE.

use crate::error::{Code, Error, Result};
use serde_json::Value;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Largest tokenizer.json, in bytes.
pub const MAX_TOKENIZER_BYTES: usize = 64 << 20;
/// Token ids are below this.
pub const MAX_VOCAB: usize = 1 << 20;
/// Most control tokens.
const MAX_CONTROL_TOKENS: usize = 1 << 16;
/// Longest spelling of a control token, in bytes.
const MAX_CONTROL_BYTES: usize = 256;
/// Longest text encoded in one run, in bytes: several contexts. The encoder needs some 300 bytes for each.
const MAX_TEXT_BYTES: usize = 4 << 20;
/// Fields of the BPE model that change its meaning, with the values under which they do not.
const MODEL_FIELDS: [(&str, &[&str]); 5] = [
    ("dropout", &["null", "0.0", "0"]),
    ("unk_token", &["null"]),
    ("continuing_subword_prefix", &["null", "\"\""]),
    ("end_of_word_suffix", &["null", "\"\""]),
    ("byte_fallback", &["null", "false"]),
];

/// A checkpoint's tokenizer.
pub struct Tokenizer {
    bpe: tokenizers::Tokenizer,
    /// Bytes of each id; `None` where there is no such token.
    bytes: Vec<Option<Box<[u8]>>>,
    control: Control,
    ids: HashMap<Box<[u8]>, u32>,
}

/// Spellings of control tokens.
struct Control {
    /// Ascending, with their ids.
    spellings: Vec<(Box<str>, u32)>,
    is_control: Vec<bool>,
    /// Whether a spelling begins with this byte.
    first_byte: [bool; 256],
}

impl Control {
    /// The longest spelling that `text` begins with: its length and id.
    fn at_start(&self, text: &str) -> Option<(usize, u32)> {
        if !text.bytes().next().is_some_and(|first| self.first_byte[first as usize]) {
            return None;
        }
        // A spelling that begins `text` sorts at or before it, and longer ones later; what lies between two such shares
        // the shorter as a prefix, so a mismatch tells how much may still match.
        let mut known = text.len().min(MAX_CONTROL_BYTES);
        loop {
            let prefix = &text.as_bytes()[..known];
            let at = self.spellings.partition_point(|(s, _)| s.as_bytes() <= prefix);
            let (spelling, id) = self.spellings.get(at.checked_sub(1)?)?;
            if prefix.starts_with(spelling.as_bytes()) {
                return Some((spelling.len(), *id));
            }
            known = spelling.bytes().zip(prefix).take_while(|(a, b)| a == *b).count();
            if known == 0 {
                return None;
            }
        }
    }

    /// The first, longest spelling in `text`: start, length, id.
    fn find(&self, text: &str) -> Option<(usize, usize, u32)> {
        let starts = text.bytes().enumerate().filter(|(_, b)| self.first_byte[*b as usize]);
        starts.into_iter().find_map(|(start, _)| self.at_start(&text[start..]).map(|(len, id)| (start, len, id)))
    }
}

fn format_error(file: &str, what: impl std::fmt::Display) -> Error {
    Error::new(Code::Format, format!("{file}: {what}"))
}

fn unsupported(file: &str, what: impl std::fmt::Display) -> Error {
    Error::new(Code::Unsupported, format!("{file}: {what}; this version reads byte-level BPE vocabularies"))
}

impl Tokenizer {
    /// Reads the content of a tokenizer.json; `file` names it in errors. Fails with `Format` where it is broken,
    /// `Unsupported` where it is anything but byte-level BPE, `Limit` over 64 MiB.
    pub fn load(json: &[u8], file: &str) -> Result<Tokenizer> {
        if json.len() > MAX_TOKENIZER_BYTES {
            let found = json.len();
            return Err(Error::new(Code::Limit, format!("{file}: {found} bytes, more than {MAX_TOKENIZER_BYTES}")));
        }
        // The tokenizer crate is not ours: a panic in it is an error of this file.
        catch_unwind(AssertUnwindSafe(|| Self::load_unguarded(json, file)))
            .unwrap_or_else(|_| Err(format_error(file, "the tokenizer cannot be built")))
    }

    fn load_unguarded(json: &[u8], file: &str) -> Result<Tokenizer> {
        let mut root: Value = serde_json::from_slice(json).map_err(|e| format_error(file, e))?;
        let object = root.as_object_mut().ok_or_else(|| format_error(file, "expected an object"))?;
        check_form(object, file)?;
        let added = control_tokens(&object.remove("added_tokens").unwrap_or_default(), file)?;
        let model = object.get_mut("model").and_then(Value::as_object_mut);
        let model = model.ok_or_else(|| format_error(file, "model: expected an object"))?;
        let mut bytes = vocabulary_bytes(model, file)?;
        remove_control(model, &added, &mut bytes, file)?;
        for unused in ["truncation", "padding", "post_processor", "decoder"] {
            object.insert(unused.into(), Value::Null);
        }
        object.insert("added_tokens".into(), Value::Array(vec![]));
        object.insert("version".into(), "1.0".into());
        let bpe = serde_json::from_value(root).map_err(|e| format_error(file, e))?;

        let mut is_control = vec![false; bytes.len()];
        for (spelling, id) in &added {
            let place = *id as usize;
            if place >= bytes.len() {
                bytes.resize(place + 1, None);
                is_control.resize(place + 1, false);
            }
            if bytes[place].is_some() {
                return Err(format_error(file, format!("added_tokens: id {id} is taken twice")));
            }
            bytes[place] = Some(spelling.as_bytes().into());
            is_control[place] = true;
        }
        let mut first_byte = [false; 256];
        added.iter().for_each(|(s, _)| first_byte[s.as_bytes()[0] as usize] = true);
        let ids = bytes.iter().enumerate().filter_map(|(id, b)| Some((b.clone()?, id as u32))).collect();
        let control = Control { spellings: added, is_control, first_byte };
        Ok(Tokenizer { bpe, bytes, control, ids })
    }

    /// Tokens of `text`, nothing added. With `control` the spellings of control tokens become them, the leftmost and
    /// longest first; without, they are text like any other. Fails with `Limit` where more
    /// than 4 MiB stand between control tokens.
    pub fn encode(&self, text: &str, control: bool) -> Result<Vec<u32>> {
        let mut tokens = Vec::new();
        if !control {
            self.encode_plain(text, &mut tokens)?;
            return Ok(tokens);
        }
        let mut rest = text;
        while let Some((start, len, id)) = self.find_control(rest) {
            self.encode_plain(&rest[..start], &mut tokens)?;
            tokens.push(id);
            rest = &rest[start + len..];
        }
        self.encode_plain(rest, &mut tokens)?;
        Ok(tokens)
    }

    /// The first, longest spelling of a control token in `text`: its start and length in bytes, and the id.
    pub fn find_control(&self, text: &str) -> Option<(usize, usize, u32)> {
        self.control.find(text)
    }

    /// The longest spelling of a control token that `text` begins with: its length in bytes, and the id.
    pub fn control_at_start(&self, text: &str) -> Option<(usize, u32)> {
        self.control.at_start(text)
    }

    /// Spellings of the control tokens with their ids, in ascending order of spelling.
    pub fn control_tokens(&self) -> impl Iterator<Item = (&str, u32)> {
        self.control.spellings.iter().map(|(s, id)| (&**s, *id))
    }

    /// Appends the tokens of `text` as one run of ordinary text.
    pub(super) fn encode_plain(&self, text: &str, tokens: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        if text.len() > MAX_TEXT_BYTES {
            let found = text.len();
            return Err(Error::new(Code::Limit, format!("the text has {found} bytes, more than {MAX_TEXT_BYTES}")));
        }
        let encoded = catch_unwind(AssertUnwindSafe(|| self.bpe.encode_fast(text, false)));
        match encoded {
            Ok(Ok(encoding)) => tokens.extend_from_slice(encoding.get_ids()),
            Ok(Err(error)) => {
                return Err(Error::new(Code::Format, format!("the tokenizer failed on the text: {error}")));
            }
            Err(_) => return Err(Error::new(Code::Internal, "the tokenizer failed on the text")),
        }
        Ok(())
    }

    /// Bytes of a token's text; a control token's are its spelling. `None` where the tokenizer has no such token.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.bytes.get(id as usize)?.as_deref()
    }

    /// Whether `id` is a control token.
    pub fn is_control(&self, id: u32) -> bool {
        self.control.is_control.get(id as usize).copied().unwrap_or(false)
    }

    /// The token whose bytes are exactly `text`.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.ids.get(text.as_bytes()).copied()
    }

    /// Ids are below this; some below it may have no token. The model's own vocabulary may be larger.
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// Bytes of the tokens' text, not always whole UTF-8. Fails with `InvalidArgument` on an id without a token.
    pub fn decode(&self, tokens: &[u32]) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        for (place, &id) in tokens.iter().enumerate() {
            let token = self.token_bytes(id).ok_or_else(|| {
                Error::new(Code::InvalidArgument, format!("tokens[{place}]: the tokenizer has no token {id}"))
            })?;
            bytes.extend_from_slice(token);
        }
        Ok(bytes)
    }
}

/// Refuses, by name, whatever is not byte-level BPE.
fn check_form(root: &serde_json::Map<String, Value>, file: &str) -> Result<()> {
    let model = root.get("model").ok_or_else(|| format_error(file, "model is missing"))?;
    // Old files have no type; theirs is told by the merges.
    let kind = model.get("type").and_then(Value::as_str).unwrap_or("BPE");
    if kind != "BPE" || model.get("merges").is_none() {
        return Err(unsupported(file, format!("model.type is {kind}")));
    }
    for (field, neutral) in MODEL_FIELDS {
        let value = model.get(field).unwrap_or(&Value::Null).to_string();
        if !neutral.contains(&value.as_str()) {
            return Err(unsupported(file, format!("model.{field} is {value}")));
        }
    }
    match &root.get("normalizer").unwrap_or(&Value::Null)["type"] {
        Value::Null => {}
        Value::String(kind) if kind == "NFC" => {}
        other => return Err(unsupported(file, format!("normalizer.type is {other}"))),
    }
    match &root.get("decoder").unwrap_or(&Value::Null)["type"] {
        Value::Null => {}
        Value::String(kind) if kind == "ByteLevel" => {}
        other => return Err(unsupported(file, format!("decoder.type is {other}"))),
    }
    check_pre_tokenizer(root.get("pre_tokenizer").unwrap_or(&Value::Null), file)
}

fn check_pre_tokenizer(pre: &Value, file: &str) -> Result<()> {
    let alone = std::slice::from_ref(pre);
    let steps = match pre["type"].as_str() {
        Some("Sequence") => pre["pretokenizers"].as_array().map_or(alone, Vec::as_slice),
        _ => alone,
    };
    let (last, before) = steps.split_last().ok_or_else(|| unsupported(file, "pre_tokenizer is empty"))?;
    for step in before {
        match (&step["type"], &step["behavior"]) {
            (Value::String(kind), Value::String(behavior)) if kind == "Split" && behavior != "Removed" => {}
            (Value::String(kind), _) if kind == "Digits" => {}
            (kind, behavior) => {
                return Err(unsupported(file, format!("pre_tokenizer has a step {kind}, behavior {behavior}")));
            }
        }
    }
    match (&last["type"], &last["add_prefix_space"]) {
        (Value::String(kind), Value::Bool(false)) if kind == "ByteLevel" => Ok(()),
        (kind, space) => Err(unsupported(file, format!("pre_tokenizer ends in {kind}, add_prefix_space {space}"))),
    }
}

/// Added tokens in ascending order of spelling.
fn control_tokens(added: &Value, file: &str) -> Result<Vec<(Box<str>, u32)>> {
    let empty = vec![];
    let added = match added {
        Value::Null => &empty,
        other => other.as_array().ok_or_else(|| format_error(file, "added_tokens: expected a list"))?,
    };
    if added.len() > MAX_CONTROL_TOKENS {
        let found = added.len();
        return Err(Error::new(Code::Limit, format!("{file}: {found} added_tokens, more than {MAX_CONTROL_TOKENS}")));
    }
    let mut tokens = Vec::with_capacity(added.len());
    for (place, token) in added.iter().enumerate() {
        let wrong = |what: &str| format_error(file, format!("added_tokens[{place}]: {what}"));
        let id = token["id"].as_u64().filter(|&id| id < MAX_VOCAB as u64);
        let id = id.ok_or_else(|| wrong(&format!("id: expected an integer below {MAX_VOCAB}")))?;
        let content = token["content"].as_str().ok_or_else(|| wrong("content: expected a string"))?;
        if content.is_empty() || content.len() > MAX_CONTROL_BYTES {
            return Err(wrong(&format!("content: expected 1 to {MAX_CONTROL_BYTES} bytes, found {}", content.len())));
        }
        for flag in ["single_word", "lstrip", "rstrip"] {
            if token[flag].as_bool() == Some(true) {
                return Err(unsupported(file, format!("added_tokens[{place}] ({content}) has {flag}")));
            }
        }
        tokens.push((Box::from(content), id as u32));
    }
    tokens.sort();
    if let Some(pair) = tokens.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        return Err(format_error(file, format!("added_tokens: {} stands twice", pair[0].0)));
    }
    Ok(tokens)
}

/// The byte each character of the byte-level alphabet stands for: printable Latin-1 is itself, the rest follows from
/// 256.
fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let moved = (0..=255u8).filter(|&b| !printable(b)).zip(256u32..).map(|(b, c)| (char::from_u32(c), b));
    let kept = (0..=255u8).filter(|&b| printable(b)).map(|b| (Some(b as char), b));
    kept.chain(moved).filter_map(|(c, b)| Some((c?, b))).collect()
}

/// Bytes of each id of `model.vocab`.
fn vocabulary_bytes(model: &serde_json::Map<String, Value>, file: &str) -> Result<Vec<Option<Box<[u8]>>>> {
    let vocab = model.get("vocab").and_then(Value::as_object);
    let vocab = vocab.ok_or_else(|| format_error(file, "model.vocab: expected an object"))?;
    let alphabet = byte_alphabet();
    let mut bytes: Vec<Option<Box<[u8]>>> = Vec::with_capacity(vocab.len().min(MAX_VOCAB));
    for (token, id) in vocab {
        let place = id.as_u64().filter(|&id| id < MAX_VOCAB as u64).ok_or_else(|| {
            format_error(file, format!("model.vocab: {token:?}: expected an id below {MAX_VOCAB}, found {id}"))
        })? as usize;
        if place >= bytes.len() {
            bytes.resize(place + 1, None);
        }
        if bytes[place].is_some() {
            return Err(format_error(file, format!("model.vocab: id {place} is taken twice")));
        }
        // What is not in the alphabet stands for itself: it is never made by the BPE.
        let decoded: Option<Box<[u8]>> = token.chars().map(|c| alphabet.get(&c).copied()).collect();
        bytes[place] = Some(decoded.unwrap_or_else(|| token.as_bytes().into()));
    }
    Ok(bytes)
}

/// Takes control tokens out of the BPE's vocabulary, with the merges that make or use them, and checks that every byte
/// still has a token.
fn remove_control(
    model: &mut serde_json::Map<String, Value>,
    added: &[(Box<str>, u32)],
    bytes: &mut [Option<Box<[u8]>>],
    file: &str,
) -> Result<()> {
    let vocab = model.get_mut("vocab").and_then(Value::as_object_mut);
    let vocab = vocab.ok_or_else(|| format_error(file, "model.vocab: expected an object"))?;
    let mut removed = Vec::new();
    for (spelling, id) in added {
        match vocab.get(&**spelling).map(Value::as_u64) {
            None => {}
            Some(found) if found == Some(*id as u64) => {
                bytes[*id as usize] = None;
                removed.push(&**spelling);
            }
            Some(_) => return Err(format_error(file, format!("{spelling} has another id in model.vocab"))),
        }
    }
    if !removed.is_empty() {
        vocab.retain(|token, _| removed.binary_search(&token.as_str()).is_err());
        let is_removed = |token: &str| removed.binary_search(&token).is_ok();
        if let Some(merges) = model.get_mut("merges").and_then(Value::as_array_mut) {
            merges.retain(|merge| {
                let pair = match merge {
                    Value::String(pair) => pair.split_once(' '),
                    pair => pair[0].as_str().zip(pair[1].as_str()),
                };
                pair.is_none_or(|(a, b)| !is_removed(a) && !is_removed(b) && !is_removed(&[a, b].concat()))
            });
        }
    }
    let vocab = model.get("vocab").and_then(Value::as_object);
    for (c, byte) in byte_alphabet() {
        if vocab.is_none_or(|v| !v.contains_key(c.encode_utf8(&mut [0; 4]) as &str)) {
            return Err(unsupported(file, format!("model.vocab has no token for byte {byte}")));
        }
    }
    Ok(())
}
