//! Videos: which frames are taken, how large they become, and the times their pairs are named by.

use super::Size;
use super::config::{MAX_FRAMES, PATCH_FRAMES, VideoConfig};
use super::size::{Shape, sides, size_of, squeezed};
use crate::error::{Code, Error, Result};

impl VideoConfig {
    /// Indices of the frames taken from `total` frames, of which a second has `fps`: evenly spread, first and last
    /// included.
    ///
    /// # Errors
    /// `InvalidArgument` where there is no frame, or `fps` is not a finite number above 0.
    pub fn sample(&self, total: usize, fps: f64) -> Result<Vec<usize>> {
        if total == 0 || !fps.is_finite() || fps <= 0.0 {
            let found = format!("video: expected frames and frames a second above 0, found {total} and {fps}");
            return Err(Error::new(Code::InvalidArgument, found));
        }
        let last = total - 1;
        // The conversion stops at the type's ends.
        let wanted = (total as f64 / fps * self.fps) as usize;
        let count = wanted.max(*self.count.start()).min(*self.count.end()).min(MAX_FRAMES).min(total);
        if count <= 1 {
            return Ok(vec![0]);
        }
        let step = last as f64 / (count - 1) as f64;
        let frame = |i: usize| ((i as f64 * step).round_ties_even() as usize).min(last);
        let mut frames: Vec<usize> = (0..count - 1).map(frame).collect();
        frames.push(last);
        Ok(frames)
    }

    /// The size `frames` frames of `size` are resized to.
    ///
    /// # Errors
    /// As for a picture; `InvalidArgument` for fewer than two frames; `Limit` where there are more frames than
    /// [`MAX_FRAMES`] or more pairs than tokens are allowed.
    pub fn resized(&self, frames: usize, size: Size) -> Result<Size> {
        let (mut height, mut width) = sides(size)?;
        let depth = self.picture.frames.max(1) as usize;
        if frames < depth {
            let found = format!("video: expected at least {depth} frames, found {frames}");
            return Err(Error::new(Code::InvalidArgument, found));
        }
        if frames > MAX_FRAMES {
            let found = format!("video: at most {MAX_FRAMES} frames may be taken, found {frames}");
            return Err(Error::new(Code::Limit, found));
        }
        let side = f64::from(self.picture.token_side().max(1));
        if height < side || width < side {
            let scale = (side / height).max(side / width);
            height = (height * scale).floor().max(1.0);
            width = (width * scale).floor().max(1.0);
        }
        let counted = (frames as f64 / depth as f64).round_ties_even() * depth as f64;
        let shape = Shape { height, width, frames: frames as f64, counted };
        let (rows, cols) = shape.fitted(side, &self.area(frames))?;
        let pairs = frames.div_ceil(depth) as u64;
        let budget = self.picture.most_tokens.unwrap_or(u64::MAX) / pairs;
        if budget == 0 {
            let found = format!("video: {frames} frames need more tokens than are allowed");
            return Err(Error::new(Code::Limit, found));
        }
        let (rows, cols) = squeezed(rows, cols, budget);
        size_of(rows, cols, self.picture.token_side())
    }
}

/// The mean time of each pair of frames; an odd last frame is its own second.
pub fn pairs(times: &[f64]) -> Vec<f64> {
    times.chunks(PATCH_FRAMES).map(|pair| (pair[0] + pair[pair.len() - 1]) / 2.0).collect()
}
