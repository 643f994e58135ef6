//! How long steps of a full-size model really take: a long prompt fills in beside a stream that decodes.
//!
//! `cargo bench --bench step_time -- FOLDER [--threads N] [--prompt N]`; fails if the budget of 8 ms is passed by
//! more than the header promises. Meant for a quiet machine.

mod drive;
mod steps;

use drive::{LONG, drain, endless, greedy, open, option, options, tokens};
use lfm3::error::Result;
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;
use steps::{BUDGET, Steps, ms};

/// Tokens of the stream that decodes, before it starts.
const SHORT_PROMPT: usize = 32;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let Some(folder) = args.first().filter(|a| !a.starts_with("--")) else {
        eprintln!("usage: step_time FOLDER [--threads N] [--prompt N]");
        return ExitCode::from(2);
    };
    let threads = option(&args, "--threads").unwrap_or(2);
    let prompt = option(&args, "--prompt").unwrap_or(2048);
    match measure(Path::new(folder), threads, prompt) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the figures; whether they hold.
fn measure(folder: &Path, threads: usize, prompt: usize) -> Result<bool> {
    let model = open(folder, &options(threads, false))?;
    let talking = endless(&model)?;
    talking.append_tokens(&tokens(&model, SHORT_PROMPT))?;
    talking.generate(&greedy(usize::MAX))?;
    while drain(&talking)?.tokens == 0 {
        model.step(LONG)?;
    }
    let filling = endless(&model)?;
    filling.append_tokens(&tokens(&model, prompt))?;
    let (mut steps, mut made, start) = (Steps::default(), 0, Instant::now());
    while !drain(&filling)?.ready {
        steps.step(&model)?;
        made += drain(&talking)?.tokens;
    }
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{} steps of {:.0} ms, {threads} threads, {prompt} tokens filled in and {made} made in {seconds:.1} s",
        steps.count(),
        ms(BUDGET)
    );
    Ok(steps.print(made))
}
