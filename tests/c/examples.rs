//! The programs of examples, compiled with warnings as errors and run as users run them.

use crate::compile::{self, command, compilers, finish, root};
use std::path::{Path, PathBuf};
use std::process::Stdio;

/// One of the pictures that the examples come with.
const PICTURE: &str = "examples/pictures/shapes-1.png";
/// What the demo says of it.
pub const SEEN: &str = "A large yellow cross on the right and a large red ring at the bottom left.";

/// A demo checkpoint: the repository's, or the one beside it.
fn demo() -> Option<PathBuf> {
    let folders = ["examples/demo-model", "../shared/checkpoints/lfm3-vl-demo-4bit"];
    folders.iter().map(|folder| root().join(folder)).find(|folder| folder.join("config.json").exists())
}

/// One of the examples' pictures.
pub fn picture() -> PathBuf {
    root().join(PICTURE)
}

/// Runs `test` with the demo's path, if there is one.
pub fn with_demo(test: impl FnOnce(&str)) {
    match demo() {
        Some(demo) => test(demo.to_str().unwrap()),
        None => eprintln!("skipped: no demo checkpoint"),
    }
}

#[test]
fn chat_answers_with_its_last_line() {
    with_demo(|demo| {
        for compiler in compilers() {
            let mut run = command(compiler.program("examples/chat.c", &[]));
            let question = "Extract name, age and city as JSON: Noah is 57 years old and lives in Nairobi.";
            run.args(["--model", demo, "--system", "You are a helpful assistant.", "--temp", "0", "--stats", question]);
            let output = finish(&mut run, "chat");
            let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
            let answer = r#"[{"name": "Noah", "age": 57, "city": "Nairobi"}]"#;
            assert_eq!(out.lines().last(), Some(answer), "{out}");
            assert!(!out.contains('\u{1b}'), "no colours off a terminal");
            assert!(err.contains("prompt ") && err.contains("reply "), "{err}");
        }
    });
}

#[test]
fn chat_answers_about_pictures() {
    with_demo(|demo| {
        for compiler in compilers() {
            let mut run = command(compiler.program("examples/chat.c", &[]));
            run.args(["--model", demo, "--temp", "0", "--no-think", "--image"]).arg(picture());
            let output = finish(run.arg("Describe the picture."), "chat");
            assert_eq!(String::from_utf8(output.stdout).unwrap().trim_end(), SEEN);
        }
    });
}

/// Runs chat over lines typed at it: all that it prints on stdout and stderr, and whether it ended well.
fn typed(args: &[&str], lines: &str) -> (String, String, bool) {
    let mut run = command(compilers()[0].program("examples/chat.c", &[]));
    let mut child = run.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), lines.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap(), output.status.success())
}

/// Tokens of each prompt that chat's statistics say were kept.
fn kept(err: &str) -> Vec<u32> {
    let kept = |line: &str| line.split(" tokens, ").nth(1)?.split(' ').next()?.parse().ok();
    err.lines().filter_map(kept).collect()
}

#[test]
fn chat_takes_pictures_between_turns_and_keeps_those_it_saw() {
    with_demo(|demo| {
        let (first, second) = (picture(), root().join("examples/pictures/shapes-2.png"));
        let lines = format!(
            "/image {}\nDescribe the picture.\nWhat color is the ring?\n/image {}\nDescribe the picture.\n",
            first.display(),
            second.display()
        );
        let (out, err, well) = typed(&["--model", demo, "--temp", "0", "--no-think", "--stats"], &lines);
        assert!(well, "{err}");
        let answers: Vec<&str> = out.lines().collect();
        assert_eq!(answers[..2], [SEEN, "The ring is red."], "{out}");
        let kept = kept(&err);
        assert!(kept.len() == 3 && kept[1] > 30 && kept[2] > kept[1], "a picture is looked at again: {err}");
    });
}

