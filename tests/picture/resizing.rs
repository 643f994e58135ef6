//! Sizes and resizing: the rules, slices, memory, and a naive second implementation.

use crate::formula::{frame, picture_config, resize, rgb, size, video_config};
use crate::memory::peak;
use crate::rng::Rng;
use lfm3::error::Code;
use lfm3::picture::config::MAX_FRAMES;
use lfm3::picture::resize::Resizer;
use lfm3::picture::video::pairs;
use lfm3::picture::{Pixels, Size};
use std::time::{Duration, Instant};

/// Weights of one place over all sources, rounded to integers together with their precision's bits.
fn weights(from: u32, to: u32, antialias: bool) -> (Vec<Vec<i64>>, u32) {
    let scale = f64::from(from) / f64::from(to);
    let coarse = if antialias { scale.max(1.0) } else { 1.0 };
    let cubic = |x: f64| match x.abs() {
        x if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
        x if x < 2.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
        _ => 0.0,
    };
    let exact: Vec<Vec<f64>> = (0..to)
        .map(|i| {
            let middle = scale * (f64::from(i) + 0.5);
            let (low, high) = ((middle - 2.0 * coarse + 0.5).max(0.0).floor(), (middle + 2.0 * coarse + 0.5).floor());
            let seen = |j: f64| j >= low && j < high;
            let weight = |j: f64| if seen(j) { cubic((j + 0.5 - middle) / coarse) } else { 0.0 };
            let all: Vec<f64> = (0..from).map(|j| weight(f64::from(j))).collect();
            let total: f64 = all.iter().sum();
            all.iter().map(|w| w / total).collect()
        })
        .collect();
    let largest = exact.iter().flatten().fold(0.0_f64, |a, b| a.max(*b));
    let precision = (0..22).find(|p| (0.5 + largest * f64::from(2_u32 << p)) as i64 >= 1 << 15).unwrap_or(22);
    let rounded = |w: &f64| (w * f64::from(1_u32 << precision)).round() as i64;
    (exact.iter().map(|all| all.iter().map(rounded).collect()).collect(), precision)
}

/// One pass over `from` sources at `source(place)`, for `to` places.
fn pass(from: u32, to: u32, antialias: bool, mut place: impl FnMut(usize, &dyn Fn(&dyn Fn(usize) -> u8) -> u8)) {
    let (weights, precision) = weights(from, to, antialias);
    for (i, all) in weights.iter().enumerate() {
        let sum = |value: &dyn Fn(usize) -> u8| {
            let start = (1_i64 << precision) / 2;
            let sum = all.iter().enumerate().fold(start, |sum, (j, w)| sum + w * i64::from(value(j)));
            (sum >> precision).clamp(0, 255) as u8
        };
        place(i, &sum);
    }
}

/// Resizing in plain loops over every source, with or without antialiasing.
pub fn naive(pixels: &Pixels, to: Size, antialias: bool) -> Pixels {
    let from = pixels.size;
    let (width, height, wide) = (from.width as usize, from.height as usize, to.width as usize);
    let mut middle = vec![0; 3 * wide * height];
    if from.width == to.width {
        middle.clone_from(&pixels.rgb);
    } else {
        pass(from.width, to.width, antialias, |x, sum| {
            for (y, c) in (0..height).flat_map(|y| (0..3).map(move |c| (y, c))) {
                middle[3 * (y * wide + x) + c] = sum(&|j| pixels.rgb[3 * (y * width + j) + c]);
            }
        });
    }
    if from.height == to.height {
        return Pixels { size: to, rgb: middle };
    }
    let mut rgb = vec![0; 3 * wide * to.height as usize];
    pass(from.height, to.height, antialias, |y, sum| {
        for i in 0..3 * wide {
            rgb[3 * y * wide + i] = sum(&|j| middle[3 * j * wide + i]);
        }
    });
    Pixels { size: to, rgb }
}

#[test]
fn every_size_to_every_size_is_as_plain_loops_have_it() {
    let mut rng = Rng(11);
    let sides = [1, 2, 3, 5, 8, 15, 16, 17, 31, 33, 48, 64, 97, 130];
    for round in 0..300 {
        let mut side = || rng.pick(&sides);
        let (from, to) = (size(side(), side()), size(side(), side()));
        let pixels = frame(from, round);
        assert!(resize(&pixels, to) == naive(&pixels, to, true), "{from} to {to}");
    }
    // Far down, so that weights are small and many.
    for (from, to) in [(size(3001, 2), size(1, 3)), (size(2, 5000), size(2, 2)), (size(1, 1), size(700, 3))] {
        assert!(resize(&rgb(from), to) == naive(&rgb(from), to, true), "{from} to {to}");
    }
}

