//! Going back and on again equals never having been there.

use crate::common::*;
use lfm3::engine::Model;
use std::sync::Arc;
use std::time::Duration;

/// Logit bits of `tokens` in a fresh stream.
fn fresh(model: &Arc<Model>, tokens: &[u32]) -> Vec<u32> {
    let stream = stream(model);
    stream.append_tokens(tokens).unwrap();
    let bits = logit_bits(model, &stream);
    stream.close();
    bits
}

fn random_rewinds(cases: u64, longest: usize) {
    let model = open(2);
    for seed in 0..cases {
        let mut rng = Rng(seed);
        let stream = stream(&model);
        let mut held = words(&model, &mut Rng(seed * 3), rng.range(1, longest));
        stream.append_tokens(&held).unwrap();
        for _ in 0..rng.range(1, 3) {
            for _ in 0..rng.range(0, 40) {
                model.step(Duration::from_micros(rng.range(0, 800) as u64)).unwrap();
            }
            let length = rng.range(0, held.len());
            stream.rewind(length).unwrap();
            held.truncate(length);
            assert_eq!(stream.length().unwrap(), length);
            let more = words(&model, &mut rng, 1 + length % 37);
            stream.append_tokens(&more).unwrap();
            held.extend(more);
        }
        assert_eq!(stream.tokens().unwrap(), held);
        assert!(logit_bits(&model, &stream) == fresh(&model, &held), "case {seed}");
        stream.generate(&greedy()).unwrap();
        let reply = run(&model, &stream);
        assert!(reply.done.is_some());
        stream.close();
    }
}

#[test]
fn rewinding_to_any_length_and_going_on_equals_a_fresh_run() {
    random_rewinds(25, 400);
}

#[test]
#[ignore = "long: minutes"]
fn rewinding_to_any_length_and_going_on_equals_a_fresh_run_200_times() {
    random_rewinds(200, 1100);
    println!("200 random rewinds: the same bits as fresh runs");
}

#[test]
fn rewinding_without_going_on_gives_the_logits_of_that_length() {
    let model = open(1);
    let tokens = words(&model, &mut Rng(9), 300);
    let stream = stream(&model);
    stream.append_tokens(&tokens).unwrap();
    settle(&model);
    for length in [299, 257, 256, 255, 64, 1] {
        stream.rewind(length).unwrap();
        assert!(logit_bits(&model, &stream) == fresh(&model, &tokens[..length]), "length {length}");
    }
    stream.rewind(0).unwrap();
    assert!(stream.logits().is_err());
    assert!(stream.rewind(1).is_err());
}

#[test]
fn a_second_turn_equals_the_whole_chat_in_a_fresh_stream_and_a_lost_stop_token_would_show() {
    let model = open(2);
    let first = stream(&model);
    first.set_chat(STORY, &[]).unwrap();
    first.generate(&greedy()).unwrap();
    let reply = run(&model, &first);
    let mut chat: serde_json::Value = serde_json::from_str(STORY).unwrap();
    let messages = chat["messages"].as_array_mut().unwrap();
    messages.push(serde_json::json!({"role": "assistant", "content": reply.text}));
    messages.push(serde_json::json!({"role": "user", "content": "Where is Paul?"}));
    let held = first.tokens().unwrap();
    first.set_chat(&chat.to_string(), &[]).unwrap();
    let tokens = first.tokens().unwrap();
    assert_eq!(tokens[..held.len()], held, "the reply is kept, its stop token included");
    let bits = logit_bits(&model, &first);
    assert!(bits == fresh(&model, &tokens));
    first.generate(&greedy()).unwrap();
    let usage = run(&model, &first).usage;
    assert!(usage.cached_tokens as usize >= held.len() - 2, "{usage:?}");

    let mut lost = tokens;
    lost.remove(held.len() - 1);
    assert!(bits != fresh(&model, &lost));
}
