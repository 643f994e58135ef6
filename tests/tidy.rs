//! Style as a test. Each rule is first shown to fail on a bad snippet.

use std::fs;
use std::path::{Path, PathBuf};

const LINE_LIMIT: usize = 120;
const FILE_LIMIT: usize = 800;
const FUNCTION_LIMIT: usize = 80;

/// What may lie beside Cargo.toml, dot-files aside.
const TOP_LEVEL: &[&str] = &[
    "Cargo.toml",
    "Cargo.lock",
    "build.rs",
    "Makefile",
    "README.md",
    "CHANGELOG.md",
    "LICENSE-APACHE",
    "LICENSE-MIT",
    "src",
    "include",
    "kernels",
    "examples",
    "bindings",
    "tests",
    "target",
];

/// Never in the library: leftovers, output, and reads of the environment.
const NOT_IN_SRC: &[&str] = &[
    "TODO",
    "FIXME",
    "XXX",
    "dbg!",
    "print!",
    "println!",
    "eprint!",
    "eprintln!",
    "todo!",
    "unimplemented!",
    "env::var",
    "env::args",
];

/// Where unsafe code may be, inside src.
const UNSAFE_HOMES: &[&str] = &["src/ffi/", "src/backend/cpu/"];

/// Paths of the machines this was written on. In pieces, since this file is read too.
const PRIVATE_PATHS: &[&str] = &[concat!("/wo", "rk/"), concat!("/ro", "ot/"), concat!("/ho", "me/")];

/// One file as the rules see it.
struct Source<'a> {
    path: &'a str,
    text: &'a str,
}

impl Source<'_> {
    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    fn in_src(&self) -> bool {
        self.path.starts_with("src/")
    }
}

/// A rule says what is wrong with a file, one line each.
type Rule = fn(&Source) -> Vec<String>;

const RULES: &[Rule] = &[
    lines_are_short,
    files_are_short,
    functions_are_short,
    the_library_has_no_leftovers,
    unsafe_says_why,
    unsafe_stays_home,
    modules_say_what_they_are,
    paths_are_nobodys,
];

fn lines_are_short(s: &Source) -> Vec<String> {
    let long = |(_, line): &(usize, &str)| line.chars().count() > LINE_LIMIT;
    let lines = s.text.lines().enumerate().filter(long);
    lines.map(|(i, line)| format!("{}: {} characters", i + 1, line.chars().count())).collect()
}

fn files_are_short(s: &Source) -> Vec<String> {
    let lines = s.text.lines().count();
    if s.is_rust() && lines > FILE_LIMIT { vec![format!("{lines} lines: split it")] } else { Vec::new() }
}

fn functions_are_short(s: &Source) -> Vec<String> {
    if !s.is_rust() {
        return Vec::new();
    }
    let code = code_alone(s.text);
    let lines: Vec<&str> = code.lines().collect();
    let mut out = Vec::new();
    for (start, line) in lines.iter().enumerate() {
        let Some(name) = line.split("fn ").nth(1).filter(|_| is_function(line)) else { continue };
        let length = body_length(&lines[start..]);
        if length > FUNCTION_LIMIT {
            let name = name.split(['(', '<']).next().unwrap_or(name);
            out.push(format!("{}: fn {name} has {length} lines", start + 1));
        }
    }
    out
}

fn is_function(line: &str) -> bool {
    let words = line.trim_start().split("fn ").next().unwrap_or("");
    let modifier = |w: &str| {
        w.starts_with("pub")
            || ["crate)", "super)", "const", "async", "unsafe", "extern", "in"].contains(&w)
            || w == "\"\""
    };
    words.split_whitespace().all(modifier)
}

/// Lines from a function's first to its closing brace, or to the `;` of one without a body.
fn body_length(lines: &[&str]) -> usize {
    let mut depth = 0i64;
    for (i, line) in lines.iter().enumerate() {
        let opened = depth > 0 || line.contains('{');
        depth += line.matches('{').count() as i64 - line.matches('}').count() as i64;
        if depth == 0 && (opened || line.ends_with(';')) {
            return i + 1;
        }
    }
    lines.len()
}

fn the_library_has_no_leftovers(s: &Source) -> Vec<String> {
    if !s.in_src() {
        return Vec::new();
    }
    let mut out = Vec::new();
    for (i, line) in s.text.lines().enumerate() {
        for word in NOT_IN_SRC {
            let whole = |at: usize| !line[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            if line.match_indices(word).any(|(at, _)| whole(at)) {
                out.push(format!("{}: {word}", i + 1));
            }
        }
    }
    out
}

fn unsafe_says_why(s: &Source) -> Vec<String> {
    if !s.is_rust() {
        return Vec::new();
    }
    let code = code_alone(s.text);
    let (code, text): (Vec<&str>, Vec<&str>) = (code.lines().collect(), s.text.lines().collect());
    let bare = |i: &usize| {
        let block = code[*i].contains("unsafe {") || code[*i].contains("unsafe impl");
        block && !text[i.saturating_sub(6)..=*i].iter().any(|line| line.contains("SAFETY:"))
    };
    (0..code.len()).filter(bare).map(|i| format!("{}: unsafe without a SAFETY line", i + 1)).collect()
}

fn unsafe_stays_home(s: &Source) -> Vec<String> {
    if !s.in_src() || UNSAFE_HOMES.iter().any(|home| s.path.starts_with(home)) {
        return Vec::new();
    }
    let code = code_alone(s.text);
    let has = |line: &str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|word| word == "unsafe");
    let lines = code.lines().enumerate().filter(|(_, line)| has(line));
    lines.map(|(i, _)| format!("{}: unsafe outside {UNSAFE_HOMES:?}", i + 1)).collect()
}

