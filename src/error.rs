//! The error every fallible call returns: a status number for programs and a text for people.

use std::fmt;

/// Error statuses of the C interface. Numbers are append-only and never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    /// A NULL, out-of-range, non-UTF-8 or contradictory argument.
    InvalidArgument = -1,
    /// A file could not be opened or read.
    Io = -2,
    /// A file's content breaks its format: truncated, overlapping, wrong shape, bad JSON.
    Format = -3,
    /// Well-formed, but not something this version can run.
    Unsupported = -4,
    /// A byte or count limit of the model would be passed.
    Limit = -5,
    /// Another thread is inside a call that excludes this one.
    Busy = -6,
    /// Called from inside one of the library's own callbacks.
    Reentrant = -7,
    /// The model behind this handle was freed.
    Closed = -8,
    /// An earlier call panicked; only free is left.
    Poisoned = -9,
    /// The call does not fit what the handle is doing.
    State = -10,
    /// The caller's buffer is too small; the size needed was reported.
    BufferTooSmall = -11,
    /// Cancelled by the host.
    Cancelled = -12,
    /// The stream's context limit is reached.
    ContextFull = -13,
    /// The chat template failed.
    Template = -14,
    /// A value that must be finite is not.
    Numeric = -15,
    /// A bug in the library: a panic was caught.
    Internal = -16,
}

/// What went wrong, where, and what to do about it.
#[derive(Clone, Debug)]
pub struct Error {
    /// The status number a program acts on.
    pub code: Code,
    /// The text for people.
    pub message: String,
}

/// The crate's result type.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An error of `code` with `message`.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Error { code, message: message.into() }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Error {}
