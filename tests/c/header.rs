//! `include/lfm3.h` is generated from `src/ffi` and committed; this test generates it again and compares.
//! `make header` writes it.

use crate::compile::root;
use std::fmt::Write as _;
use std::path::PathBuf;

/// The files of the interface in the header's order, each with its section's title.
const SECTIONS: [(&str, &str); 11] = [
    ("status", "Statuses"),
    ("library", "Versions"),
    ("model", "Models: open, step, free"),
    ("media", "Pictures and videos"),
    ("stream", "Streams: one conversation each"),
    ("generate", "Replies: ask for them"),
    ("event", "Events: take them"),
    ("text", "Text and tokens without a stream"),
    ("position", "Where a stream stands"),
    ("device", "Devices"),
    ("model_info", "What a model is and needs"),
];

/// Parameters and fields that may be NULL; all other pointers may not.
const NULLABLE: [&str; 23] = [
    "params",
    "report",
    "out",
    "needed",
    "media",
    "log",
    "progress",
    "user_data",
    "error",
    "text",
    "json",
    "tokens",
    "ids",
    "biases",
    "stop_tokens",
    "top_ids",
    "top_logprobs",
    "usage",
    "data",
    "frame_sizes",
    "frame_times",
    "name",
    "arguments",
];

/// Longest line of a declaration.
const LINE: usize = 118;

/// Functions whose handle may be NULL.
const NULLABLE_HANDLE: [&str; 2] = ["lfm3_model_free", "lfm3_stream_free"];

fn committed() -> PathBuf {
    root().join("include/lfm3.h")
}

#[test]
fn the_committed_header_is_what_the_source_generates() {
    if std::env::var_os("LFM3_WRITE_HEADER").is_some() {
        std::fs::write(committed(), generate()).unwrap();
    }
    let (want, have) = (generate(), std::fs::read_to_string(committed()).unwrap_or_default());
    if let Some(line) = want.lines().zip(have.lines()).position(|(want, have)| want != have) {
        let (want, have) = (want.lines().nth(line).unwrap(), have.lines().nth(line).unwrap());
        panic!("include/lfm3.h is stale (make header): line {}\n  committed {have}\n  generated {want}", line + 1);
    }
    assert_eq!(want, have, "include/lfm3.h is stale: make header");
}

#[test]
fn every_function_says_what_it_returns_which_threads_may_call_it_and_since_when() {
    let header = generate();
    let mut functions = 0;
    for (at, _) in header.match_indices("\nLFM3_API ") {
        let comment = header[..at].rsplit("/** ").next().unwrap();
        let name = header[at..].split('(').next().unwrap();
        for part in ["eturns", "hreads", "Since 0.1"] {
            assert!(comment.contains(part), "{name} lacks {part}");
        }
        functions += 1;
    }
    let exported: usize = SECTIONS.iter().map(|(file, _)| source(file).matches("#[unsafe(no_mangle)]").count()).sum();
    assert_eq!(functions, exported);
}

fn generate() -> String {
    let mut header = include_str!("header_top.h").to_owned();
    for (number, (file, title)) in SECTIONS.iter().enumerate() {
        let title = format!(" {}. {title} ", number + 1);
        writeln!(header, "\n/* ==={title:=<105} */\n").unwrap();
        header.push_str(section(file).trim_end());
        header.push('\n');
    }
    header.push_str(include_str!("header_bottom.h"));
    header
}

fn source(file: &str) -> String {
    std::fs::read_to_string(root().join("src/ffi").join(file).with_extension("rs")).unwrap()
}

