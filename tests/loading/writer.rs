//! Writes tiny synthetic checkpoints into folders that go away with their guard.

use crate::rng::Rng;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

pub const HIDDEN: usize = 64;
pub const FFN: usize = 128;
pub const VOCAB: usize = 40;
pub const HEADS: usize = 2;
pub const KV_HEADS: usize = 1;
pub const HEAD_DIM: usize = 32;
pub const TAPS: usize = 7;
/// Side of a patch; a row of patches has 384 values.
pub const PATCH: usize = 8;

/// A folder that is removed with this.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Folder {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("lfm3-loading-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// A tensor to write.
#[derive(Clone, Debug)]
pub struct Raw {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// `count` random values of a float type, with their exact float32 values.
pub fn floats(rng: &mut Rng, dtype: &str, count: usize) -> (Vec<u8>, Vec<f32>) {
    let (mut bytes, mut values) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let x = rng.unit();
        match dtype {
            "BF16" => {
                let x = half::bf16::from_f32(x);
                bytes.extend(x.to_le_bytes());
                values.push(x.to_f32());
            }
            "F16" => {
                let x = half::f16::from_f32(x);
                bytes.extend(x.to_le_bytes());
                values.push(x.to_f32());
            }
            _ => {
                bytes.extend(x.to_le_bytes());
                values.push(x);
            }
        }
    }
    (bytes, values)
}

pub fn dense(name: &str, dtype: &'static str, shape: &[usize]) -> Raw {
    let (bytes, _) = floats(&mut Rng(name.len() as u64 + 1), dtype, shape.iter().product());
    Raw { name: name.into(), dtype, shape: shape.to_vec(), bytes }
}

/// The three tensors of a quantized matrix, and the values they stand for.
pub fn quantized(
    name: &str,
    n: usize,
    k: usize,
    bits: u32,
    group: usize,
    scales: &'static str,
) -> (Vec<Raw>, Vec<f32>) {
    let stem = name.strip_suffix(".weight").unwrap();
    let mut rng = Rng(bits as u64 * 1000 + group as u64 + name.len() as u64);
    let q: Vec<u32> = (0..n * k).map(|_| rng.below(1 << bits) as u32).collect();
    let (scale_bytes, scale) = floats(&mut rng, scales, n * k / group);
    let (bias_bytes, bias) = floats(&mut rng, scales, n * k / group);
    let mut words = Vec::new();
    for row in q.chunks(k) {
        let (mut held, mut filled) = (0u64, 0);
        for value in row {
            held |= u64::from(*value) << filled;
            filled += bits;
            if filled >= 32 {
                words.extend((held as u32).to_le_bytes());
                held >>= 32;
                filled -= 32;
            }
        }
        assert_eq!(filled, 0);
    }
    let values = q.iter().enumerate().map(|(i, q)| *q as f32 * scale[i / group] + bias[i / group]).collect();
    let raw = |end: &str, dtype, cols, bytes| Raw { name: format!("{stem}.{end}"), dtype, shape: vec![n, cols], bytes };
    let tensors = vec![
        raw("weight", "U32", k * bits as usize / 32, words),
        raw("scales", scales, k / group, scale_bytes),
        raw("biases", scales, k / group, bias_bytes),
    ];
    (tensors, values)
}

