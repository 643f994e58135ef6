//! Pictures and videos in streams: however they are cut, shared, rewound and given again, the same bits.

use crate::common::*;
use lfm3::engine::{Isa, Model, ModelOptions};
use lfm3::error::Code;
use lfm3::picture::Size;
use lfm3::picture::media::{Given, GivenFrame};
use lfm3::stream::{DoneReason, Next, Stream};
use std::sync::Arc;
use std::time::Duration;

/// Formula pixels; `salt` makes pictures of one size differ.
pub struct Picture {
    size: Size,
    rgb: Vec<u8>,
}

impl Picture {
    pub fn new(width: u32, height: u32, salt: u32) -> Picture {
        let value = |i: u32| {
            let (x, y, c) = (i / 3 % width, i / 3 / width, i % 3);
            ((7 * x + 13 * y + 29 * c + x * y % 251 + 17 * salt) % 256) as u8
        };
        Picture { size: Size { width, height }, rgb: (0..3 * width * height).map(value).collect() }
    }

    pub fn frame(&self) -> GivenFrame<'_> {
        GivenFrame::Rgb { data: &self.rgb, size: self.size, stride: 3 * self.size.width as usize }
    }

    pub fn given(&self) -> Given<'_> {
        Given::Picture(self.frame())
    }
}

pub fn video(frames: &[Picture]) -> Given<'_> {
    let times = (0..frames.len()).map(|i| i as f64 / 4.0).collect();
    Given::Video { frames: frames.iter().map(Picture::frame).collect(), times, fps: 4.0 }
}

pub const ONE: &str = r#"{"messages": [{"role": "user", "content": [{"type": "image"},
    {"type": "text", "text": "Describe the picture."}]}], "enable_thinking": false}"#;
pub const TWO: &str = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "Look at this: "},
    {"type": "image"},
    {"type": "text", "text": " and at that: "}, {"type": "image"}]}], "enable_thinking": false}"#;

fn bits_of(model: &Arc<Model>, json: &str, media: &[Given], budget: Duration) -> Vec<u32> {
    let stream = stream(model);
    stream.set_chat(json, media).unwrap();
    run_with(model, &stream, || budget);
    let bits = logit_bits(model, &stream);
    stream.close();
    bits
}

#[test]
fn budgets_threads_and_instruction_sets_change_no_bit_of_a_picture() {
    let (first, second) = (Picture::new(150, 100, 0), Picture::new(100, 150, 1));
    let media = [first.given(), second.given()];
    let expected = bits_of(&open(1), TWO, &media, Duration::from_secs(60));
    for threads in [1, 2, 3] {
        for isa in [Isa::Portable, Isa::Avx2].into_iter().filter(|isa| isa.available()) {
            let model = open_with(&ModelOptions { threads, isa: Some(isa), ..ModelOptions::default() });
            for budget in [0, 150, 5000] {
                let got = bits_of(&model, TWO, &media, Duration::from_micros(budget));
                assert!(got == expected, "{threads} threads, {isa:?}, budget {budget} us");
            }
        }
    }
    let swapped = bits_of(&open(1), TWO, &[second.given(), first.given()], Duration::from_secs(60));
    assert!(swapped != expected, "which picture comes first matters");
}

#[test]
fn pictures_of_several_streams_looked_at_together_equal_each_alone() {
    let model = open(2);
    let pictures: Vec<Picture> = (0..4).map(|i| Picture::new(80 + 30 * i, 140 - 20 * i, i)).collect();
    let alone: Vec<Vec<u32>> =
        pictures.iter().map(|p| bits_of(&model, ONE, &[p.given()], Duration::from_secs(60))).collect();
    let reply = stream(&model);
    reply.set_chat(STORY, &[]).unwrap();
    reply.generate(&greedy()).unwrap();
    let streams: Vec<Arc<Stream>> = pictures.iter().map(|_| stream(&model)).collect();
    for (stream, picture) in streams.iter().zip(&pictures) {
        stream.set_chat(ONE, &[picture.given()]).unwrap();
        for _ in 0..7 {
            model.step(Duration::from_micros(300)).unwrap();
        }
    }
    settle(&model);
    for ((stream, alone), picture) in streams.iter().zip(alone).zip(&pictures) {
        assert!(logit_bits(&model, stream) == alone, "{:?}", picture.size);
    }
}

