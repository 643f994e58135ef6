//! A .safetensors file of any content: an error or tensors that lie inside it, never a panic.

#![no_main]

use lfm3::model::header::TensorFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let path = std::env::temp_dir().join(format!("lfm3-fuzz-{}.safetensors", std::process::id()));
    std::fs::write(&path, bytes).expect("the temporary folder takes a file");
    if let Ok((file, tensors)) = TensorFile::open(&path) {
        assert_eq!(file.data_start + file.data_bytes, bytes.len() as u64);
        assert!(tensors.values().all(|t| t.data_offsets.1 as u64 <= file.data_bytes));
    }
});
