//! Pictures and videos on their way to the vision tower: file to pixels, pixels to the size the model wants, pixels to
//! rows of patches.
//!
//! `decode` reads files; `config` is what the checkpoint says of sizes and normalization; `size` chooses the size to
//! scale to; `resize` scales; `patches` cuts; `video` chooses frames and names their times.

pub mod config;
mod container;
pub mod decode;
mod flatten;
pub mod patches;
pub mod resize;
pub mod size;
pub mod video;

use std::fmt;

/// Most pixels along a side of a picture that is read.
pub const MAX_SIDE: u32 = 65_535;

/// A width and a height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

impl Size {
    /// Pixels.
    pub fn area(&self) -> u64 {
        u64::from(self.width) * u64::from(self.height)
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} x {}", self.width, self.height)
    }
}

/// Red, green and blue of 8 bits, row after row without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Width and height.
    pub size: Size,
    /// `3 * width * height` bytes.
    pub rgb: Vec<u8>,
}
