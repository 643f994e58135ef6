//! Checkpoints in several files.

use crate::mock::{load, refused};
use crate::writer::{self, Folder, Kind, Raw};
use lfm3::error::Code;
use serde_json::{Map, Value, json};
use std::fs;

const FILES: [&str; 3] =
    ["model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors"];

/// The tensors dealt out to three files, and their index.
fn dealt(kind: &Kind) -> (Vec<Vec<Raw>>, Map<String, Value>) {
    let (mut parts, mut map) = (vec![Vec::new(), Vec::new(), Vec::new()], Map::new());
    for (i, tensor) in writer::tensors(kind).into_iter().enumerate() {
        map.insert(tensor.name.clone(), json!(FILES[i % 3]));
        parts[i % 3].push(tensor);
    }
    (parts, map)
}

fn write(parts: &[Vec<Raw>], map: &Map<String, Value>, kind: &Kind) -> Folder {
    let folder = Folder::new();
    writer::write_small_files(&folder.0, &writer::config(kind));
    for (file, part) in FILES.iter().zip(parts) {
        fs::write(folder.file(file), writer::safetensors(part)).unwrap();
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": map});
    fs::write(folder.file("model.safetensors.index.json"), index.to_string()).unwrap();
    folder
}

#[test]
fn shards_load_like_one_file() {
    for kind in [Kind::default(), Kind { affine: Some((6, 32)), ..Kind::default() }] {
        let (parts, map) = dealt(&kind);
        let (sharded, _, a) = load(&write(&parts, &map, &kind).0).unwrap();
        let (single, _, b) = load(&writer::write_kind(&kind).0).unwrap();
        assert!(a.weights.values().map(|(_, v)| v).eq(b.weights.values().map(|(_, v)| v)));
        assert_eq!(sharded.tensor_bytes, single.tensor_bytes);
    }
}

#[test]
fn shard_names_that_are_not_plain_are_refused() {
    let kind = Kind::default();
    for name in [
        "../x.safetensors",
        "/tmp/x.safetensors",
        "a/x.safetensors",
        "a\\x.safetensors",
        "C:x.safetensors",
        "..",
        "",
        "x.bin",
        ".safetensors",
        "x\0.safetensors",
    ] {
        let (parts, mut map) = dealt(&kind);
        map.insert("model.embed_tokens.weight".into(), json!(name));
        refused(&write(&parts, &map, &kind).0, Code::Format, &["index.json", "shard"]);
    }
}

#[test]
fn tensors_and_index_must_agree() {
    let kind = Kind::default();
    let name = "model.embed_tokens.weight";

    let (mut parts, map) = dealt(&kind);
    let twice = parts[0][0].clone();
    assert_eq!(twice.name, name);
    parts[1].push(twice.clone());
    refused(&write(&parts, &map, &kind).0, Code::Format, &[FILES[0], FILES[1], name, "also"]);

    let (mut parts, map) = dealt(&kind);
    parts[0].remove(0);
    refused(&write(&parts, &map, &kind).0, Code::Format, &["index.json", name, FILES[0]]);

    let (mut parts, map) = dealt(&kind);
    parts[0].remove(0);
    parts[2].push(twice);
    refused(&write(&parts, &map, &kind).0, Code::Format, &[FILES[0], FILES[2], name]);

    let (parts, mut map) = dealt(&kind);
    map.remove(name);
    refused(&write(&parts, &map, &kind).0, Code::Format, &[FILES[0], name, "not in the index"]);
}

#[test]
fn a_missing_shard_is_an_io_error_naming_it() {
    let kind = Kind::default();
    let (parts, map) = dealt(&kind);
    let folder = write(&parts, &map, &kind);
    fs::remove_file(folder.file(FILES[1])).unwrap();
    refused(&folder.0, Code::Io, &[FILES[1]]);
}

#[test]
fn a_broken_index_is_refused() {
    let kind = Kind::default();
    let (parts, map) = dealt(&kind);
    let folder = write(&parts, &map, &kind);
    let many: Map<String, Value> = (0..300).map(|i| (format!("t{i}"), json!(format!("{i}.safetensors")))).collect();
    for index in [
        "{".to_string(),
        "[]".into(),
        "{}".into(),
        r#"{"weight_map":{"a":1}}"#.into(),
        r#"{"weight_map":{"a":"x.safetensors","a":"x.safetensors"}}"#.into(),
        json!({ "weight_map": many }).to_string(),
    ] {
        fs::write(folder.file("model.safetensors.index.json"), index).unwrap();
        refused(&folder.0, Code::Format, &["index.json"]);
    }
}
