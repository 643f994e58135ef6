//! config.json and generation_config.json: what they must say, checked.
//!
//! Absent keys have the defaults of the reference implementation. Nothing is guessed from the tensors: where a default
//! does not fit them, binding the tensors says so.

use super::files::{Fields, parse_object};
use super::quantization::Quantization;
use super::vision_config::VisionConfig;
use crate::error::Result;
use crate::plan::{MAX_HEAD_DIM, MAX_TAPS};
use crate::text::MAX_VOCAB;
use serde_json::Value;

/// Widest hidden row.
pub const MAX_HIDDEN: usize = 1 << 16;
/// Widest feed-forward.
pub const MAX_FFN: usize = 1 << 18;
/// Most layers.
pub const MAX_LAYERS: usize = 1024;
/// Most query heads.
pub const MAX_HEADS: usize = 1024;
/// Most heads times their width.
pub const MAX_HEADS_WIDTH: usize = 1 << 16;
/// Most positions, and the widest window.
pub const MAX_POSITIONS: usize = 1 << 24;
/// Most ids in a list of stop tokens.
pub const MAX_EOS: usize = 64;

/// The operator of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKind {
    /// Short convolution.
    Conv,
    /// Attention over everything before.
    FullAttention,
    /// Attention over the last `sliding_window` positions.
    SlidingAttention,
}

/// A rope's base and the part of the pairs that rotate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RopeConfig {
    /// Base.
    pub theta: f64,
    /// 1 for all pairs; less means the proportional layout, whatever `rope_type` says.
    pub partial: f64,
}

/// The text model's shape.
#[derive(Clone, Debug)]
pub struct TextConfig {
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Width of a hidden row.
    pub hidden: usize,
    /// Width of the feed-forward.
    pub ffn: usize,
    /// One kind a layer.
    pub layers: Vec<LayerKind>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// conv_L_cache.
    pub taps: usize,
    /// Biases on the conv and its projections.
    pub conv_bias: bool,
    /// Biases on the attention projections.
    pub attention_bias: bool,
    /// sliding_window, counting the token itself.
    pub window: usize,
    /// RMS norm epsilon.
    pub norm_eps: f64,
    /// The two post norms.
    pub sandwich: bool,
    /// The per-head output gate.
    pub gate: bool,
    /// Whether logits use the embedding table.
    pub tied: bool,
    /// max_position_embeddings.
    pub max_positions: usize,
    /// Rope of full-attention layers.
    pub rope_full: RopeConfig,
    /// Rope of sliding layers.
    pub rope_sliding: RopeConfig,
}

/// What config.json says.
#[derive(Clone, Debug)]
pub struct Config {
    /// `model_type`: `lfm3` or `lfm3_vl`.
    pub kind: String,
    /// The text model.
    pub text: TextConfig,
    /// The vision tower and its projector, where the config describes them.
    pub vision: Option<VisionConfig>,
    /// First token of a chat.
    pub bos: Option<u32>,
    /// Stop tokens.
    pub eos: Vec<u32>,
    /// Padding token.
    pub pad: Option<u32>,
    /// The token that stands for a row of a picture.
    pub image_token: Option<u32>,
    /// The token that stands for a row of a video's frames.
    pub video_token: Option<u32>,
    /// The token before a picture's rows.
    pub vision_start: Option<u32>,
    /// The token behind them.
    pub vision_end: Option<u32>,
    /// How quantized tensors are stored, if there are any.
    pub quantization: Option<Quantization>,
}

/// Sampling defaults of generation_config.json; what it leaves out is `None` or empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// Stop tokens.
    pub eos: Vec<u32>,
    /// False means greedy, whatever the temperature.
    pub do_sample: Option<bool>,
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// 0 keeps all.
    pub top_k: Option<u32>,
    /// 1 keeps all.
    pub top_p: Option<f32>,
    /// 0 keeps all.
    pub min_p: Option<f32>,
    /// 1 does nothing.
    pub repetition_penalty: Option<f32>,
}

