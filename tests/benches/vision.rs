//! What a picture costs a model with vision: memory, the tower's time, the time to read its rows, and how long steps
//! take while a stream looks at one beside another that decodes. Files are timed apart: the pictures are given as RGB.
//!
//! `cargo bench --bench vision -- FOLDER [--threads N] [--width N] [--height N]`; fails where `step_time` would.
//! Says so, and no more, where the model has no vision. Meant for a quiet machine.

mod drive;
mod memory;
mod steps;

use drive::{LONG, drain, endless, greedy, open, option, options, tokens};
use lfm3::engine::Model;
use lfm3::error::{Code, Error, Result};
use lfm3::model::checkpoint::Checkpoint;
use lfm3::picture::decode::decode;
use lfm3::picture::media::{Given, GivenFrame};
use lfm3::picture::resize::Resizer;
use lfm3::picture::{Pixels, Size};
use lfm3::stream::Stream;
use memory::{PEAK, resident};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};
use steps::{BUDGET, Steps, ms};

/// Steps of the run that tells the tower's time from the prompt's: short, so that none is part of both.
const SHORT_STEP: Duration = Duration::from_millis(1);
/// Tokens of the stream that decodes, before it starts.
const SHORT_PROMPT: usize = 32;
/// Repetitions of what takes milliseconds; the median counts.
const ROUNDS: usize = 5;
const JPEG_QUALITY: u8 = 90;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let side = |name: &str, default: usize| u32::try_from(option(&args, name).unwrap_or(default)).unwrap_or(u32::MAX);
    let Some(folder) = args.first().filter(|a| !a.starts_with("--")) else {
        eprintln!("usage: vision FOLDER [--threads N] [--width N] [--height N]");
        return ExitCode::from(2);
    };
    let size = Size { width: side("--width", 1024), height: side("--height", 768) };
    match measure(Path::new(folder), option(&args, "--threads").unwrap_or(2), size) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{folder}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the figures; whether step times hold.
fn measure(folder: &Path, threads: usize, size: Size) -> Result<bool> {
    let Some(config) = Checkpoint::open(folder)?.picture else {
        println!("{}: no vision", folder.display());
        return Ok(true);
    };
    let resized = config.resized(size)?;
    let start = Instant::now();
    let model = open(folder, &options(threads, false))?;
    println!("load: {:.1} s, {threads} threads, {}", start.elapsed().as_secs_f64(), model.info().isa);
    alone(&model, &picture(size, 0))?;
    let holds = beside(&model, &picture(size, 1))?;
    let larger = Size { width: size.width.saturating_mul(2), height: size.height.saturating_mul(2) };
    files(&picture(larger, 2), resized)?;
    Ok(holds)
}

/// A picture with edges, slopes and some noise, another for each `seed`.
fn picture(size: Size, seed: u32) -> Pixels {
    let value = |x: u32, y: u32, channel: u32| {
        let slope = x * (channel + 1) / 8 + y * (3 - channel) / 8 + 64 * seed;
        let edge = if (x / 96 + y / 64) % 2 == channel % 2 { 60 } else { 0 };
        let noise = (x.wrapping_mul(0x9e37_79b9) ^ y.wrapping_mul(0x85eb_ca6b)).wrapping_mul(0xc2b2_ae35) >> 29;
        (slope + edge + noise) as u8
    };
    let places = (0..size.height).flat_map(|y| (0..size.width).map(move |x| (x, y)));
    Pixels { size, rgb: places.flat_map(|(x, y)| [value(x, y, 0), value(x, y, 1), value(x, y, 2)]).collect() }
}

fn given(pixels: &Pixels) -> Given<'_> {
    let stride = 3 * pixels.size.width as usize;
    Given::Picture(GivenFrame::Rgb { data: &pixels.rgb, size: pixels.size, stride })
}

/// Whether all that was queued is filled in.
fn is_read(stream: &Stream) -> Result<bool> {
    match drain(stream)? {
        seen if seen.done => Err(Error::new(Code::Internal, stream.last_error())),
        seen => Ok(seen.ready),
    }
}

