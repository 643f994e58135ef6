//! The vision tower's tensors: names, storage and shapes that are accepted, and what is refused.

use crate::mock::{Mock, bind, load, load_both, plans, refused};
use crate::refused::{changed, find};
use crate::writer::{self, FFN, HIDDEN, Kind, PATCH, Raw, dense};
use lfm3::backend::{Backend, Encoding, Float};
use lfm3::error::Code;
use lfm3::model::checkpoint::Checkpoint;
use lfm3::model::load::load_weights;

const FILE: &str = "model.safetensors";

/// A checkpoint with a tower, named as MLX does.
fn tower() -> Kind {
    Kind { vision: Some(""), prefix: "language_model.model.", ..Kind::default() }
}

/// Loads a checkpoint of `kind`; each weight of the tower's plan must get the tensor of its name.
fn loads(kind: &Kind) -> (Checkpoint, Mock) {
    let folder = writer::write_kind(kind);
    let (checkpoint, _, vision) = load_both(&folder.0).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
    let (plan, mock) = vision.expect("a tower");
    assert_eq!(mock.weights.len(), plan.weights.len());
    for (spec, (desc, _)) in plan.weights.iter().zip(mock.weights.values()) {
        assert!(spec.names.iter().any(|name| desc.name.ends_with(name)), "{} for {:?}", desc.name, spec.names);
        assert_eq!((desc.rows, desc.cols), (spec.rows, spec.cols));
    }
    (checkpoint, mock)
}

#[test]
fn the_tower_loads_under_every_name_and_in_every_storage() {
    for (prefix, vision) in [("model.language_model.", "model."), ("language_model.model.", "")] {
        for vision_renamed in [false, true] {
            for affine in [None, Some((4, 64)), Some((6, 32)), Some((8, 64))] {
                let kind = Kind { prefix, affine, vision: Some(vision), vision_renamed, ..Kind::default() };
                assert!(loads(&kind).0.config.vision.is_some());
            }
        }
    }
    for projector_bias in [true, false] {
        for dtype in ["BF16", "F16", "F32"] {
            loads(&Kind { projector_bias, dtype, ..tower() });
        }
    }
}

#[test]
fn a_vision_config_without_vision_tensors_is_text_only() {
    let kind = Kind { prefix: "model.", ..tower() };
    let text: Vec<_> = writer::tensors(&kind).into_iter().filter(|t| t.name.starts_with("model.")).collect();
    let folder = writer::write(&writer::config(&kind), &text);
    let (checkpoint, _, vision) = load_both(&folder.0).unwrap();
    assert_eq!(&checkpoint.config.kind[..], "lfm3_vl");
    assert!(checkpoint.config.vision.is_none() && vision.is_none());
}

#[test]
fn taps_and_patches_load_the_same_values_in_every_layout() {
    let values = |kind: &Kind, end: &str| {
        let (_, mock) = loads(kind);
        mock.weights.into_values().find(|(desc, _)| desc.name.ends_with(end)).expect("the weight").1
    };
    let taps: [fn(usize) -> Vec<usize>; 2] = [|c| vec![c, 1, 3, 3], |c| vec![c, 3, 3, 1]];
    let [torch, mlx] = taps.map(|grid_taps| values(&Kind { grid_taps, ..tower() }, "0.conv.spatial_conv.weight"));
    assert!(torch == mlx && torch.len() == 9 * HIDDEN);
    let patches: [fn(usize) -> Vec<usize>; 2] = [|n| vec![n, 6 * PATCH * PATCH], |n| vec![n, 3, 2, PATCH, PATCH]];
    let [flat, kernel] = patches.map(|patches| values(&Kind { patches, ..tower() }, "patchifier.weight"));
    assert!(flat == kernel && flat.len() == HIDDEN * 384);
    // Beside a quantized rest too, where the config does not ask for this one.
    let kernel = Kind { patches: patches[1], affine: Some((4, 64)), ..tower() };
    loads(&kernel);
}

