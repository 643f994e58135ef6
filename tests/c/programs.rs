//! The interface as C and C++ use it: every program of tests/c and examples is compiled, warnings as errors, and run.

use crate::compile::{self, command, compilers, finish, has, root};
use std::path::PathBuf;
use std::process::{Output, Stdio};

/// A demo checkpoint: the repository's, or the one beside it.
fn demo() -> Option<PathBuf> {
    let folders = ["examples/demo-model", "../shared/checkpoints/lfm3-vl-demo-4bit"];
    folders.iter().map(|folder| root().join(folder)).find(|folder| folder.join("config.json").exists())
}

/// Compiles `source` with each compiler and runs it; its output must be empty.
fn run_quietly(source: &str, args: &[&str]) {
    for compiler in compilers() {
        let program = compiler.program(source, &[]);
        let output = finish(command(program).args(args), &format!("{source} ({})", compiler.program));
        assert_silent(&output, source);
    }
}

fn assert_silent(output: &Output, what: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(out.is_empty() && err.is_empty(), "{what} printed: {out}{err}");
}

/// Runs `test` with the demo's path, if there is one.
fn with_demo(test: impl FnOnce(&str)) {
    match demo() {
        Some(demo) => test(demo.to_str().unwrap()),
        None => eprintln!("skipped: no demo checkpoint"),
    }
}

#[test]
fn null_and_bad_arguments_are_refused_without_a_model() {
    run_quietly("tests/c/null_calls.c", &[]);
}

#[test]
fn null_and_bad_arguments_are_refused_on_live_handles() {
    with_demo(|demo| run_quietly("tests/c/null_calls.c", &[demo]));
}

#[test]
fn the_tests_of_null_calls_name_every_function() {
    let header = std::fs::read_to_string(root().join("include/lfm3.h")).unwrap();
    let test = std::fs::read_to_string(root().join("tests/c/null_calls.c")).unwrap();
    for line in header.lines().filter(|line| line.starts_with("LFM3_API ")) {
        let name = line.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap();
        assert!(test.contains(&format!("{name}(")), "{name} is not tried");
    }
}

#[test]
fn callbacks_see_progress_cancel_and_may_not_call_back() {
    with_demo(|demo| run_quietly("tests/c/callbacks.c", &[demo]));
}

#[test]
fn threads_beside_a_step_neither_crash_nor_hang() {
    with_demo(|demo| run_quietly("tests/c/threads.c", &[demo]));
}

#[test]
fn random_sequences_end_well() {
    with_demo(|demo| run_quietly("tests/c/sequences.c", &[demo, "150", "1"]));
}

/// The library's allocations are the sanitizer's too: it sees double frees, leaks, and C reading what is gone.
#[test]
#[ignore = "minutes; make accept"]
fn ten_thousand_random_sequences_under_the_address_sanitizer() {
    with_demo(|demo| {
        let program = compilers()[0].program("tests/c/sequences.c", &["-fsanitize=address"]);
        for seed in ["1", "2"] {
            let output = finish(command(&program).args([demo, "5000", seed]), "sequences");
            assert_silent(&output, "sequences");
        }
        println!("10,000 sequences, no report");
    });
}

#[test]
#[ignore = "minutes; make accept"]
fn sequences_under_valgrind_touch_no_bad_memory() {
    if !has("valgrind") {
        return;
    }
    with_demo(|demo| {
        let program = compilers()[0].program("tests/c/sequences.c", &[]);
        let mut run = command("valgrind");
        run.args(["-q", "--error-exitcode=9", "--leak-check=full", "--errors-for-leak-kinds=definite"]);
        finish(run.arg(program).args([demo, "40", "3"]), "valgrind");
    });
}

#[test]
#[cfg(target_os = "linux")]
fn no_environment_no_output_no_socket_and_no_thread_left() {
    with_demo(|demo| {
        for threads in ["1", "3"] {
            run_quietly("tests/c/quiet.c", &[demo, threads]);
        }
    });
}

#[test]
#[cfg(target_os = "linux")]
fn strace_sees_no_network_call() {
    if !has("strace") {
        return;
    }
    with_demo(|demo| {
        let program = compilers()[0].program("tests/c/quiet.c", &[]);
        let log = compile::scratch().join("network.strace");
        let mut run = command("strace");
        run.args(["-f", "-e", "trace=%network", "-o"]).arg(&log).arg(program).args([demo, "2"]);
        let traced = run.output().unwrap();
        let log = std::fs::read_to_string(log).unwrap_or_default();
        if !log.contains("exited with") {
            eprintln!("skipped: strace may not trace here: {}", String::from_utf8_lossy(&traced.stderr));
            return;
        }
        let calls: Vec<_> = log.lines().filter(|line| !line.contains("+++") && !line.contains("---")).collect();
        assert!(traced.status.success() && calls.is_empty(), "{calls:#?}");
    });
}

#[test]
fn the_headers_smallest_host_compiles_and_answers() {
    let header = std::fs::read_to_string(root().join("include/lfm3.h")).unwrap();
    let code: String = header
        .lines()
        .skip_while(|line| !line.starts_with(" *     const char *dir"))
        .take_while(|line| line.starts_with(" *     "))
        .map(|line| line.trim_start_matches(" *").to_owned() + "\n")
        .collect();
    let text = format!("#include <lfm3.h>\n#include <stdio.h>\n#include <string.h>\nint main(void)\n{{\n{code}}}\n");
    let source = compile::scratch().join("smallest.c");
    std::fs::write(&source, text).unwrap();
    for compiler in compilers() {
        let program = compiler.program(source.to_str().unwrap(), &[]);
        let output = finish(command(&program).current_dir(root()), "the smallest host");
        if root().join("examples/demo-model/config.json").exists() {
            assert!(!output.stdout.is_empty(), "it prints no answer");
        }
    }
}

#[test]
fn the_readmes_program_answers() {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let (_, rest) = readme.split_once("```c\n").expect("README.md has a C program");
    let (program, _) = rest.split_once("```").expect("which ends");
    let source = compile::scratch().join("program.c");
    std::fs::write(&source, program).unwrap();
    let program = compilers()[0].program(source.to_str().unwrap(), &[]);
    let output = finish(command(program).arg(root().join("examples/demo-model")), "the README's program");
    assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "18 + 46 = 64.");
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
fn chat_keeps_what_was_said_over_turns() {
    with_demo(|demo| {
        let mut run = command(compilers()[0].program("examples/chat.c", &[]));
        run.args(["--model", demo, "--temp", "0", "--no-think", "--stats", "--system", "Answer briefly."]);
        let mut child = run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let turns = "Mia is in the attic. Where is Mia?\nA \"quoted\" \\ line\twith a tab. Where is Mia?\n";
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), turns.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
        assert!(output.status.success(), "{err}");
        assert!(out.lines().filter(|line| !line.is_empty()).count() >= 2, "{out}");
        let kept =
            |line: &str| line.split(" tokens, ").nth(1).unwrap().split(' ').next().unwrap().parse::<u32>().unwrap();
        let kept: Vec<_> = err.lines().filter(|line| line.starts_with("prompt ")).map(kept).collect();
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
