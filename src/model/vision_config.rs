//! The `vision_config` entry of config.json and what its root says of the projector, checked.
//!
//! Absent keys have LFM3-VL-2B's values.

use super::config::{MAX_FFN, MAX_HIDDEN, heads, layer_list, norm_eps};
use super::files::Fields;
use crate::error::Result;
use crate::picture::config::{MAX_MERGE, MAX_PATCH};

/// Channels of a picture.
pub const CHANNELS: usize = 3;
/// Side of the convolution's kernel.
pub const KERNEL: usize = 3;
/// Most frames of a patch.
pub const MAX_PATCH_FRAMES: usize = 8;
/// Widest row of a block's patches side by side.
pub const MAX_MERGED: usize = 1 << 18;

/// The operator of a layer of the tower.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VisionLayer {
    /// Gated convolution over the grid of patches.
    Conv,
    /// Attention over all patches of a frame.
    Attention,
}

/// The shape of the vision tower and of the projector behind it.
#[derive(Clone, Debug, PartialEq)]
pub struct VisionConfig {
    /// Width of a hidden row.
    pub hidden: usize,
    /// Width of the feed-forward.
    pub ffn: usize,
    /// One kind a layer.
    pub layers: Vec<VisionLayer>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head, a multiple of 4.
    pub head_dim: usize,
    /// Side of a patch in pixels.
    pub patch: usize,
    /// Frames of a patch.
    pub frames: usize,
    /// Side of a block of patches that becomes one row of the text model.
    pub merge: usize,
    /// RMS norm epsilon.
    pub norm_eps: f64,
    /// Base of the axial rope.
    pub theta: f64,
    /// Width between the projector's two matrices.
    pub projector_hidden: usize,
    /// Biases on the projector's matrices.
    pub projector_bias: bool,
    /// Width of the rows that come out, the text model's.
    pub text_hidden: usize,
}

impl VisionConfig {
    /// Reads and checks the `vision_config` of `root`; `None` where there is none.
    pub(super) fn find(root: &Fields, text_hidden: usize) -> Result<Option<VisionConfig>> {
        let Some(fields) = root.object("vision_config")? else { return Ok(None) };
        check_kind(root, &fields)?;
        let hidden = fields.size("hidden_size", 1024, 1..=MAX_HIDDEN)?;
        // Each axis turns half of a head's pairs.
        let (heads, kv_heads, head_dim) = heads(&fields, hidden, 8, 4)?;
        let merge = fields.size("spatial_merge_size", 2, 1..=MAX_MERGE)?;
        if merge * merge * hidden > MAX_MERGED {
            let expected = format!("at most {MAX_MERGED} values in a block of rows of {hidden}");
            return Err(fields.wrong("spatial_merge_size", expected, merge));
        }
        Ok(Some(VisionConfig {
            hidden,
            ffn: fields.size("intermediate_size", 2560, 1..=MAX_FFN)?,
            layers: layers(&fields)?,
            heads,
            kv_heads,
            head_dim,
            patch: fields.size("patch_size", 16, 1..=MAX_PATCH)?,
            frames: fields.size("temporal_patch_size", 2, 1..=MAX_PATCH_FRAMES)?,
            merge,
            norm_eps: norm_eps(&fields)?,
            theta: theta(&fields)?,
            projector_hidden: root.size("projector_hidden_size", 4096, 1..=MAX_FFN)?,
            projector_bias: root.flag("projector_bias")?.unwrap_or(true),
            text_hidden,
        }))
    }

    /// Values of a patch, in the order channel, frame, row, column.
    pub fn patch_values(&self) -> usize {
        CHANNELS * self.frames * self.patch * self.patch
    }

    /// Patches of a block.
    pub fn block(&self) -> usize {
        self.merge * self.merge
    }
}

/// Refuses what this tower is not.
fn check_kind(root: &Fields, fields: &Fields) -> Result<()> {
    only(fields, "model_type", &["lfm3_vl_vision"])?;
    only(fields, "hidden_act", &["silu"])?;
    only(root, "projector_hidden_act", &["gelu"])?;
    for (key, supported) in [("in_channels", CHANNELS), ("num_channels", CHANNELS), ("conv_kernel_size", KERNEL)] {
        if let Some(other) = fields.whole(key, 0..=u64::MAX)?.filter(|n| *n != supported as u64) {
            return Err(fields.refused(key, other, &supported.to_string()));
        }
    }
    for key in ["conv_bias", "attention_bias", "use_attention_gate", "use_sandwich_norm"] {
        if fields.flag(key)? == Some(true) {
            return Err(fields.refused(key, true, "false"));
        }
    }
    Ok(())
}

/// Refuses a text that is none of `supported`.
fn only(fields: &Fields, key: &str, supported: &[&str]) -> Result<()> {
    match fields.text(key)?.filter(|text| !supported.contains(text)) {
        Some(other) => Err(fields.refused(key, other, &supported.join(" or "))),
        None => Ok(()),
    }
}

fn layers(fields: &Fields) -> Result<Vec<VisionLayer>> {
    let released = |i| if i > 0 && i % 2 == 0 { VisionLayer::Attention } else { VisionLayer::Conv };
    let named = |name: &str| match name {
        "conv" => Some(VisionLayer::Conv),
        "full_attention" => Some(VisionLayer::Attention),
        _ => None,
    };
    layer_list(fields, 14, released, named, "conv or full_attention")
}

/// The axial rope's base, in an entry of its own or, as older configs have it, outside one.
fn theta(fields: &Fields) -> Result<f64> {
    let entry = match (fields.object("rope_parameters")?, fields.object("rope_scaling")?) {
        (Some(_), Some(_)) => return Err(fields.wrong("rope_scaling", "none beside rope_parameters", "an object")),
        (a, b) => a.or(b),
    };
    let read = |fields: &Fields| {
        for key in ["rope_type", "type"] {
            only(fields, key, &["axial", "default"])?;
        }
        for key in ["factor", "attention_factor", "partial_rotary_factor"] {
            if let Some(other) = fields.number(key, "a number", |_| true)?.filter(|n| *n != 1.0) {
                return Err(fields.refused(key, other, "1"));
            }
        }
        fields.number("rope_theta", "a number above 1", |n| n > 1.0 && n <= f64::from(f32::MAX))
    };
    let (inner, outer) = (entry.as_ref().map(read).transpose()?.flatten(), read(fields)?);
    Ok(inner.or(outer).unwrap_or(1e6))
}
