//! config.json and generation_config.json of any content: an error or plans, never a panic.

#![no_main]

use lfm3::model::config::{Config, GenerationDefaults};
use lfm3::model::forward::text_plan;
use lfm3::model::vision::vision_plan;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|json: &[u8]| {
    if let Ok(config) = Config::parse("config.json", json) {
        assert!(!text_plan(&config.text).ops.is_empty());
        assert!(config.vision.is_none_or(|vision| !vision_plan(&vision).stages.is_empty()));
    }
    let _ = GenerationDefaults::parse("generation_config.json", json, 4096);
});
