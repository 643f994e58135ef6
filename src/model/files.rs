//! Reading a checkpoint's small files: bounded, and with errors that name file, key, expectation and finding.

use crate::error::{Code, Error, Result};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::marker::PhantomData;
use std::ops::RangeInclusive;
use std::path::Path;

/// Most characters of text from a file that an error repeats.
const SHOWN_CHARS: usize = 200;
/// Most entries of a safetensors header or a shard index.
pub const MAX_TENSORS: usize = 1 << 16;
/// Most bytes of a tensor's name.
pub const MAX_NAME_BYTES: usize = 512;

/// A [`Code::Format`] error about `file`.
pub fn format_error(file: impl Display, what: impl Display) -> Error {
    Error::new(Code::Format, format!("{file}: {what}"))
}

/// A [`Code::Unsupported`] error about `file`.
pub fn unsupported(file: impl Display, what: impl Display) -> Error {
    Error::new(Code::Unsupported, format!("{file}: {what}"))
}

/// `text` as an error shows it: cut where it is long, without control characters.
pub fn shown(text: impl Display) -> String {
    let text = text.to_string();
    let visible = |c: char| if c.is_control() { ' ' } else { c };
    let mut cut: String = text.chars().take(SHOWN_CHARS).map(visible).collect();
    if text.chars().nth(SHOWN_CHARS).is_some() {
        cut.push('…');
    }
    cut
}

/// Opens a plain file and gives its length; a folder, a pipe or a device is an [`Code::Io`] error.
pub fn open_file(path: &Path) -> Result<(File, u64)> {
    let io = |e: std::io::Error| Error::new(Code::Io, format!("{}: {e}", path.display()));
    // Asked before opening, because opening a pipe waits for its writer.
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(Error::new(Code::Io, format!("{}: expected a file, found a folder or device", path.display())));
    }
    let file = File::open(path).map_err(io)?;
    let length = file.metadata().map_err(io)?.len();
    Ok((file, length))
}

/// Fills `bytes` from `offset` on; returns how many the file had. Never maps it: a mapped file that shrinks kills the
/// host.
pub fn read_at(file: &File, offset: u64, bytes: &mut [u8]) -> std::io::Result<usize> {
    let mut got = 0;
    while got < bytes.len() {
        #[cfg(unix)]
        let read = std::os::unix::fs::FileExt::read_at(file, &mut bytes[got..], offset + got as u64);
        #[cfg(windows)]
        let read = std::os::windows::fs::FileExt::seek_read(file, &mut bytes[got..], offset + got as u64);
        match read {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(got)
}

/// All bytes of a file of at most `limit` bytes.
pub fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>> {
    let (file, length) = open_file(path)?;
    let too_long = || format_error(path.display(), format!("expected at most {limit} bytes, found more"));
    if length > limit {
        return Err(too_long());
    }
    let mut bytes = Vec::with_capacity(length as usize);
    file.take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::new(Code::Io, format!("{}: {e}", path.display())))?;
    if bytes.len() as u64 > limit { Err(too_long()) } else { Ok(bytes) }
}

/// The UTF-8 text of a file of at most `limit` bytes; `None` where there is no such file.
pub fn read_optional_text(path: &Path, limit: u64) -> Result<Option<String>> {
    if let Err(e) = fs::metadata(path)
        && e.kind() == ErrorKind::NotFound
    {
        return Ok(None);
    }
    let bytes = read_file(path, limit)?;
    let text = String::from_utf8(bytes).map_err(|e| format_error(path.display(), e))?;
    Ok(Some(text))
}

/// Parses the JSON object in `text`.
pub fn parse_object(file: &str, text: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(text).map_err(|e| format_error(file, shown(e)))
}

/// A JSON object whose keys are tensor names, each allowed once; `__metadata__` is passed over.
pub struct ByTensor<V>(pub BTreeMap<String, V>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for ByTensor<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(ByTensorVisitor(PhantomData))
    }
}

