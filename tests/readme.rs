//! The README's program is compiled as it stands and answers with the demo model.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of the library this test belongs to.
fn library_folder() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_path_buf()
}

/// The text between the first "```c" and the next "```".
fn program(readme: &str) -> &str {
    let (_, rest) = readme.split_once("```c\n").expect("README.md has a C program");
    rest.split_once("```").expect("which ends").0
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_readmes_program_answers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("readme");
    std::fs::create_dir_all(&folder).unwrap();
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    std::fs::write(folder.join("program.c"), program(&readme)).unwrap();
    let library = library_folder();
    run(Command::new("cc")
        .args(["-std=c99", "-Wall", "-Wextra", "-Werror", "program.c", "-llfm3", "-o", "program"])
        .arg(format!("-I{}", root.join("include").display()))
        .arg(format!("-L{}", library.display()))
        .arg(format!("-Wl,-rpath,{}", library.display()))
        .current_dir(&folder));
    // Cargo's search path may lead to an older build.
    let mut command = Command::new(folder.join("program"));
    command.env_remove("LD_LIBRARY_PATH").env_remove("DYLD_FALLBACK_LIBRARY_PATH");
    let answer = run(command.arg(root.join("examples/demo-model")));
    assert_eq!(answer.trim(), "18 + 46 = 64.");
}
