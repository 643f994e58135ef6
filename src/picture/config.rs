//! preprocessor_config.json and video_preprocessor_config.json: how pictures become patches.
//!
//! Absent keys have the defaults of the reference implementation.

use super::Size;
use crate::backend::Grid;
use crate::error::Result;
use crate::model::files::{Fields, parse_object};
use std::ops::RangeInclusive;

/// Longest side of a patch.
pub const MAX_PATCH: usize = 64;
/// Longest side of a block of patches.
pub const MAX_MERGE: usize = 8;
/// Most pixels a config may ask for, of a picture or of all frames of a video.
pub const MAX_AREA: u64 = 1 << 28;
/// Most frames a config may ask for.
pub const MAX_FRAMES: usize = 1 << 13;
/// Frames of a patch.
pub const PATCH_FRAMES: usize = 2;

/// The one filter there is here, as `resample` numbers them.
const BICUBIC: u64 = 3;
/// How much over the least area a capped frame may always have.
const CAP_SLACK: f64 = 1.05;
/// Processors that work as described here, by a part of their names.
const PROCESSORS: [&str; 3] = ["Qwen2VL", "Qwen3VL", "Lfm3"];
/// What would change the pixels in ways not done here, where it is true.
const REFUSED_WHEN_TRUE: [&str; 3] = ["do_center_crop", "do_pad", "do_image_splitting"];
/// What is always done here.
const REFUSED_WHEN_FALSE: [&str; 4] = ["do_resize", "do_rescale", "do_normalize", "do_convert_rgb"];

/// How a checkpoint wants its pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureConfig {
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Frames of a patch: [`PATCH_FRAMES`].
    pub frames: u32,
    /// Patches along the side of a block that becomes one token.
    pub merge: u32,
    /// Pixels of a resized picture (for a video, of all its frames together).
    pub area: RangeInclusive<u64>,
    /// Most tokens of a picture or video, whatever rounding and extreme shapes make of `area`.
    pub most_tokens: Option<u64>,
    /// What is subtracted from a pixel's value 0 to 255, by channel: mean / rescale factor, as float32.
    pub shift: [f32; 3],
    /// What it is then divided by: deviation / rescale factor, as float32.
    pub scale: [f32; 3],
}

/// How a checkpoint wants its videos.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoConfig {
    /// As for pictures.
    pub picture: PictureConfig,
    /// Frames taken from a second.
    pub fps: f64,
    /// Fewest and most frames taken.
    pub count: RangeInclusive<usize>,
    /// Most pixels of one frame, where frames are capped one by one.
    pub frame_area: Option<u64>,
}

/// What absent keys mean.
struct Defaults {
    patch: usize,
    area: (u64, u64),
    mean: [f64; 3],
    deviation: [f64; 3],
    /// Whether the older names `min_pixels` and `max_pixels` count, and before `size`.
    older_names: bool,
}

const PICTURES: Defaults = Defaults {
    patch: 14,
    area: (56 * 56, 28 * 28 * 1280),
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    deviation: [0.268_629_54, 0.261_302_58, 0.275_777_11],
    older_names: true,
};

const VIDEOS: Defaults = Defaults {
    patch: 16,
    area: (128 * 32 * 32, 768 * 32 * 32),
    mean: [0.5; 3],
    deviation: [0.5; 3],
    older_names: false,
};

impl PictureConfig {
    /// Parses and checks preprocessor_config.json; `file` names it in errors.
    ///
    /// # Errors
    /// `Format` where a value is of the wrong type or out of its limits; `Unsupported` where the config asks for what
    /// this library does not do.
    pub fn parse(file: &str, json: &[u8]) -> Result<PictureConfig> {
        let map = parse_object(file, json)?;
        let root = Fields::new(file, &map);
        check_processor(&root, "image_processor_type")?;
        picture(&root, &PICTURES)
    }

    /// The same, but with no picture of more than `most` tokens (at least one).
    ///
    /// Shapes for which rounding up would still give more are then made shorter along their longer side: such a very
    /// long picture is squeezed.
    pub fn limited(&self, most: Option<u64>) -> PictureConfig {
        let Some(most) = most else { return self.clone() };
        let most = most.max(1);
        let end = (*self.area.end()).min(most.saturating_mul(self.token_area()));
        let most_tokens = Some(self.most_tokens.map_or(most, |before| before.min(most)));
        PictureConfig { area: (*self.area.start()).min(end)..=end, most_tokens, ..self.clone() }
    }

