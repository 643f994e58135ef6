//! Other threads use the streams while one steps.

use crate::common::*;
use crate::pictures::{ONE, Picture, TWO};
use lfm3::engine::{Model, ModelOptions, Work};
use lfm3::stream::{DoneReason, GenerateOptions, Next, Stream, StreamOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Steps on a thread of its own while `work` runs; every step must go well.
fn beside_steps<T>(model: &Arc<Model>, budget: Duration, work: impl FnOnce() -> T) -> T {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stepper = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                model.step(budget).unwrap();
            }
        });
        let result = work();
        over.store(true, Ordering::Relaxed);
        stepper.join().unwrap();
        result
    })
}

/// Reads events until nothing more will come.
fn listen(stream: &Stream) -> Heard {
    let mut heard = Heard::default();
    while !heard.drain(stream) {
        std::thread::yield_now();
    }
    heard
}

#[test]
fn a_fill_taken_back_at_any_moment_beside_a_step_harms_nobody() {
    let model = open(1);
    let victim = stream(&model);
    // Looking at many streams before a round gives the moment between the look and the round some length.
    let idle: Vec<_> = (0..300).map(|_| stream(&model)).collect();
    let tokens = words(&model, &mut Rng(1), 3);
    beside_steps(&model, Duration::ZERO, || {
        let mut rng = Rng(2);
        for case in 0..6000 {
            victim.append_tokens(&tokens).unwrap();
            for _ in 0..rng.range(0, 3000) {
                std::hint::spin_loop();
            }
            if case % 2 == 0 {
                victim.cancel().unwrap();
                listen(&victim);
            }
            victim.rewind(0).unwrap();
            listen(&victim);
        }
    });
    drop(idle);
    let after = stream(&model);
    after.set_chat(STORY, &[]).unwrap();
    after.generate(&greedy()).unwrap();
    assert_eq!(run(&model, &after).text, "Ivan is in the library.");
}

#[test]
fn a_stream_made_beside_a_step_is_served_by_it() {
    let model = open(1);
    let long = stream(&model);
    long.append_tokens(&words(&model, &mut Rng(1), 3000)).unwrap();
    std::thread::scope(|scope| {
        let stepper = scope.spawn(|| model.step(Duration::from_secs(600)).unwrap().0);
        let bytes = long.stats().unwrap().bytes;
        while long.stats().unwrap().bytes == bytes {
            std::thread::yield_now();
        }
        let late = stream(&model);
        late.set_chat(STORY, &[]).unwrap();
        late.generate(&greedy()).unwrap();
        assert_eq!(stepper.join().unwrap(), Work::Idle);
        let mut heard = Heard::default();
        assert!(heard.drain(&late), "the step ended with work left");
        assert_eq!(heard.done, Some(DoneReason::StopToken));
    });
}

#[test]
fn closing_a_model_ends_a_long_step() {
    let model = open(2);
    let long = stream(&model);
    long.append_tokens(&words(&model, &mut Rng(1), 8000)).unwrap();
    std::thread::scope(|scope| {
        let stepper = scope.spawn(|| model.step(Duration::from_secs(600)).map(|(work, _)| work));
        let bytes = long.stats().unwrap().bytes;
        while long.stats().unwrap().bytes == bytes {
            std::thread::yield_now();
        }
        let closed = std::time::Instant::now();
        model.close();
        assert_eq!(stepper.join().unwrap().unwrap(), Work::Idle);
        let took = closed.elapsed();
        assert!(took < Duration::from_millis(500), "{took:?} after the close");
    });
    assert!(long.next().is_err());
}

