//! A picture file or a processor's config of any content: an error, or pixels and patches of the size told.

#![no_main]

use lfm3::picture::Size;
use lfm3::picture::config::{PictureConfig, VideoConfig};
use lfm3::picture::decode::{decode, header};
use lfm3::picture::patches::patch_row;
use lfm3::picture::resize::Resizer;
use libfuzzer_sys::fuzz_target;

/// Larger ones only have their headers read, so that a run is short.
const MOST_PIXELS: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    let config = PictureConfig::parse("preprocessor_config.json", bytes);
    if let Ok(video) = VideoConfig::parse("video_preprocessor_config.json", bytes) {
        let frames = video.sample(bytes.len(), 24.0).map_or(0, |frames| frames.len());
        let _ = video.limited(Some(64)).resized(frames, Size { width: 640, height: 480 });
    }
    let config = config.unwrap_or_else(|_| PictureConfig::parse("", b"{\"patch_size\": 16}").expect("a good config"));
    let Ok(head) = header(bytes) else { return };
    if head.size.area() > MOST_PIXELS {
        return;
    }
    let Ok(pixels) = decode(bytes) else { return };
    assert!(pixels.size == head.size && pixels.rgb.len() as u64 == 3 * head.size.area());
    let limited = config.limited(Some(64));
    let Ok(to) = limited.resized(pixels.size) else { return };
    assert!((1..=64).contains(&limited.tokens(to)));
    let resized = Resizer::new(pixels, to).expect("sizes in their limits").finish();
    let (grid, mut row) = (limited.grid(to), vec![0.0; limited.values()]);
    for index in [0, grid.len() - 1] {
        patch_row(&limited, [&resized, &resized], grid, index, &mut row);
        assert!(row.iter().all(|value| value.is_finite()));
    }
});