    /// Side of a token in pixels.
    pub fn token_side(&self) -> u32 {
        self.patch.saturating_mul(self.merge)
    }

    /// Pixels of a token in one frame.
    pub fn token_area(&self) -> u64 {
        u64::from(self.token_side()) * u64::from(self.token_side())
    }

    /// The patches of a picture of this size, which `resized` gave.
    pub fn grid(&self, resized: Size) -> Grid {
        let patch = self.patch.max(1);
        Grid { rows: resized.height / patch, cols: resized.width / patch, merge: self.merge }
    }

    /// Tokens of a picture of this size, which `resized` gave; for a video, of a pair of frames.
    pub fn tokens(&self, resized: Size) -> usize {
        let side = self.token_side().max(1);
        (resized.height / side) as usize * (resized.width / side) as usize
    }

    /// Values of a patch.
    pub fn values(&self) -> usize {
        3 * self.frames as usize * self.patch as usize * self.patch as usize
    }
}

impl VideoConfig {
    /// Parses and checks video_preprocessor_config.json; `file` names it in errors.
    ///
    /// # Errors
    /// As [`PictureConfig::parse`].
    pub fn parse(file: &str, json: &[u8]) -> Result<VideoConfig> {
        let map = parse_object(file, json)?;
        let root = Fields::new(file, &map);
        check_processor(&root, "video_processor_type")?;
        if root.flag("do_sample_frames")? == Some(false) {
            return Err(root.refused("do_sample_frames", false, "true"));
        }
        if let Some(found) = root.get("num_frames") {
            return Err(root.refused("num_frames", found, "fps alone"));
        }
        let picture = picture(&root, &VIDEOS)?;
        let fps = root.number("fps", "a number above 0, at most 1000", |n| n > 0.0 && n <= 1000.0)?.unwrap_or(2.0);
        let fewest = root.size("min_frames", 4, 1..=MAX_FRAMES)?;
        let most = root.size("max_frames", 768, 1..=MAX_FRAMES)?;
        if fewest > most {
            return Err(root.wrong("max_frames", format!("at least min_frames, {fewest}"), most));
        }
        let tokens = root.whole("max_video_tokens", 1..=MAX_AREA)?.unwrap_or(768);
        let capped = root.flag("cap_pixels_per_frame")? == Some(true);
        let frame_area = capped.then(|| tokens * picture.token_area());
        Ok(VideoConfig { picture, fps, count: fewest..=most, frame_area })
    }

    /// The same, but with no video of more than `most` tokens (at least one), and so with at most twice as many frames.
    ///
    /// Very long frames are squeezed as [`PictureConfig::limited`] says.
    pub fn limited(&self, most: Option<u64>) -> VideoConfig {
        let Some(most) = most else { return self.clone() };
        let most = most.max(1);
        let mut picture = self.picture.limited(Some(most));
        // A token is as deep as a patch, and an area counts every frame.
        let frames = u64::from(picture.frames);
        let end = (*self.picture.area.end()).min(most.saturating_mul(frames).saturating_mul(picture.token_area()));
        picture.area = (*self.picture.area.start()).min(end)..=end;
        let frames = usize::try_from(most.saturating_mul(frames)).unwrap_or(usize::MAX);
        let count = (*self.count.start()).min(frames)..=(*self.count.end()).min(frames);
        VideoConfig { picture, count, ..self.clone() }
    }

    /// Pixels of all of `frames` frames together.
    pub(super) fn area(&self, frames: usize) -> RangeInclusive<u64> {
        let (least, most) = (*self.picture.area.start(), *self.picture.area.end());
        let Some(frame_area) = self.frame_area else { return least..=most };
        let frames = frames.max(1) as u64;
        let each = frame_area.min(most / frames).max((least as f64 * CAP_SLACK) as u64);
        // The cap may lie above what a limit on tokens leaves.
        let capped = each.saturating_mul(frames);
        least..=if self.picture.most_tokens.is_some() { capped.min(most) } else { capped }
    }
}

