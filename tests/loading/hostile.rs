//! Damaged files: always a result, in bounded memory and time, never a panic.

use crate::mock::{bind, load};
use crate::released::demo;
use crate::rng::Rng;
use crate::writer::{self, Folder, Kind};
use lfm3::error::Code;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs::{self, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::{Duration, Instant};

const TRUNCATIONS: u64 = 200;
const FLIPS: usize = 2000;
/// What opening may hold beyond the size of the file it reads.
const SPARE_BYTES: isize = 64 << 20;
const MOST_TIME: Duration = Duration::from_secs(10);

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

/// Counts the bytes each thread holds.
struct Counting;

fn count(bytes: isize) {
    LIVE.set(LIVE.get() + bytes);
    PEAK.set(PEAK.get().max(LIVE.get()));
}

// SAFETY: every call is passed on to the system's allocator as it came; counting touches only thread-local cells.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Runs `work` and returns the most bytes this thread held at once beyond what it held before.
fn peak_of<T>(work: impl FnOnce() -> T) -> (T, isize) {
    let before = LIVE.get();
    PEAK.set(before);
    let result = work();
    (result, PEAK.get() - before)
}

/// Opens and binds under the limits of time and memory.
fn bounded<T>(path: &Path, work: impl FnOnce() -> T) -> T {
    let files = path.read_dir().unwrap().map(|f| f.unwrap().metadata().unwrap().len() as isize);
    let largest = files.max().unwrap();
    let start = Instant::now();
    let (result, peak) = peak_of(work);
    assert!(peak <= largest + SPARE_BYTES, "held {peak} bytes for files of at most {largest}");
    assert!(start.elapsed() < MOST_TIME, "took {:?}", start.elapsed());
    result
}

fn copy_of(from: &Path) -> Folder {
    let folder = Folder::new();
    for file in from.read_dir().unwrap() {
        let file = file.unwrap();
        let to = folder.file(&file.file_name().to_string_lossy());
        fs::write(to, fs::read(file.path()).unwrap()).unwrap();
    }
    folder
}

/// The files that opening reads.
const READ: [&str; 8] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "model.safetensors",
];

#[test]
fn truncated_files_give_a_result() {
    let folder = copy_of(&demo());
    for name in READ {
        let path = folder.file(name);
        let whole = fs::read(&path).unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        // From long to short, so that each is one cut more; half of them near the start, where headers are.
        let near = (whole.len() as u64).min(40_000);
        let spread = |end: u64, i: u64| end * i / (TRUNCATIONS / 2);
        let mut lengths: Vec<u64> =
            (0..TRUNCATIONS / 2).flat_map(|i| [spread(whole.len() as u64, i), spread(near, i)]).collect();
        lengths.sort_unstable();
        for length in lengths.into_iter().rev() {
            file.set_len(length).unwrap();
            let result = bounded(&folder.0, || bind(&folder.0));
            if matches!(name, "config.json" | "generation_config.json" | "model.safetensors") {
                assert!(result.is_err_and(|e| e.message.contains(name)), "{name} cut to {length}");
            }
        }
        fs::write(&path, whole).unwrap();
    }
    bind(&folder.0).unwrap();
}

/// Flips a bit of the file's byte `at`; flipping it again restores it.
fn flip(path: &Path, at: u64, bit: usize) {
    let mut file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.seek(SeekFrom::Start(at)).unwrap();
    file.read_exact(&mut byte).unwrap();
    byte[0] ^= 1 << bit;
    file.seek(SeekFrom::Start(at)).unwrap();
    file.write_all(&byte).unwrap();
}

#[test]
fn flipped_bits_give_a_result() {
    let folder = copy_of(&demo());
    let mut rng = Rng(11);
    for name in READ {
        let path = folder.file(name);
        let length = match name {
            "model.safetensors" => 8 + u64::from_le_bytes(fs::read(&path).unwrap()[..8].try_into().unwrap()),
            _ => path.metadata().unwrap().len(),
        };
        for _ in 0..FLIPS {
            let (at, bit) = (rng.below(length as usize) as u64, rng.below(8));
            flip(&path, at, bit);
            bounded(&folder.0, || bind(&folder.0)).ok();
            flip(&path, at, bit);
        }
    }
    bind(&folder.0).unwrap();
}

#[test]
fn flipped_bits_in_tensors_give_values_or_a_numeric_error() {
    let kind = Kind { affine: Some((6, 32)), exceptions: vec![("w2", None)], ..Kind::default() };
    let folder = writer::write_kind(&kind);
    let path = folder.file("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap());
    let mut rng = Rng(12);
    let mut numeric = 0;
    for _ in 0..FLIPS {
        let (at, bit) = (start + rng.below(bytes.len() - start as usize) as u64, rng.below(8));
        flip(&path, at, bit);
        let error = load(&folder.0).err();
        assert!(error.as_ref().is_none_or(|e| e.code == Code::Numeric), "{error:?}");
        numeric += usize::from(error.is_some());
        flip(&path, at, bit);
    }
    assert!(numeric < FLIPS / 10, "{numeric} of {FLIPS}");
}

#[test]
fn random_headers_give_a_result() {
    let folder = writer::write_kind(&Kind::default());
    let mut rng = Rng(13);
    // Pieces of a header in random order reach deeper than random bytes.
    let pieces = [
        "{",
        "}",
        "[",
        "]",
        ":",
        ",",
        "\"a\"",
        "\"dtype\"",
        "\"shape\"",
        "\"data_offsets\"",
        "\"F32\"",
        "\"BF16\"",
        "0",
        "8",
        "18446744073709551615",
        "9223372036854775808",
        "-1",
        "1e99",
        "null",
        "{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}",
    ];
    for _ in 0..2000 {
        let header: String = (0..rng.below(30)).map(|_| pieces[rng.below(pieces.len())]).collect();
        let path = folder.file("model.safetensors");
        // Some file systems wait for the disk when a file is truncated and written anew.
        fs::remove_file(&path).unwrap();
        fs::write(&path, writer::with_header(&header, &[0; 8])).unwrap();
        bounded(&folder.0, || bind(&folder.0)).unwrap_err();
    }
}

#[test]
fn the_largest_headers_and_configs_stay_within_memory() {
    let folder = writer::write_kind(&Kind::default());
    let filled = |start: &str, piece: &str, end: &str, size: usize| {
        start.to_string() + &piece.repeat(size / piece.len() - 1) + end
    };
    let header = 4 << 20;
    let many: String =
        (0..60_000).map(|i| format!("\"{i}\":{{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,0]}},")).collect();
    for header in [
        filled("{\"a\":{\"shape\":[", "0,", "", header - 100),
        filled("{\"__metadata__\":[", "[],", "", header - 100),
        filled("{\"", "a", "", header - 100),
        format!("{{{}", &many[..many.len().min(header - 100)]),
    ] {
        fs::write(folder.file("model.safetensors"), writer::with_header(&header, &[])).unwrap();
        bounded(&folder.0, || bind(&folder.0)).unwrap_err();
    }
    for piece in ["[],", "{},", "0,", "\"\","] {
        let config = filled("{\"model_type\":\"lfm3\",\"x\":[", piece, "0]}", 1 << 20);
        fs::write(folder.file("config.json"), config).unwrap();
        bounded(&folder.0, || bind(&folder.0)).unwrap_err();
    }
}
