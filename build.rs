//! Gives the shared library the name programs look for at run time: its file's, with the ABI's number.

use std::path::{Path, PathBuf};

/// `LFM3_ABI_VERSION` of src/ffi/library.rs; tests/abi.rs compares.
const ABI: u32 = 1;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    let (file, versioned) = match target.as_str() {
        "linux" | "android" | "freebsd" => {
            let name = format!("liblfm3.so.{ABI}");
            println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,{name}");
            ("liblfm3.so", name)
        }
        "macos" | "ios" => {
            let name = format!("liblfm3.{ABI}.dylib");
            println!("cargo:rustc-cdylib-link-arg=-Wl,-install_name,@rpath/{name}");
            ("liblfm3.dylib", name)
        }
        _ => return,
    };
    // OUT_DIR is PROFILE/build/lfm3-…/out. Without the second name a program linked against the build folder would
    // not start from it.
    let out = PathBuf::from(std::env::var_os("OUT_DIR").unwrap_or_default());
    if let Some(profile) = out.ancestors().nth(3) {
        link(file, &profile.join(&versioned));
        link(file, &profile.join("deps").join(&versioned));
    }
}

#[cfg(unix)]
fn link(file: &str, at: &Path) {
    if at.symlink_metadata().is_err()
        && let Err(error) = std::os::unix::fs::symlink(file, at)
    {
        println!("cargo:warning=no link {}: {error}", at.display());
    }
}

#[cfg(not(unix))]
fn link(_file: &str, _at: &Path) {}