#[test]
fn slices_of_any_length_give_the_same() {
    let (from, to) = (size(400, 301), size(160, 352));
    let whole = resize(&rgb(from), to);
    for wait in [Duration::ZERO, Duration::from_micros(50), Duration::from_secs(9)] {
        let mut resizer = Resizer::new(rgb(from), to).unwrap();
        let mut calls = 1;
        while !resizer.advance(Instant::now() + wait) {
            calls += 1;
        }
        assert!(if wait.is_zero() { calls > 20 } else { calls >= 1 }, "{calls}");
        assert!(resizer.advance(Instant::now()), "what is done stays done");
        assert!(resizer.finish() == whole);
    }
    let mut begun = Resizer::new(rgb(from), to).unwrap();
    begun.advance(Instant::now());
    assert!(begun.finish() == whole);
    assert!(Resizer::new(rgb(from), to).unwrap().finish() == whole);
}

#[test]
fn the_same_size_is_left_alone() {
    let pixels = rgb(size(1024, 768));
    let mut resizer = Resizer::new(pixels.clone(), pixels.size).unwrap();
    assert!(resizer.advance(Instant::now()));
    assert!(resizer.finish() == pixels);
}

#[test]
fn resizing_holds_what_it_told() {
    let cases = [(640, 480, 160, 96), (64, 700, 64, 32), (700, 64, 32, 64), (9, 9, 256, 256), (5, 5, 5, 5)];
    for (w, h, to_w, to_h) in cases {
        let (from, to) = (size(w, h), size(to_w, to_h));
        let told = Resizer::bytes(from, to);
        let (_, held) = peak(|| resize(&rgb(from), to));
        // `resize` keeps a copy of its own, and the formula makes one more by doubling.
        assert!(held <= told + 6 * from.area() + 4096, "{from} to {to}: {held} held, {told} told");
        let pixels = rgb(from);
        let (_, held) = peak(|| Resizer::new(pixels, to).unwrap().finish());
        assert!(held + 3 * from.area() <= told + 4096, "{from} to {to}: {held} held, {told} told");
    }
}

#[test]
fn what_cannot_be_resized_is_refused() {
    let refused = |pixels: Pixels, to, code| {
        let error = Resizer::new(pixels, to).err().unwrap();
        assert!(error.code == code && error.message.len() > 20, "{error}");
    };
    let good = rgb(size(4, 3));
    refused(good.clone(), size(0, 3), Code::InvalidArgument);
    refused(good.clone(), size(4, 0), Code::InvalidArgument);
    refused(Pixels { size: size(0, 0), rgb: Vec::new() }, size(4, 3), Code::InvalidArgument);
    refused(Pixels { size: size(4, 4), rgb: good.rgb.clone() }, size(4, 3), Code::InvalidArgument);
    refused(good.clone(), size(u32::MAX, u32::MAX), Code::Limit);
    refused(good, size(1 << 28, 2), Code::Limit);
}

