//! The header of a safetensors file: what tensors it holds and where, without their data.
//!
//! The entries are the `safetensors` crate's; they are checked here, because its own checks need the whole file at
//! hand, let a name stand twice, and do not say which tensor is at fault.

use super::files::{ByTensor, format_error, open_file, read_at, shown};
use crate::error::{Code, Error, Result};
use safetensors::tensor::TensorInfo;
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// Most bytes of a header's JSON; a full-size checkpoint has 75 thousand.
pub const MAX_HEADER_BYTES: u64 = 4 << 20;
/// Bytes before the JSON, which give its length.
const LENGTH_BYTES: u64 = 8;

/// A safetensors file whose header was checked.
#[derive(Debug)]
pub struct TensorFile {
    /// Its path, for errors.
    pub name: String,
    /// Open for reading.
    pub file: File,
    /// Offset of the first tensor's first byte.
    pub data_start: u64,
    /// Bytes of all tensors.
    pub data_bytes: u64,
}

impl TensorFile {
    /// Opens a file and reads its header. Data offsets of the entries count from `data_start`.
    ///
    /// # Errors
    /// `Io` where it cannot be read; `Format` where the header breaks the format or does not describe the file's
    /// length.
    pub fn open(path: &Path) -> Result<(TensorFile, BTreeMap<String, TensorInfo>)> {
        let name = path.display().to_string();
        let (file, length) = open_file(path)?;
        let mut prefix = [0u8; LENGTH_BYTES as usize];
        read_header_bytes(&name, &file, 0, &mut prefix)?;
        let header_bytes = u64::from_le_bytes(prefix);
        let limit = MAX_HEADER_BYTES.min(length.saturating_sub(LENGTH_BYTES));
        if header_bytes > limit {
            return Err(format_error(&name, format!("header: expected at most {limit} bytes, found {header_bytes}")));
        }
        let mut json = vec![0u8; header_bytes as usize];
        read_header_bytes(&name, &file, LENGTH_BYTES, &mut json)?;
        let ByTensor(tensors) =
            serde_json::from_slice(&json).map_err(|e| format_error(&name, format!("header: {}", shown(e))))?;
        let data_bytes = check_layout(&name, &tensors)?;
        let data_start = LENGTH_BYTES + header_bytes;
        if data_start.checked_add(data_bytes) != Some(length) {
            let expected = u128::from(data_start) + u128::from(data_bytes);
            return Err(format_error(&name, format!("expected {expected} bytes, as its header says, found {length}")));
        }
        Ok((TensorFile { name, file, data_start, data_bytes }, tensors))
    }
}

fn read_header_bytes(name: &str, file: &File, offset: u64, bytes: &mut [u8]) -> Result<()> {
    let got = read_at(file, offset, bytes).map_err(|e| Error::new(Code::Io, format!("{name}: {e}")))?;
    if got < bytes.len() {
        let end = offset + got as u64;
        return Err(format_error(
            name,
            format!("header: expected {} more bytes at byte {end}, found the end", bytes.len() - got),
        ));
    }
    Ok(())
}

/// Checks that the tensors follow one another without gap or overlap, each as long as its shape says. Returns the end.
fn check_layout(file: &str, tensors: &BTreeMap<String, TensorInfo>) -> Result<u64> {
    let mut ordered: Vec<_> = tensors.iter().collect();
    ordered.sort_by_key(|(_, info)| info.data_offsets);
    let mut end = 0u64;
    for (name, info) in ordered {
        let wrong = |expected: String, found: String| {
            format_error(file, format!("tensor {}: expected {expected}, found {found}", shown(name)))
        };
        let (first, last) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        if first != end || last < first {
            return Err(wrong(format!("data from byte {end} on"), format!("offsets {first} to {last}")));
        }
        let bits = info.shape.iter().try_fold(info.dtype.bitsize(), |n, dim| n.checked_mul(*dim));
        let shape = format!("{:?} {}", info.dtype, shown(format!("{:?}", info.shape)));
        match bits {
            Some(bits) if bits % 8 == 0 && bits as u64 / 8 == last - first => end = last,
            Some(bits) => return Err(wrong(format!("{} bytes for {shape}", bits / 8), format!("{}", last - first))),
            None => return Err(wrong("a size below 2^61 bytes".into(), shape)),
        }
    }
    Ok(end)
}
