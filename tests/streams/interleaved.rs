//! Calls in any order between steps: nothing that was held is lost, nothing stale is told.

use crate::common::*;
use lfm3::stream::{DoneReason, Event, Next, Stream, StreamOptions};
use std::time::Duration;

#[test]
fn cancelling_drops_queued_input_and_nothing_the_stream_held_before() {
    let model = open(1);
    let held = words(&model, &mut Rng(1), 300);
    let filled = || {
        let stream = stream(&model);
        stream.append_tokens(&held).unwrap();
        run(&model, &stream);
        stream
    };
    let cancelled = |stream: &Stream, steps: usize| {
        for _ in 0..steps {
            model.step(Duration::ZERO).unwrap();
        }
        stream.cancel().unwrap();
        run(&model, stream);
        stream.tokens().unwrap()
    };
    for steps in [0, 1, 5] {
        let scoring = filled();
        scoring.score(1).unwrap();
        assert!(cancelled(&scoring, steps) == held, "a score of what is held");
        let rewound = filled();
        rewound.rewind(290).unwrap();
        rewound.append_tokens(&held[..200]).unwrap();
        let tokens = cancelled(&rewound, steps);
        assert!(tokens.len() >= 290 && tokens[..290] == held[..290], "a rewind between snapshots");
        let asked = filled();
        asked.rewind(290).unwrap();
        assert!(asked.logits().unwrap().is_none());
        assert!(cancelled(&asked, steps) == held[..290], "logits of what is held");
    }
}

#[test]
fn cancelling_before_the_first_token_keeps_the_reply_before() {
    let model = open(1);
    let stream = stream(&model);
    stream.set_chat(STORY, &[]).unwrap();
    let mut options = greedy();
    options.max_tokens = Some(3);
    stream.generate(&options).unwrap();
    run(&model, &stream);
    let held = stream.tokens().unwrap();
    stream.generate(&options).unwrap();
    stream.cancel().unwrap();
    assert_eq!(run(&model, &stream).done, Some(DoneReason::Cancelled));
    assert_eq!(stream.tokens().unwrap(), held);
}

#[test]
fn ready_is_not_told_while_later_input_waits() {
    let model = open(1);
    let stream = stream(&model);
    stream.append_text("Ivan", false).unwrap();
    settle(&model);
    stream.append_text(" walks", false).unwrap();
    assert_eq!(stream.next().unwrap(), Next::Pending, "an old READY");
    settle(&model);
    assert_eq!(stream.next().unwrap(), Next::Event(Event::Ready));
    assert_eq!(stream.next().unwrap(), Next::Done);
    stream.append_text(" away", false).unwrap();
    settle(&model);
    stream.rewind(1).unwrap();
    assert_ne!(stream.next().unwrap(), Next::Event(Event::Ready), "what it was for is gone");
}

#[test]
fn a_host_that_reads_logits_and_no_events_is_not_paused() {
    let model = open(1);
    let options = StreamOptions { context_limit: None, event_limit: Some(4) };
    let stream = Stream::new(&model, &options).unwrap();
    for turn in 0..20 {
        stream.append_text(" Ivan", false).unwrap();
        let mut steps = 0;
        while stream.logits().unwrap().is_none() {
            model.step(Duration::from_millis(50)).unwrap();
            steps += 1;
            assert!(steps < 1000, "turn {turn} never ends");
        }
    }
}

#[test]
fn requests_taken_back_unread_do_not_pile_up() {
    let model = open(1);
    let stream = stream(&model);
    for _ in 0..5000 {
        stream.append_text("Ivan", false).unwrap();
        stream.cancel().unwrap();
        stream.rewind(0).unwrap();
    }
    let mut events = 0;
    while let Next::Event(_) = stream.next().unwrap() {
        events += 1;
    }
    assert!((1..=600).contains(&events), "{events} events");
}

#[test]
fn stop_strings_at_the_edges_of_a_reply() {
    let model = open(1);
    let reply = |thinking: bool, stops: &[&str]| {
        let stream = stream(&model);
        stops.iter().for_each(|stop| stream.add_stop(stop).unwrap());
        stream.set_chat(&STORY.replace("false", &thinking.to_string()), &[]).unwrap();
        stream.generate(&greedy()).unwrap();
        run(&model, &stream)
    };
    let whole = reply(false, &[]).text;
    let all = reply(false, &[&whole]);
    assert_eq!((all.text.as_str(), all.done), ("", Some(DoneReason::StopString)));
    let past = reply(false, &[&format!("{whole} And"), "library.<|im_end|>"]);
    assert_eq!((past.text, past.done), (whole, Some(DoneReason::StopToken)));
    let thought = reply(true, &[]).reasoning;
    let word = thought.split(' ').nth(1).unwrap();
    let inside = reply(true, &[word]);
    assert_eq!((inside.text.as_str(), inside.done), ("", Some(DoneReason::StopString)));
    assert_eq!(inside.reasoning, thought[..thought.find(word).unwrap()]);
}

/// Random calls between steps of random budgets; what the streams hold has a fresh stream's bits and scores.
#[test]
fn random_calls_between_steps_leave_the_right_bits() {
    let model = open(2);
    for seed in 0..8u64 {
        let mut rng = Rng(seed);
        let streams: Vec<_> = (0..3).map(|_| stream(&model)).collect();
        for _ in 0..60 {
            let stream = &streams[rng.range(0, 2)];
            let length = stream.length().unwrap();
            match rng.range(0, 8) {
                0 | 1 => {
                    let count = rng.range(1, 120);
                    _ = stream.append_tokens(&words(&model, &mut rng, count));
                }
                2 => _ = stream.rewind(rng.range(0, length)),
                3 => _ = stream.score(rng.range(0, length)),
                4 => _ = stream.logits(),
                5 => {
                    let mut options = sampled(seed);
                    options.max_tokens = Some(rng.range(1, 9));
                    _ = stream.generate(&options);
                }
                6 => stream.cancel().unwrap(),
                7 => _ = stream.set_chat(STORY, &[]),
                _ => _ = Heard::default().drain(stream),
            }
            for _ in 0..rng.range(0, 12) {
                model.step(Duration::from_micros(rng.range(0, 500) as u64)).unwrap();
            }
        }
        for stream in &streams {
            assert_ne!(run(&model, stream).done, Some(DoneReason::Error), "{}", stream.last_error());
            if stream.length().unwrap() == 0 {
                continue;
            }
            let tokens = stream.tokens().unwrap();
            let fresh = self::stream(&model);
            fresh.append_tokens(&tokens).unwrap();
            assert!(logit_bits(&model, stream) == logit_bits(&model, &fresh), "seed {seed}");
            run(&model, &fresh);
            stream.score(0).unwrap();
            fresh.score(0).unwrap();
            assert_eq!(run(&model, stream).scores, run(&model, &fresh).scores, "seed {seed}");
        }
        streams.iter().for_each(|stream| stream.close());
    }
}
