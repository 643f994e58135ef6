//! Every naming, storage and flag a checkpoint may have.

use crate::mock::{Mock, load, refused};
use crate::writer::{self, HIDDEN, Kind, TAPS, VOCAB};
use lfm3::backend::{Encoding, Float};
use lfm3::error::Code;
use lfm3::model::checkpoint::Checkpoint;
use lfm3::model::forward::text_plan;
use lfm3::model::load::load_weights;
use lfm3::model::tensors::stored_bits;
use serde_json::json;

/// Loads a checkpoint of `kind`; each weight of the plan must get the tensor of its name.
fn loads(kind: &Kind) -> Checkpoint {
    let folder = writer::write_kind(kind);
    let (checkpoint, plan, mock) = load(&folder.0).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    assert_eq!(mock.weights.len(), plan.weights.len());
    for (spec, (desc, _)) in plan.weights.iter().zip(mock.weights.values()) {
        assert!(spec.names.iter().any(|name| desc.name.ends_with(name)), "{} for {:?}", desc.name, spec.names);
        assert_eq!((desc.rows, desc.cols), (spec.rows, spec.cols));
    }
    checkpoint
}

#[test]
fn every_prefix_and_gate_name_loads() {
    for prefix in ["model.", "", "model.language_model.", "language_model.model."] {
        for gate in ["gate_proj", "g_proj"] {
            loads(&Kind { prefix, gate, ..Kind::default() });
            loads(&Kind { prefix, gate, affine: Some((4, 64)), ..Kind::default() });
        }
    }
}

#[test]
fn every_dense_type_and_layout_of_taps_loads() {
    let layouts: [fn(usize, usize) -> Vec<usize>; 3] = [|c, t| vec![c, 1, t], |c, t| vec![c, t, 1], |c, t| vec![c, t]];
    for (dtype, float) in [("BF16", Float::Bf16), ("F16", Float::F16), ("F32", Float::F32)] {
        for taps in layouts {
            let folder = writer::write_kind(&Kind { dtype, taps, ..Kind::default() });
            let (_, plan, mock) = load(&folder.0).unwrap();
            assert!(mock.weights.values().all(|(desc, _)| desc.encoding == Encoding::Dense(float)));
            let conv = plan.weights.iter().position(|w| w.names[0].ends_with("conv.conv.weight")).unwrap();
            assert_eq!((mock.weights[&conv].0.rows, mock.weights[&conv].0.cols), (HIDDEN, TAPS));
        }
    }
}

#[test]
fn every_width_group_and_type_of_scales_loads() {
    for bits in [4, 6, 8] {
        for group in [32, 64] {
            for (scales, float) in [("BF16", Float::Bf16), ("F16", Float::F16), ("F32", Float::F32)] {
                let folder = writer::write_kind(&Kind { affine: Some((bits, group)), scales, ..Kind::default() });
                let (checkpoint, plan, mock) = load(&folder.0).unwrap();
                let affine = Encoding::Affine { bits: bits as u8, group, scales: float };
                assert_eq!(mock.weights[&0].0.encoding, affine);
                assert_eq!(stored_bits(&checkpoint.bind(&plan, None).unwrap().text), bits);
            }
        }
    }
}

#[test]
fn exceptions_by_layer_hold_in_either_naming() {
    let exceptions = vec![
        ("layers.1.self_attn.gate_proj", None),
        ("layers.2.self_attn.gate_proj", Some((8, 64))),
        ("embed_tokens", Some((8, 32))),
        ("w2", Some((6, 64))),
    ];
    let kind = Kind { affine: Some((4, 64)), exceptions, prefix: "language_model.model.", ..Kind::default() };
    let encodings = |folder: &writer::Folder| {
        let (_, _, mock) = load(&folder.0).unwrap();
        let find = |end: &str| mock.weights.values().find(|(d, _)| d.name.ends_with(end)).unwrap().0.encoding;
        ["1.self_attn.gate_proj", "2.self_attn.gate_proj", "embed_tokens", "2.feed_forward.w2", "2.feed_forward.w1"]
            .map(|stem| find(&format!("{stem}.weight")))
    };
    let affine = |bits, group| Encoding::Affine { bits, group, scales: Float::Bf16 };
    let expected = [Encoding::Dense(Float::Bf16), affine(8, 64), affine(8, 32), affine(6, 64), affine(4, 64)];
    assert_eq!(encodings(&writer::write_kind(&kind)), expected);

    // The same exceptions under the names transformers would use.
    let config = writer::config(&kind).to_string();
    let renamed = config.replace("language_model.model.", "model.language_model.").replace("gate_proj", "g_proj");
    let folder = writer::write(&serde_json::from_str(&renamed).unwrap(), &writer::tensors(&kind));
    assert_eq!(encodings(&folder), expected);
}

