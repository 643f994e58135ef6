//! The processors' configs: what is read, what is refused, and how it is said.

use crate::formula::{picture_config, picture_json, video_config};
use lfm3::error::Code;
use lfm3::picture::config::{MAX_AREA, PictureConfig, VideoConfig};
use serde_json::{Value, json};

fn picture(json: &Value) -> Result<PictureConfig, lfm3::error::Error> {
    PictureConfig::parse("preprocessor_config.json", json.to_string().as_bytes())
}

fn video(json: &Value) -> Result<VideoConfig, lfm3::error::Error> {
    VideoConfig::parse("video_preprocessor_config.json", json.to_string().as_bytes())
}

/// The demo's config with some keys set otherwise.
fn with(changes: &Value) -> Value {
    let mut json: Value = serde_json::from_str(&picture_json(9216, 20480)).unwrap();
    for (key, value) in changes.as_object().unwrap() {
        json[key] = value.clone();
    }
    json
}

#[test]
fn released_values_are_read() {
    let config = picture_config("LFM3-VL-2B");
    assert_eq!((config.patch, config.frames, config.merge), (16, 2, 2));
    assert_eq!(config.area, 65_536..=16_777_216);
    assert_eq!((config.shift, config.scale), ([127.5; 3], [127.5; 3]));
    assert_eq!((config.values(), config.token_side(), config.most_tokens), (1536, 32, None));
    let config = video_config();
    assert_eq!((config.fps, config.count, config.frame_area), (2.0, 4..=768, None));
    assert_eq!(config.picture.area, 4096..=25_165_824);
}

#[test]
fn absent_keys_have_the_references_defaults() {
    let config = picture(&json!({})).unwrap();
    assert_eq!((config.patch, config.merge, config.area), (14, 2, 3136..=1_003_520));
    let mean = [0.48145466_f32, 0.4578275, 0.40821073].map(|m| m * 255.0);
    assert_eq!(config.shift, mean);
    let config = video(&json!({"size": null})).unwrap();
    assert_eq!((config.picture.patch, config.picture.area), (16, 131_072..=786_432));
    assert_eq!((config.picture.shift, config.fps, config.count), ([127.5; 3], 2.0, 4..=768));
}

#[test]
fn older_names_of_areas_count_for_pictures() {
    let config = picture(&with(&json!({"min_pixels": 1000, "max_pixels": 9999}))).unwrap();
    assert_eq!(config.area, 1000..=9999);
    let config = picture(&json!({"size": {}, "min_pixels": 1000, "max_pixels": 9999})).unwrap();
    assert_eq!(config.area, 1000..=9999);
    assert_eq!(picture(&with(&json!({"max_pixels": 10_000}))).unwrap().area, 9216..=10_000);
}

#[test]
fn normalization_is_rounded_as_the_reference_does() {
    // The inverse in double precision, then products in single.
    let changes = json!({"rescale_factor": 0.003, "image_mean": [0.1, 0.2, 0.3], "image_std": [0.7, 0.8, 0.9]});
    let config = picture(&with(&changes)).unwrap();
    let inverse = (1.0 / 0.003_f64) as f32;
    assert_eq!(config.shift, [0.1_f32 * inverse, 0.2 * inverse, 0.3 * inverse]);
    assert_eq!(config.scale, [0.7_f32 * inverse, 0.8 * inverse, 0.9 * inverse]);
    assert_ne!(config.shift[0], (0.1 / 0.003_f64) as f32, "another order rounds otherwise");
}

#[test]
fn what_is_done_otherwise_is_refused_by_name() {
    for (key, value) in [
        ("resample", json!(2)),
        ("do_resize", json!(false)),
        ("do_rescale", json!(false)),
        ("do_normalize", json!(false)),
        ("do_convert_rgb", json!(false)),
        ("do_center_crop", json!(true)),
        ("do_pad", json!(true)),
        ("do_image_splitting", json!(true)),
        ("temporal_patch_size", json!(1)),
        ("image_processor_type", json!("CLIPImageProcessor")),
    ] {
        let error = picture(&with(&json!({ key: value }))).unwrap_err();
        assert_eq!(error.code, Code::Unsupported, "{error}");
        assert!(error.message.contains("preprocessor_config.json") && error.message.contains(key), "{error}");
    }
    for (key, value) in [
        ("do_sample_frames", json!(false)),
        ("num_frames", json!(16)),
        ("resample", json!(0)),
        ("video_processor_type", json!("SmolVLMVideoProcessor")),
    ] {
        let error = video(&json!({ key: value })).unwrap_err();
        assert!(error.code == Code::Unsupported && error.message.contains(key), "{error}");
    }
}