#[test]
fn chat_names_the_file_it_cannot_use_and_goes_on() {
    with_demo(|demo| {
        let folder = compile::scratch();
        let (broken, half) = (folder.join("broken.png"), folder.join("half.png"));
        let good = std::fs::read(picture()).unwrap();
        std::fs::write(&broken, "no picture").unwrap();
        std::fs::write(&half, &good[..good.len() / 2]).unwrap();
        let args = ["--model", demo, "--temp", "0", "--no-think"];
        for file in [&broken, &half, &folder.join("missing.png")] {
            let (file, picture) = (file.display(), picture());
            let lines = format!("/image {file}\nWhat?\n/image {}\nDescribe the picture.\n", picture.display());
            let (out, err, well) = typed(&args, &lines);
            assert!(!well && err.contains(&file.to_string()), "{err}");
            assert_eq!(out.lines().last(), Some(SEEN), "{out}{err}");
        }
    });
}

#[test]
fn a_model_without_vision_says_so_of_the_picture() {
    let blind = root().join("../shared/checkpoints/lfm3-demo-4bit-g32");
    if !blind.exists() {
        eprintln!("skipped: no checkpoint without vision");
        return;
    }
    let mut run = command(compilers()[0].program("examples/chat.c", &[]));
    let output = run.arg("--model").arg(blind).arg("--image").arg(picture()).arg("What?").output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(err.contains(PICTURE) && err.contains("LFM3_ERR_UNSUPPORTED"), "{err}");
}

#[test]
fn chat_takes_a_folder_of_frames_as_a_video() {
    with_demo(|demo| {
        let folder = compile::scratch();
        for frame in ["01.png", "02.PNG"] {
            std::fs::copy(picture(), folder.join(frame)).unwrap();
        }
        std::fs::write(folder.join("notes.txt"), "no frame").unwrap();
        let program = compilers()[0].program("examples/chat.c", &[]);
        let mut run = command(&program);
        run.args(["--model", demo, "--temp", "0", "--no-think", "--max-tokens", "8", "--stats", "--video"])
            .arg(&folder);
        let output = finish(run.args(["--fps", "2", "Describe the picture."]), "chat");
        assert!(!output.stdout.is_empty());
        let run = |fps: &str| {
            command(&program).args(["--model", demo, "--video"]).arg(&folder).args(["--fps", fps, "?"]).output()
        };
        let output = run("0").unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && err.contains("fps"), "{err}");
        let empty = folder.join("empty");
        std::fs::create_dir_all(&empty).unwrap();
        let output = command(&program).args(["--model", demo, "--video"]).arg(&empty).arg("?").output().unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && err.contains("empty"), "{err}");
    });
}

#[test]
fn chat_shows_tool_calls_as_lines_and_takes_what_the_tool_says() {
    with_demo(|demo| {
        let tools = compile::scratch().join("tools.json");
        std::fs::write(&tools, TOOLS).unwrap();
        let args = ["--model", demo, "--temp", "0", "--no-think", "--tools", tools.to_str().unwrap()];
        let lines = "What is 123 plus 456?\n/tool {\"sum\": 579}\n";
        let (out, err, well) = typed(&args, lines);
        assert!(well, "{err}");
        let (call, answer) = out.split_once('\n').unwrap();
        let arguments: serde_json::Value = serde_json::from_str(call.strip_prefix("add ").unwrap()).unwrap();
        assert_eq!(arguments, serde_json::json!({"a": 123, "b": 456}));
        assert_eq!(answer.trim_end(), "123 plus 456 is 579.");
    });
}

const TOOLS: &str = r#"[{"name": "add", "description": "Add two numbers.", "parameters": {"type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}]"#;

/// The lines describe prints about `folder`, each as JSON, and whether it ended well.
fn described(folder: &Path, args: &[&str]) -> (Vec<serde_json::Value>, bool) {
    let mut run = command(compilers()[0].program("examples/describe.c", &[]));
    let output = run.args(args).arg(folder).output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert!(err.is_empty(), "{err}");
    (out.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), output.status.success())
}

#[test]
fn describe_answers_a_line_for_each_picture_in_order() {
    with_demo(|demo| {
        let folder = root().join("examples/pictures");
        let (lines, well) = described(&folder, &["--model", demo]);
        let found: Vec<_> = lines.iter().map(|line| (line["file"].as_str().unwrap(), line["text"].as_str())).collect();
        assert_eq!(found, SHAPES.map(|(file, text)| (file, Some(text))));
        assert!(well && lines.iter().all(|line| line["tokens"].as_u64() > Some(4)), "{lines:?}");
        for streams in ["1", "2", "64"] {
            assert_eq!(described(&folder, &["--model", demo, "--streams", streams]), (lines.clone(), true));
        }
        let (lines, _) = described(&folder, &["--model", demo, "--max-tokens", "2", "--threads", "1"]);
        assert!(lines.iter().all(|line| line["tokens"] == 2), "{lines:?}");
    });
}

