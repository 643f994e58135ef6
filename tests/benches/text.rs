//! Load time, memory and speed of a checkpoint, each beside what this machine's memory allows at best.
//!
//! `cargo bench --bench text -- [FOLDER] [--threads N] [--prompt N] [--reply N] [--8bit] [--json]`

mod drive;
mod memory;

use drive::{LONG, drain, endless, greedy, open, option, options, tokens};
use lfm3::engine::{Model, Work};
use lfm3::error::{Code, Error, Result};
use memory::{PEAK, resident};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// Bytes read by the bandwidth measurement: far more than any cache holds.
const BANDWIDTH_BYTES: usize = 512 << 20;

const BANDWIDTH_ROUNDS: usize = 5;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let values = ["--threads", "--prompt", "--reply"];
    let is_value = |i: usize| i > 0 && values.contains(&args[i - 1].as_str());
    let folder =
        (0..args.len()).find(|i| !args[*i].starts_with("--") && !is_value(*i)).map(|i| PathBuf::from(&args[i]));
    let folder = folder.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo-model"));
    match measure(&folder, &args) {
        Ok(report) if args.iter().any(|a| a == "--json") => println!("{report:#}"),
        Ok(report) => print_table(&report),
        Err(error) => {
            eprintln!("{}: {error}", folder.display());
            std::process::exit(1);
        }
    }
}

fn measure(folder: &Path, args: &[String]) -> Result<Value> {
    let threads = option(args, "--threads").unwrap_or(2);
    let options = options(threads, args.iter().any(|a| a == "--8bit"));
    let memory = Model::memory(folder, &options)?;
    let before = resident(PEAK);
    let start = Instant::now();
    let model = open(folder, &options)?;
    let load = start.elapsed().as_secs_f64();
    let load_peak = resident(PEAK);

    let stream = endless(&model)?;
    let longest = model.info().context_limit;
    let prompt = option(args, "--prompt").unwrap_or(512).min(longest / 2);
    let reply = option(args, "--reply").unwrap_or(64).min(longest / 4);
    stream.append_tokens(&tokens(&model, prompt))?;
    let prefill = until(&model, || Ok(drain(&stream)?.ready))?;
    stream.generate(&greedy(reply))?;
    let mut made = 0;
    let decode = until(&model, || {
        let seen = drain(&stream)?;
        made += seen.tokens;
        Ok(seen.done)
    })?;
    let peak = resident(PEAK);
    let info = model.info();
    let (stats, report) = (stream.stats()?, memory);
    stream.close();
    drop((stream, model));

    let bandwidth = read_bandwidth(threads);
    let decode_speed = made as f64 / decode;
    Ok(json!({
        "model": folder.file_name().map(|n| n.to_string_lossy()),
        "parameters": info.parameters,
        "bits": info.bits,
        "isa": info.isa,
        "threads": info.threads,
        "read_bandwidth": bandwidth,
        "file_bytes": report.file,
        "weight_bytes": report.weights,
        "load_s": load,
        "load_floor_s": report.file as f64 / bandwidth,
        "load_peak_bytes": load_peak,
        "resident_before_bytes": before,
        "peak_bytes": peak,
        "load_bytes": load_peak.saturating_sub(before),
        "predicted_bytes": report.weights + report.scratch + report.loading,
        "stream_bytes": stats.bytes,
        "prompt_tokens": prompt,
        "prefill_tokens_per_s": prompt as f64 / prefill,
        "reply_tokens": made,
        "decode_tokens_per_s": decode_speed,
        "decode_ceiling_tokens_per_s": bandwidth / report.weights as f64,
        "decode_part_of_ceiling": decode_speed * report.weights as f64 / bandwidth,
    }))
}

/// Steps until `finished`, asked after every step, says so; the seconds it took.
fn until(model: &Arc<Model>, mut finished: impl FnMut() -> Result<bool>) -> Result<f64> {
    let start = Instant::now();
    loop {
        let (work, _) = model.step(LONG)?;
        if finished()? {
            return Ok(start.elapsed().as_secs_f64());
        }
        if work == Work::Idle {
            return Err(Error::new(Code::Internal, "nothing is left to do, and the stream is not where it should be"));
        }
    }
}

/// Bytes a second that `threads` threads read from a large array, best of some rounds.
fn read_bandwidth(threads: usize) -> f64 {
    let array = vec![1u64; BANDWIDTH_BYTES / 8];
    let part = array.len().div_ceil(threads.max(1));
    let mut best = f64::MAX;
    for _ in 0..BANDWIDTH_ROUNDS {
        let start = Instant::now();
        let total: u64 = std::thread::scope(|scope| {
            let sums: Vec<_> = array.chunks(part).map(|c| scope.spawn(|| c.iter().sum::<u64>())).collect();
            sums.into_iter().map(|s| s.join().unwrap()).sum()
        });
        best = best.min(start.elapsed().as_secs_f64());
        assert_eq!(std::hint::black_box(total), array.len() as u64);
    }
    BANDWIDTH_BYTES as f64 / best
}

fn print_table(r: &Value) {
    let number = |key: &str| r[key].as_f64().unwrap_or(0.0);
    let megabytes = |key: &str| number(key) / 1e6;
    println!(
        "{}: {:.1} M parameters, {} bits, {}, {} threads; memory read at {:.1} GB/s",
        r["model"].as_str().unwrap_or("?"),
        number("parameters") / 1e6,
        r["bits"],
        r["isa"].as_str().unwrap_or("?"),
        r["threads"],
        number("read_bandwidth") / 1e9
    );
    println!("{:<9} {:>14}   {:>14}  part", "", "measured", "at best");
    let row = |name: &str, found: f64, best: f64, unit: &str, part: f64| {
        println!("{name:<9} {found:>10.3} {unit:<4}  {best:>10.3} {unit:<4} {part:.3}");
    };
    let (load, floor) = (number("load_s"), number("load_floor_s"));
    row("load", load, floor, "s", floor / load);
    let (peak, file) = (megabytes("peak_bytes"), megabytes("file_bytes"));
    row("memory", peak, file, "MB", file / peak);
    let (loaded, predicted) = (megabytes("load_bytes"), megabytes("predicted_bytes"));
    println!("{:<9} {loaded:>10.3} MB    {predicted:>10.3} MB predicted before", "loading");
    let (decode, ceiling) = (number("decode_tokens_per_s"), number("decode_ceiling_tokens_per_s"));
    row("decode", decode, ceiling, "t/s", decode / ceiling);
    let prefill = number("prefill_tokens_per_s");
    println!(
        "{:<9} {prefill:>10.3} t/s   {} tokens, {:.1} times as fast as decoding",
        "prefill",
        r["prompt_tokens"],
        prefill / decode
    );
}
