//! Which library this is.

use std::ffi::{CStr, c_char};

/// The interface this header describes. It grows when old programs would break; the library's SONAME carries it.
pub const LFM3_ABI_VERSION: u32 = 1;

/// The interface the library was built with; equal to `LFM3_ABI_VERSION` where header and library fit.
///
/// - Returns: the number.
/// - Threads: any, any time, callbacks too. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn lfm3_abi_version() -> u32 {
    LFM3_ABI_VERSION
}

/// The library's version, such as "0.1.0".
///
/// - Returns: a 0-terminated string that stays valid for ever.
/// - Threads: any, any time, callbacks too. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn lfm3_version_string() -> *const c_char {
    VERSION.as_ptr()
}

const VERSION: &CStr = match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
    Ok(version) => version,
    Err(_) => panic!("the version has no inner 0"),
};