/// What kind of checkpoint to write.
#[derive(Clone, Debug)]
pub struct Kind {
    pub prefix: &'static str,
    pub head: Option<&'static str>,
    pub gate: &'static str,
    pub dtype: &'static str,
    /// Bits and group of matrices, unless `exceptions` says otherwise.
    pub affine: Option<(u32, usize)>,
    pub scales: &'static str,
    /// By end of stem; `None` is dense.
    pub exceptions: Vec<(&'static str, Option<(u32, usize)>)>,
    pub taps: fn(usize, usize) -> Vec<usize>,
    pub conv_bias: bool,
    pub attention_bias: bool,
    pub sandwich: bool,
    pub gated: bool,
    /// Prefix of the vision tower's and projector's tensors.
    pub vision: Option<&'static str>,
    /// Whether the tower's tensors have transformers' names.
    pub vision_renamed: bool,
    /// Shapes of the tower's taps and of its patches' matrix.
    pub grid_taps: fn(usize) -> Vec<usize>,
    pub patches: fn(usize) -> Vec<usize>,
    pub projector_bias: bool,
}

impl Default for Kind {
    fn default() -> Self {
        Kind {
            prefix: "model.",
            head: None,
            gate: "gate_proj",
            dtype: "BF16",
            affine: None,
            scales: "BF16",
            exceptions: Vec::new(),
            taps: |c, t| vec![c, 1, t],
            conv_bias: false,
            attention_bias: false,
            sandwich: true,
            gated: true,
            vision: None,
            vision_renamed: false,
            grid_taps: |c| vec![c, 1, 3, 3],
            patches: |n| vec![n, 6 * PATCH * PATCH],
            projector_bias: true,
        }
    }
}

/// Name, shape and whether it is a matrix, of every text tensor.
fn text_shapes(kind: &Kind) -> Vec<(String, Vec<usize>, bool)> {
    let mut all = vec![
        (format!("{}embed_tokens.weight", kind.prefix), vec![VOCAB, HIDDEN], true),
        (format!("{}embedding_norm.weight", kind.prefix), vec![HIDDEN], false),
    ];
    all.extend(kind.head.map(|name| (name.to_string(), vec![VOCAB, HIDDEN], true)));
    for (layer, operator) in ["conv", "full", "sliding"].iter().enumerate() {
        let p = format!("{}layers.{layer}.", kind.prefix);
        let mut add = |name: &str, shape: &[usize], matrix| all.push((format!("{p}{name}"), shape.to_vec(), matrix));
        add("operator_norm.weight", &[HIDDEN], false);
        add("ffn_norm.weight", &[HIDDEN], false);
        if kind.sandwich {
            add("post_operator_norm.weight", &[HIDDEN], false);
            add("post_ffn_norm.weight", &[HIDDEN], false);
        }
        add("feed_forward.w1.weight", &[FFN, HIDDEN], true);
        add("feed_forward.w3.weight", &[FFN, HIDDEN], true);
        add("feed_forward.w2.weight", &[HIDDEN, FFN], true);
        let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
        let projections: &[(&str, [usize; 2])] = match *operator {
            "conv" => &[("conv.in_proj", [3 * HIDDEN, HIDDEN]), ("conv.out_proj", [HIDDEN, HIDDEN])],
            _ => &[
                ("self_attn.q_proj", [q, HIDDEN]),
                ("self_attn.k_proj", [kv, HIDDEN]),
                ("self_attn.v_proj", [kv, HIDDEN]),
                ("self_attn.o_proj", [HIDDEN, q]),
            ],
        };
        let bias = if *operator == "conv" { kind.conv_bias } else { kind.attention_bias };
        for (name, shape) in projections {
            add(&format!("{name}.weight"), shape, true);
            if bias {
                add(&format!("{name}.bias"), &shape[..1], false);
            }
        }
        if *operator == "conv" {
            add("conv.conv.weight", &(kind.taps)(HIDDEN, TAPS), false);
            if bias {
                add("conv.conv.bias", &[HIDDEN], false);
            }
        } else {
            add("self_attn.q_norm.weight", &[HEAD_DIM], false);
            add("self_attn.k_norm.weight", &[HEAD_DIM], false);
            if kind.gated {
                add(&format!("self_attn.{}.weight", kind.gate), &[HEADS, HIDDEN], true);
            }
        }
    }
    all
}

/// Name, shape and whether it is a matrix, of every tensor of the tower and the projector.
fn vision_shapes(kind: &Kind) -> Vec<(String, Vec<usize>, bool)> {
    let Some(prefix) = kind.vision else { return Vec::new() };
    let renamed = |a: &'static str, b: &'static str| if kind.vision_renamed { b } else { a };
    let mut all = Vec::new();
    let mut add = |name: String, shape: &[usize], matrix| all.push((format!("{prefix}{name}"), shape.to_vec(), matrix));
    let patches = renamed("patchifier", "patch_embed");
    add(format!("vision_tower.{patches}.weight"), &(kind.patches)(HIDDEN), true);
    add("vision_tower.embedding_norm.weight".into(), &[HIDDEN], false);
    let (q, kv) = (HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM);
    for (layer, operator) in VISION_LAYERS.iter().enumerate() {
        let mut add = |name: &str, shape: &[usize], matrix| {
            add(format!("vision_tower.layers.{layer}.{name}.weight"), shape, matrix);
        };
        add("operator_norm", &[HIDDEN], false);
        add("ffn_norm", &[HIDDEN], false);
        add("feed_forward.w1", &[FFN, HIDDEN], true);
        add("feed_forward.w3", &[FFN, HIDDEN], true);
        add("feed_forward.w2", &[HIDDEN, FFN], true);
        if *operator == "conv" {
            add("conv.in_proj", &[3 * HIDDEN, HIDDEN], true);
            add("conv.spatial_conv", &(kind.grid_taps)(HIDDEN), false);
            add("conv.out_proj", &[HIDDEN, HIDDEN], true);
        } else {
            add("self_attn.q_proj", &[q, HIDDEN], true);
            add("self_attn.k_proj", &[kv, HIDDEN], true);
            add("self_attn.v_proj", &[kv, HIDDEN], true);
            add("self_attn.out_proj", &[HIDDEN, q], true);
            add(&format!("self_attn.{}", renamed("q_layernorm", "q_norm")), &[HEAD_DIM], false);
            add(&format!("self_attn.{}", renamed("k_layernorm", "k_norm")), &[HEAD_DIM], false);
        }
    }
    for part in ["weight", "bias"] {
        add(format!("multi_modal_projector.layer_norm.{part}"), &[HIDDEN], false);
    }
    for (name, rows, cols) in [("linear_1", FFN, 4 * HIDDEN), ("linear_2", HIDDEN, FFN)] {
        add(format!("multi_modal_projector.{name}.weight"), &[rows, cols], true);
        if kind.projector_bias {
            add(format!("multi_modal_projector.{name}.bias"), &[rows], false);
        }
    }
    all
}

/// Every tensor of the checkpoint.
pub fn tensors(kind: &Kind) -> Vec<Raw> {
    let shapes = [text_shapes(kind), vision_shapes(kind)].concat();
    let mut all = Vec::new();
    for (name, shape, matrix) in shapes {
        let stem = name.strip_suffix(".weight").unwrap_or(&name);
        let exception = kind.exceptions.iter().find(|(end, _)| stem.ends_with(end)).map(|(_, affine)| *affine);
        match exception.unwrap_or(kind.affine).filter(|_| matrix && shape.len() == 2) {
            Some((bits, group)) => all.extend(quantized(&name, shape[0], shape[1], bits, group, kind.scales).0),
            None => all.push(dense(&name, kind.dtype, &shape)),
        }
    }
    all
}

/// The text part of config.json.
pub fn text_config(kind: &Kind) -> Value {
    json!({
        "model_type": "lfm3", "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": FFN,
        "num_hidden_layers": 3, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM,
        "max_position_embeddings": 512, "norm_eps": 1e-5, "conv_L_cache": TAPS, "conv_bias": kind.conv_bias,
        "attention_bias": kind.attention_bias, "sliding_window": 16, "use_sandwich_norm": kind.sandwich,
        "use_attention_gate": kind.gated, "tie_word_embeddings": kind.head.is_none(),
        "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
        "layer_types": ["conv", "full_attention", "sliding_attention"],
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}
        }
    })
}

