//! Statuses: what every call returns.

use crate::error::Code;
use std::ffi::{CStr, c_char};

/// Done as asked.
pub const LFM3_OK: i32 = 0;
/// `lfm3_model_step`: there is more to do, call again.
pub const LFM3_MORE: i32 = 1;
/// `lfm3_model_step`: the device is working; poll or wait.
pub const LFM3_WAITING: i32 = 2;
/// `lfm3_model_step`: nothing to do.
pub const LFM3_IDLE: i32 = 3;
/// `lfm3_stream_next`: no event yet; step the model.
pub const LFM3_PENDING: i32 = 4;
/// `lfm3_stream_next`: nothing more will come until something is asked for.
pub const LFM3_DONE: i32 = 5;
/// A NULL, out-of-range, non-UTF-8 or contradictory argument.
pub const LFM3_ERR_INVALID_ARGUMENT: i32 = -1;
/// A file could not be opened or read.
pub const LFM3_ERR_IO: i32 = -2;
/// A file's content breaks its format: truncated, overlapping, wrong shape, bad JSON.
pub const LFM3_ERR_FORMAT: i32 = -3;
/// Well-formed, but not something this version can run.
pub const LFM3_ERR_UNSUPPORTED: i32 = -4;
/// A byte or count limit would be passed.
pub const LFM3_ERR_LIMIT: i32 = -5;
/// Another thread is inside a call that excludes this one.
pub const LFM3_ERR_BUSY: i32 = -6;
/// Called from inside one of the library's own callbacks.
pub const LFM3_ERR_REENTRANT: i32 = -7;
/// The model behind this stream was freed.
pub const LFM3_ERR_CLOSED: i32 = -8;
/// An earlier call met a bug of the library; only `*_error` and `*_free` are left.
pub const LFM3_ERR_POISONED: i32 = -9;
/// The call does not fit what the handle is doing.
pub const LFM3_ERR_STATE: i32 = -10;
/// The caller's buffer is too small; the size needed was reported.
pub const LFM3_ERR_BUFFER_TOO_SMALL: i32 = -11;
/// Cancelled by the host.
pub const LFM3_ERR_CANCELLED: i32 = -12;
/// The stream's context limit is reached.
pub const LFM3_ERR_CONTEXT_FULL: i32 = -13;
/// The chat template failed.
pub const LFM3_ERR_TEMPLATE: i32 = -14;
/// A value that must be finite is not.
pub const LFM3_ERR_NUMERIC: i32 = -15;
/// A bug in the library was caught; the handle is poisoned.
pub const LFM3_ERR_INTERNAL: i32 = -16;

/// The name of a status, such as "LFM3_ERR_IO".
///
/// - `status`: any number.
/// - Returns: a 0-terminated string that stays valid for ever; "unknown status" for other numbers.
/// - Threads: any, any time, callbacks too. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn lfm3_status_name(status: i32) -> *const c_char {
    name(status).as_ptr()
}

/// Each status with its name; the numbers never change their meaning.
const NAMES: [(i32, &CStr); 22] = [
    (LFM3_OK, c"LFM3_OK"),
    (LFM3_MORE, c"LFM3_MORE"),
    (LFM3_WAITING, c"LFM3_WAITING"),
    (LFM3_IDLE, c"LFM3_IDLE"),
    (LFM3_PENDING, c"LFM3_PENDING"),
    (LFM3_DONE, c"LFM3_DONE"),
    (LFM3_ERR_INVALID_ARGUMENT, c"LFM3_ERR_INVALID_ARGUMENT"),
    (LFM3_ERR_IO, c"LFM3_ERR_IO"),
    (LFM3_ERR_FORMAT, c"LFM3_ERR_FORMAT"),
    (LFM3_ERR_UNSUPPORTED, c"LFM3_ERR_UNSUPPORTED"),
    (LFM3_ERR_LIMIT, c"LFM3_ERR_LIMIT"),
    (LFM3_ERR_BUSY, c"LFM3_ERR_BUSY"),
    (LFM3_ERR_REENTRANT, c"LFM3_ERR_REENTRANT"),
    (LFM3_ERR_CLOSED, c"LFM3_ERR_CLOSED"),
    (LFM3_ERR_POISONED, c"LFM3_ERR_POISONED"),
    (LFM3_ERR_STATE, c"LFM3_ERR_STATE"),
    (LFM3_ERR_BUFFER_TOO_SMALL, c"LFM3_ERR_BUFFER_TOO_SMALL"),
    (LFM3_ERR_CANCELLED, c"LFM3_ERR_CANCELLED"),
    (LFM3_ERR_CONTEXT_FULL, c"LFM3_ERR_CONTEXT_FULL"),
    (LFM3_ERR_TEMPLATE, c"LFM3_ERR_TEMPLATE"),
    (LFM3_ERR_NUMERIC, c"LFM3_ERR_NUMERIC"),
    (LFM3_ERR_INTERNAL, c"LFM3_ERR_INTERNAL"),
];

fn name(status: i32) -> &'static CStr {
    NAMES.iter().find(|(number, _)| *number == status).map_or(c"unknown status", |(_, name)| name)
}

// cbindgen needs literals above; they must be the numbers the rest of the crate uses.
const _: () = {
    assert!(LFM3_ERR_INVALID_ARGUMENT == Code::InvalidArgument as i32);
    assert!(LFM3_ERR_IO == Code::Io as i32);
    assert!(LFM3_ERR_FORMAT == Code::Format as i32);
    assert!(LFM3_ERR_UNSUPPORTED == Code::Unsupported as i32);
    assert!(LFM3_ERR_LIMIT == Code::Limit as i32);
    assert!(LFM3_ERR_BUSY == Code::Busy as i32);
    assert!(LFM3_ERR_REENTRANT == Code::Reentrant as i32);
    assert!(LFM3_ERR_CLOSED == Code::Closed as i32);
    assert!(LFM3_ERR_POISONED == Code::Poisoned as i32);
    assert!(LFM3_ERR_STATE == Code::State as i32);
    assert!(LFM3_ERR_BUFFER_TOO_SMALL == Code::BufferTooSmall as i32);
    assert!(LFM3_ERR_CANCELLED == Code::Cancelled as i32);
    assert!(LFM3_ERR_CONTEXT_FULL == Code::ContextFull as i32);
    assert!(LFM3_ERR_TEMPLATE == Code::Template as i32);
    assert!(LFM3_ERR_NUMERIC == Code::Numeric as i32);
    assert!(LFM3_ERR_INTERNAL == Code::Internal as i32);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_own_name() {
        for status in LFM3_ERR_INTERNAL..=LFM3_DONE {
            assert_ne!(name(status), c"unknown status", "{status}");
            assert_eq!(NAMES.iter().filter(|(_, other)| *other == name(status)).count(), 1);
        }
        assert_eq!(name(LFM3_ERR_IO), c"LFM3_ERR_IO");
        assert_eq!(name(i32::MIN), c"unknown status");
    }
}
