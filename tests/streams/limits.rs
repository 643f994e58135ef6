//! Limits are events or statuses, and other streams go on.

use crate::common::*;
use lfm3::engine::{Model, ModelOptions};
use lfm3::error::Code;
use lfm3::stream::{DoneReason, Event, Next, Stream, StreamOptions};
use std::time::Duration;

#[test]
fn a_full_context_ends_the_reply_and_refuses_more() {
    let model = open(1);
    let options = StreamOptions { context_limit: Some(40), event_limit: None };
    let stream = Stream::new(&model, &options).unwrap();
    let tokens = words(&model, &mut Rng(1), 41);
    assert_eq!(stream.append_tokens(&tokens).unwrap_err().code, Code::ContextFull);
    assert_eq!(stream.length().unwrap(), 0);
    stream.append_tokens(&tokens[..30]).unwrap();
    let mut options = greedy();
    options.max_tokens = None;
    let eos = model.info().eos[0];
    stream.set_bias(&[(eos, f32::NEG_INFINITY)]).unwrap();
    stream.generate(&options).unwrap();
    assert_eq!(run(&model, &stream).done, Some(DoneReason::ContextFull));
    assert_eq!(stream.length().unwrap(), 40);
    stream.generate(&options).unwrap();
    assert_eq!(run(&model, &stream).done, Some(DoneReason::ContextFull));
    stream.rewind(35).unwrap();
    stream.generate(&options).unwrap();
    assert_eq!(run(&model, &stream).done, Some(DoneReason::ContextFull));
}

#[test]
fn exhausted_pages_end_one_stream_and_leave_the_others() {
    let report = Model::memory(&demo_folder(), &ModelOptions::default()).unwrap();
    let host_bytes = Some(report.weights + report.scratch + 2 * report.stream + report.per_1000_tokens);
    let model = open_with(&ModelOptions { host_bytes, ..ModelOptions::default() });
    let alone = stream(&model);
    alone.set_chat(STORY, &[]).unwrap();
    alone.generate(&greedy()).unwrap();
    let expected = run(&model, &alone).text;
    alone.close();
    drop(alone);

    let greedy_one = stream(&model);
    greedy_one.append_tokens(&words(&model, &mut Rng(1), 5000)).unwrap();
    let other = stream(&model);
    other.set_chat(STORY, &[]).unwrap();
    other.generate(&greedy()).unwrap();
    assert_eq!(run(&model, &other).text, expected);
    let heard = run(&model, &greedy_one);
    assert_eq!(heard.done, Some(DoneReason::Error));
    assert!(greedy_one.last_error().contains("host_bytes"), "{}", greedy_one.last_error());
    greedy_one.rewind(100).unwrap();
    greedy_one.generate(&greedy()).unwrap();
    assert!(run(&model, &greedy_one).done.is_some_and(|reason| reason != DoneReason::Error));
}

#[test]
fn a_full_event_queue_pauses_that_stream_alone() {
    let model = open(1);
    let options = StreamOptions { context_limit: None, event_limit: Some(5) };
    let lazy = Stream::new(&model, &options).unwrap();
    let eager = stream(&model);
    for s in [&lazy, &eager] {
        s.set_chat(STORY, &[]).unwrap();
        let mut options = greedy();
        options.token_events = true;
        s.generate(&options).unwrap();
    }
    let expected = run(&model, &eager);
    settle(&model);
    let before = lazy.length().unwrap();
    settle(&model);
    assert_eq!(lazy.length().unwrap(), before, "paused");
    let heard = run(&model, &lazy);
    assert_eq!((heard.text, heard.tokens), (expected.text, expected.tokens), "nothing is lost");
}

#[test]
fn cancelling_a_prompt_gives_its_pages_back_and_the_next_request_is_right() {
    let model = open(2);
    let stream = stream(&model);
    stream.set_chat(STORY, &[]).unwrap();
    stream.generate(&greedy()).unwrap();
    let expected = run(&model, &stream);
    stream.rewind(0).unwrap();
    settle(&model);
    let baseline = stream.stats().unwrap().bytes;
    let mut rng = Rng(4);
    for _ in 0..30 {
        stream.append_tokens(&words(&model, &mut Rng(1), 500)).unwrap();
        if rng.range(0, 1) == 0 {
            stream.generate(&greedy()).unwrap();
        }
        for _ in 0..rng.range(0, 30) {
            model.step(Duration::from_micros(rng.range(0, 400) as u64)).unwrap();
        }
        stream.cancel().unwrap();
        let heard = run(&model, &stream);
        assert!(matches!(heard.done, Some(DoneReason::Cancelled)), "{heard:?}");
        stream.rewind(0).unwrap();
        assert!(stream.stats().unwrap().bytes <= baseline + 3000);
        stream.set_chat(STORY, &[]).unwrap();
        stream.generate(&greedy()).unwrap();
        assert_eq!(run(&model, &stream).text, expected.text);
    }
}

