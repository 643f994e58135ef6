//! preprocessor_config.json and video_preprocessor_config.json: how pictures become patches.

use std::ops::RangeInclusive;

/// How a checkpoint wants its pictures.
#[derive(Clone, Debug, PartialEq)]
pub struct PictureConfig {
    /// Side of a patch in pixels.
    pub patch: u32,
    /// Frames of a patch.
    pub frames: u32,
    /// Patches along the side of a block that becomes one token.
    pub merge: u32,
    /// Pixels of a resized picture (for a video, of all its frames together).
    pub area: RangeInclusive<u64>,
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
}
