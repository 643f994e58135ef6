//! Pictures given by a formula, the processors they go through, and the sums of what comes out.

use lfm3::backend::Grid;
use lfm3::picture::config::{PictureConfig, VideoConfig};
use lfm3::picture::patches::patch_row;
use lfm3::picture::resize::Resizer;
use lfm3::picture::{Pixels, Size};
use sha2::{Digest, Sha256};
use std::path::PathBuf;
use std::time::Instant;

/// A size, width first.
pub fn size(width: u32, height: u32) -> Size {
    Size { width, height }
}

/// Channel `c` of the picture at a column and row, in frame `t`.
pub fn value(x: u32, y: u32, c: u32, t: u32) -> u8 {
    ((7 * x + 13 * y + 29 * c + (x * y) % 251 + 17 * t) % 256) as u8
}

/// How much of a pixel is seen, where a picture has alpha.
pub fn alpha(x: u32, y: u32) -> u8 {
    ((3 * x + 5 * y) % 256) as u8
}

/// Every pixel of a size, row after row, made by `pixel`.
pub fn each<const N: usize>(size: Size, pixel: impl Fn(u32, u32) -> [u8; N]) -> Vec<u8> {
    (0..size.height).flat_map(|y| (0..size.width).map(move |x| (x, y))).flat_map(|(x, y)| pixel(x, y)).collect()
}

/// Frame `t` of the picture.
pub fn frame(size: Size, t: u32) -> Pixels {
    Pixels { size, rgb: each(size, |x, y| [value(x, y, 0, t), value(x, y, 1, t), value(x, y, 2, t)]) }
}

/// The picture.
pub fn rgb(size: Size) -> Pixels {
    frame(size, 0)
}

/// The picture with alpha, four bytes a pixel.
pub fn rgba(size: Size) -> Vec<u8> {
    each(size, |x, y| [value(x, y, 0, 0), value(x, y, 1, 0), value(x, y, 2, 0), alpha(x, y)])
}

/// Its first channel alone.
pub fn grey(size: Size) -> Vec<u8> {
    each(size, |x, y| [value(x, y, 0, 0)])
}

/// preprocessor_config.json with an area range.
pub fn picture_json(least: u64, most: u64) -> String {
    format!(
        r#"{{"image_processor_type": "Qwen2VLImageProcessor", "do_convert_rgb": true, "do_resize": true, "resample": 3,
        "do_rescale": true, "rescale_factor": 0.00392156862745098, "do_normalize": true, "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5], "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
        "size": {{"shortest_edge": {least}, "longest_edge": {most}}}}}"#
    )
}

/// The config of one of the processors the sums are of.
pub fn picture_config(processor: &str) -> PictureConfig {
    let json = match processor {
        "demo" => picture_json(9216, 20480),
        "LFM3-VL-2B" => picture_json(65536, 16_777_216),
        other => panic!("no processor {other}"),
    };
    PictureConfig::parse("preprocessor_config.json", json.as_bytes()).unwrap()
}

/// The video processor's config.
pub fn video_config() -> VideoConfig {
    let json = r#"{"video_processor_type": "Qwen3VLVideoProcessor", "fps": 2, "min_frames": 4, "max_frames": 768,
        "do_sample_frames": true, "resample": 3, "rescale_factor": 0.00392156862745098, "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5], "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
        "size": {"shortest_edge": 4096, "longest_edge": 25165824}}"#;
    VideoConfig::parse("video_preprocessor_config.json", json.as_bytes()).unwrap()
}

/// Resized in one go.
pub fn resize(pixels: &Pixels, to: Size) -> Pixels {
    let mut resizer = Resizer::new(pixels.clone(), to).unwrap();
    while !resizer.advance(Instant::now()) {}
    resizer.finish()
}

/// All patches of a pair of frames.
pub fn patches(config: &PictureConfig, frames: [&Pixels; 2], grid: Grid) -> Vec<f32> {
    let mut out = vec![f32::NAN; grid.len() * config.values()];
    for (index, row) in out.chunks_exact_mut(config.values()).enumerate() {
        patch_row(config, frames, grid, index, row);
    }
    out
}

/// A sum of values as they lie in memory, little end first.
pub fn sum(values: &[f32]) -> String {
    let mut hash = Sha256::new();
    values.iter().for_each(|v| hash.update(v.to_le_bytes()));
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file of tests/data/pictures.
pub fn data(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/pictures").join(name);
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// The folder beside the repository with more answers, where there is one.
pub fn shared() -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared");
    folder.join("oracle").is_dir().then_some(folder)
}
