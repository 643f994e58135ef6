//! Broken files give a status and a message, in bounded time and memory, and nothing is left behind.

#[path = "common/rng.rs"]
mod rng;

use lfm3::engine::{Model, ModelOptions};
use lfm3::error::{Code, Error};
use lfm3::sampler::Sampling;
use lfm3::stream::{GenerateOptions, Next, Stream, StreamOptions};
use rng::Rng;
use std::alloc::{GlobalAlloc, Layout, System};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Counts live bytes and their peak.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: passes everything on to the system's allocator and only counts.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's pointer and layout, unchanged.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Longest time one broken checkpoint may take, open and short reply together, on a busy machine.
const MOST_TIME: Duration = Duration::from_secs(20);
/// Most bytes beyond a good run's peak.
const MOST_BYTES: usize = 64 << 20;

/// The counts are the process's, so the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/demo-model")
}

/// A folder like the demo's whose files can be replaced one at a time.
struct Copy(PathBuf);

impl Copy {
    fn new(name: &str) -> Copy {
        let folder = std::env::temp_dir().join(format!("lfm3-hostile-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        for entry in fs::read_dir(demo()).unwrap() {
            let entry = entry.unwrap();
            fs::copy(entry.path(), folder.join(entry.file_name())).unwrap();
        }
        Copy(folder)
    }

    /// Runs `check` with `file` holding `bytes`.
    fn with<T>(&self, file: &str, bytes: &[u8], check: impl FnOnce(&Path) -> T) -> T {
        let path = self.0.join(file);
        let good = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let result = check(&self.0);
        fs::write(&path, good).unwrap();
        result
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Opens the folder and lets it say a few tokens.
fn use_model(folder: &Path) -> Result<(), Error> {
    let model = Model::open(folder, &ModelOptions::default(), &mut |_, _| true)?;
    let stream = Stream::new(&model, &StreamOptions::default())?;
    let chat = r#"{"messages": [{"role": "user", "content": "Where is Ivan?"}]}"#;
    let said = speak(&model, &stream, chat);
    stream.close();
    model.close();
    said
}

fn speak(model: &Model, stream: &Stream, chat: &str) -> Result<(), Error> {
    stream.set_chat(chat, &[])?;
    let sampling = Sampling { temperature: 0.0, ..stream.default_sampling() };
    stream.generate(&GenerateOptions { max_tokens: Some(3), ..GenerateOptions::new(sampling) })?;
    while stream.next()? != Next::Done {
        model.step(Duration::from_millis(5))?;
    }
    Ok(())
}

/// Uses the folder and holds it to its bounds. True when it could be used.
fn check(folder: &Path, most_bytes: usize, what: &str) -> bool {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let result = use_model(folder);
    let (took, peak) = (start.elapsed(), PEAK.load(Ordering::Relaxed) - before);
    assert!(took < MOST_TIME, "{what}: {took:?}");
    assert!(peak < most_bytes, "{what}: {peak} bytes");
    if let Err(error) = &result {
        assert!(error.code != Code::Internal, "{what}: {error}");
        assert!(error.message.len() > 10 && error.message.len() < 4000, "{what}: {error}");
    }
    let left = LIVE.load(Ordering::Relaxed).saturating_sub(before);
    assert!(left < 100_000, "{what}: {left} bytes left behind");
    result.is_ok()
}

fn files() -> Vec<String> {
    let names = fs::read_dir(demo()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|n| n != "README.md").collect();
    names.sort();
    names
}

/// Peak of a good run, which also warms up what is made once a process.
fn good_peak(folder: &Path) -> usize {
    use_model(folder).unwrap();
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    use_model(folder).unwrap();
    PEAK.load(Ordering::Relaxed) - before + MOST_BYTES
}

fn truncations_and_flips(offsets: usize, flips: usize) {
    let _turn = turn();
    let copy = Copy::new("flips");
    let most = good_peak(&copy.0);
    let (mut cases, mut usable, mut rng) = (0, 0, Rng(7));
    for name in files() {
        let good = fs::read(demo().join(&name)).unwrap();
        for i in 0..offsets {
            let end = good.len() * i / offsets;
            let what = format!("{name} cut at {end}");
            usable += usize::from(copy.with(&name, &good[..end], |folder| check(folder, most, &what)));
            cases += 1;
        }
        // Half of a file's flips fall into its first part, where headers are.
        for i in 0..flips / files().len() {
            let reach = if i % 2 == 0 { good.len().min(20_000) } else { good.len() };
            let (at, bit) = (rng.below(reach), rng.below(8));
            let mut bad = good.clone();
            bad[at] ^= 1 << bit;
            let what = format!("{name}: bit {bit} of byte {at}");
            usable += usize::from(copy.with(&name, &bad, |folder| check(folder, most, &what)));
            cases += 1;
        }
    }
    assert!(usable < cases, "no broken file was refused");
    println!("{cases} broken checkpoints: {usable} usable all the same, the others refused with a message");
}

#[test]
fn truncated_and_flipped_files_are_refused_or_harmless() {
    truncations_and_flips(6, 90);
}

#[test]
#[ignore = "long: many minutes"]
fn every_file_truncated_200_times_and_2000_flips_are_refused_or_harmless() {
    truncations_and_flips(200, 2000);
}

#[test]
fn templates_that_never_end_and_deep_json_are_refused() {
    let _turn = turn();
    let copy = Copy::new("templates");
    let most = good_peak(&copy.0);
    let deep = "[".repeat(200_000);
    let cases = [
        ("chat_template.jinja", "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"),
        ("chat_template.jinja", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
        ("chat_template.jinja", "{{ 'x' * 999999999999 }}"),
        ("config.json", deep.as_str()),
        ("generation_config.json", deep.as_str()),
        ("tokenizer.json", deep.as_str()),
        ("tokenizer_config.json", deep.as_str()),
    ];
    for (file, text) in cases {
        let usable = copy.with(file, text.as_bytes(), |folder| check(folder, most, file));
        assert!(!usable, "{file}: {}", &text[..text.len().min(80)]);
    }
}
