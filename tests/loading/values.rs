//! The bytes read are the values written.

use crate::mock::{load, values};
use crate::rng::Rng;
use crate::writer::{self, FFN, HIDDEN, Kind, Raw};
use lfm3::backend::{Band, WeightSource};
use lfm3::error::Code;
use lfm3::model::checkpoint::Checkpoint;
use lfm3::model::forward::text_plan;
use std::fs::OpenOptions;

/// A checkpoint whose layer 0 w2 (64 x 128) has known values.
fn known(bits: u32, group: usize, scales: &'static str) -> (writer::Folder, Vec<f32>) {
    let kind = Kind { affine: Some((bits, group)), scales, ..Kind::default() };
    let name = "model.layers.0.feed_forward.w2.weight";
    let (tensors, values) = writer::quantized(name, HIDDEN, FFN, bits, group, scales);
    let mut all = writer::tensors(&kind);
    let replaced = |t: &mut Raw| tensors.iter().find(|new| new.name == t.name).cloned();
    for tensor in &mut all {
        if let Some(new) = replaced(tensor) {
            *tensor = new;
        }
    }
    (writer::write(&writer::config(&kind), &all), values)
}

#[test]
fn bands_dequantize_to_the_values_written() {
    for bits in [4, 6, 8] {
        for group in [32, 64] {
            for scales in ["BF16", "F16", "F32"] {
                let (folder, expected) = known(bits, group, scales);
                let checkpoint = Checkpoint::open(&folder.0).unwrap();
                let tensors = checkpoint.bind(&text_plan(&checkpoint.config.text), None).unwrap().text;
                let tensor = tensors.iter().find(|t| t.desc.name.ends_with("layers.0.feed_forward.w2.weight")).unwrap();
                for band_rows in [1, 2, 3, 7, 16, 63, 64, 1000] {
                    let got = values(&mut checkpoint.source(tensor).unwrap(), band_rows).unwrap();
                    assert!(got == expected, "{bits} bits, groups of {group}, {scales}, bands of {band_rows}");
                }
                assert!(expected.iter().any(|v| *v < -1.0) && expected.iter().any(|v| *v > 1.0));
            }
        }
    }
}

#[test]
fn dense_values_are_those_written() {
    for dtype in ["BF16", "F16", "F32"] {
        let (bytes, expected) = writer::floats(&mut Rng(5), dtype, HIDDEN * 7);
        let mut tensors = writer::tensors(&Kind { dtype, ..Kind::default() });
        tensors.iter_mut().find(|t| t.name.ends_with("conv.conv.weight")).unwrap().bytes = bytes;
        let folder = writer::write(&writer::config(&Kind::default()), &tensors);
        let (_, _, mock) = load(&folder.0).unwrap();
        let (_, got) = mock.weights.values().find(|(d, _)| d.name.ends_with("conv.conv.weight")).unwrap();
        assert!(*got == expected, "{dtype}");
    }
}

#[test]
fn rows_past_the_end_are_refused() {
    let folder = writer::write_kind(&Kind::default());
    let checkpoint = Checkpoint::open(&folder.0).unwrap();
    let tensors = checkpoint.bind(&text_plan(&checkpoint.config.text), None).unwrap().text;
    let mut source = checkpoint.source(&tensors[0]).unwrap();
    let rows = source.desc().rows;
    for (first, count) in [(0, rows + 1), (rows, 1), (usize::MAX, 2)] {
        assert_eq!(source.read_rows(first, count, &mut Band::default()).unwrap_err().code, Code::InvalidArgument);
    }
    source.read_rows(rows, 0, &mut Band::default()).unwrap();
}

#[test]
fn a_file_that_shrank_is_an_error_naming_file_tensor_and_byte() {
    let folder = writer::write_kind(&Kind::default());
    let checkpoint = Checkpoint::open(&folder.0).unwrap();
    let tensors = checkpoint.bind(&text_plan(&checkpoint.config.text), None).unwrap().text;
    let path = folder.file("model.safetensors");
    let length = path.metadata().unwrap().len();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(length - 1).unwrap();
    let failed: Vec<_> =
        tensors.iter().filter_map(|t| values(&mut checkpoint.source(t).unwrap(), 4).err().map(|e| (t, e))).collect();
    assert_eq!(failed.len(), 1, "only the last tensor is short");
    let (tensor, error) = &failed[0];
    assert_eq!(error.code, Code::Format);
    for part in ["model.safetensors", &tensor.desc.name, &format!("byte {}", length - 1)] {
        assert!(error.message.contains(part), "{part}: {error}");
    }
}