/// A picture with the model to itself.
fn alone(model: &Arc<Model>, pixels: &Pixels) -> Result<()> {
    let stream = endless(model)?;
    // A high-water mark of the load would hide the picture's.
    let _ = std::fs::write("/proc/self/clear_refs", "5");
    let before = resident("VmRSS:");
    stream.append_media(&given(pixels))?;
    let (start, mut tower) = (Instant::now(), 0);
    while !is_read(&stream)? {
        model.step(SHORT_STEP)?;
        if tower == 0 {
            tower = stream.stats()?.prefill_us;
        }
    }
    let (seconds, stats) = (start.elapsed().as_secs_f64(), stream.stats()?);
    println!(
        "picture: {} x {} pixels, {} tokens with those around; resizing and tower {:.2} s, prompt {:.2} s, \
         {seconds:.2} s together",
        pixels.size.width,
        pixels.size.height,
        stats.length,
        tower as f64 / 1e6,
        stats.prefill_us.saturating_sub(tower) as f64 / 1e6
    );
    println!(
        "memory: {:.1} MB at most over the loaded model's {:.0} MB; the stream keeps {:.1} MB",
        resident(PEAK).saturating_sub(before) as f64 / 1e6,
        before as f64 / 1e6,
        stats.bytes as f64 / 1e6
    );
    stream.close();
    Ok(())
}

/// A picture beside a reply, in steps of the budget; whether these hold.
fn beside(model: &Arc<Model>, pixels: &Pixels) -> Result<bool> {
    let talking = endless(model)?;
    talking.append_tokens(&tokens(model, SHORT_PROMPT))?;
    talking.generate(&greedy(usize::MAX))?;
    while drain(&talking)?.tokens == 0 {
        model.step(LONG)?;
    }
    let looking = endless(model)?;
    looking.append_media(&given(pixels))?;
    let (mut steps, mut made, start) = (Steps::default(), 0, Instant::now());
    while !is_read(&looking)? {
        steps.step(model)?;
        made += drain(&talking)?.tokens;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!("beside a reply: {} steps of {:.0} ms, {made} tokens made in {seconds:.1} s", steps.count(), ms(BUDGET));
    Ok(steps.print(made))
}

/// What reading the file of a larger picture and resizing it take. Decoding is one slice of a step, resizing is cut.
fn files(pixels: &Pixels, to: Size) -> Result<()> {
    let Size { width, height } = pixels.size;
    let megapixels = f64::from(width) * f64::from(height) / 1e6;
    let failed = |error: image::ImageError| Error::new(Code::Internal, error.to_string());
    let (mut png, mut jpeg) = (Vec::new(), Vec::new());
    let (rgb, color) = (&pixels.rgb, image::ExtendedColorType::Rgb8);
    image::ImageEncoder::write_image(image::codecs::png::PngEncoder::new(&mut png), rgb, width, height, color)
        .map_err(failed)?;
    image::codecs::jpeg::JpegEncoder::new_with_quality(&mut jpeg, JPEG_QUALITY)
        .encode(rgb, width, height, color)
        .map_err(failed)?;
    for (name, file) in [("PNG", &png), ("JPEG", &jpeg)] {
        let time = median(|| decode(file).map(|_| ()))?;
        let size = file.len() as f64 / 1e6;
        println!("decoding: {name} of {size:.2} MB {:.1} ms, {:.1} ms a megapixel", ms(time), ms(time) / megapixels);
    }
    let time = median(|| {
        let mut resizer = Resizer::new(pixels.clone(), to)?;
        while !resizer.advance(Instant::now() + LONG) {}
        Ok(())
    })?;
    println!("resizing: {width} x {height} to {} x {} {:.1} ms", to.width, to.height, ms(time));
    Ok(())
}

/// The median time of a few runs.
fn median(mut run: impl FnMut() -> Result<()>) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        run()?;
        times.push(start.elapsed());
    }
    times.sort();
    Ok(times[ROUNDS / 2])
}
