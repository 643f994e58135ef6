//! The interface as C and C++ use it: every program of tests/c, and those in the header and the README, are compiled,
//! warnings as errors, and run.

use crate::compile::{self, command, compilers, finish, has, root};
use crate::examples::{SEEN, picture, with_demo};
use std::process::Output;

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
fn wrong_media_are_refused_and_taken_media_are_copied() {
    with_demo(|demo| run_quietly("tests/c/media.c", &[demo, picture().to_str().unwrap(), SEEN]));
}

/// What a call took is freed and overwritten right behind it.
#[test]
fn the_address_sanitizer_has_nothing_to_say_of_media() {
    with_demo(|demo| {
        let program = compilers()[0].program("tests/c/media.c", &["-fsanitize=address"]);
        let output = finish(command(program).args([demo, picture().to_str().unwrap(), SEEN]), "media");
        assert_silent(&output, "media");
    });
}

#[test]
fn the_test_of_media_can_fail() {
    with_demo(|demo| {
        let mut run = command(compilers()[0].program("tests/c/media.c", &[]));
        let output = finish(run.args([demo, picture().to_str().unwrap(), "Something else."]), "media");
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(err.matches(SEEN).count(), 3, "{err}");
    });
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

/// The README's blocks of C.
fn readme() -> Vec<String> {
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    readme.split("```c\n").skip(1).map(|rest| rest.split_once("```").expect("a block that ends").0.to_owned()).collect()
}

/// The repository's demo model, from the repository.
const DEMO: &str = "examples/demo-model";

/// Compiles a program and runs it in the repository: what it prints, and whether it ended well.
fn run_text(name: &str, program: &str, args: &[&str]) -> (String, bool) {
    let source = compile::scratch().join(name);
    std::fs::write(&source, program).unwrap();
    let program = compilers()[0].program(source.to_str().unwrap(), &[]);
    let output = command(program).current_dir(root()).args(args).output().unwrap();
    (String::from_utf8(output.stdout).unwrap().trim().to_owned(), output.status.success())
}

#[test]
fn the_readmes_program_answers() {
    assert_eq!(run_text("program.c", &readme()[0], &[DEMO]), ("18 + 46 = 64.".into(), true));
}

#[test]
fn the_readmes_program_says_what_failed() {
    let broken = readme()[0].replace("role", "roll");
    let (text, well) = run_text("broken.c", &broken, &[DEMO]);
    assert!(!well && text.contains("role"), "{text}");
    let (text, well) = run_text("elsewhere.c", &readme()[0], &["nowhere"]);
    assert!(!well && text.contains("nowhere"), "{text}");
}

/// The README's lines about a picture in place of its program's chat.
#[test]
fn the_readmes_program_sees_a_picture() {
    const READ: &str = "    static unsigned char bytes[1 << 20];\n    FILE *file = fopen(argv[2], \"rb\");\n    \
                        size_t len = fread(bytes, 1, sizeof bytes, file);\n    fclose(file);\n";
    let blocks = readme();
    let is_chat = |line: &&str| line.starts_with("    const char *chat");
    let program: String = blocks[0]
        .lines()
        .filter(|line| !is_chat(line))
        .map(|line| if line.contains("set_chat") { format!("{READ}{}", blocks[1]) } else { format!("{line}\n") })
        .collect();
    assert_eq!(run_text("picture.c", &program, &[DEMO, picture().to_str().unwrap()]), (SEEN.into(), true));
}