/// Random calls on a stream of its own; what it holds at the end has the bits of a fresh stream.
fn random_host(model: &Arc<Model>, seed: u64, calls: usize) -> Vec<u32> {
    let mut rng = Rng(seed);
    let stream = stream(model);
    for _ in 0..calls {
        match rng.range(0, 9) {
            0..=2 => {
                let count = rng.range(1, 80);
                _ = stream.append_tokens(&words(model, &mut rng, count));
            }
            3 => {
                let length = rng.range(0, stream.length().unwrap());
                _ = stream.rewind(length);
            }
            4 => _ = stream.set_chat(STORY, &[]),
            5 => {
                let mut options = sampled(seed);
                options.max_tokens = Some(rng.range(1, 12));
                options.token_events = true;
                _ = stream.generate(&options);
            }
            6 => {
                let from = rng.range(0, stream.length().unwrap());
                _ = stream.score(from);
            }
            7 => stream.cancel().unwrap(),
            8 => _ = stream.logits(),
            _ => _ = stream.stats().unwrap(),
        }
        for _ in 0..rng.range(0, 6) {
            if let Next::Done = stream.next().unwrap() {
                break;
            }
            std::thread::sleep(Duration::from_micros(rng.range(0, 300) as u64));
        }
    }
    let heard = listen(&stream);
    assert_ne!(heard.done, Some(DoneReason::Error), "{}", stream.last_error());
    if stream.length().unwrap() == 0 {
        stream.append_text("Ivan", false).unwrap();
    }
    let tokens = stream.tokens().unwrap();
    let bits = bits_beside(&stream);
    let fresh = self::stream(model);
    fresh.append_tokens(&tokens).unwrap();
    assert!(bits == bits_beside(&fresh), "seed {seed}: {} tokens", tokens.len());
    stream.close();
    fresh.close();
    tokens
}

/// Bits of the logits while another thread steps.
fn bits_beside(stream: &Stream) -> Vec<u32> {
    loop {
        listen(stream);
        if let Some(logits) = stream.logits().unwrap() {
            return logits.iter().map(|x| x.to_bits()).collect();
        }
        std::thread::yield_now();
    }
}

#[test]
fn random_calls_from_many_threads_beside_steps_leave_the_right_bits() {
    let model = open(2);
    beside_steps(&model, Duration::from_micros(400), || {
        std::thread::scope(|scope| {
            for seed in 0..4 {
                let model = &model;
                scope.spawn(move || (0..6).for_each(|case| _ = random_host(model, seed * 100 + case, 40)));
            }
        });
    });
}

/// Random calls around pictures on streams of its own, which pause, end and close as it comes.
fn random_viewer(model: &Arc<Model>, pictures: &[Picture], seed: u64) {
    let mut rng = Rng(seed);
    for _ in 0..6 {
        let options = StreamOptions { context_limit: Some(300), event_limit: Some(rng.range(1, 50)) };
        let Ok(stream) = Stream::new(model, &options) else { continue };
        for _ in 0..25 {
            let Ok(length) = stream.length() else { return };
            let (first, second) = (pictures[rng.range(0, 2)].given(), pictures[rng.range(0, 2)].given());
            match rng.range(0, 9) {
                0 | 1 => _ = stream.append_media(&first),
                2 => _ = stream.set_chat(ONE, &[first]),
                3 => _ = stream.set_chat(TWO, &[first, second]),
                4 => _ = stream.rewind(rng.range(0, length)),
                5 => _ = stream.logits(),
                6 => _ = stream.cancel(),
                7 => _ = stream.generate(&GenerateOptions { max_tokens: Some(5), ..sampled(seed) }),
                8 => _ = stream.score(rng.range(0, length)),
                _ => _ = stream.stats(),
            }
            std::thread::sleep(Duration::from_micros(rng.range(0, 600) as u64));
            while rng.range(0, 4) > 0 && matches!(stream.next(), Ok(Next::Event(_))) {}
        }
        if seed.is_multiple_of(2) {
            stream.close();
        }
    }
}

#[test]
fn pictures_left_at_any_moment_by_many_threads_harm_nobody() {
    let pictures: Vec<Picture> = (0..3).map(|i| Picture::new(60 + 50 * i, 130 - 30 * i, i)).collect();
    let report = Model::memory(&demo_folder(), &ModelOptions::default()).unwrap();
    let tight = report.weights + report.scratch + 900_000;
    for (round, host_bytes) in [None, Some(tight), Some(tight)].into_iter().enumerate() {
        let model = open_with(&ModelOptions { threads: 2, host_bytes, ..ModelOptions::default() });
        beside_steps(&model, Duration::from_micros(300), || {
            std::thread::scope(|scope| {
                for viewer in 0..3 {
                    let (model, pictures) = (&model, &pictures);
                    scope.spawn(move || random_viewer(model, pictures, 10 * round as u64 + viewer));
                }
            });
        });
        settle(&model);
        let after = stream(&model);
        after.set_chat(ONE, &[pictures[1].given()]).unwrap();
        assert_eq!(run(&model, &after).done, None, "{}", after.last_error());
    }
}
