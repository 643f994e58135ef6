//! What one rendering may spend: work, bytes built, bytes written.

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};
use std::sync::atomic::{AtomicU64, Ordering};

/// Steps of the template engine.
pub(super) const MAX_STEPS: u64 = 10_000_000;
/// Values visited (or 16 bytes read) by operators, filters, tests and methods.
const MAX_WORK: u64 = 50_000_000;
/// Bytes of all values built.
const MAX_BUILT_BYTES: u64 = 256 << 20;
/// Bytes of one value, everything inside it counted.
const MAX_VALUE_BYTES: usize = 48 << 20;
/// Bytes written, to the prompt and into blocks that are captured.
const MAX_WRITTEN_BYTES: u64 = 64 << 20;
/// Deepest nesting of lists and mappings.
const MAX_DEPTH: usize = 100;
/// Bytes counted for a value that is not text.
const NODE_BYTES: usize = 32;

/// Counters of one rendering.
#[derive(Default)]
pub(super) struct Budget {
    work: AtomicU64,
    built: AtomicU64,
    written: AtomicU64,
}

fn too_much(what: &str) -> Error {
    Error::new(ErrorKind::OutOfFuel, format!("the template {what}"))
}

fn add(counter: &AtomicU64, amount: u64, limit: u64, what: &str) -> Result<(), Error> {
    let sum = counter.load(Ordering::Relaxed).saturating_add(amount);
    counter.store(sum, Ordering::Relaxed);
    if sum > limit { Err(too_much(what)) } else { Ok(()) }
}

impl Budget {
    /// Counts work.
    pub fn spend(&self, work: usize) -> Result<(), Error> {
        add(&self.work, work as u64, MAX_WORK, &format!("takes more than {MAX_WORK} units of work"))
    }

    /// Counts bytes about to be built as one value.
    pub fn build(&self, bytes: usize) -> Result<(), Error> {
        if bytes > MAX_VALUE_BYTES {
            return Err(too_much(&format!("builds a value of more than {MAX_VALUE_BYTES} bytes")));
        }
        self.spend(bytes / 16)?;
        add(&self.built, bytes as u64, MAX_BUILT_BYTES, &format!("builds more than {MAX_BUILT_BYTES} bytes"))
    }

    /// Counts bytes about to be written.
    pub fn write(&self, bytes: usize) -> Result<(), Error> {
        self.spend(bytes / 16)?;
        add(&self.written, bytes as u64, MAX_WRITTEN_BYTES, &format!("writes more than {MAX_WRITTEN_BYTES} bytes"))
    }

    /// Counts the work of reading `value` through; fails where it nests too deep.
    pub fn read(&self, value: &Value) -> Result<(), Error> {
        let mut bytes = 0;
        self.visit(value, MAX_DEPTH, &mut bytes)?;
        self.spend(bytes / 16)
    }

    /// Counts a value just made and turns what is lazy into a list.
    pub fn hold(&self, value: Value) -> Result<Value, Error> {
        let value = self.listed(value)?;
        self.read(&value)?;
        let own = match value.kind() {
            ValueKind::String => value.as_str().map_or(0, str::len),
            ValueKind::Seq | ValueKind::Map => value.len().unwrap_or(0).saturating_mul(NODE_BYTES),
            _ => 0,
        };
        self.build(own)?;
        Ok(value)
    }

    fn listed(&self, value: Value) -> Result<Value, Error> {
        if value.kind() != ValueKind::Iterable {
            return Ok(value);
        }
        let mut items = Vec::new();
        for item in value.try_iter()? {
            if items.len() * NODE_BYTES > MAX_VALUE_BYTES {
                return Err(too_much(&format!("builds a value of more than {MAX_VALUE_BYTES} bytes")));
            }
            self.spend(1)?;
            if item.kind() == ValueKind::Invalid {
                return Err(Error::new(ErrorKind::InvalidOperation, item.to_string()));
            }
            items.push(item);
        }
        Ok(Value::from(items))
    }

    fn visit(&self, value: &Value, depth: usize, bytes: &mut usize) -> Result<(), Error> {
        if depth == 0 {
            return Err(too_much(&format!("nests values more than {MAX_DEPTH} deep")));
        }
        self.spend(1)?;
        *bytes += NODE_BYTES;
        match value.kind() {
            ValueKind::String => *bytes += value.as_str().map_or(0, str::len),
            ValueKind::Seq | ValueKind::Iterable => {
                for item in value.try_iter()? {
                    self.visit(&item, depth - 1, bytes)?;
                }
            }
            ValueKind::Map => {
                if let Some(pairs) = value.as_object().and_then(|o| o.try_iter_pairs()) {
                    for (key, item) in pairs {
                        self.visit(&key, depth - 1, bytes)?;
                        self.visit(&item, depth - 1, bytes)?;
                    }
                }
            }
            _ => {}
        }
        if *bytes > MAX_VALUE_BYTES {
            return Err(too_much(&format!("builds a value of more than {MAX_VALUE_BYTES} bytes")));
        }
        Ok(())
    }
}