#[test]
fn biases_load_where_the_config_asks_for_them() {
    for (conv_bias, attention_bias) in [(true, false), (false, true), (true, true)] {
        loads(&Kind { conv_bias, attention_bias, ..Kind::default() });
        loads(&Kind { conv_bias, attention_bias, affine: Some((4, 32)), ..Kind::default() });
    }
}

#[test]
fn post_norms_and_gate_are_left_out_where_the_config_says_so() {
    loads(&Kind { sandwich: false, ..Kind::default() });
    loads(&Kind { gated: false, ..Kind::default() });
}

#[test]
fn an_untied_head_loads_under_each_of_its_names() {
    for (prefix, head) in [
        ("model.", "lm_head.weight"),
        ("model.language_model.", "lm_head.weight"),
        ("language_model.model.", "language_model.lm_head.weight"),
    ] {
        loads(&Kind { prefix, head: Some(head), ..Kind::default() });
        loads(&Kind { prefix, head: Some(head), affine: Some((6, 32)), ..Kind::default() });
    }
}

#[test]
fn a_head_is_refused_where_it_is_tied_and_missed_where_it_is_not() {
    let kind = Kind { head: Some("lm_head.weight"), ..Kind::default() };
    let mut config = writer::config(&kind);
    config["tie_word_embeddings"] = json!(true);
    let folder = writer::write(&config, &writer::tensors(&kind));
    refused(&folder.0, Code::Format, &["model.safetensors", "lm_head.weight", "tie_word_embeddings is true"]);

    config["tie_word_embeddings"] = json!(false);
    let folder = writer::write(&config, &writer::tensors(&Kind::default()));
    refused(&folder.0, Code::Format, &["lm_head.weight", "missing"]);
}

/// A checkpoint whose embedding table has 8 MiB.
fn with_large_table() -> (writer::Folder, usize) {
    const ROWS: usize = 1 << 15;
    let kind = Kind { dtype: "F32", ..Kind::default() };
    let mut config = writer::config(&kind);
    config["vocab_size"] = json!(ROWS);
    let mut tensors = writer::tensors(&kind);
    let table = tensors.iter_mut().find(|t| t.shape[0] == VOCAB).unwrap();
    *table = writer::dense(&table.name, "F32", &[ROWS, HIDDEN]);
    (writer::write(&config, &tensors), ROWS)
}

#[test]
fn progress_rises_every_few_megabytes_to_the_total_and_cancels() {
    let (folder, rows) = with_large_table();
    let checkpoint = Checkpoint::open(&folder.0).unwrap();
    let plan = text_plan(&checkpoint.config.text);
    let total = checkpoint.tensor_bytes;
    // Bands of a few rows, the table in one read, and a backend that reads everything twice.
    for (band_rows, passes) in [(5, 1), (rows, 1), (64, 2)] {
        let mut mock = Mock::in_bands_of(band_rows);
        mock.passes = passes;
        let mut seen = Vec::new();
        let mut note = |done, total| {
            seen.push((done, total));
            true
        };
        load_weights(&checkpoint, (&plan, &mut mock), None, &mut note).unwrap();
        assert_eq!((seen.first(), seen.last()), (Some(&(0, total)), Some(&(total, total))));
        assert!(seen.is_sorted() && seen.iter().all(|(_, t)| *t == total));
        let steps: Vec<u64> = seen.windows(2).map(|w| w[1].0 - w[0].0).collect();
        assert!(steps.iter().all(|step| *step < 4 << 20), "{steps:?}");
        assert!(seen.len() < 15, "{} reports for {total} bytes", seen.len());

        for stop_at in 0..seen.len() {
            let mut calls = 0;
            let mut stop = |_, _| {
                calls += 1;
                calls <= stop_at
            };
            let mut mock = Mock::in_bands_of(band_rows);
            let error = load_weights(&checkpoint, (&plan, &mut mock), None, &mut stop).unwrap_err();
            assert_eq!((error.code, calls), (Code::Cancelled, stop_at + 1));
        }
    }
}
