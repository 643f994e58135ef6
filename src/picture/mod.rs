//! Pictures and videos on their way to the vision tower: file to pixels, pixels to the size the model wants, pixels to
//! rows of patches.
//!
//! `decode` reads files; `config` is what the checkpoint says of sizes and normalization; `resize` scales; `patches`
//! cuts; `video` chooses frames and names their times.

pub mod config;
pub mod media;

/// A width and a height in pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Columns.
    pub width: u32,
    /// Rows.
    pub height: u32,
}

/// Red, green and blue of 8 bits, row after row without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels {
    /// Width and height.
    pub size: Size,
    /// `3 * width * height` bytes.
    pub rgb: Vec<u8>,
}