impl Config {
    /// Parses and checks config.json; `file` names it in errors.
    ///
    /// # Errors
    /// `Format` where a value is missing, of the wrong type or out of its limits; `Unsupported` where the config
    /// describes a model or a quantization this library does not run.
    pub fn parse(file: &str, json: &[u8]) -> Result<Config> {
        let map = parse_object(file, json)?;
        let root = Fields::new(file, &map);
        let kind = match root.text("model_type")? {
            Some(kind @ ("lfm3" | "lfm3_vl")) => kind,
            Some(other) => return Err(root.refused("model_type", other, "lfm3 or lfm3_vl")),
            None => return Err(root.wrong("model_type", "lfm3 or lfm3_vl", "none")),
        };
        let fields = root.object("text_config")?.unwrap_or_else(|| root.clone());
        if let Some(other) = fields.text("model_type")?.filter(|inner| *inner != "lfm3" && *inner != kind) {
            return Err(fields.refused("model_type", other, "lfm3"));
        }
        let text = text_config(&root, &fields)?;
        let tokens =
            |key| Ok(root.tokens(key, MAX_EOS, text.vocab_size)?.or(fields.tokens(key, MAX_EOS, text.vocab_size)?));
        let one = |key| Ok(tokens(key)?.and_then(|ids: Vec<u32>| ids.first().copied()));
        Ok(Config {
            kind: kind.to_string(),
            vision: if kind == "lfm3_vl" { VisionConfig::find(&root, text.hidden)? } else { None },
            bos: one("bos_token_id")?,
            eos: tokens("eos_token_id")?.unwrap_or_default(),
            pad: one("pad_token_id")?,
            image_token: one("image_token_id")?,
            video_token: one("video_token_id")?,
            vision_start: one("vision_start_token_id")?,
            vision_end: one("vision_end_token_id")?,
            quantization: Quantization::find(&[root.clone(), fields.clone()])?,
            text,
        })
    }

    /// Tokens that stand for rows of pictures and videos.
    pub fn placeholders(&self) -> Vec<u32> {
        [self.image_token, self.video_token].into_iter().flatten().collect()
    }
}

impl GenerationDefaults {
    /// Parses and checks generation_config.json for a vocabulary of `vocab` tokens; `file` names it in errors.
    ///
    /// # Errors
    /// `Format` where a value is of the wrong type or out of its limits.
    pub fn parse(file: &str, json: &[u8], vocab: usize) -> Result<GenerationDefaults> {
        let map = parse_object(file, json)?;
        let fields = Fields::new(file, &map);
        let number = |key, expected, holds: fn(f64) -> bool| {
            let found = fields.number(key, expected, |n| n <= f64::from(f32::MAX) && holds(n))?;
            Ok(found.map(|n| n as f32))
        };
        Ok(GenerationDefaults {
            eos: fields.tokens("eos_token_id", MAX_EOS, vocab)?.unwrap_or_default(),
            do_sample: fields.flag("do_sample")?,
            temperature: number("temperature", "a number of 0 or more", |n| n >= 0.0)?,
            top_k: fields.whole("top_k", 0..=u64::from(u32::MAX))?.map(|k| k as u32),
            top_p: number("top_p", "a number from 0 to 1", |n| (0.0..=1.0).contains(&n))?,
            min_p: number("min_p", "a number from 0 to 1", |n| (0.0..=1.0).contains(&n))?,
            repetition_penalty: number("repetition_penalty", "a number above 0", |n| n > f64::from(f32::MIN_POSITIVE))?,
        })
    }
}

/// The text model; `root` is the whole config, `fields` the part about text.
fn text_config(root: &Fields, fields: &Fields) -> Result<TextConfig> {
    let hidden = fields.size("hidden_size", 2048, 1..=MAX_HIDDEN)?;
    let (heads, kv_heads, head_dim) = heads(fields, hidden, 4, 2)?;
    if let Some(other) = fields.text("hidden_act")?.filter(|act| *act != "silu") {
        return Err(fields.refused("hidden_act", other, "silu"));
    }
    let layers = layer_kinds(fields)?;
    let window = window(fields, &layers)?;
    let (rope_full, rope_sliding) = ropes(fields, &layers)?;
    Ok(TextConfig {
        vocab_size: fields.size("vocab_size", 128_000, 1..=MAX_VOCAB)?,
        hidden,
        ffn: fields.size("intermediate_size", 7680, 1..=MAX_FFN)?,
        heads,
        kv_heads,
        head_dim,
        taps: fields.size("conv_L_cache", 7, 2..=MAX_TAPS)?,
        conv_bias: fields.flag("conv_bias")?.unwrap_or(false),
        attention_bias: fields.flag("attention_bias")?.unwrap_or(false),
        window,
        norm_eps: norm_eps(fields)?,
        sandwich: fields.flag("use_sandwich_norm")?.unwrap_or(true),
        gate: fields.flag("use_attention_gate")?.unwrap_or(true),
        tied: tied(root, fields)?,
        max_positions: fields.size("max_position_embeddings", 128_000, 1..=MAX_POSITIONS)?,
        rope_full,
        rope_sliding,
        layers,
    })
}