/// Two of each kind in a row.
pub const VISION_LAYERS: [&str; 4] = ["conv", "conv", "full_attention", "full_attention"];

/// The `vision_config` of config.json.
pub fn vision_config() -> Value {
    json!({
        "model_type": "lfm3_vl_vision", "hidden_size": HIDDEN, "intermediate_size": FFN, "num_hidden_layers": 4,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "in_channels": 3, "patch_size": PATCH,
        "temporal_patch_size": 2, "spatial_merge_size": 2, "conv_kernel_size": 3, "norm_eps": 1e-5,
        "layer_types": VISION_LAYERS, "rope_parameters": {"rope_type": "axial", "rope_theta": 1e6},
    })
}

/// All of config.json.
pub fn config(kind: &Kind) -> Value {
    let mut config = match kind.vision {
        Some(_) => json!({
            "model_type": "lfm3_vl", "text_config": text_config(kind), "vision_config": vision_config(),
            "projector_hidden_size": FFN, "projector_hidden_act": "gelu", "projector_bias": kind.projector_bias,
            "image_token_id": 30, "video_token_id": 31, "vision_start_token_id": 32, "vision_end_token_id": 33,
        }),
        None => text_config(kind),
    };
    if let Some((bits, group)) = kind.affine {
        config["quantization"] = json!({"bits": bits, "group_size": group, "mode": "affine"});
        for (end, affine) in &kind.exceptions {
            let shapes = [text_shapes(kind), vision_shapes(kind)].concat();
            for raw in shapes.iter().filter_map(|(name, _, _)| name.strip_suffix(".weight")) {
                if raw.ends_with(end) {
                    config["quantization"][raw] = match affine {
                        Some((bits, group)) => json!({"bits": bits, "group_size": group}),
                        None => json!(false),
                    };
                }
            }
        }
    }
    config
}

/// The bytes of a safetensors file whose header is `header`.
pub fn with_header(header: &str, data: &[u8]) -> Vec<u8> {
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.extend(data);
    file
}

/// The bytes of a safetensors file.
pub fn safetensors(tensors: &[Raw]) -> Vec<u8> {
    let (mut header, mut data) = (String::from("{\"__metadata__\":{\"format\":\"pt\"}"), Vec::new());
    for t in tensors {
        let end = data.len() + t.bytes.len();
        let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [data.len(), end]});
        header += &format!(",{}:{entry}", json!(t.name));
        data.extend(&t.bytes);
    }
    header.push('}');
    while header.len() % 8 != 0 {
        header.push(' ');
    }
    with_header(&header, &data)
}

/// A checkpoint folder with `config` and `tensors`.
pub fn write(config: &Value, tensors: &[Raw]) -> Folder {
    let folder = Folder::new();
    write_small_files(&folder.0, config);
    fs::write(folder.file("model.safetensors"), safetensors(tensors)).unwrap();
    folder
}

/// Everything but the tensors.
pub fn write_small_files(folder: &Path, config: &Value) {
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("tokenizer.json"), "{}").unwrap();
}

/// A checkpoint of `kind`.
pub fn write_kind(kind: &Kind) -> Folder {
    write(&config(kind), &tensors(kind))
}
