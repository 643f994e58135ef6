//! Tensors and folders that do not fit, each refused with file, tensor, expectation and finding.

use crate::mock::{bind, refused};
use crate::writer::{self, FFN, Folder, HIDDEN, Kind, Raw, dense, with_header, write_small_files};
use lfm3::error::Code;
use lfm3::model::checkpoint::Checkpoint;
use std::fs;

const W2: &str = "model.layers.0.feed_forward.w2";
const FILE: &str = "model.safetensors";

/// The checkpoint of `kind` with its tensors changed.
pub fn changed(kind: &Kind, change: impl FnOnce(&mut Vec<Raw>)) -> Folder {
    let mut tensors = writer::tensors(kind);
    change(&mut tensors);
    writer::write(&writer::config(kind), &tensors)
}

pub fn find<'a>(tensors: &'a mut [Raw], name: &str) -> &'a mut Raw {
    tensors.iter_mut().find(|t| t.name == name).unwrap()
}

#[test]
fn missing_and_unknown_tensors_are_named() {
    let kind = Kind { affine: Some((4, 64)), ..Kind::default() };
    for raw in writer::tensors(&kind) {
        let folder = changed(&kind, |all| all.retain(|t| t.name != raw.name));
        refused(&folder.0, Code::Format, &[FILE]);
    }
    let gone = changed(&Kind::default(), |all| all.retain(|t| !t.name.starts_with(W2)));
    refused(&gone.0, Code::Format, &[FILE, "model.layers.0.feed_forward.w2.weight", "missing", "64 x 128"]);
    for name in ["model.layers.3.operator_norm.weight", "lm_head.bias", "x", "vision_tower.patchifier.weight"] {
        let folder = changed(&Kind::default(), |all| all.push(dense(name, "BF16", &[HIDDEN])));
        refused(&folder.0, Code::Format, &[FILE, name, "expected", "found"]);
    }
}

#[test]
fn one_weight_under_two_names_is_refused() {
    let gate = |p: &str, g: &str| dense(&format!("{p}layers.1.self_attn.{g}.weight"), "BF16", &[2, HIDDEN]);
    let folder = changed(&Kind::default(), |all| all.push(gate("model.", "g_proj")));
    refused(&folder.0, Code::Format, &["gate_proj", "g_proj"]);
    let folder = changed(&Kind::default(), |all| all.push(dense("embed_tokens.weight", "BF16", &[40, HIDDEN])));
    refused(&folder.0, Code::Format, &["embed_tokens.weight", "one embedding table"]);
}

#[test]
fn wrong_shapes_are_refused() {
    let kind = Kind::default();
    for raw in writer::tensors(&kind) {
        for shape in [
            vec![],
            vec![0],
            vec![1, 1],
            [raw.shape.clone(), vec![1]].concat(),
            raw.shape.iter().rev().copied().collect(),
        ] {
            let accepted =
                shape == raw.shape || (raw.name.contains("conv.conv.weight") && shape.iter().product::<usize>() == 448);
            if accepted || shape == [HIDDEN, HIDDEN] {
                continue;
            }
            let folder = changed(&kind, |all| *find(all, &raw.name) = dense(&raw.name, "BF16", &shape));
            refused(&folder.0, Code::Format, &[FILE, &raw.name, "shape", &format!("{shape:?}")]);
        }
    }
}

#[test]
fn other_types_are_refused_by_name() {
    for dtype in ["F64", "I8", "U8", "F8_E4M3", "F8_E5M2", "I32", "BOOL"] {
        let bytes = if dtype == "F64" {
            8
        } else if dtype == "I32" {
            4
        } else {
            1
        };
        let folder = changed(&Kind::default(), |all| {
            let raw = find(all, &format!("{W2}.weight"));
            (raw.dtype, raw.bytes) = (dtype, vec![0; HIDDEN * FFN * bytes]);
        });
        refused(&folder.0, Code::Unsupported, &[FILE, W2, dtype, "BF16"]);
    }
    let folder = changed(&Kind::default(), |all| find(all, &format!("{W2}.weight")).dtype = "F12");
    refused(&folder.0, Code::Format, &[FILE, W2, "F12"]);
    let folder = changed(&Kind::default(), |all| all.push(dense(&format!("{W2}.weight_scale_inv"), "F32", &[1, 1])));
    refused(&folder.0, Code::Format, &["weight_scale_inv"]);
}

