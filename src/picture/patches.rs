//! Pixels to rows of patches.

use super::config::PictureConfig;
use super::{Pixels, Size};
use crate::backend::Grid;

/// Writes the values of one patch, in the order channel, frame, row, column: what is left of a pixel's 0 to 255 after
/// shift and scale, each operation rounded to float32.
///
/// `index` counts patches in the grid's order, block after block. `frames` are as large as the grid; a still picture is
/// given twice. `out` holds [`PictureConfig::values`].
///
/// # Panics
/// Where `index` lies outside `grid`, `frames` are smaller than it, or `out` has another length.
pub fn patch_row(config: &PictureConfig, frames: [&Pixels; 2], grid: Grid, index: usize, out: &mut [f32]) {
    let patch = config.patch as usize;
    assert!(index < grid.len() && out.len() == config.values());
    let (row, col) = grid.place(index);
    let corner = (row as usize * patch, col as usize * patch);
    let still = std::ptr::eq(frames[0], frames[1]);
    for (channel, planes) in out.chunks_exact_mut(frames.len() * patch * patch).enumerate() {
        let (first, second) = planes.split_at_mut(patch * patch);
        let normalized = Normalized { channel, shift: config.shift[channel], scale: config.scale[channel] };
        normalized.fill(frames[0], corner, patch, first);
        if still {
            second.copy_from_slice(first);
        } else {
            normalized.fill(frames[1], corner, patch, second);
        }
    }
}

/// One channel as the tower reads it.
struct Normalized {
    channel: usize,
    shift: f32,
    scale: f32,
}

impl Normalized {
    /// One frame's part of a patch whose upper left pixel is at `corner`, a row and a column.
    fn fill(&self, frame: &Pixels, corner: (usize, usize), patch: usize, out: &mut [f32]) {
        let Size { width, .. } = frame.size;
        for (y, line) in out.chunks_exact_mut(patch).enumerate() {
            let start = ((corner.0 + y) * width as usize + corner.1) * 3;
            let pixels = frame.rgb[start..start + 3 * patch].chunks_exact(3);
            for (value, pixel) in line.iter_mut().zip(pixels) {
                *value = (f32::from(pixel[self.channel]) - self.shift) / self.scale;
            }
        }
    }
}
