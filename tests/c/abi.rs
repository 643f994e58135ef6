//! What programs built against an earlier library rely on: names, numbers, sizes and places, exports, SONAME.

use crate::compile::{self, compilers, finish, library_dir, root, scratch};
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

/// The shared library these tests belong to.
fn shared_library() -> PathBuf {
    let file = format!("{}lfm3{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    library_dir().join(file)
}

fn header() -> String {
    std::fs::read_to_string(root().join("include/lfm3.h")).unwrap()
}

/// The functions the header declares.
fn functions() -> BTreeSet<String> {
    let header = header();
    let declared = header.lines().filter(|line| line.starts_with("LFM3_API "));
    declared.map(|line| line.split('(').next().unwrap().rsplit([' ', '*']).next().unwrap().to_owned()).collect()
}

/// Lines for tests/c/layout.c, from the header: each struct with its fields, each number.
fn layout_questions() -> String {
    let mut lines = String::new();
    let mut current = None;
    for line in header().lines() {
        if let Some(name) = line.strip_prefix("typedef struct ").and_then(|line| line.strip_suffix(" {")) {
            writeln!(lines, "SIZE({name});").unwrap();
            current = Some(name.to_owned());
        } else if line.starts_with('}') {
            current = None;
        } else if let (Some(name), Some(field)) = (&current, line.strip_suffix(';')) {
            let field = field.rsplit([' ', '*']).next().unwrap();
            writeln!(lines, "FIELD({name}, {field});").unwrap();
        } else if let Some((name, value)) = line.strip_prefix("#define ").and_then(|line| line.split_once(' '))
            && value.trim_matches(['(', ')', '-']).starts_with(|first: char| first.is_ascii_digit())
        {
            writeln!(lines, "NUMBER({name});").unwrap();
        }
    }
    lines
}

fn layout() -> String {
    std::fs::write(scratch().join("layout.inc"), layout_questions()).unwrap();
    let program = compilers()[0].program("tests/c/layout.c", &[]);
    String::from_utf8(finish(&mut compile::command(program), "layout").stdout).unwrap()
}

/// A changed line breaks programs that exist; new lines at the end of a struct and new numbers do not.
#[test]
#[cfg(target_pointer_width = "64")]
fn sizes_places_and_numbers_are_those_recorded() {
    let recorded = std::fs::read_to_string(root().join("tests/c/layout.txt")).unwrap_or_default();
    let found = layout();
    let new = scratch().join("layout.txt");
    std::fs::write(&new, &found).unwrap();
    assert!(recorded == found, "compare tests/c/layout.txt with {}", new.display());
}

/// Padding would let bits nobody set cross the interface.
#[test]
fn structs_begin_with_their_size_and_have_no_gaps() {
    let (mut structs, mut end, mut size) = (0, 0, 0);
    for line in layout().lines() {
        let (name, numbers) = line.split_once(' ').unwrap();
        if let Some((place, length)) = numbers.split_once('+') {
            let (place, length): (usize, usize) = (place.parse().unwrap(), length.parse().unwrap());
            assert_eq!(place, end, "a gap before {name}");
            assert_eq!(place == 0, name.ends_with(".struct_size"), "{name}");
            end += length;
        } else {
            assert_eq!(end, size, "a gap at the end before {name}");
            let is_struct = name.starts_with("lfm3_");
            (end, size) = (0, if is_struct { numbers.parse().unwrap() } else { 0 });
            assert_eq!(size % 8, 0, "{name} does not end at a whole unit");
            structs += usize::from(is_struct);
        }
    }
    assert_eq!(structs, 10);
}

#[test]
#[cfg(target_os = "linux")]
fn the_shared_library_exports_the_headers_functions_and_nothing_else() {
    let mut command = compile::command("nm");
    command.args(["-D", "--defined-only", "--format=posix"]).arg(shared_library());
    let output = String::from_utf8(finish(&mut command, "nm").stdout).unwrap();
    let exported: BTreeSet<_> = output.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    assert_eq!(exported, functions());
}

#[test]
#[cfg(target_os = "linux")]
fn the_soname_carries_the_abi_version() {
    let output = finish(compile::command("readelf").arg("-d").arg(shared_library()), "readelf").stdout;
    let want = format!("[liblfm3.so.{}]", lfm3::ffi::library::LFM3_ABI_VERSION);
    assert!(String::from_utf8(output).unwrap().contains(&want), "no SONAME {want}");
}

/// rustc leaves every Rust symbol of a static library global. `make static` links it to one object and hides them;
/// these are its commands.
#[test]
#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
fn the_static_library_narrowed_exports_the_headers_functions_and_nothing_else() {
    let folder = scratch();
    let (object, archive) = (folder.join("liblfm3.o"), folder.join("liblfm3.a"));
    let _ = std::fs::remove_file(&archive);
    let mut link = compile::command("ld");
    link.args(["-r", "--gc-sections"]).args(functions().iter().flat_map(|name| ["-u".to_owned(), name.clone()]));
    finish(link.arg("-o").arg(&object).arg(library_dir().join("liblfm3.a")), "ld -r");
    let mut hide = compile::command("objcopy");
    // The bitcode would make ar's plugin of another LLVM give up.
    hide.args(["--wildcard", "--keep-global-symbol=lfm3_*", "--remove-section=.llvmbc", "--remove-section=.llvmcmd"]);
    finish(hide.arg(&object), "objcopy");
    finish(compile::command("ar").arg("rcs").arg(&archive).arg(&object), "ar");
    let mut names = compile::command("nm");
    let output = finish(names.args(["-g", "--defined-only", "--format=posix"]).arg(&archive), "nm").stdout;
    let output = String::from_utf8(output).unwrap();
    let symbols = output.lines().filter(|line| line.contains(' ')).map(|line| line.split(' ').next().unwrap());
    let exported: BTreeSet<_> = symbols.map(str::to_owned).collect();
    assert_eq!(exported, functions());
    let mut program = compile::command("gcc");
    program.args(["-std=c99", "-I"]).arg(root().join("include")).arg("-I").arg(root().join("tests/c"));
    program.arg(root().join("tests/c/null_calls.c")).arg(&archive).args(["-lm", "-lpthread", "-ldl", "-lgcc_s"]);
    let linked = folder.join("null_calls");
    finish(program.arg("-o").arg(&linked), "a static link");
    finish(&mut compile::command(linked), "null_calls, linked statically");
}