struct ByTensorVisitor<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for ByTensorVisitor<V> {
    type Value = ByTensor<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with an entry for each tensor")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some(name) = map.next_key::<String>()? {
            if name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            if name.len() > MAX_NAME_BYTES {
                let found = name.len();
                return Err(A::Error::custom(format!("a tensor's name has {found} bytes, at most {MAX_NAME_BYTES}")));
            }
            if entries.len() == MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
            let value = map.next_value().map_err(|e| A::Error::custom(format!("tensor {name}: {e}")))?;
            if entries.insert(name.clone(), value).is_some() {
                return Err(A::Error::custom(format!("tensor {name} is named twice")));
            }
        }
        Ok(ByTensor(entries))
    }
}

/// A JSON object of a config file, read key by key. A null is the same as an absent key.
#[derive(Clone)]
pub struct Fields<'a> {
    file: &'a str,
    path: String,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    /// The root object of `file`.
    pub fn new(file: &'a str, map: &'a Map<String, Value>) -> Self {
        Fields { file, path: String::new(), map }
    }

    /// The value of `key`, null included.
    pub fn raw(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key)
    }

    /// The value of `key`, unless it is null.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.raw(key).filter(|v| !v.is_null())
    }

    /// All entries.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        self.map.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// A format error about `key`.
    pub fn wrong(&self, key: &str, expected: impl Display, found: impl Display) -> Error {
        let key = format!("{}{}", self.path, shown(key));
        format_error(self.file, format!("{key}: expected {expected}, found {}", shown(found)))
    }

    /// A refusal of `key`'s value.
    pub fn refused(&self, key: &str, found: impl Display, supported: &str) -> Error {
        let key = format!("{}{}", self.path, shown(key));
        unsupported(self.file, format!("{key}: {} is not supported, expected {supported}", shown(found)))
    }

    /// The object under `key`.
    pub fn object(&self, key: &str) -> Result<Option<Fields<'a>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let map = value.as_object().ok_or_else(|| self.wrong(key, "an object", value))?;
        Ok(Some(Fields { file: self.file, path: format!("{}{}.", self.path, shown(key)), map }))
    }

    /// A whole number within `range`.
    pub fn whole(&self, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let fits = value.as_u64().filter(|n| range.contains(n));
        let expected = || format!("a whole number from {} to {}", range.start(), range.end());
        fits.map(Some).ok_or_else(|| self.wrong(key, expected(), value))
    }

    /// A size from `range`, or `default`.
    pub fn size(&self, key: &str, default: usize, range: RangeInclusive<usize>) -> Result<usize> {
        let found = self.whole(key, *range.start() as u64..=*range.end() as u64)?;
        Ok(found.map_or(default, |n| n as usize))
    }

    /// A finite number for which `holds`.
    pub fn number(&self, key: &str, expected: &str, holds: impl Fn(f64) -> bool) -> Result<Option<f64>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let fits = value.as_f64().filter(|n| n.is_finite() && holds(*n));
        fits.map(Some).ok_or_else(|| self.wrong(key, expected, value))
    }

    /// A truth value.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.wrong(key, "true or false", value))
    }

    /// A string.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.wrong(key, "a string", value))
    }

    /// A token id, or a list of them; at most `limit` ids, each below `vocab`.
    pub fn tokens(&self, key: &str, limit: usize, vocab: usize) -> Result<Option<Vec<u32>>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let list = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
        if list.len() > limit {
            return Err(self.wrong(key, format!("at most {limit} token ids"), list.len()));
        }
        let id = |v: &Value| v.as_u64().filter(|id| *id < vocab as u64).map(|id| id as u32);
        let ids: Option<Vec<u32>> = list.iter().map(id).collect();
        ids.map(Some).ok_or_else(|| self.wrong(key, format!("token ids below {vocab}"), value))
    }
}