#[test]
fn quantized_parts_must_agree_with_the_config() {
    let affine = |bits, group| Kind { affine: Some((bits, group)), ..Kind::default() };
    let weight = &format!("{W2}.weight")[..];
    let (scales, biases) = (&format!("{W2}.scales")[..], &format!("{W2}.biases")[..]);
    // The file says other bits or groups than the config.
    for (file, config) in
        [((4, 64), (8, 64)), ((8, 64), (6, 64)), ((4, 64), (4, 32)), ((4, 32), (4, 64)), ((8, 32), (4, 64))]
    {
        let tensors = writer::tensors(&affine(file.0, file.1));
        let folder = writer::write(&writer::config(&affine(config.0, config.1)), &tensors);
        let said = format!("{} bits in groups of {}", config.0, config.1);
        refused(&folder.0, Code::Format, &[FILE, "model.embed_tokens", &said]);
    }
    // No quantization in the config, or one that excludes the layer, or one that demands it.
    let folder = writer::write(&writer::config(&Kind::default()), &writer::tensors(&affine(4, 64)));
    refused(&folder.0, Code::Format, &[FILE, "embed_tokens", "no quantization"]);
    let mut config = writer::config(&affine(4, 64));
    config["quantization"][W2] = false.into();
    refused(&writer::write(&config, &writer::tensors(&affine(4, 64))).0, Code::Format, &[FILE, W2, "not quantized"]);
    config["quantization"][W2] = serde_json::json!({"bits": 4, "group_size": 64});
    let dense_w2 = Kind { exceptions: vec![("layers.0.feed_forward.w2", None)], ..affine(4, 64) };
    refused(&writer::write(&config, &writer::tensors(&dense_w2)).0, Code::Format, &[FILE, scales, "missing"]);
    // Parts that do not match one another.
    let half = |name: &str| dense(name, "F16", &[HIDDEN, FFN / 64]);
    for (name, new, part) in [
        (biases, half(biases), "F16"),
        (biases, dense(biases, "BF16", &[HIDDEN, 1]), "shape"),
        (scales, dense(scales, "BF16", &[HIDDEN * 2]), "shape"),
        (scales, Raw { dtype: "U32", bytes: vec![0; HIDDEN * FFN / 64 * 4], ..half(scales) }, "U32"),
        (weight, dense(weight, "F32", &[HIDDEN, FFN / 8]), "U32 words"),
    ] {
        let folder = changed(&affine(4, 64), |all| *find(all, name) = new);
        refused(&folder.0, Code::Format, &[FILE, name, part]);
    }
    // A norm cannot be quantized.
    let folder = changed(&affine(4, 64), |all| all.push(dense("model.embedding_norm.scales", "BF16", &[1])));
    refused(&folder.0, Code::Format, &["embedding_norm.scales"]);
}

/// A folder whose tensor file has this header and `data` zeros.
fn headed(header: &str, data: usize) -> Folder {
    let folder = Folder::new();
    write_small_files(&folder.0, &writer::config(&Kind::default()));
    fs::write(folder.file(FILE), with_header(header, &vec![0; data])).unwrap();
    folder
}