/// A type of processor nobody knows here may do anything to a picture.
fn check_processor(root: &Fields, key: &str) -> Result<()> {
    match root.text(key)? {
        Some(name) if !PROCESSORS.iter().any(|known| name.contains(known)) => {
            Err(root.refused(key, name, "a Qwen2VL, Qwen3VL or Lfm3 processor"))
        }
        _ => Ok(()),
    }
}

fn picture(root: &Fields, defaults: &Defaults) -> Result<PictureConfig> {
    for key in REFUSED_WHEN_TRUE {
        if root.flag(key)? == Some(true) {
            return Err(root.refused(key, true, "false"));
        }
    }
    for key in REFUSED_WHEN_FALSE {
        if root.flag(key)? == Some(false) {
            return Err(root.refused(key, false, "true"));
        }
    }
    match root.whole("resample", 0..=5)? {
        None | Some(BICUBIC) => {}
        Some(other) => return Err(root.refused("resample", other, "3, bicubic")),
    }
    let frames = root.whole("temporal_patch_size", 1..=64)?.unwrap_or(PATCH_FRAMES as u64);
    if frames != PATCH_FRAMES as u64 {
        return Err(root.refused("temporal_patch_size", frames, "2"));
    }
    let (shift, scale) = normalization(root, defaults)?;
    Ok(PictureConfig {
        patch: root.size("patch_size", defaults.patch, 1..=MAX_PATCH)? as u32,
        frames: PATCH_FRAMES as u32,
        merge: root.size("merge_size", 2, 1..=MAX_MERGE)? as u32,
        area: area(root, defaults)?,
        most_tokens: None,
        shift,
        scale,
    })
}

/// `size.shortest_edge` and `size.longest_edge`: areas, whatever their names say.
fn area(root: &Fields, defaults: &Defaults) -> Result<RangeInclusive<u64>> {
    let (mut least, mut most) = defaults.area;
    if let Some(size) = root.object("size")? {
        let edge = |key| {
            let found = size.whole(key, 1..=MAX_AREA)?;
            found.ok_or_else(|| size.wrong(key, format!("an area of 1 to {MAX_AREA} pixels"), "none"))
        };
        // An older name below may stand in for one that is absent here.
        let older = |key: &str| defaults.older_names && root.get(key).is_some();
        least = if older("min_pixels") { least } else { edge("shortest_edge")? };
        most = if older("max_pixels") { most } else { edge("longest_edge")? };
    }
    if defaults.older_names {
        least = root.whole("min_pixels", 1..=MAX_AREA)?.unwrap_or(least);
        most = root.whole("max_pixels", 1..=MAX_AREA)?.unwrap_or(most);
    }
    if least > most {
        return Err(root.wrong("size", "a shortest_edge of at most longest_edge", format!("{least} and {most}")));
    }
    Ok(least..=most)
}

/// Shift and scale. The reference folds the rescaling into them: the factor's inverse in float64, then all in float32.
fn normalization(root: &Fields, defaults: &Defaults) -> Result<([f32; 3], [f32; 3])> {
    let expected = "a number above 0, at most 1000";
    let factor = root.number("rescale_factor", expected, |n| n > 1e-9 && n <= 1000.0)?.unwrap_or(1.0 / 255.0);
    let inverse = (1.0 / factor) as f32;
    let mean = channels(root, "image_mean", defaults.mean, "a number from -1000 to 1000", |n| n.abs() <= 1000.0)?;
    let deviation = channels(root, "image_std", defaults.deviation, "a number from 1e-6 to 1000", |n| {
        (1e-6..=1000.0).contains(&n)
    })?;
    Ok((mean.map(|n| n as f32 * inverse), deviation.map(|n| n as f32 * inverse)))
}

/// A list of three numbers for which `holds`.
fn channels(
    root: &Fields,
    key: &str,
    default: [f64; 3],
    expected: &str,
    holds: impl Fn(f64) -> bool,
) -> Result<[f64; 3]> {
    let Some(value) = root.get(key) else { return Ok(default) };
    let found: Option<Vec<f64>> = value
        .as_array()
        .filter(|list| list.len() == 3)
        .and_then(|list| list.iter().map(|v| v.as_f64().filter(|n| holds(*n))).collect());
    let three = found.and_then(|list| <[f64; 3]>::try_from(list).ok());
    three.ok_or_else(|| root.wrong(key, format!("a list of three, each {expected}"), value))
}