#[test]
fn values_out_of_their_limits_are_refused_by_name() {
    for (key, value) in [
        ("resample", json!("bicubic")),
        ("do_resize", json!(1)),
        ("patch_size", json!(0)),
        ("patch_size", json!(65)),
        ("patch_size", json!(16.5)),
        ("merge_size", json!(9)),
        ("merge_size", json!(-1)),
        ("temporal_patch_size", json!(u64::MAX)),
        ("rescale_factor", json!(0)),
        ("rescale_factor", json!(-0.1)),
        ("rescale_factor", json!(1e-300)),
        ("image_mean", json!(0.5)),
        ("image_mean", json!([0.5, 0.5])),
        ("image_mean", json!([0.5, 0.5, "x"])),
        ("image_mean", json!([0.5, 0.5, 1e300])),
        ("image_std", json!([0.5, 0.5, 0.0])),
        ("image_std", json!([0.5, 0.5, 1e-300])),
        ("image_std", json!([0.5, 0.5, 0.5, 0.5])),
        ("size", json!(448)),
        ("size", json!({"shortest_edge": 100})),
        ("size", json!({"height": 448, "width": 448})),
        ("size", json!({"shortest_edge": 0, "longest_edge": 9})),
        ("size", json!({"shortest_edge": 9, "longest_edge": 8})),
        ("size", json!({"shortest_edge": 9, "longest_edge": MAX_AREA + 1})),
        ("max_pixels", json!(0)),
        ("image_processor_type", json!(7)),
    ] {
        let error = picture(&with(&json!({ key: value }))).unwrap_err();
        assert_eq!(error.code, Code::Format, "{error}");
        assert!(error.message.contains(key), "{error}");
    }
    for (key, value) in [
        ("fps", json!(0)),
        ("fps", json!("2")),
        ("fps", json!(1e9)),
        ("min_frames", json!(0)),
        ("max_frames", json!(100_000)),
        ("max_frames", json!(3)),
        ("max_video_tokens", json!(0)),
        ("cap_pixels_per_frame", json!("yes")),
    ] {
        let error = video(&json!({ key: value })).unwrap_err();
        assert!(error.code == Code::Format && error.message.contains(key), "{error}");
    }
    for text in ["", "[]", "{", "null", "{\"size\": {\"shortest_edge\": 1e400}}"] {
        assert_eq!(PictureConfig::parse("p.json", text.as_bytes()).unwrap_err().code, Code::Format, "{text}");
        assert_eq!(VideoConfig::parse("v.json", text.as_bytes()).unwrap_err().code, Code::Format, "{text}");
    }
}

#[test]
fn frames_are_capped_one_by_one_where_asked() {
    use lfm3::picture::Size;
    let size = json!({"shortest_edge": 4096, "longest_edge": 25_165_824});
    let free = video(&json!({"size": size})).unwrap();
    let capped = video(&json!({"size": size, "cap_pixels_per_frame": true, "max_video_tokens": 100})).unwrap();
    assert_eq!((free.frame_area, capped.frame_area), (None, Some(100 * 1024)));
    let from = Size { width: 1920, height: 1080 };
    let (large, small) = (free.resized(8, from).unwrap(), capped.resized(8, from).unwrap());
    assert!(large.area() > 2_000_000 && small.area() <= 100 * 1024, "{large} and {small}");
    // A limit on tokens is stronger than the cap's least.
    let limited = capped.limited(Some(4));
    assert!(4 * limited.picture.tokens(limited.resized(8, from).unwrap()) <= 4);
}
