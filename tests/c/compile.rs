//! Compiles C programs against the library these tests were built with.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A compiler with the language it is to take a `.c` file for.
pub struct Compiler {
    /// The program.
    pub program: &'static str,
    /// `-x` and `-std`.
    language: [&'static str; 3],
}

/// Compilers looked for. One C compiler must be there.
const COMPILERS: [Compiler; 4] = [
    Compiler { program: "gcc", language: ["-x", "c", "-std=c99"] },
    Compiler { program: "g++", language: ["-x", "c++", "-std=c++17"] },
    Compiler { program: "clang", language: ["-x", "c", "-std=c99"] },
    Compiler { program: "clang++", language: ["-x", "c++", "-std=c++17"] },
];

/// The compilers this machine has.
pub fn compilers() -> Vec<&'static Compiler> {
    let found: Vec<_> = COMPILERS.iter().filter(|compiler| has(compiler.program)).collect();
    assert!(!found.is_empty(), "these tests need gcc or clang");
    found
}

/// Whether a program can be started.
pub fn has(program: &str) -> bool {
    Command::new(program).arg("--version").output().is_ok()
}

/// The repository.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The folder of the library these tests belong to.
pub fn library_dir() -> PathBuf {
    std::env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// A folder for what the running test makes.
pub fn scratch() -> PathBuf {
    let test = std::thread::current().name().unwrap_or("main").replace("::", "-");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

impl Compiler {
    /// Compiles and links `source`, a path in the repository, with `more` options; warnings are errors.
    pub fn program(&self, source: &str, more: &[&str]) -> PathBuf {
        let name = source.replace(['/', '.'], "_") + "_" + &self.program.replace('+', "p") + &more.concat();
        let out = scratch().join(name);
        let mut command = Command::new(self.program);
        command.args(self.language).args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pedantic"]).args(more);
        command.arg("-I").arg(root().join("include")).arg("-I").arg(root().join("tests/c")).arg("-I").arg(scratch());
        command.arg(root().join(source)).arg("-o").arg(&out).arg("-L").arg(library_dir());
        command.args(["-x", "none", "-llfm3", "-lm", "-lpthread"]);
        if cfg!(target_os = "linux") {
            // A program's own getenv goes before libc's only where it is exported.
            command.args(["-ldl", "-rdynamic"]);
        }
        command.arg(format!("-Wl,-rpath,{}", library_dir().display()));
        finish(&mut command, source);
        out
    }
}

/// A command that finds the library by its rpath alone: cargo's search path may lead to an older build.
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env_remove("LD_LIBRARY_PATH").env_remove("DYLD_FALLBACK_LIBRARY_PATH");
    command
}

/// Runs a command that must succeed.
pub fn finish(command: &mut Command, what: &str) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: {error}"));
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{what}: {}\n{out}\n{err}", output.status);
    output
}
