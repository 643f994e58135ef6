//! config.json, generation_config.json and the processors' configs of any content: an error or plans, never a panic.

#![no_main]

use lfm3::model::config::{Config, GenerationDefaults};
use lfm3::model::forward::text_plan;
use lfm3::model::vision::vision_plan;
use lfm3::picture::config::{PictureConfig, VideoConfig};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|json: &[u8]| {
    if let Ok(config) = Config::parse("config.json", json) {
        assert!(!text_plan(&config.text).ops.is_empty());
        assert!(config.vision.is_none_or(|vision| !vision_plan(&vision).stages.is_empty()));
    }
    let _ = GenerationDefaults::parse("generation_config.json", json, 4096);
    let _ = PictureConfig::parse("preprocessor_config.json", json);
    let _ = VideoConfig::parse("video_preprocessor_config.json", json);
});