#[test]
fn headers_that_break_the_format_are_refused() {
    let entry = |name: &str, shape: &str, first: u64, last: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{first},{last}]}}"#)
    };
    let deep = "[".repeat(100_000);
    for (header, data, part) in [
        (format!("{{{},{}}}", entry("a", "[2]", 0, 8), entry("b", "[2]", 4, 12)), 12, "tensor b"),
        (format!("{{{},{}}}", entry("a", "[2]", 0, 8), entry("b", "[2]", 0, 8)), 8, "offsets 0 to 8"),
        (format!("{{{},{}}}", entry("a", "[2]", 0, 8), entry("b", "[2]", 16, 24)), 24, "tensor b"),
        (format!("{{{}}}", entry("a", "[2]", 8, 0)), 8, "tensor a"),
        (format!("{{{}}}", entry("a", "[3]", 0, 8)), 8, "12 bytes"),
        (format!("{{{}}}", entry("a", "[2]", 0, 8)), 7, "expected 70 bytes"),
        (format!("{{{}}}", entry("a", "[2]", 0, 8)), 9, "found 71"),
        (format!("{{{}}}", entry("a", "[9223372036854775808]", 0, 1 << 63)), 8, "tensor a"),
        (format!("{{{}}}", entry("a", "[2305843009213693952,2305843009213693952]", 0, 8)), 8, "tensor a"),
        (format!("{{{}}}", entry("a", "[1152921504606846976]", 0, 1 << 62)), 8, "tensor a"),
        (format!("{{{}}}", entry("a", "[18446744073709551616]", 0, 8)), 8, "tensor a"),
        (format!("{{{}}}", entry("a", "[-2]", 0, 8)), 8, "tensor a"),
        (format!("{{{}}}", entry("a", "[1.0]", 0, 4)), 4, "tensor a"),
        (format!("{{{},{}}}", entry("a", "[1]", 0, 4), entry("a", "[1]", 4, 8)), 8, "named twice"),
        (format!("{{{}}}", entry(&"a".repeat(513), "[1]", 0, 4)), 4, "513"),
        (r#"{"a":{"dtype":"F32","shape":[1],"shape":[1],"data_offsets":[0,4]}}"#.into(), 4, "shape"),
        (r#"{"a":{"dtype":"F32","shape":[1]}}"#.into(), 4, "data_offsets"),
        (format!("{{\"a\":{deep}"), 0, "header"),
        (format!("{{\"__metadata__\":{deep}"), 0, "header"),
        ("[]".into(), 0, "header"),
        ("null".into(), 0, "header"),
        ("".into(), 0, "header"),
    ] {
        refused(&headed(&header, data).0, Code::Format, &[FILE, part]);
    }
}

#[test]
fn claimed_header_lengths_are_checked_before_use() {
    let folder = headed("{}", 0);
    for claimed in [3, 1 << 20, (4 << 20) + 1, 1 << 40, 1 << 63, u64::MAX] {
        let mut bytes = u64::to_le_bytes(claimed).to_vec();
        bytes.extend(b"{}");
        fs::write(folder.file(FILE), bytes).unwrap();
        refused(&folder.0, Code::Format, &[FILE, "header", &claimed.to_string()]);
    }
    fs::write(folder.file(FILE), [0; 5]).unwrap();
    refused(&folder.0, Code::Format, &[FILE, "header"]);
}

#[test]
fn missing_or_unreadable_files_are_io_errors_naming_them() {
    let whole = || writer::write_kind(&Kind::default());
    let error = Checkpoint::open(&whole().0.join("nowhere")).unwrap_err();
    assert!(error.code == Code::Io && error.message.contains("nowhere"), "{error}");
    let folder = whole();
    let error = Checkpoint::open(&folder.file(FILE)).unwrap_err();
    assert!(error.code == Code::Io && error.message.contains("expected a folder"), "{error}");
    for name in ["config.json", "tokenizer.json", FILE] {
        let folder = whole();
        fs::remove_file(folder.file(name)).unwrap();
        refused(&folder.0, Code::Io, &[name]);
        fs::create_dir(folder.file(name)).unwrap();
        refused(&folder.0, Code::Io, &[name, "expected a file"]);
    }
    for name in ["generation_config.json", "tokenizer_config.json", "chat_template.jinja"] {
        let folder = whole();
        bind(&folder.0).unwrap();
        fs::create_dir(folder.file(name)).unwrap();
        refused(&folder.0, Code::Io, &[name, "expected a file"]);
    }
}

#[cfg(unix)]
#[test]
fn a_pipe_is_refused_without_waiting_for_its_writer() {
    let folder = writer::write_kind(&Kind::default());
    fs::remove_file(folder.file("tokenizer.json")).unwrap();
    let made = std::process::Command::new("mkfifo").arg(folder.file("tokenizer.json")).status();
    if made.is_ok_and(|status| status.success()) {
        refused(&folder.0, Code::Io, &["tokenizer.json", "expected a file"]);
    }
}

#[test]
fn files_over_their_limits_are_refused_unread() {
    for (name, limit) in [("config.json", 1 << 20), ("tokenizer.json", 64 << 20), ("chat_template.jinja", 1 << 20)] {
        let folder = writer::write_kind(&Kind::default());
        fs::File::create(folder.file(name)).unwrap().set_len(limit + 1).unwrap();
        refused(&folder.0, Code::Format, &[name, "at most"]);
    }
}

#[test]
fn text_files_must_be_utf8_and_json_not_too_deep() {
    let folder = writer::write_kind(&Kind::default());
    fs::write(folder.file("chat_template.jinja"), b"\xff\xfe").unwrap();
    refused(&folder.0, Code::Format, &["chat_template.jinja"]);
    for name in ["config.json", "generation_config.json"] {
        let folder = writer::write_kind(&Kind::default());
        fs::write(folder.file(name), format!("{{\"model_type\":{}", "[".repeat(500_000))).unwrap();
        refused(&folder.0, Code::Format, &[name, "recursion"]);
    }
}