#[test]
fn exceptions_by_layer_hold_in_either_naming() {
    let exceptions = vec![
        ("vision_tower.patchifier", Some((8, 32))),
        ("vision_tower.layers.1.conv.in_proj", None),
        ("multi_modal_projector.linear_1", Some((6, 64))),
    ];
    let kind = Kind { affine: Some((4, 64)), exceptions, ..tower() };
    let affine = |bits, group| Encoding::Affine { bits, group, scales: Float::Bf16 };
    let expected = [affine(8, 32), Encoding::Dense(Float::Bf16), affine(6, 64), affine(4, 64)];
    let renamed = writer::config(&kind).to_string().replace(r#""vision_tower."#, r#""model.vision_tower."#);
    for config in [writer::config(&kind), serde_json::from_str(&renamed).unwrap()] {
        let (_, _, vision) = load_both(&writer::write(&config, &writer::tensors(&kind)).0).unwrap();
        let mock = vision.unwrap().1;
        let of = |end: &str| mock.weights.values().find(|(d, _)| d.name.ends_with(end)).unwrap().0.encoding;
        let found = ["patchifier", "layers.1.conv.in_proj", "linear_1", "linear_2"].map(|n| of(&format!("{n}.weight")));
        assert_eq!(found, expected);
    }
}

#[test]
fn without_its_plan_the_tower_is_passed_over() {
    let kind = Kind { affine: Some((4, 64)), ..tower() };
    let folder = writer::write_kind(&kind);
    let checkpoint = Checkpoint::open(&folder.0).unwrap();
    let (text, vision) = plans(&checkpoint);
    let alone = checkpoint.bind(&text, None).unwrap();
    let both = checkpoint.bind(&text, vision.as_ref()).unwrap();
    assert_eq!((alone.text.len(), alone.vision.len()), (both.text.len(), 0));
    assert_eq!(both.vision.len(), vision.unwrap().weights.len());
    // What belongs to neither is refused all the same.
    let odd = changed(&kind, |all| all.push(dense("vision_tow.x", "BF16", &[1])));
    let checkpoint = Checkpoint::open(&odd.0).unwrap();
    let error = checkpoint.bind(&text, None).unwrap_err();
    assert!(error.code == Code::Format && error.message.contains("vision_tow.x"), "{error}");
}

#[test]
fn progress_counts_both_plans_as_one() {
    let kind = Kind { dtype: "F32", ..tower() };
    let folder = writer::write_kind(&kind);
    let checkpoint = Checkpoint::open(&folder.0).unwrap();
    let (text, vision) = plans(&checkpoint);
    let vision = vision.unwrap();
    let (mut a, mut b) = (Mock::in_bands_of(5), Mock::in_bands_of(64));
    let mut seen = Vec::new();
    let mut note = |done, total| {
        seen.push((done, total));
        true
    };
    load_weights(&checkpoint, (&text, &mut a), Some((&vision, &mut b)), &mut note).unwrap();
    let total = checkpoint.tensor_bytes;
    assert_eq!((seen.first(), seen.last()), (Some(&(0, total)), Some(&(total, total))));
    assert!(seen.is_sorted() && seen.iter().all(|(_, t)| *t == total));
    assert_eq!((a.weights.len(), b.weights.len()), (text.weights.len(), vision.weights.len()));
    for stop_at in 0..seen.len() {
        let (mut a, mut b) = (Mock::in_bands_of(5), Mock::in_bands_of(64));
        let mut calls = 0;
        let mut stop = |_, _| {
            calls += 1;
            calls <= stop_at
        };
        let part = Some((&vision, &mut b as &mut dyn Backend));
        let error = load_weights(&checkpoint, (&text, &mut a), part, &mut stop).unwrap_err();
        assert_eq!((error.code, calls), (Code::Cancelled, stop_at + 1));
    }
}

#[test]
fn missing_and_unknown_tensors_are_named() {
    for kind in [tower(), Kind { affine: Some((4, 64)), ..tower() }] {
        let of_tower = |raw: &Raw| !raw.name.starts_with("language_model.");
        let all = writer::tensors(&kind);
        let count = all.iter().filter(|raw| of_tower(raw)).count();
        assert!(count > 40, "{count} tensors of the tower");
        for raw in all.iter().filter(|raw| of_tower(raw)) {
            let stem = raw.name.rsplit_once('.').unwrap().0;
            refused(&changed(&kind, |all| all.retain(|t| t.name != raw.name)).0, Code::Format, &[FILE, stem]);
        }
    }
    let gone = changed(&tower(), |all| all.retain(|t| !t.name.contains("patchifier")));
    let both = ["vision_tower.patchifier.weight", "vision_tower.patch_embed.weight"];
    refused(&gone.0, Code::Format, &[FILE, both[0], both[1], "missing", "64 x 384"]);
    for name in [
        "vision_tower.layers.4.operator_norm.weight",
        "vision_tower.layers.0.post_ffn_norm.weight",
        "vision_tower.patchifier.bias",
        "model.vision_tower.x",
        "multi_modal_projector.linear_3.weight",
        "vision_tower.embedding_norm.scales",
    ] {
        let folder = changed(&tower(), |all| all.push(dense(name, "BF16", &[HIDDEN])));
        refused(&folder.0, Code::Format, &[FILE, name, "an unknown one"]);
    }
    let biases = Kind { projector_bias: true, ..tower() };
    let mut config = writer::config(&biases);
    config["projector_bias"] = false.into();
    let folder = writer::write(&config, &writer::tensors(&biases));
    refused(&folder.0, Code::Format, &["linear_1.bias", "an unknown one"]);
}

#[test]
fn one_weight_under_two_names_is_refused() {
    for (name, shape) in [
        ("vision_tower.patch_embed.weight", &[HIDDEN, 384][..]),
        ("model.vision_tower.patchifier.weight", &[HIDDEN, 384]),
        ("vision_tower.layers.2.self_attn.q_norm.weight", &[32]),
        ("model.multi_modal_projector.linear_2.bias", &[HIDDEN]),
    ] {
        let folder = changed(&tower(), |all| all.push(dense(name, "BF16", shape)));
        refused(&folder.0, Code::Format, &[FILE, name, "one tensor for this weight"]);
    }
}

#[test]
fn wrong_shapes_are_refused() {
    let kind = tower();
    for raw in writer::tensors(&kind).iter().filter(|raw| !raw.name.starts_with("language_model.")) {
        for shape in [vec![], vec![0], vec![1, 1], [&raw.shape[..], &[1]].concat(), [&[1], &raw.shape[..]].concat()] {
            let folder = changed(&kind, |all| *find(all, &raw.name) = dense(&raw.name, "BF16", &shape));
            refused(&folder.0, Code::Format, &[FILE, &raw.name, "shape", &format!("{shape:?}")]);
        }
    }
    let taps = "vision_tower.layers.0.conv.spatial_conv.weight";
    let patches = "vision_tower.patchifier.weight";
    for (name, shape) in [
        (taps, vec![HIDDEN, 9]),
        (taps, vec![HIDDEN, 3, 1, 3]),
        (taps, vec![3, 3, HIDDEN, 1]),
        (taps, vec![HIDDEN, 1, 5, 5]),
        (patches, vec![HIDDEN, 2, PATCH, PATCH, 3]),
        (patches, vec![HIDDEN, 3, PATCH, PATCH, 2]),
        (patches, vec![HIDDEN, 6, PATCH, PATCH]),
        ("vision_tower.layers.0.feed_forward.w1.weight", vec![HIDDEN, FFN]),
    ] {
        let folder = changed(&kind, |all| *find(all, name) = dense(name, "BF16", &shape));
        refused(&folder.0, Code::Format, &[FILE, name, "shape", &format!("{shape:?}")]);
    }
}

#[test]
fn types_and_quantized_parts_are_checked() {
    let kind = Kind { affine: Some((4, 64)), ..tower() };
    let stem = "vision_tower.patchifier";
    let [weight, scales, biases] = ["weight", "scales", "biases"].map(|part| format!("{stem}.{part}"));
    for (name, new, code) in [
        (&weight, dense(&weight, "BF16", &[HIDDEN, 48]), Code::Format),
        (&scales, dense(&scales, "BF16", &[HIDDEN, 5]), Code::Format),
        (&scales, dense(&scales, "F16", &[HIDDEN, 6]), Code::Format),
        (&biases, dense(&biases, "BF16", &[HIDDEN, 7]), Code::Format),
    ] {
        refused(&changed(&kind, |all| *find(all, name) = new).0, code, &[FILE, stem]);
    }
    // The file says other bits than the config.
    let folder = writer::write(&writer::config(&kind), &writer::tensors(&Kind { affine: Some((8, 64)), ..tower() }));
    refused(&folder.0, Code::Format, &[FILE, "4 bits in groups of 64"]);
    let mut config = writer::config(&kind);
    config["quantization"][stem] = false.into();
    refused(&writer::write(&config, &writer::tensors(&kind)).0, Code::Format, &[FILE, stem, "not quantized"]);
    let folder = changed(&tower(), |all| {
        let raw = find(all, &weight);
        (raw.dtype, raw.bytes) = ("I8", vec![0; HIDDEN * 384]);
    });
    refused(&folder.0, Code::Unsupported, &[FILE, stem, "I8"]);
}

#[test]
fn a_tower_that_is_not_the_configs_is_refused() {
    let tensors = writer::tensors(&tower());
    for (key, value, part) in [
        ("hidden_size", 128, "vision_tower.patchifier.weight"),
        ("num_hidden_layers", 3, "layers.3"),
        ("patch_size", 16, "vision_tower.patchifier.weight"),
        ("spatial_merge_size", 1, "linear_1"),
    ] {
        let mut config = writer::config(&tower());
        config["vision_config"][key] = value.into();
        if key == "num_hidden_layers" {
            config["vision_config"]["layer_types"] = writer::VISION_LAYERS[..3].into();
        }
        refused(&writer::write(&config, &tensors).0, Code::Format, &[FILE, part]);
    }
    let mut config = writer::config(&tower());
    config.as_object_mut().unwrap().remove("vision_config");
    refused(&writer::write(&config, &tensors).0, Code::Format, &[FILE, "multi_modal_projector", "an unknown one"]);
    bind(&writer::write_kind(&tower()).0).unwrap();
    load(&writer::write_kind(&tower()).0).unwrap();
}