/// Query heads, key and value heads, and their width, which is a multiple of `step` for the rope.
pub(super) fn heads(fields: &Fields, hidden: usize, kv_default: usize, step: usize) -> Result<(usize, usize, usize)> {
    let heads = fields.size("num_attention_heads", 16, 1..=MAX_HEADS)?;
    let kv_heads = fields.size("num_key_value_heads", kv_default, 1..=MAX_HEADS)?;
    if !heads.is_multiple_of(kv_heads) {
        return Err(fields.wrong("num_key_value_heads", format!("a divisor of {heads} attention heads"), kv_heads));
    }
    let head_dim = fields.size("head_dim", hidden / heads, 1..=MAX_HEAD_DIM)?;
    if !head_dim.is_multiple_of(step) || !(step..=MAX_HEAD_DIM).contains(&head_dim) {
        let expected = format!("a multiple of {step} from {step} to {MAX_HEAD_DIM}");
        return Err(fields.wrong("head_dim", expected, head_dim));
    }
    if heads * head_dim > MAX_HEADS_WIDTH {
        let expected = format!("at most {MAX_HEADS_WIDTH} values in all {heads} heads");
        return Err(fields.wrong("head_dim", expected, head_dim));
    }
    Ok((heads, kv_heads, head_dim))
}

fn layer_kinds(fields: &Fields) -> Result<Vec<LayerKind>> {
    let released = |i| match i % 4 {
        2 => LayerKind::FullAttention,
        0 if i > 0 => LayerKind::SlidingAttention,
        _ => LayerKind::Conv,
    };
    let named = |name: &str| match name {
        "conv" => Some(LayerKind::Conv),
        "full_attention" => Some(LayerKind::FullAttention),
        "sliding_attention" => Some(LayerKind::SlidingAttention),
        _ => None,
    };
    layer_list(fields, 24, released, named, "conv, full_attention or sliding_attention")
}

/// The kinds of all layers: those that `layer_types` names, or `released` by index where it is absent; `count` is what
/// an absent `num_hidden_layers` means.
pub(super) fn layer_list<T>(
    fields: &Fields,
    count: usize,
    released: impl Fn(usize) -> T,
    named: impl Fn(&str) -> Option<T>,
    expected: &str,
) -> Result<Vec<T>> {
    let count = fields.size("num_hidden_layers", count, 1..=MAX_LAYERS)?;
    let Some(value) = fields.get("layer_types") else { return Ok((0..count).map(released).collect()) };
    let list = value.as_array().ok_or_else(|| fields.wrong("layer_types", "a list of names", value))?;
    if list.len() != count {
        let found = format!("{} entries", list.len());
        return Err(fields.wrong("layer_types", format!("{count} entries, as num_hidden_layers says"), found));
    }
    let kind = |(i, value): (usize, &Value)| {
        let kind = value.as_str().and_then(&named);
        kind.ok_or_else(|| fields.refused(&format!("layer_types[{i}]"), value, expected))
    };
    list.iter().enumerate().map(kind).collect()
}

/// The window; a null means none, which sliding layers cannot have.
fn window(fields: &Fields, layers: &[LayerKind]) -> Result<usize> {
    if fields.raw("sliding_window").is_some_and(Value::is_null) && layers.contains(&LayerKind::SlidingAttention) {
        return Err(fields.wrong("sliding_window", "a number, for the sliding_attention layers", "null"));
    }
    fields.size("sliding_window", 256, 1..=MAX_POSITIONS)
}