/// What the demo says of the pictures that the examples come with.
const SHAPES: [(&str, &str); 3] = [
    ("shapes-1.png", SEEN),
    (
        "shapes-2.png",
        "A small pink triangle at the top, a small red circle at the top right and a large orange ring at the bottom \
         right.",
    ),
    ("shapes-3.png", "A large green square at the top left and a large pink triangle at the bottom left."),
];

#[test]
fn a_broken_picture_stops_no_other() {
    with_demo(|demo| {
        let folder = compile::scratch();
        let good = std::fs::read(picture()).unwrap();
        let halves = &good[..good.len() / 2];
        let files: [(&str, &[u8]); 5] =
            [("a.png", &good), ("b.png", b"no picture"), ("c.jpg", &[]), ("d.png", halves), ("e.png", &good)];
        for (name, bytes) in files {
            std::fs::write(folder.join(name), bytes).unwrap();
        }
        std::fs::create_dir_all(folder.join("f.png")).unwrap();
        for streams in ["1", "4"] {
            let (lines, well) = described(&folder, &["--model", demo, "--streams", streams]);
            assert!(!well && lines.len() == 6);
            for (line, (name, broken)) in lines.iter().zip([
                ("a.png", false),
                ("b.png", true),
                ("c.jpg", true),
                ("d.png", true),
                ("e.png", false),
                ("f.png", true),
            ]) {
                assert_eq!(line["file"], name);
                assert_eq!(line["error"].as_str().is_some_and(|text| !text.is_empty()), broken, "{line}");
                assert_eq!(line["text"] == SEEN, !broken, "{line}");
            }
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn describe_writes_json_of_names_that_are_no_utf_8() {
    use std::os::unix::ffi::OsStrExt;
    with_demo(|demo| {
        let folder = compile::scratch();
        for name in [&b"\xff\"\\\x01.png"[..], b"\xed\xa0\x80.png", "h\u{e9}\u{1f600}.png".as_bytes()] {
            std::fs::write(folder.join(std::ffi::OsStr::from_bytes(name)), "").unwrap();
        }
        let (lines, _) = described(&folder, &["--model", demo]);
        let names: Vec<_> = lines.iter().map(|line| line["file"].as_str().unwrap()).collect();
        let bad = "\u{fffd}";
        assert_eq!(names, ["h\u{e9}\u{1f600}.png", &format!("{}.png", bad.repeat(3)), &format!("{bad}\"\\\u{1}.png")]);
    });
}

#[test]
fn chat_keeps_what_was_said_over_turns() {
    with_demo(|demo| {
        let args = ["--model", demo, "--temp", "0", "--no-think", "--stats", "--system", "Answer briefly."];
        let lines = "Mia is in the attic. Where is Mia?\nA \"quoted\" \\ line\twith a tab. Where is Mia?\n";
        let (out, err, well) = typed(&args, lines);
        assert!(well, "{err}");
        assert!(out.lines().filter(|line| !line.is_empty()).count() >= 2, "{out}");
        let kept = kept(&err);
        assert!(kept.len() == 2 && kept[1] > 20, "the second turn computes all of it again: {err}");
    });
}

#[test]
fn chat_fails_with_the_librarys_text() {
    let program = compilers()[0].program("examples/chat.c", &[]);
    let output = command(program).args(["--model", "no such folder", "hi"]).output().unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && output.stdout.is_empty());
    assert!(err.contains("no such folder") && err.contains("LFM3_ERR_IO"), "{err}");
}

#[test]
fn the_event_loop_ends_with_both_replies_and_its_frame_times() {
    with_demo(|demo| {
        for compiler in compilers() {
            let mut run = command(compiler.program("examples/event_loop.c", &[]));
            let output = finish(run.args(["--model", demo]), "event_loop");
            let out = String::from_utf8(output.stdout).unwrap();
            assert!(out.contains("Hugo") && out.contains("Nairobi"), "{out}");
            assert!(out.lines().last().is_some_and(|line| line.starts_with("steps: median ")), "{out}");
        }
    });
}
