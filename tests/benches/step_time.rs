//! How long steps of a full-size model really take: a long prompt fills in beside a stream that decodes.
//!
//! `cargo bench --bench step_time -- FOLDER [--threads N] [--prompt N]`; fails if the budget of 8 ms is passed by
//! more than the header promises. Meant for a quiet machine.

mod drive;

use drive::{LONG, drain, endless, greedy, open, option, options, tokens};
use lfm3::error::Result;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const BUDGET: Duration = Duration::from_millis(8);
const MOST_P99: Duration = Duration::from_millis(10);
const MOST_WORST: Duration = Duration::from_millis(20);

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
    let (mut times, mut made, start) = (Vec::new(), 0, Instant::now());
    while !drain(&filling)?.ready {
        let step = Instant::now();
        model.step(BUDGET)?;
        times.push(step.elapsed());
        made += drain(&talking)?.tokens;
    }
    let seconds = start.elapsed().as_secs_f64();
    times.sort();
    let at = |part: f64| times[((times.len() - 1) as f64 * part).ceil() as usize];
    let (p50, p99, worst) = (at(0.5), at(0.99), at(1.0));
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    println!(
        "{} steps of {:.0} ms, {threads} threads, {prompt} tokens filled in and {made} made in {seconds:.1} s",
        times.len(),
        ms(BUDGET)
    );
    println!("step time: p50 {:.2} ms, p99 {:.2} ms, worst {:.2} ms", ms(p50), ms(p99), ms(worst));
    let mut holds = true;
    for (fails, text) in [
        (p99 > MOST_P99, format!("p99 is over {:.0} ms", ms(MOST_P99))),
        (worst > MOST_WORST, format!("the worst step is over {:.0} ms", ms(MOST_WORST))),
        (made == 0, "the other stream made no token meanwhile".to_string()),
    ] {
        if fails {
            println!("FAILED: {text}");
            holds = false;
        }
    }
    Ok(holds)
}
