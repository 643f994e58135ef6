//! Every kind of pixel to RGB of 8 bits.

use crate::error::{Code, Error, Result};
use image::ColorType;

/// Writes pixels of kind `color` as three bytes each; `to` is as long as they need.
pub(super) fn flatten(from: &[u8], color: ColorType, to: &mut [u8]) -> Result<()> {
    match color {
        ColorType::L8 => each(from, to, |[v]| [v; 3]),
        ColorType::La8 => each(from, to, |[v, a]| [onto_white(v, a); 3]),
        ColorType::Rgb8 => each(from, to, |rgb: [u8; 3]| rgb),
        ColorType::Rgba8 => each(from, to, |[r, g, b, a]| [r, g, b].map(|v| onto_white(v, a))),
        ColorType::L16 => each(from, to, |p: [u8; 2]| [high(p, 0); 3]),
        ColorType::La16 => each(from, to, |p: [u8; 4]| [onto_white(high(p, 0), high(p, 1)); 3]),
        ColorType::Rgb16 => each(from, to, |p: [u8; 6]| [0, 1, 2].map(|i| high(p, i))),
        ColorType::Rgba16 => each(from, to, |p: [u8; 8]| [0, 1, 2].map(|i| onto_white(high(p, i), high(p, 3)))),
        other => return Err(Error::new(Code::Unsupported, format!("picture: pixels of kind {other:?}"))),
    }
    Ok(())
}

fn each<const N: usize>(from: &[u8], to: &mut [u8], flat: impl Fn([u8; N]) -> [u8; 3]) {
    let (from, to) = (from.as_chunks::<N>().0, to.as_chunks_mut::<3>().0);
    for (to, from) in to.iter_mut().zip(from) {
        *to = flat(*from);
    }
}

/// The higher byte of the value with this index.
fn high<const N: usize>(pixel: [u8; N], index: usize) -> u8 {
    (u16::from_ne_bytes([pixel[2 * index], pixel[2 * index + 1]]) >> 8) as u8
}

/// What is seen of a value of this alpha on white.
fn onto_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}
