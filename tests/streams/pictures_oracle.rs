//! The picture cases of the oracle through streams: files in, prompt ids, logits and replies out.

use crate::common::*;
use lfm3::engine::{Model, ModelOptions};
use lfm3::picture::media::{Given, GivenFrame};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Largest distance of a logit from the float64 answer.
const LOGIT_LIMIT: f32 = 0.004;
const CHECKPOINTS: [&str; 4] = ["lfm3-vl-demo", "lfm3-vl-demo-4bit", "lfm3-vl-demo-6bit", "lfm3-vl-demo-8bit"];

fn shared() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared")
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The bytes of the pictures of a case, in the order of its parts.
fn pictures(case: &Value) -> Vec<Vec<u8>> {
    let messages = case["messages"].as_array().unwrap();
    let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
    let paths = parts.filter_map(|part| part["path"].as_str());
    paths.map(|path| std::fs::read(shared().join("oracle").join(path)).unwrap()).collect()
}

/// The chat of a case, without what only the oracle's own script reads.
fn chat(case: &Value) -> String {
    let mut messages = case["messages"].clone();
    for message in messages.as_array_mut().unwrap() {
        for part in message["content"].as_array_mut().into_iter().flatten() {
            part.as_object_mut().unwrap().remove("path");
        }
    }
    serde_json::json!({"messages": messages, "enable_thinking": case["thinking"]}).to_string()
}

/// Runs a case; the worst distance of its top logits.
fn run_case(model: &std::sync::Arc<Model>, case: &Value) -> f32 {
    let files = pictures(case);
    let media: Vec<Given> = files.iter().map(|file| Given::Picture(GivenFrame::File(file))).collect();
    let stream = stream(model);
    stream.set_chat(&chat(case), &media).unwrap();
    let prompt = ids(&case["prompt_ids"]);
    assert_eq!(stream.tokens().unwrap(), prompt, "case {}", case["name"]);
    let bits = logit_bits(model, &stream);
    let top = ids(&case["top_ids"]).into_iter().zip(case["top_logits"].as_array().unwrap());
    let distance =
        |(id, want): (u32, &Value)| (f32::from_bits(bits[id as usize]) - want.as_f64().unwrap() as f32).abs();
    let worst = top.map(distance).fold(0.0, f32::max);
    let greedy_ids = ids(&case["greedy_ids"]);
    let mut options = greedy();
    options.max_tokens = Some(greedy_ids.len());
    stream.generate(&options).unwrap();
    run(model, &stream);
    assert_eq!(stream.tokens().unwrap()[prompt.len()..], greedy_ids, "case {}", case["name"]);
    stream.close();
    worst
}

#[test]
fn every_picture_case_gives_the_oracles_ids_and_logits() {
    for name in CHECKPOINTS {
        let Ok(json) = std::fs::read(shared().join("oracle").join(name).join("cases.json")) else {
            println!("skipped: the answers do not lie beside the project");
            return;
        };
        let cases: Vec<Value> = serde_json::from_slice(&json).unwrap();
        let folder = shared().join("checkpoints").join(name);
        let options = ModelOptions { threads: 2, ..ModelOptions::default() };
        let model = Model::open(&folder, &options, &mut |_, _| true).unwrap();
        let cases: Vec<&Value> = cases.iter().filter(|case| case["kind"] == "picture").collect();
        assert!(!cases.is_empty());
        let worst = cases.iter().map(|case| run_case(&model, case)).fold(0.0, f32::max);
        println!("{name}: {} picture cases, worst logit {worst:.2e}", cases.len());
        assert!(worst < LOGIT_LIMIT, "{name}: {worst}");
    }
}
