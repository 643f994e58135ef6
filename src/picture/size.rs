//! The size a picture or a video's frames are resized to.
//!
//! Sides become multiples of a token's side and the area comes into the config's range, near the original's shape. All
//! in double precision, where every product of sides is exact; what is rounded when decides the size.

use super::config::PictureConfig;
use super::{MAX_SIDE, Size};
use crate::error::{Code, Error, Result};
use std::ops::RangeInclusive;

/// Longest side of a picture over its shortest.
pub const MAX_RATIO: f64 = 200.0;

/// What is resized: sides, and how many frames of them.
pub(super) struct Shape {
    pub height: f64,
    pub width: f64,
    /// Frames there are.
    pub frames: f64,
    /// Frames as they count against the area.
    pub counted: f64,
}

impl PictureConfig {
    /// The size a picture of `size` is resized to.
    ///
    /// # Errors
    /// `InvalidArgument` where a side is zero, `Limit` where one is over [`MAX_SIDE`], `Unsupported` where one is more
    /// than [`MAX_RATIO`] times the other.
    pub fn resized(&self, size: Size) -> Result<Size> {
        let (height, width) = sides(size)?;
        let side = f64::from(self.token_side().max(1));
        let (rows, cols) = Shape { height, width, frames: 1.0, counted: 1.0 }.fitted(side, &self.area)?;
        let (rows, cols) = squeezed(rows, cols, self.most_tokens.unwrap_or(u64::MAX));
        size_of(rows, cols, self.token_side())
    }
}

/// Height and width, checked.
pub(super) fn sides(size: Size) -> Result<(f64, f64)> {
    if size.width == 0 || size.height == 0 {
        let found = format!("picture: expected a width and a height, found {} x {}", size.width, size.height);
        return Err(Error::new(Code::InvalidArgument, found));
    }
    if size.width > MAX_SIDE || size.height > MAX_SIDE {
        let found = format!("picture: sides may have {MAX_SIDE} pixels, found {} x {}", size.width, size.height);
        return Err(Error::new(Code::Limit, found));
    }
    Ok((f64::from(size.height), f64::from(size.width)))
}

impl Shape {
    /// Rows and columns of tokens of `side` pixels, so that the frames' area lies in `area` where rounding lets it.
    pub fn fitted(&self, side: f64, area: &RangeInclusive<u64>) -> Result<(u64, u64)> {
        let (height, width) = (self.height, self.width);
        let ratio = height.max(width) / height.min(width);
        if ratio > MAX_RATIO {
            let found = format!("picture: a side may be {MAX_RATIO} times the other, found {ratio:.2} times");
            return Err(Error::new(Code::Unsupported, found));
        }
        let (least, most) = (*area.start() as f64, *area.end() as f64);
        let near = |length: f64| (length / side).round_ties_even();
        let rounded = self.counted * (near(height) * side) * (near(width) * side);
        let original = self.frames * height * width;
        let (rows, cols) = if rounded > most {
            let beta = (original / most).sqrt();
            let below = |length: f64| (length / beta / side).floor().max(1.0);
            (below(height), below(width))
        } else if rounded < least {
            let beta = (least / original).sqrt();
            let above = |length: f64| (length * beta / side).ceil();
            (above(height), above(width))
        } else {
            (near(height), near(width))
        };
        Ok((rows as u64, cols as u64))
    }
}

/// At most `budget` tokens (at least one): the longer side gives way, and the shorter only where it must.
pub(super) fn squeezed(rows: u64, cols: u64, budget: u64) -> (u64, u64) {
    let (short, long) = (rows.min(cols), rows.max(cols));
    if short.saturating_mul(long) <= budget {
        return (rows, cols);
    }
    let short = short.min(budget.isqrt()).max(1);
    let long = long.min(budget / short).max(1);
    if rows <= cols { (short, long) } else { (long, short) }
}

/// The size of so many rows and columns of tokens.
pub(super) fn size_of(rows: u64, cols: u64, side: u32) -> Result<Size> {
    let pixels = |tokens: u64| u32::try_from(tokens.saturating_mul(u64::from(side))).ok().filter(|n| *n > 0);
    match (pixels(cols), pixels(rows)) {
        (Some(width), Some(height)) => Ok(Size { width, height }),
        _ => Err(Error::new(Code::Limit, format!("picture: cannot be made {cols} x {rows} tokens of {side} pixels"))),
    }
}
