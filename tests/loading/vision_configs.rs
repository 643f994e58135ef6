//! What config.json may say of a vision tower.

use crate::writer::{self, HIDDEN, Kind};
use lfm3::error::{Code, Error};
use lfm3::model::config::Config;
use lfm3::model::vision_config::{VisionConfig, VisionLayer};
use serde_json::{Value, json};

fn parse(config: &Value) -> Result<Config, Error> {
    Config::parse("config.json", config.to_string().as_bytes())
}

/// The tiny VL config with changes; keys with a dot are of its vision_config; a null takes its key away.
fn with(key: &str, value: Value) -> Result<Config, Error> {
    let mut config = writer::config(&Kind { vision: Some(""), ..Kind::default() });
    let (map, key) = match key.strip_prefix("vision_config.") {
        Some(key) => (&mut config["vision_config"], key),
        None => (&mut config, key),
    };
    match value {
        Value::Null => map.as_object_mut().unwrap().remove(key),
        value => map.as_object_mut().unwrap().insert(key.into(), value),
    };
    parse(&config)
}

#[test]
fn an_empty_vision_config_is_the_released_models() {
    use VisionLayer::{Attention, Conv};
    let config = parse(&json!({"model_type": "lfm3_vl", "text_config": {}, "vision_config": {}})).unwrap();
    let expected = VisionConfig {
        hidden: 1024,
        ffn: 2560,
        layers: [vec![Conv, Conv], [Attention, Conv].repeat(6)].concat(),
        heads: 16,
        kv_heads: 8,
        head_dim: 64,
        patch: 16,
        frames: 2,
        merge: 2,
        norm_eps: 1e-5,
        theta: 1e6,
        projector_hidden: 4096,
        projector_bias: true,
        text_hidden: 2048,
    };
    assert_eq!(config.vision, Some(expected));
    assert!(parse(&json!({"model_type": "lfm3_vl"})).unwrap().vision.is_none());
    assert!(parse(&json!({"model_type": "lfm3", "vision_config": {}})).unwrap().vision.is_none());
}

#[test]
fn every_value_is_read() {
    let config = parse(&writer::config(&Kind { vision: Some(""), projector_bias: false, ..Kind::default() })).unwrap();
    let vision = config.vision.as_ref().unwrap();
    assert_eq!((vision.hidden, vision.ffn, vision.layers.len()), (64, 128, 4));
    assert_eq!((vision.heads, vision.kv_heads, vision.head_dim), (2, 1, 32));
    assert_eq!((vision.patch, vision.frames, vision.merge, vision.patch_values()), (8, 2, 2, 384));
    assert_eq!((vision.projector_hidden, vision.projector_bias, vision.text_hidden), (128, false, HIDDEN));
    assert_eq!((config.image_token, config.video_token), (Some(30), Some(31)));
    assert_eq!((config.vision_start, config.vision_end), (Some(32), Some(33)));
    assert_eq!(config.placeholders(), [30, 31]);
    let theta = |value| with("vision_config.rope_parameters", value).map(|c| c.vision.unwrap().theta);
    assert_eq!(theta(json!({"rope_type": "default", "rope_theta": 5e5})).unwrap(), 5e5);
    assert_eq!(theta(Value::Null).unwrap(), 1e6);
    let vision = with("vision_config.head_dim", json!(64)).unwrap().vision.unwrap();
    assert_eq!((vision.heads, vision.head_dim), (2, 64));
}

#[test]
fn values_out_of_their_limits_are_named() {
    for (key, bad) in [
        ("vision_config", json!([])),
        ("vision_config.hidden_size", json!(0)),
        ("vision_config.hidden_size", json!(65537)),
        ("vision_config.hidden_size", json!(u64::MAX)),
        ("vision_config.hidden_size", json!("64")),
        ("vision_config.intermediate_size", json!(1u64 << 63)),
        ("vision_config.num_hidden_layers", json!(0)),
        ("vision_config.num_hidden_layers", json!(1025)),
        ("vision_config.num_attention_heads", json!(0)),
        ("vision_config.num_key_value_heads", json!(3)),
        ("vision_config.head_dim", json!(30)),
        ("vision_config.head_dim", json!(0)),
        ("vision_config.head_dim", json!(1024)),
        ("vision_config.patch_size", json!(0)),
        ("vision_config.patch_size", json!(65)),
        ("vision_config.temporal_patch_size", json!(9)),
        ("vision_config.spatial_merge_size", json!(0)),
        ("vision_config.spatial_merge_size", json!(9)),
        ("vision_config.norm_eps", json!(0)),
        ("vision_config.layer_types", json!(["conv"])),
        ("vision_config.layer_types", json!("conv")),
        ("vision_config.rope_parameters", json!([1])),
        ("vision_config.rope_parameters", json!({"rope_theta": 1})),
        ("vision_config.rope_parameters", json!({"rope_theta": 1e300})),
        ("projector_hidden_size", json!(0)),
        ("projector_hidden_size", json!((1 << 18) + 1)),
        ("projector_bias", json!("yes")),
        ("projector_hidden_act", json!(1)),
        ("image_token_id", json!(40)),
        ("video_token_id", json!(-1)),
        ("vision_start_token_id", json!("<|vision_start|>")),
        ("vision_end_token_id", json!(1.5)),
    ] {
        let error = with(key, bad.clone()).unwrap_err();
        assert!(error.code == Code::Format && error.message.contains(key), "{key} {bad}: {error}");
        assert!(error.message.starts_with("config.json: ") && error.message.contains("expected"), "{error}");
    }
    // Each fits alone, the block does not.
    let mut config = writer::config(&Kind { vision: Some(""), ..Kind::default() });
    config["vision_config"]["hidden_size"] = json!(1 << 16);
    config["vision_config"]["head_dim"] = json!(64);
    config["vision_config"]["spatial_merge_size"] = json!(4);
    let error = parse(&config).unwrap_err();
    assert!(error.message.contains("vision_config.spatial_merge_size"), "{error}");
}

#[test]
fn another_tower_is_refused_by_name() {
    for (key, value, part) in [
        ("vision_config.model_type", json!("siglip2_vision_model"), "siglip2"),
        ("vision_config.hidden_act", json!("gelu"), "gelu"),
        ("vision_config.in_channels", json!(4), "in_channels: 4"),
        ("vision_config.num_channels", json!(1), "num_channels: 1"),
        ("vision_config.conv_kernel_size", json!(5), "conv_kernel_size: 5"),
        ("vision_config.conv_bias", json!(true), "conv_bias"),
        ("vision_config.attention_bias", json!(true), "attention_bias"),
        ("vision_config.use_sandwich_norm", json!(true), "use_sandwich_norm"),
        ("vision_config.use_attention_gate", json!(true), "use_attention_gate"),
        ("vision_config.layer_types", json!(["conv", "conv", "full_attention", "sliding_attention"]), "layer_types[3]"),
        ("vision_config.rope_parameters", json!({"rope_type": "yarn"}), "yarn"),
        ("vision_config.rope_parameters", json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        ("vision_config.rope_parameters", json!({"factor": 8}), "factor"),
        ("projector_hidden_act", json!("gelu_pytorch_tanh"), "gelu_pytorch_tanh"),
    ] {
        let error = with(key, value).unwrap_err();
        assert!(error.code == Code::Unsupported && error.message.contains(part), "{key}: {error}");
    }
}