#[test]
fn sides_may_be_two_hundred_times_each_other_and_no_more() {
    let config = picture_config("LFM3-VL-2B");
    for n in [1, 3, 32, 327] {
        assert!(config.resized(size(200 * n, n)).is_ok() && config.resized(size(n, 200 * n)).is_ok());
        let error = config.resized(size(200 * n + 1, n)).unwrap_err();
        assert_eq!(error.code, Code::Unsupported);
        assert!(config.resized(size(n, 200 * n + 1)).is_err());
    }
    assert_eq!(config.resized(size(0, 5)).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(config.resized(size(70_000, 60_000)).unwrap_err().code, Code::Limit);
}

#[test]
fn half_a_block_rounds_to_even() {
    let config = picture_config("LFM3-VL-2B");
    assert_eq!(config.resized(size(32 * 20 + 16, 32 * 21 + 16)).unwrap(), size(32 * 20, 32 * 22));
}

#[test]
fn a_limit_on_tokens_is_never_passed() {
    let mut rng = Rng(3);
    for name in ["demo", "LFM3-VL-2B"] {
        let config = picture_config(name);
        assert_eq!(config.limited(None), config);
        for most in [0, 1, 2, 3, 7, 16, 20, 64, 256, 1000, 16_384, u64::MAX] {
            let limited = config.limited(Some(most));
            for _ in 0..300 {
                let (long, ratio) = (rng.range(1, 9000) as u32, 1 + rng.below(200) as u32);
                let (a, b) = (long, (long / ratio).max(1).max(long.div_ceil(200)));
                let from = if rng.below(2) == 0 { size(a, b) } else { size(b, a) };
                let to = limited.resized(from).unwrap();
                let tokens = limited.tokens(to) as u64;
                assert!(tokens >= 1 && tokens <= most.max(1), "{from} to {to}, {tokens} of {most}");
                assert!(to.width.is_multiple_of(32) && to.height.is_multiple_of(32));
                // A picture that the limit does not concern is as before.
                let before = config.resized(from).unwrap();
                if (config.tokens(before) as u64) <= most && most >= 16_384 {
                    assert_eq!(to, before);
                }
            }
        }
        // Twice limited is limited by the smaller.
        let both = config.limited(Some(5)).limited(Some(100));
        assert!((0..200).all(|i| both.tokens(both.resized(size(1 + i, 100)).unwrap()) <= 5));
    }
    // Without the last step, a long picture would have more: the smallest side is a token's.
    let unsqueezed = picture_config("demo");
    assert!(unsqueezed.tokens(unsqueezed.resized(size(200, 1)).unwrap()) > 20);
}

#[test]
fn a_limit_on_tokens_holds_for_videos_too() {
    let mut rng = Rng(4);
    let config = video_config();
    assert_eq!(config.limited(None), config);
    for most in [1_u64, 2, 5, 64, 300, 5000] {
        let limited = config.limited(Some(most));
        for _ in 0..200 {
            let total = rng.range(2, 3000);
            let chosen = limited.sample(total, 24.0).unwrap();
            let (width, ratio) = (rng.range(1, 3000) as u32, 1 + rng.below(100) as u32);
            let from = size(width, (width / ratio).max(1).max(width.div_ceil(100)));
            let to = limited.resized(chosen.len(), from).unwrap();
            let tokens = chosen.len().div_ceil(2) * limited.picture.tokens(to);
            assert!(tokens as u64 <= most, "{from} x {} to {to}: {tokens} of {most}", chosen.len());
        }
        assert_eq!(limited.resized(2 * most as usize + 1, size(64, 64)).map_err(|e| e.code), Err(Code::Limit));
    }
}

#[test]
fn frames_are_spread_from_first_to_last() {
    let config = video_config();
    assert_eq!(config.sample(1, 30.0).unwrap(), [0]);
    assert_eq!(config.sample(3, 1e-300).unwrap(), [0, 1, 2]);
    assert_eq!(config.sample(1000, 1e300).unwrap(), [0, 333, 666, 999]);
    assert_eq!(config.sample(100_000, 1.0).unwrap().len(), 768);
    for total in [usize::MAX, 1 << 53, 12_345] {
        let frames = config.sample(total, 0.001).unwrap();
        assert_eq!((frames[0], frames[frames.len() - 1], frames.len()), (0, total - 1, 768));
        assert!(frames.is_sorted());
    }
    for (total, fps) in [(0, 30.0), (5, 0.0), (5, -1.0), (5, f64::NAN), (5, f64::INFINITY)] {
        assert_eq!(config.sample(total, fps).unwrap_err().code, Code::InvalidArgument);
    }
    assert_eq!(config.resized(1, size(64, 64)).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(config.resized(0, size(64, 64)).unwrap_err().code, Code::InvalidArgument);
    assert_eq!(config.resized(MAX_FRAMES + 1, size(64, 64)).unwrap_err().code, Code::Limit);
    assert_eq!(config.resized(4, size(0, 64)).unwrap_err().code, Code::InvalidArgument);
}

#[test]
fn an_odd_last_frame_is_its_own_second() {
    assert_eq!(pairs(&[]), Vec::<f64>::new());
    assert_eq!(pairs(&[0.5, 1.5, 4.0]), [1.0, 4.0]);
}

/// Run with `--release --ignored --nocapture`; see the figures, not the verdict.
#[test]
#[ignore = "prints times"]
fn times_of_a_photograph() {
    for (from, to) in [
        (size(4032, 3024), size(1024, 768)),
        (size(4032, 3024), size(4032 / 32 * 32, 3008)),
        (size(1920, 1080), size(1920, 1088)),
        (size(1024, 768), size(1024, 768)),
        (size(640, 480), size(1024, 768)),
    ] {
        let pixels = rgb(from);
        let start = Instant::now();
        let mut resizer = Resizer::new(pixels, to).unwrap();
        let begun = start.elapsed();
        let mut slices = Vec::new();
        let mut last = Instant::now();
        while !resizer.advance(last) {
            slices.push(last.elapsed());
            last = Instant::now();
        }
        let all = start.elapsed();
        slices.sort();
        let worst = slices.last().copied().unwrap_or_default();
        let middle = slices.get(slices.len() / 2).copied().unwrap_or_default();
        println!("{from} to {to}: {all:?}, begun in {begun:?}, {} slices, {middle:?} to {worst:?}", slices.len());
    }
}