#[test]
fn calls_that_do_not_fit_are_refused_with_their_reason() {
    let model = open(1);
    let stream = stream(&model);
    assert_eq!(stream.generate(&greedy()).unwrap_err().code, Code::State);
    assert_eq!(stream.score(0).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(stream.append_tokens(&[4096]).unwrap_err().code, Code::InvalidArgument);
    let picture = 4001;
    let error = stream.append_tokens(&[picture]).unwrap_err();
    assert!(error.code == Code::InvalidArgument && error.message.contains("picture"), "{}", error.message);
    stream.set_chat(STORY, &[]).unwrap();
    stream.generate(&greedy()).unwrap();
    for error in
        [stream.append_text("x", false), stream.rewind(0), stream.set_chat(STORY, &[]), stream.generate(&greedy())]
    {
        assert_eq!(error.unwrap_err().code, Code::State);
    }
    assert!(run(&model, &stream).done.is_some());
    assert_eq!(stream.next().unwrap(), Next::Done);
    model.close();
    assert_eq!(stream.next().unwrap_err().code, Code::Closed);
    assert_eq!(stream.append_text("x", false).unwrap_err().code, Code::Closed);
    assert_eq!(model.step(Duration::ZERO).unwrap_err().code, Code::Closed);
    stream.close();
}

#[test]
fn a_stream_closed_in_the_middle_of_a_round_is_gone_after_it() {
    let model = open(2);
    for steps in 0..20 {
        let gone = stream(&model);
        gone.append_tokens(&words(&model, &mut Rng(1), 300)).unwrap();
        for _ in 0..steps {
            model.step(Duration::from_micros(50)).unwrap();
        }
        gone.close();
        drop(gone);
        let next = stream(&model);
        next.append_text("The", false).unwrap();
        let heard = run(&model, &next);
        assert_eq!(heard.ready, 1);
        next.close();
    }
}

#[test]
fn ready_comes_once_the_queue_is_filled_in() {
    let model = open(1);
    let stream = stream(&model);
    stream.append_text("Ivan", false).unwrap();
    assert_eq!(stream.next().unwrap(), Next::Pending);
    settle(&model);
    assert_eq!(stream.next().unwrap(), Next::Event(Event::Ready));
    assert_eq!(stream.next().unwrap(), Next::Done);
}

#[test]
fn memory_set_as_predicted_is_enough_for_the_context_it_was_predicted_for() {
    let report = Model::memory(&demo_folder(), &ModelOptions::default()).unwrap();
    let host_bytes = Some(report.weights + report.scratch + report.stream + 2 * report.per_1000_tokens);
    let model = open_with(&ModelOptions { host_bytes, ..ModelOptions::default() });
    for turn in 0..3 {
        let stream = stream(&model);
        stream.append_tokens(&words(&model, &mut Rng(turn), 1980)).unwrap();
        let heard = run(&model, &stream);
        assert_eq!((heard.ready, heard.done), (1, None), "turn {turn}: {}", stream.last_error());
        stream.close();
    }
}

#[test]
fn many_streams_take_the_place_of_a_long_one() {
    let report = Model::memory(&demo_folder(), &ModelOptions::default()).unwrap();
    let host_bytes = Some(report.weights + report.scratch + 3 * report.stream + report.per_1000_tokens);
    let model = open_with(&ModelOptions { host_bytes, ..ModelOptions::default() });
    let long = stream(&model);
    long.append_tokens(&words(&model, &mut Rng(1), 5000)).unwrap();
    assert_eq!(run(&model, &long).done, Some(DoneReason::Error), "the limit is reached");
    long.close();
    drop(long);
    let made: Vec<_> = (0..40).map(|_| Stream::new(&model, &StreamOptions::default())).collect();
    for stream in &made {
        assert!(stream.is_ok(), "{}", stream.as_ref().err().unwrap());
    }
}
