//! What config.json and generation_config.json may say.

use crate::writer::{self, Kind};
use lfm3::error::{Code, Error};
use lfm3::model::config::{Config, GenerationDefaults, LayerKind, RopeConfig};
use serde_json::{Value, json};

fn parse(config: &Value) -> Result<Config, Error> {
    Config::parse("config.json", config.to_string().as_bytes())
}

/// The tiny config with `changes`; a null takes its key away.
fn with(changes: Value) -> Result<Config, Error> {
    let mut config = writer::config(&Kind::default());
    for (key, value) in changes.as_object().unwrap() {
        match value {
            Value::Null => config.as_object_mut().unwrap().remove(key),
            value => config.as_object_mut().unwrap().insert(key.clone(), value.clone()),
        };
    }
    parse(&config)
}

#[test]
fn an_empty_config_has_the_reference_defaults() {
    let config = parse(&json!({"model_type": "lfm3"})).unwrap();
    let t = &config.text;
    assert_eq!((t.vocab_size, t.hidden, t.ffn, t.layers.len()), (128_000, 2048, 7680, 24));
    assert_eq!((t.heads, t.kv_heads, t.head_dim, t.taps, t.window), (16, 4, 128, 7, 256));
    assert_eq!((t.conv_bias, t.attention_bias, t.sandwich, t.gate, t.tied), (false, false, true, true, true));
    assert_eq!((t.max_positions, t.norm_eps), (128_000, 1e-5));
    assert_eq!((t.rope_full, t.rope_sliding), (rope(1e6, 0.5), rope(1e4, 1.0)));
    let of = |kind| t.layers.iter().enumerate().filter(|(_, k)| **k == kind).map(|(i, _)| i).collect::<Vec<_>>();
    assert_eq!(of(LayerKind::FullAttention), [2, 6, 10, 14, 18, 22]);
    assert_eq!(of(LayerKind::SlidingAttention), [4, 8, 12, 16, 20]);
    assert_eq!((config.bos, config.eos.len(), config.quantization), (None, 0, None));
}

fn rope(theta: f64, partial: f64) -> RopeConfig {
    RopeConfig { theta, partial }
}

#[test]
fn text_config_is_read_nested_or_flat() {
    let kind = Kind { vision: Some(""), ..Kind::default() };
    let nested = parse(&writer::config(&kind)).unwrap();
    let mut flat = writer::text_config(&kind);
    let Value::Object(outer) = writer::config(&kind) else { unreachable!() };
    flat.as_object_mut().unwrap().extend(outer.into_iter().filter(|(key, _)| key != "text_config"));
    let flat = parse(&flat).unwrap();
    assert_eq!(format!("{nested:?}"), format!("{flat:?}"));
    assert!(nested.vision.is_some() && nested.text.hidden == writer::HIDDEN);
    assert_eq!((nested.bos, &nested.eos[..], nested.pad), (Some(1), &[2][..], Some(0)));
}

#[test]
fn head_dim_is_hidden_over_heads_where_absent() {
    assert_eq!(with(json!({"head_dim": null})).unwrap().text.head_dim, 32);
    assert_eq!(with(json!({"head_dim": 128})).unwrap().text.head_dim, 128);
}

#[test]
fn stop_tokens_may_be_one_or_a_list() {
    assert_eq!(with(json!({"eos_token_id": [2, 3]})).unwrap().eos, [2, 3]);
    assert_eq!(with(json!({"eos_token_id": 5})).unwrap().eos, [5]);
    for bad in [json!(-1), json!(1.5), json!("2"), json!([2, null]), json!(40), json!({}), json!(vec![1; 65])] {
        let error = with(json!({"eos_token_id": bad})).unwrap_err();
        assert!(error.code == Code::Format && error.message.contains("eos_token_id"), "{error}");
    }
}