pub(super) fn norm_eps(fields: &Fields) -> Result<f64> {
    let holds = |n: f64| (n as f32) > 0.0 && n <= 1.0;
    let read = |key| fields.number(key, "a number above 0, at most 1", holds);
    match (read("norm_eps")?, read("rms_norm_eps")?) {
        (Some(a), Some(b)) if a != b => Err(fields.wrong("rms_norm_eps", format!("{a}, as norm_eps says"), b)),
        (a, b) => Ok(a.or(b).unwrap_or(1e-5)),
    }
}

/// Whether the head is the embedding table; a config and its text part may not disagree.
fn tied(root: &Fields, fields: &Fields) -> Result<bool> {
    const KEY: &str = "tie_word_embeddings";
    match (root.flag(KEY)?, fields.flag(KEY)?) {
        (Some(a), Some(b)) if a != b => Err(fields.wrong(KEY, format!("{a}, as outside text_config"), b)),
        (a, b) => Ok(a.or(b).unwrap_or(true)),
    }
}

/// The ropes of full and of sliding layers.
fn ropes(fields: &Fields, layers: &[LayerKind]) -> Result<(RopeConfig, RopeConfig)> {
    const FULL: RopeConfig = RopeConfig { theta: 1e6, partial: 0.5 };
    const SLIDING: RopeConfig = RopeConfig { theta: 1e4, partial: 1.0 };
    let parameters = match (fields.object("rope_parameters")?, fields.object("rope_scaling")?) {
        (Some(_), Some(_)) => return Err(fields.wrong("rope_scaling", "none beside rope_parameters", "an object")),
        (a, b) => a.or(b),
    };
    let has_older_keys = fields.get("rope_theta").is_some() || fields.get("partial_rotary_factor").is_some();
    let uses = |kind| layers.contains(&kind);
    let (full, sliding) = (uses(LayerKind::FullAttention), uses(LayerKind::SlidingAttention));
    if let Some(by_kind) =
        parameters.as_ref().filter(|p| p.get("full_attention").or(p.get("sliding_attention")).is_some())
    {
        let entry = |key, used, default| match by_kind.object(key)? {
            Some(entry) => rope(&entry, fields),
            None if used => Err(by_kind.wrong(key, "an object, for the layers of this type", "none")),
            None => Ok(default),
        };
        return Ok((entry("full_attention", full, FULL)?, entry("sliding_attention", sliding, SLIDING)?));
    }
    if parameters.is_none() && !has_older_keys {
        return Ok((FULL, SLIDING));
    }
    if full && sliding {
        let found = "one rope for both layer types";
        return Err(fields.wrong("rope_parameters", "full_attention and sliding_attention entries", found));
    }
    let single = rope(parameters.as_ref().unwrap_or(fields), fields)?;
    Ok(if full { (single, SLIDING) } else { (FULL, single) })
}

/// One rope entry; `outer` may hold what older configs kept outside it.
fn rope(entry: &Fields, outer: &Fields) -> Result<RopeConfig> {
    // The released label "default" with a factor below 1 means the proportional layout, so both names read the same.
    for key in ["rope_type", "type"] {
        if let Some(other) = entry.text(key)?.filter(|t| !matches!(*t, "default" | "proportional")) {
            return Err(entry.refused(key, other, "default or proportional"));
        }
    }
    for key in ["factor", "attention_factor"] {
        if let Some(other) = entry.number(key, "a number", |_| true)?.filter(|n| *n != 1.0) {
            return Err(entry.refused(key, other, "1"));
        }
    }
    let read = |key, expected, holds: fn(f64) -> bool| {
        Ok(entry.number(key, expected, holds)?.or(outer.number(key, expected, holds)?))
    };
    const THETA: &str = "a number above 1";
    let theta = read("rope_theta", THETA, |n| n > 1.0 && n <= f64::from(f32::MAX))?;
    let partial = read("partial_rotary_factor", "a number above 0, at most 1", |n| n > 0.0 && n <= 1.0)?;
    Ok(RopeConfig {
        theta: theta.ok_or_else(|| entry.wrong("rope_theta", THETA, "none"))?,
        partial: partial.unwrap_or(1.0),
    })
}