#[test]
fn a_picture_given_again_is_kept_and_another_of_its_size_is_not() {
    let model = open(2);
    let (picture, other) = (Picture::new(150, 100, 0), Picture::new(150, 100, 9));
    let stream = stream(&model);
    stream.set_chat(ONE, &[picture.given()]).unwrap();
    stream.generate(&greedy()).unwrap();
    let reply = run(&model, &stream);
    let held = stream.tokens().unwrap();
    let mut chat: serde_json::Value = serde_json::from_str(ONE).unwrap();
    let messages = chat["messages"].as_array_mut().unwrap();
    messages.push(serde_json::json!({"role": "assistant", "content": reply.text}));
    messages.push(
        serde_json::json!({"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "And this one?"}]}),
    );
    let chat = chat.to_string();
    stream.set_chat(&chat, &[picture.given(), picture.given()]).unwrap();
    assert_eq!(stream.tokens().unwrap()[..held.len()], held);
    let bits = logit_bits(&model, &stream);
    let fresh = |media: &[Given]| bits_of(&model, &chat, media, Duration::from_secs(60));
    assert!(bits == fresh(&[picture.given(), picture.given()]));
    stream.generate(&greedy()).unwrap();
    let usage = run(&model, &stream).usage;
    assert!(usage.cached_tokens as usize >= held.len() - 2, "{usage:?}");

    stream.set_chat(&chat, &[picture.given(), other.given()]).unwrap();
    assert!(logit_bits(&model, &stream) == fresh(&[picture.given(), other.given()]));
    stream.set_chat(&chat, &[other.given(), picture.given()]).unwrap();
    assert!(logit_bits(&model, &stream) == fresh(&[other.given(), picture.given()]));
}

/// What was queued, to queue it again in a fresh stream.
enum Piece {
    Tokens(Vec<u32>),
    Picture(usize),
    Rewind(usize),
}

fn replay(stream: &Stream, piece: &Piece, pictures: &[Picture]) {
    match piece {
        Piece::Tokens(tokens) => stream.append_tokens(tokens).unwrap(),
        Piece::Picture(index) => stream.append_media(&pictures[*index].given()).unwrap(),
        Piece::Rewind(length) => stream.rewind(*length).unwrap(),
    }
}

fn random_rewinds(cases: u64) {
    let model = open(2);
    let pictures: Vec<Picture> = (0..3).map(|i| Picture::new(60 + 50 * i, 130 - 30 * i, i)).collect();
    for seed in 0..cases {
        let mut rng = Rng(seed);
        let stepped = stream(&model);
        let mut pieces = Vec::new();
        for _ in 0..rng.range(3, 8) {
            let held = stepped.length().unwrap();
            let piece = match rng.range(0, 2) {
                0 => Piece::Tokens(words(&model, &mut rng, 1 + seed as usize % 70)),
                1 => Piece::Picture(rng.range(0, pictures.len() - 1)),
                _ => Piece::Rewind(rng.range(0, held)),
            };
            replay(&stepped, &piece, &pictures);
            pieces.push(piece);
            for _ in 0..rng.range(0, 60) {
                model.step(Duration::from_micros(rng.range(0, 600) as u64)).unwrap();
            }
        }
        let end = Piece::Tokens(words(&model, &mut rng, 3));
        replay(&stepped, &end, &pictures);
        let fresh = stream(&model);
        pieces.iter().chain([&end]).for_each(|piece| replay(&fresh, piece, &pictures));
        assert_eq!(stepped.tokens().unwrap(), fresh.tokens().unwrap());
        assert!(logit_bits(&model, &stepped) == logit_bits(&model, &fresh), "case {seed}");
        stepped.close();
        fresh.close();
    }
}

#[test]
fn rewinding_around_and_into_pictures_equals_a_fresh_run() {
    random_rewinds(25);
}

#[test]
#[ignore = "long: minutes"]
fn rewinding_around_and_into_pictures_equals_a_fresh_run_200_times() {
    random_rewinds(200);
    println!("200 random rewinds around pictures: the same bits as fresh runs");
}

#[test]
fn a_chat_set_again_after_a_rewind_into_its_picture_is_whole_again() {
    let model = open(1);
    let picture = Picture::new(150, 100, 3);
    let stream = stream(&model);
    stream.set_chat(ONE, &[picture.given()]).unwrap();
    let bits = logit_bits(&model, &stream);
    for length in [3, 5, 8, 12] {
        stream.rewind(length).unwrap();
        settle(&model);
        stream.set_chat(ONE, &[picture.given()]).unwrap();
        assert!(logit_bits(&model, &stream) == bits, "length {length}");
    }
}

#[test]
fn a_picture_larger_than_the_context_is_refused_and_a_limit_makes_it_fit() {
    let small = |most| ModelOptions { context_limit: Some(24), max_picture_tokens: most, ..ModelOptions::default() };
    let picture = Picture::new(160, 120, 0);
    let model = open_with(&small(None));
    let full = stream(&model);
    full.append_tokens(&words(&model, &mut Rng(1), 10)).unwrap();
    let error = full.append_media(&picture.given()).unwrap_err();
    assert_eq!(error.code, Code::ContextFull);
    assert_eq!(full.set_chat(ONE, &[picture.given()]).unwrap_err().code, Code::ContextFull);
    assert_eq!(full.length().unwrap(), 10, "what it held, it holds");
    let model = open_with(&small(Some(4)));
    let fits = stream(&model);
    fits.append_media(&picture.given()).unwrap();
    // Two by one, between the tokens around: sides are rounded down where the limit is passed.
    assert_eq!(fits.length().unwrap(), 2 + 2);
    // As the same limit gives it in a longer context.
    let longer = open_with(&ModelOptions { max_picture_tokens: Some(4), ..ModelOptions::default() });
    let expected = stream(&longer);
    expected.append_media(&picture.given()).unwrap();
    assert!(logit_bits(&model, &fits) == logit_bits(&longer, &expected));
}

#[test]
fn a_cancelled_picture_leaves_what_was_before_it_and_gives_its_memory_back() {
    let picture = Picture::new(160, 120, 0);
    let report = Model::memory(&demo_folder(), &ModelOptions::default()).unwrap();
    let room = report.per_1000_picture_tokens / 8 + 2 * report.stream + report.per_1000_tokens;
    let options = ModelOptions { host_bytes: Some(report.weights + report.scratch + room), ..ModelOptions::default() };
    let model = open_with(&options);
    let held = words(&model, &mut Rng(5), 20);
    let stream = stream(&model);
    stream.append_tokens(&held).unwrap();
    let expected = logit_bits(&model, &stream);
    for round in 0..60 {
        stream.append_media(&picture.given()).unwrap();
        stream.generate(&greedy()).unwrap();
        for _ in 0..round {
            model.step(Duration::from_micros(200)).unwrap();
        }
        stream.cancel().unwrap();
        let heard = run(&model, &stream);
        assert_ne!(heard.done, Some(DoneReason::Error), "{}", stream.last_error());
        stream.rewind(held.len()).unwrap();
        assert!(logit_bits(&model, &stream) == expected, "round {round}");
    }
}

#[test]
fn a_picture_that_memory_does_not_allow_ends_its_stream_alone() {
    let report = Model::memory(&demo_folder(), &ModelOptions::default()).unwrap();
    let picture = Picture::new(160, 120, 0);
    // It is twenty tokens; as much again is for its pixels in full size.
    for (room, fits) in [(0, false), (report.per_1000_picture_tokens / 25, true)] {
        // Both streams' texts fit, and the picture's copy; what the tower holds does not.
        let room = room + 2 * report.stream + report.per_1000_tokens / 8;
        let host_bytes = Some(report.weights + report.scratch + room);
        let model = open_with(&ModelOptions { host_bytes, ..ModelOptions::default() });
        let (sees, reads) = (stream(&model), stream(&model));
        reads.set_chat(STORY, &[]).unwrap();
        reads.generate(&greedy()).unwrap();
        sees.append_media(&picture.given()).unwrap();
        sees.generate(&greedy()).unwrap();
        let heard = run(&model, &sees);
        assert_eq!(heard.done == Some(DoneReason::Error), !fits, "room {room}: {heard:?} {}", sees.last_error());
        assert_eq!(sees.last_error().contains("host_bytes"), !fits, "{}", sees.last_error());
        assert_eq!(run(&model, &reads).done, Some(DoneReason::StopToken));
    }
}

#[test]
fn a_file_that_breaks_behind_its_header_ends_its_stream_with_a_text() {
    let model = open(1);
    let file = std::fs::read(demo_folder().join("../pictures/shapes-1.png")).unwrap();
    let broken = stream(&model);
    let given = Given::Picture(GivenFrame::File(&file[..file.len() / 2]));
    broken.append_tokens(&words(&model, &mut Rng(1), 5)).unwrap();
    broken.append_media(&given).unwrap();
    for _ in 0..2 {
        broken.generate(&greedy()).unwrap();
        let heard = run(&model, &broken);
        assert_eq!(heard.done, Some(DoneReason::Error));
        assert!(!broken.last_error().is_empty());
    }
    broken.rewind(5).unwrap();
    broken.generate(&greedy()).unwrap();
    assert_ne!(run(&model, &broken).done, Some(DoneReason::Error));
    let error = broken.append_media(&Given::Picture(GivenFrame::File(&file[..20]))).unwrap_err();
    assert_eq!(error.code, Code::Format, "{error}");
}

#[test]
fn the_tokens_of_a_picture_are_not_scored() {
    let model = open(1);
    let picture = Picture::new(96, 96, 0);
    let stream = stream(&model);
    let before = words(&model, &mut Rng(1), 4);
    stream.append_tokens(&before).unwrap();
    stream.append_media(&picture.given()).unwrap();
    let seen = stream.length().unwrap();
    stream.append_tokens(&words(&model, &mut Rng(2), 5)).unwrap();
    stream.score(0).unwrap();
    let positions: Vec<u64> = run(&model, &stream).scores.iter().map(|score| score.0).collect();
    // Behind the words comes the picture's start, then its rows, then its end.
    let expected: Vec<u64> = (1..=before.len() as u64).chain(seen as u64 - 1..seen as u64 + 5).collect();
    assert_eq!(positions, expected);
}

#[test]
fn a_video_is_pairs_of_frames_behind_their_times() {
    let model = open(2);
    let frames: Vec<Picture> = (0..9).map(|t| Picture::new(64, 48, t)).collect();
    let json = ONE.replace("image", "video");
    let stream = stream(&model);
    stream.set_chat(&json, &[video(&frames)]).unwrap();
    let text = String::from_utf8_lossy(&model.detokenize(&stream.tokens().unwrap()).unwrap()).into_owned();
    assert!(text.contains(" seconds><|vision_start|><|video|>"), "{text}");
    assert_eq!(text.matches("seconds>").count(), 2, "four of nine frames, in pairs: {text}");
    let bits = logit_bits(&model, &stream);
    assert!(bits == bits_of(&model, &json, &[video(&frames)], Duration::from_micros(100)));
    let still: Vec<Picture> = (0..9).map(|_| Picture::new(64, 48, 0)).collect();
    assert!(bits != bits_of(&model, &json, &[video(&still)], Duration::from_secs(9)));
    assert_eq!(
        stream.append_media(&Given::Video { frames: Vec::new(), times: Vec::new(), fps: 1.0 }).unwrap_err().code,
        Code::InvalidArgument
    );
}

#[test]
fn parts_and_media_must_match() {
    let model = open(1);
    let (picture, frames) = (Picture::new(64, 64, 0), [Picture::new(64, 64, 0)]);
    let stream = stream(&model);
    for (json, media) in [
        (ONE, vec![]),
        (ONE, vec![picture.given(), picture.given()]),
        (ONE, vec![video(&frames)]),
        (TWO, vec![picture.given()]),
        (STORY, vec![picture.given()]),
    ] {
        let error = stream.set_chat(json, &media).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument, "{error}");
    }
    let broken = Given::Picture(GivenFrame::File(b"no picture"));
    let error = stream.set_chat(TWO, &[picture.given(), broken]).unwrap_err();
    assert!(error.message.starts_with("media 1: "), "{error}");
    assert_eq!(stream.next().unwrap(), Next::Done);
}