/// One file of the interface as C.
fn section(file: &str) -> String {
    let config = cbindgen::Config::from_file(root().join(".cbindgen.toml")).unwrap();
    let path = root().join("src/ffi").join(file).with_extension("rs");
    let bindings = cbindgen::Builder::new().with_config(config).with_src(path).generate().unwrap();
    let mut text = Vec::new();
    bindings.write(&mut text);
    let text = String::from_utf8(text).unwrap();
    let (mut section, mut comment, mut declaration) = (String::new(), Vec::new(), String::new());
    for line in text.lines().map(str::trim_end) {
        if !comment.is_empty() || line.trim_start().starts_with("/**") {
            comment.push(line);
            if line.ends_with("*/") {
                section.push_str(&tight(&std::mem::take(&mut comment)));
            }
        } else if !declaration.is_empty() || line.starts_with("LFM3_API") {
            declaration = format!("{declaration} {}", line.trim());
            if line.ends_with(';') {
                writeln!(section, "{}", wrapped(&code(file, std::mem::take(&mut declaration).trim()))).unwrap();
            }
        } else {
            writeln!(section, "{}", code(file, line)).unwrap();
        }
    }
    group_constants(&section)
}

/// A comment without the lines that hold its marks only.
fn tight(comment: &[&str]) -> String {
    let indent = " ".repeat(comment[0].len() - comment[0].trim_start().len());
    let body: Vec<&str> = comment[1..comment.len() - 1].iter().map(|line| line.trim_start()).collect();
    let body = body.join(&format!("\n{indent} "));
    format!("{indent}/** {} */\n", body.trim_start_matches("* "))
}

/// A declaration broken between parameters where it is too long for a line.
fn wrapped(declaration: &str) -> String {
    let mut lines = vec![String::new()];
    for part in declaration.split_inclusive(", ") {
        if lines.last().unwrap().len() + part.trim_end().len() > LINE {
            lines.push("    ".to_owned());
        }
        lines.last_mut().unwrap().push_str(part);
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// Constants whose comment is one line follow each other without a gap.
fn group_constants(section: &str) -> String {
    let lines: Vec<&str> = section.lines().collect();
    let gap = |at: usize| {
        let one_line = |line: Option<&&str>| line.is_some_and(|line| line.starts_with("/** ") && line.ends_with("*/"));
        let constant = |line: Option<&&str>| line.is_some_and(|line| line.starts_with("#define "));
        at > 0 && constant(lines.get(at - 1)) && one_line(lines.get(at + 1)) && constant(lines.get(at + 2))
    };
    let kept = lines.iter().enumerate().filter(|&(at, line)| !(line.is_empty() && gap(at)));
    kept.map(|(_, line)| format!("{line}\n")).collect()
}

/// A line of `file`'s code with what may be NULL.
fn code(file: &str, line: &str) -> String {
    let handle_may_be_null = NULLABLE_HANDLE.iter().any(|name| line.contains(&format!("{name}(")));
    if let Some((name, number)) = line.split_once(" -").filter(|_| line.starts_with("#define")) {
        return format!("{name} (-{number})");
    }
    let mut line = if line.starts_with("typedef") { line.to_owned() } else { line.replace("struct lfm3_", "lfm3_") };
    for handle in ["model", "stream"] {
        line = line.replace(
            &format!("lfm3_{handle} **{handle}"),
            &format!("lfm3_{handle} *LFM3_NULLABLE *LFM3_NONNULL {handle}"),
        );
        if handle_may_be_null {
            line = line.replace(&format!(" *{handle})"), &format!(" *LFM3_NULLABLE {handle})"));
        }
    }
    for name in NULLABLE {
        let never = match name {
            "params" => line.contains("_init("),
            "media" => !line.contains("media_count"),
            "text" => line.starts_with("typedef"),
            "name" => file != "event",
            _ => false,
        };
        for end in [",", ";", ")"].into_iter().filter(|_| !never) {
            line = line.replace(&format!(" *{name}{end}"), &format!(" *LFM3_NULLABLE {name}{end}"));
            line = line.replace(&format!("_callback {name}{end}"), &format!("_callback LFM3_NULLABLE {name}{end}"));
        }
    }
    line
}
