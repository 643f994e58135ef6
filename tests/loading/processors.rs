//! preprocessor_config.json, video_preprocessor_config.json and processor_config.json beside a vision tower.

use crate::mock::refused;
use crate::writer::{self, Folder, Kind, PATCH};
use lfm3::error::Code;
use lfm3::model::checkpoint::Checkpoint;
use lfm3::model::processor::MAX_PROCESSOR_BYTES;
use serde_json::{Value, json};
use std::fs;

const PICTURE: &str = "preprocessor_config.json";
const VIDEO: &str = "video_preprocessor_config.json";
const JOINT: &str = "processor_config.json";

fn processor() -> Value {
    json!({
        "image_processor_type": "Qwen2VLImageProcessor", "do_convert_rgb": true, "do_resize": true, "resample": 3,
        "do_rescale": true, "rescale_factor": 1.0 / 255.0, "do_normalize": true, "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5], "patch_size": PATCH, "temporal_patch_size": 2, "merge_size": 2,
        "size": {"shortest_edge": 9216, "longest_edge": 20480},
    })
}

fn video_processor() -> Value {
    let mut config = processor();
    config.as_object_mut().unwrap().remove("image_processor_type");
    let more = json!({"video_processor_type": "Qwen3VLVideoProcessor", "fps": 2, "min_frames": 4, "max_frames": 768});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn tower_kind() -> Kind {
    Kind { vision: Some(""), prefix: "language_model.model.", ..Kind::default() }
}

/// A checkpoint with a tower and these files.
fn with(files: &[(&str, &Value)]) -> Folder {
    let folder = writer::write_kind(&tower_kind());
    files.iter().for_each(|(name, json)| fs::write(folder.file(name), json.to_string()).unwrap());
    folder
}

fn open(files: &[(&str, &Value)]) -> Checkpoint {
    Checkpoint::open(&with(files).0).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn processors_are_read_from_either_place() {
    let (picture, video) = (processor(), video_processor());
    let joint = json!({"processor_class": "X", "image_processor": picture, "video_processor": video});
    let own = open(&[(PICTURE, &picture), (VIDEO, &video)]);
    let found = own.picture.as_ref().unwrap();
    assert_eq!((found.patch, found.frames, found.merge), (PATCH as u32, 2, 2));
    assert_eq!(found.area, 9216..=20480);
    assert_eq!(own.video.as_ref().unwrap().picture.patch, PATCH as u32);
    let shared = open(&[(JOINT, &joint)]);
    assert_eq!((&shared.picture, &shared.video), (&own.picture, &own.video));
    // A file of its own goes first.
    let mut other = processor();
    other["size"]["longest_edge"] = json!(40960);
    let both = open(&[(JOINT, &joint), (PICTURE, &other)]);
    assert_eq!((both.picture.unwrap().area, both.video), (9216..=40960, own.video));
}

#[test]
fn a_tower_without_a_processor_opens_without_pictures() {
    for files in [&[][..], &[(JOINT, &json!({"processor_class": "X"}))]] {
        let checkpoint = open(files);
        assert!(checkpoint.config.vision.is_some() && checkpoint.picture.is_none() && checkpoint.video.is_none());
    }
    let checkpoint = open(&[(PICTURE, &processor())]);
    assert!(checkpoint.picture.is_some() && checkpoint.video.is_none());
}

#[test]
fn a_text_model_has_none_whatever_lies_beside_it() {
    let folder = writer::write_kind(&Kind::default());
    fs::write(folder.file(PICTURE), "{").unwrap();
    fs::write(folder.file(VIDEO), processor().to_string()).unwrap();
    let checkpoint = Checkpoint::open(&folder.0).unwrap();
    assert!(checkpoint.picture.is_none() && checkpoint.video.is_none());
}

#[test]
fn processor_and_tower_must_agree() {
    for (tower_key, key, tower, found) in [
        ("patch_size", "patch_size", 16, PATCH),
        ("temporal_patch_size", "temporal_patch_size", 1, 2),
        ("spatial_merge_size", "merge_size", 4, 2),
    ] {
        for (file, json) in [
            (PICTURE, processor()),
            (VIDEO, video_processor()),
            (JOINT, json!({ "image_processor": processor() })),
            (JOINT, json!({ "video_processor": video_processor() })),
        ] {
            let folder = with(&[(file, &json)]);
            let mut config = writer::config(&tower_kind());
            config["vision_config"][tower_key] = json!(tower);
            fs::write(folder.file("config.json"), config.to_string()).unwrap();
            let said = format!("{key}: expected {tower}, as vision_config says, found {found}");
            refused(&folder.0, Code::Format, &[file, &said]);
        }
    }
}

#[test]
fn broken_processors_are_refused_by_name() {
    for name in [PICTURE, VIDEO, JOINT] {
        for text in ["{", "[]", "", "null", "\u{feff}{}"] {
            let folder = with(&[]);
            fs::write(folder.file(name), text).unwrap();
            refused(&folder.0, Code::Format, &[name]);
        }
        let folder = with(&[]);
        fs::write(folder.file(name), [0xff, 0xfe]).unwrap();
        refused(&folder.0, Code::Format, &[name]);
        fs::File::create(folder.file(name)).unwrap().set_len(MAX_PROCESSOR_BYTES + 1).unwrap();
        refused(&folder.0, Code::Format, &[name, "at most"]);
        fs::remove_file(folder.file(name)).unwrap();
        fs::create_dir(folder.file(name)).unwrap();
        refused(&folder.0, Code::Io, &[name, "expected a file"]);
    }
    for key in ["image_processor", "video_processor"] {
        refused(&with(&[(JOINT, &json!({ key: [] }))]).0, Code::Format, &[JOINT, key]);
    }
    // The filter that the library does not have.
    let mut bilinear = processor();
    bilinear["resample"] = json!(2);
    refused(&with(&[(PICTURE, &bilinear)]).0, Code::Unsupported, &[PICTURE, "resample"]);
}