fn modules_say_what_they_are(s: &Source) -> Vec<String> {
    if s.is_rust() && !s.text.starts_with("//!") { vec!["does not begin with a //! line".into()] } else { Vec::new() }
}

fn paths_are_nobodys(s: &Source) -> Vec<String> {
    let mentions = |line: &str| PRIVATE_PATHS.iter().any(|p| line.contains(p));
    let lines = s.text.lines().enumerate().filter(|(_, line)| mentions(line));
    lines.map(|(i, line)| format!("{}: a path of one machine: {}", i + 1, line.trim())).collect()
}

/// Rust code with comments and the insides of literals blanked, line for line.
fn code_alone(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    while i < bytes.len() {
        let length = literal_or_comment(text, i);
        if length == 0 {
            out.push(if bytes[i].is_ascii() { bytes[i] as char } else { ' ' });
            i += 1;
        } else {
            let quoted = bytes[i] == b'"';
            out.push(if quoted { '"' } else { ' ' });
            out.extend(bytes[i + 1..i + length].iter().filter(|b| **b == b'\n').map(|_| '\n'));
            out.push(if quoted { '"' } else { ' ' });
            i += length;
        }
    }
    out
}

/// Bytes of the comment or literal that starts at `at`; 0 if none does.
fn literal_or_comment(text: &str, at: usize) -> usize {
    let rest = &text.as_bytes()[at..];
    let to = |end: &[u8], from: usize| {
        let found = rest[from..].windows(end.len()).position(|w| w == end);
        found.map_or(rest.len(), |p| from + p + end.len())
    };
    match rest[0] {
        b'/' if rest.starts_with(b"//") => to(b"\n", 2) - usize::from(rest.contains(&b'\n')),
        b'/' if rest.starts_with(b"/*") => to(b"*/", 2),
        b'"' => quoted(rest, b'"'),
        b'r' if is_raw(text, at) => {
            let hashes = rest[1..].iter().take_while(|b| **b == b'#').count();
            to(format!("\"{}", "#".repeat(hashes)).as_bytes(), hashes + 2)
        }
        // 'x' and '\n' are characters, 'x without a closing quote is a lifetime.
        b'\'' if rest.get(1) == Some(&b'\\') => quoted(rest, b'\''),
        b'\'' => {
            let char_length = text[at + 1..].chars().next().map_or(1, char::len_utf8);
            if rest.get(1 + char_length) == Some(&b'\'') { char_length + 2 } else { 0 }
        }
        _ => 0,
    }
}

fn is_raw(text: &str, at: usize) -> bool {
    let before = text[..at].chars().next_back();
    let after = text[at + 1..].trim_start_matches('#');
    after.starts_with('"') && !before.is_some_and(|c| c.is_alphanumeric() && c != 'b' || c == '_')
}

fn quoted(rest: &[u8], quote: u8) -> usize {
    let mut i = 1;
    while i < rest.len() && rest[i] != quote {
        i += if rest[i] == b'\\' { 2 } else { 1 };
    }
    (i + 1).min(rest.len())
}

/// All text files of the project that people write.
fn project_files() -> Vec<(String, String)> {
    fn walk(root: &Path, folder: &Path, out: &mut Vec<(String, String)>) {
        let mut entries: Vec<PathBuf> = fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
        entries.sort();
        for path in entries {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                let generated = ["target", ".git", "demo-model", "corpus", "artifacts"].contains(&name.as_str());
                if !generated {
                    walk(root, &path, out);
                }
                continue;
            }
            let written = name == "Makefile"
                || name == "run"
                || ["rs", "c", "cpp", "md", "toml", "wgsl", "go", "swift"]
                    .iter()
                    .any(|e| name.ends_with(&format!(".{e}")));
            if written {
                let relative = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                out.push((relative, fs::read_to_string(&path).unwrap()));
            }
        }
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut out = Vec::new();
    walk(root, root, &mut out);
    out
}

fn strangers(names: &[String]) -> Vec<String> {
    names.iter().filter(|n| !n.starts_with('.') && !TOP_LEVEL.contains(&n.as_str())).cloned().collect()
}

