//! How a checkpoint wants its pictures and videos: the files that say so, found and held against the vision tower.

use super::files::{Fields, format_error, parse_object, read_optional_text};
use super::vision_config::VisionConfig;
use crate::error::Result;
use crate::picture::config::{PictureConfig, VideoConfig};
use std::path::Path;

/// Most bytes of preprocessor_config.json, video_preprocessor_config.json and processor_config.json.
pub const MAX_PROCESSOR_BYTES: u64 = 1 << 20;
/// Where the others' content may stand instead, each under a key.
const JOINT: &str = "processor_config.json";

/// What the checkpoint in `folder` says of pictures; `None` where it says nothing.
pub(super) fn picture(folder: &Path, vision: &VisionConfig) -> Result<Option<PictureConfig>> {
    let Some((file, json)) = entry(folder, "preprocessor_config.json", "image_processor")? else { return Ok(None) };
    let config = PictureConfig::parse(&file, &json)?;
    check(&file, &config, vision)?;
    Ok(Some(config))
}

/// What it says of videos.
pub(super) fn video(folder: &Path, vision: &VisionConfig) -> Result<Option<VideoConfig>> {
    let Some((file, json)) = entry(folder, "video_preprocessor_config.json", "video_processor")? else {
        return Ok(None);
    };
    let config = VideoConfig::parse(&file, &json)?;
    check(&file, &config.picture, vision)?;
    Ok(Some(config))
}

/// The JSON of a file, or of the joint file's object under `key`, and its name for errors.
fn entry(folder: &Path, name: &str, key: &str) -> Result<Option<(String, Vec<u8>)>> {
    let read = |name: &str| {
        let at = folder.join(name);
        Ok(read_optional_text(&at, MAX_PROCESSOR_BYTES)?.map(|json| (at.display().to_string(), json.into_bytes())))
    };
    if let Some(found) = read(name)? {
        return Ok(Some(found));
    }
    let Some((file, json)) = read(JOINT)? else { return Ok(None) };
    let map = parse_object(&file, &json)?;
    let part = Fields::new(&file, &map).object(key)?.and_then(|_| map.get(key));
    Ok(part.map(|value| (format!("{file}: {key}"), value.to_string().into_bytes())))
}

/// The tower takes the patches that the processor cuts.
fn check(file: &str, config: &PictureConfig, vision: &VisionConfig) -> Result<()> {
    for (key, found, expected) in [
        ("patch_size", config.patch, vision.patch),
        ("temporal_patch_size", config.frames, vision.frames),
        ("merge_size", config.merge, vision.merge),
    ] {
        if found as usize != expected {
            let what = format!("{key}: expected {expected}, as vision_config says, found {found}");
            return Err(format_error(file, what));
        }
    }
    Ok(())
}