#[test]
fn every_rope_form_is_read_or_refused() {
    let full = json!({"rope_type": "proportional", "rope_theta": 5e5, "partial_rotary_factor": 0.25});
    let sliding = json!({"type": "default", "rope_theta": 1e4});
    let ropes = |rope_parameters: Value| {
        with(json!({"rope_parameters": rope_parameters})).map(|c| (c.text.rope_full, c.text.rope_sliding))
    };
    let both = json!({"full_attention": full, "sliding_attention": sliding});
    assert_eq!(ropes(both.clone()).unwrap(), (rope(5e5, 0.25), rope(1e4, 1.0)));
    assert_eq!(ropes(Value::Null).unwrap(), (rope(1e6, 0.5), rope(1e4, 1.0)));
    // The older key beside entries that lack it, and the older name of the whole.
    let c = with(json!({"rope_theta": 7e5, "rope_parameters": {"full_attention": {}, "sliding_attention": sliding}}))
        .unwrap();
    assert_eq!((c.text.rope_full, c.text.rope_sliding), (rope(7e5, 1.0), rope(1e4, 1.0)));
    let c = with(json!({"rope_parameters": null, "rope_scaling": both})).unwrap();
    assert_eq!(c.text.rope_full, rope(5e5, 0.25));

    // One rope is enough for one kind of attention only.
    let one_kind =
        |kind: &str| json!({"layer_types": ["conv", kind, kind], "rope_parameters": null, "rope_theta": 9e5});
    assert_eq!(with(one_kind("full_attention")).unwrap().text.rope_full, rope(9e5, 1.0));
    assert_eq!(with(one_kind("sliding_attention")).unwrap().text.rope_sliding, rope(9e5, 1.0));
    for (bad, code, part) in [
        (json!({"rope_theta": 1e6}), Code::Format, "rope_parameters"),
        (json!({"full_attention": full}), Code::Format, "sliding_attention"),
        (json!({"full_attention": full, "sliding_attention": {}}), Code::Format, "sliding_attention.rope_theta"),
        (
            json!({"full_attention": full, "sliding_attention": {"rope_type": "yarn", "rope_theta": 1e4}}),
            Code::Unsupported,
            "yarn",
        ),
        (
            json!({"full_attention": full, "sliding_attention": {"rope_theta": 1e4, "factor": 8.0}}),
            Code::Unsupported,
            "factor",
        ),
        (json!({"full_attention": full, "sliding_attention": {"rope_theta": 1.0}}), Code::Format, "rope_theta"),
        (json!({"full_attention": full, "sliding_attention": {"rope_theta": 1e300}}), Code::Format, "rope_theta"),
        (
            json!({"full_attention": full, "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 0}}),
            Code::Format,
            "partial",
        ),
        (
            json!({"full_attention": full, "sliding_attention": {"rope_theta": 1e4, "partial_rotary_factor": 1.5}}),
            Code::Format,
            "partial",
        ),
        (json!([1]), Code::Format, "rope_parameters"),
    ] {
        let error = ropes(bad.clone()).unwrap_err();
        assert!(error.code == code && error.message.contains(part), "{bad}: {error}");
    }
}

#[test]
fn values_out_of_their_limits_are_named() {
    for (key, bad) in [
        ("vocab_size", json!(0)),
        ("vocab_size", json!((1 << 20) + 1)),
        ("vocab_size", json!(u64::MAX)),
        ("hidden_size", json!(65537)),
        ("hidden_size", json!("64")),
        ("hidden_size", json!(64.0)),
        ("hidden_size", json!(-64)),
        ("intermediate_size", json!(1u64 << 63)),
        ("num_hidden_layers", json!(1025)),
        ("num_hidden_layers", json!(0)),
        ("num_attention_heads", json!(100_000)),
        ("num_key_value_heads", json!(0)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(31)),
        ("head_dim", json!(2048)),
        ("conv_L_cache", json!(1)),
        ("conv_L_cache", json!(65)),
        ("sliding_window", json!(0)),
        ("norm_eps", json!(0)),
        ("norm_eps", json!(-1e-5)),
        ("norm_eps", json!(1e-60)),
        ("max_position_embeddings", json!(0)),
        ("conv_bias", json!(1)),
        ("use_sandwich_norm", json!("yes")),
        ("layer_types", json!(["conv"])),
        ("layer_types", json!("conv")),
        ("model_type", json!(3)),
        ("text_config", json!([])),
    ] {
        let error = with(json!({ key: bad })).unwrap_err();
        assert!(error.code == Code::Format && error.message.contains(key), "{key} {bad}: {error}");
        assert!(error.message.starts_with("config.json: ") && error.message.contains("expected"), "{error}");
    }
    let mut null_window = writer::config(&Kind::default());
    null_window["sliding_window"] = Value::Null;
    assert!(parse(&null_window).unwrap_err().message.contains("sliding_window"));
}

#[test]
fn what_is_not_lfm3_is_refused_by_name() {
    for (change, part) in [
        (json!({"model_type": "lfm2"}), "lfm2"),
        (json!({"text_config": {"model_type": "qwen3"}}), "qwen3"),
        (json!({"layer_types": ["conv", "full_attention", "chunked_attention"]}), "chunked_attention"),
        (json!({"hidden_act": "gelu"}), "gelu"),
    ] {
        let error = with(change).unwrap_err();
        assert!(error.code == Code::Unsupported && error.message.contains(part), "{error}");
    }
    assert_eq!(with(json!({"model_type": null})).unwrap_err().code, Code::Format);
    let disagreeing =
        json!({"model_type": "lfm3_vl", "tie_word_embeddings": false, "text_config": {"tie_word_embeddings": true}});
    assert!(parse(&disagreeing).unwrap_err().message.contains("tie_word_embeddings"));
}

#[test]
fn other_quantizations_are_refused_by_name() {
    for (quantization, code, part) in [
        (json!({"quant_method": "gptq", "bits": 4, "group_size": 64}), Code::Unsupported, "gptq"),
        (json!({"quant_method": "awq"}), Code::Unsupported, "awq"),
        (json!({"quant_method": "fp8", "weight_block_size": [128, 128]}), Code::Unsupported, "fp8"),
        (json!({"bits": 4, "group_size": 32, "mode": "mxfp4"}), Code::Unsupported, "mxfp4"),
        (json!({"bits": 4, "group_size": 16, "mode": "nvfp4"}), Code::Unsupported, "nvfp4"),
        (json!({"bits": 3, "group_size": 64}), Code::Unsupported, "bits: 3"),
        (json!({"bits": 4, "group_size": 128}), Code::Unsupported, "group_size: 128"),
        (json!({"bits": 4}), Code::Format, "group_size"),
        (json!({"group_size": 64}), Code::Format, "bits"),
        (json!({"bits": 4, "group_size": 64, "linear_class": "x"}), Code::Unsupported, "linear_class"),
        (json!({"bits": 4, "group_size": 64, "model.layers.0.w": {"bits": 5}}), Code::Unsupported, "layers.0.w.bits"),
        (json!({"bits": 4, "group_size": 64, "model.a": false, "a": {"bits": 8}}), Code::Format, "one entry a layer"),
        (json!("int8"), Code::Format, "quantization"),
    ] {
        for key in ["quantization", "quantization_config"] {
            let error = with(json!({ key: quantization })).unwrap_err();
            assert!(error.code == code && error.message.contains(part), "{quantization}: {error}");
        }
    }
    let (a, b) = (json!({"bits": 4, "group_size": 64}), json!({"bits": 8, "group_size": 64}));
    assert!(with(json!({"quantization": a, "quantization_config": a})).is_ok());
    assert!(with(json!({"quantization": a, "quantization_config": b})).is_err());
}

#[test]
fn generation_defaults_are_read_and_checked() {
    let parse = |json: Value| GenerationDefaults::parse("generation_config.json", json.to_string().as_bytes(), 40);
    let full = json!({"bos_token_id": 1, "eos_token_id": [2, 3], "do_sample": true, "temperature": 0.1,
        "top_k": 50, "top_p": 0.9, "min_p": 0.15, "repetition_penalty": 1.1, "transformers_version": "5"});
    let expected = GenerationDefaults {
        eos: vec![2, 3],
        do_sample: Some(true),
        temperature: Some(0.1),
        top_k: Some(50),
        top_p: Some(0.9),
        min_p: Some(0.15),
        repetition_penalty: Some(1.1),
    };
    assert_eq!(parse(full).unwrap(), expected);
    assert_eq!(parse(json!({})).unwrap(), GenerationDefaults::default());
    for (key, bad) in [
        ("temperature", json!(-1)),
        ("temperature", json!(1e39)),
        ("top_k", json!(-1)),
        ("top_k", json!(1u64 << 32)),
        ("top_p", json!(1.5)),
        ("min_p", json!("x")),
        ("repetition_penalty", json!(0)),
        ("do_sample", json!(1)),
        ("eos_token_id", json!([40])),
    ] {
        let error = parse(json!({ key: bad })).unwrap_err();
        assert!(error.code == Code::Format && error.message.contains(key), "{error}");
    }
}