#[test]
fn every_file_keeps_every_rule() {
    let files = project_files();
    assert!(files.iter().any(|f| f.0 == "src/lib.rs") && files.iter().any(|f| f.0 == "README.md"));
    let mut found = Vec::new();
    for (path, text) in &files {
        let source = Source { path, text };
        found.extend(RULES.iter().flat_map(|rule| rule(&source)).map(|problem| format!("{path}:{problem}")));
    }
    assert!(found.is_empty(), "{} problems:\n{}", found.len(), found.join("\n"));
}

/// Names under src that are no Rust files: what editors and merge tools leave behind.
fn leftovers(names: &[String]) -> Vec<String> {
    names.iter().filter(|name| !name.ends_with(".rs")).cloned().collect()
}

#[test]
fn src_holds_rust_files_only() {
    fn walk(folder: &Path, names: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { walk(&path, names) } else { names.push(path.display().to_string()) }
        }
    }
    let mut names = Vec::new();
    walk(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut names);
    assert_eq!(leftovers(&names), Vec::<String>::new());
    assert_eq!(leftovers(&["a.rs".into(), "a.rs.orig".into()]), ["a.rs.orig"]);
}

#[test]
fn the_top_level_holds_only_what_it_should() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names: Vec<String> =
        fs::read_dir(root).unwrap().map(|e| e.unwrap().file_name().to_string_lossy().into_owned()).collect();
    assert_eq!(strangers(&names), Vec::<String>::new());
    assert_eq!(strangers(&["src".into(), ".ci".into(), "notes.txt".into()]), ["notes.txt"]);
}

#[test]
fn every_rule_can_fail() {
    let long_body = format!("//! x\nfn long() {{\n{}}}\n", "    a();\n".repeat(FUNCTION_LIMIT));
    let long_file = "//! x\n".repeat(FILE_LIMIT + 1);
    let private = format!("see {}x", PRIVATE_PATHS[0]);
    let wide = "é".repeat(LINE_LIMIT + 1);
    let bad: &[(Rule, &str, &str)] = &[
        (lines_are_short, "README.md", &wide),
        (files_are_short, "src/a.rs", &long_file),
        (functions_are_short, "tests/a.rs", &long_body),
        (the_library_has_no_leftovers, "src/a.rs", "// TODO: more"),
        (the_library_has_no_leftovers, "src/a.rs", "    println!(\"x\");"),
        (the_library_has_no_leftovers, "src/a.rs", "    let x = std::env::var(\"X\");"),
        (unsafe_says_why, "src/ffi/a.rs", "fn f() {\n    unsafe { g() }\n}"),
        (unsafe_says_why, "tests/a.rs", "unsafe impl Send for A {}"),
        (unsafe_stays_home, "src/a.rs", "// SAFETY: none.\nunsafe { g() }"),
        (modules_say_what_they_are, "src/a.rs", "use x;"),
        (paths_are_nobodys, "README.md", &private),
    ];
    for (rule, path, text) in bad {
        assert!(!rule(&Source { path, text }).is_empty(), "{path} should fail: {text:.60}");
    }
    for rule in RULES {
        assert!(bad.iter().any(|b| b.0 as usize == *rule as usize), "a rule without its bad snippet");
    }
}

#[test]
fn rules_leave_good_code_alone() {
    let exact = format!("//! x\nfn exact() {{\n{}}}\n", "    a();\n".repeat(FUNCTION_LIMIT - 2));
    let good: &[(Rule, &str, &str)] = &[
        (lines_are_short, "README.md", &"é".repeat(LINE_LIMIT)),
        (functions_are_short, "src/a.rs", &exact),
        (the_library_has_no_leftovers, "tests/a.rs", "println!()"),
        (the_library_has_no_leftovers, "src/a.rs", "let sprint = blueprint!();"),
        (unsafe_says_why, "src/ffi/a.rs", "// SAFETY: checked.\nunsafe { g() }"),
        (unsafe_says_why, "src/ffi/a.rs", "// unsafe { in a comment }\nlet s = \"unsafe {\";"),
        (unsafe_stays_home, "src/ffi/a.rs", "unsafe { g() }"),
        (unsafe_stays_home, "src/a.rs", "#![deny(unsafe_code)] // unsafe"),
    ];
    for (rule, path, text) in good {
        assert_eq!(rule(&Source { path, text }), Vec::<String>::new(), "{path}: {text:.60}");
    }
}

#[test]
fn braces_in_literals_and_comments_do_not_count() {
    let text = "fn f<'a>() { // {\n    let c = '{'; let q = '\\'';\n    let s = \"{ \\\" {\"; /* { */ \
                r#\"{\"{\"#;\n}\nfn g() {}\n";
    let code = code_alone(text);
    assert_eq!(code.matches('{').count(), 2, "{code}");
    assert_eq!(code.lines().count(), text.lines().count());
    assert_eq!(body_length(&code.lines().collect::<Vec<_>>()), 4);
}
