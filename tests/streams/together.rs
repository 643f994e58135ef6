//! A reply does not depend on who else is served.

use crate::common::*;
use lfm3::stream::{DoneReason, Stream};
use std::sync::Arc;
use std::time::Duration;

/// A stream's prompt and how it generates, from a seed.
fn start(model: &Arc<lfm3::engine::Model>, seed: u64) -> Arc<Stream> {
    let mut rng = Rng(seed);
    let stream = stream(model);
    let length = rng.range(1, 150);
    stream.append_tokens(&words(model, &mut rng, length)).unwrap();
    let mut options = if seed.is_multiple_of(2) { greedy() } else { sampled(seed) };
    options.token_events = true;
    options.max_tokens = Some(rng.range(1, 40));
    stream.generate(&options).unwrap();
    stream
}

#[test]
fn streams_together_equal_each_alone() {
    let model = open(2);
    for round in 0..6u64 {
        let seeds: Vec<u64> = (0..7).map(|i| round * 100 + i).collect();
        let alone: Vec<(Heard, Vec<u32>)> = seeds.iter().map(|seed| finish(&model, &start(&model, *seed))).collect();
        let mut rng = Rng(round);
        let mut waiting = seeds.clone();
        let mut running: Vec<(usize, Arc<Stream>, Heard)> = Vec::new();
        let mut together: Vec<Option<(Heard, Vec<u32>)>> = vec![None; seeds.len()];
        while together.iter().any(Option::is_none) {
            if !waiting.is_empty() && (running.is_empty() || rng.range(0, 3) == 0) {
                let seed = waiting.remove(rng.range(0, waiting.len() - 1));
                let at = seeds.iter().position(|s| *s == seed).unwrap();
                running.push((at, start(&model, seed), Heard::default()));
            }
            model.step(Duration::from_micros(rng.range(1, 3000) as u64)).unwrap();
            running.retain_mut(|(at, stream, heard)| {
                let over = heard.drain(stream);
                if over {
                    together[*at] = Some((heard.clone(), stream.tokens().unwrap()));
                }
                !over
            });
        }
        for (at, (heard, tokens)) in alone.iter().enumerate() {
            let (other, other_tokens) = together[at].as_ref().unwrap();
            assert_eq!(tokens, other_tokens, "seed {}", seeds[at]);
            assert_eq!((&heard.text, &heard.tokens, heard.done), (&other.text, &other.tokens, other.done));
        }
    }
}

fn finish(model: &lfm3::engine::Model, stream: &Stream) -> (Heard, Vec<u32>) {
    let heard = run(model, stream);
    (heard, stream.tokens().unwrap())
}

#[test]
fn a_cancelled_neighbour_changes_nothing() {
    let model = open(2);
    let alone = finish(&model, &start(&model, 40));
    for at in 0..20u64 {
        let neighbour = start(&model, 1000 + at);
        let kept = start(&model, 40);
        let mut heard = Heard::default();
        let mut steps = 0;
        while !heard.drain(&kept) {
            model.step(Duration::from_micros(200)).unwrap();
            steps += 1;
            if steps == at * 3 {
                neighbour.cancel().unwrap();
            }
        }
        let mut rest = run(&model, &neighbour);
        assert!(rest.done.take().is_some_and(|reason| reason != DoneReason::Error));
        assert_eq!((heard.text, heard.tokens), (alone.0.text.clone(), alone.0.tokens.clone()));
        neighbour.close();
    }
}

#[test]
fn a_short_reply_is_not_held_up_by_a_long_prompt() {
    let model = open(1);
    let mut rng = Rng(5);
    let long = stream(&model);
    long.append_tokens(&words(&model, &mut rng, 4000)).unwrap();
    let short = start(&model, 8);
    let heard = run_with(&model, &short, || Duration::from_micros(500));
    assert!(heard.done.is_some());
    assert!(long.next().unwrap() == lfm3::stream::Next::Pending, "the long prompt should still be filling in");
    assert_eq!(run(&model, &long).ready, 1);
}
