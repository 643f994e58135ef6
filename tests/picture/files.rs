//! Files for tests: the formula's pictures through encoders, and headers written by hand.

use crate::formula::{grey, rgb, rgba};
use image::codecs::{bmp::BmpEncoder, gif::GifEncoder, jpeg::JpegEncoder, png::PngEncoder, webp::WebPEncoder};
use image::{ExtendedColorType, ImageEncoder};
use lfm3::picture::Size;
use lfm3::picture::decode::Format;

/// Every format.
pub const FORMATS: [Format; 5] = [Format::Png, Format::Jpeg, Format::WebP, Format::Bmp, Format::Gif];

/// A file of pixels of one kind.
pub fn encoded(format: Format, pixels: &[u8], size: Size, kind: ExtendedColorType) -> Vec<u8> {
    let (mut file, w, h) = (Vec::new(), size.width, size.height);
    match format {
        Format::Png => PngEncoder::new(&mut file).write_image(pixels, w, h, kind),
        Format::Jpeg => JpegEncoder::new_with_quality(&mut file, 90).write_image(pixels, w, h, kind),
        Format::WebP => WebPEncoder::new_lossless(&mut file).write_image(pixels, w, h, kind),
        Format::Bmp => BmpEncoder::new(&mut file).write_image(pixels, w, h, kind),
        Format::Gif => GifEncoder::new_with_speed(&mut file, 1).encode(pixels, w, h, kind),
    }
    .unwrap();
    file
}

/// The formula's picture as a PNG: `rgb`, `rgba` or `grey`.
pub fn written(size: Size, kind: &str) -> Vec<u8> {
    match kind {
        "rgb" => encoded(Format::Png, &rgb(size).rgb, size, ExtendedColorType::Rgb8),
        "rgba" => encoded(Format::Png, &rgba(size), size, ExtendedColorType::Rgba8),
        "grey" => encoded(Format::Png, &grey(size), size, ExtendedColorType::L8),
        other => panic!("no kind {other}"),
    }
}

/// A small picture in a format: few colours for GIF, which has no more.
pub fn sample(format: Format) -> Vec<u8> {
    let size = Size { width: 24, height: 17 };
    let few: Vec<u8> = rgb(size).rgb.iter().map(|v| v / 64 * 64).collect();
    let pixels = if format == Format::Gif { few } else { rgb(size).rgb };
    encoded(format, &pixels, size, ExtendedColorType::Rgb8)
}

/// A part of a PNG file.
pub fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut out = (data.len() as u32).to_be_bytes().to_vec();
    out.extend(kind);
    out.extend(data);
    let crc = out[4..].iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |c, _| if c & 1 == 1 { (c >> 1) ^ 0xedb8_8320 } else { c >> 1 })
    });
    out.extend((!crc).to_be_bytes());
    out
}

/// A zlib stream that holds `data` as it is.
pub fn stored(data: &[u8]) -> Vec<u8> {
    let mut out = vec![0x78, 0x01];
    let mut blocks = data.chunks(65_535).peekable();
    while let Some(block) = blocks.next() {
        out.push(u8::from(blocks.peek().is_none()));
        out.extend((block.len() as u16).to_le_bytes());
        out.extend((!(block.len() as u16)).to_le_bytes());
        out.extend(block);
    }
    let (a, b) = data.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    out.extend((b << 16 | a).to_be_bytes());
    out
}

/// A PNG of any size, depth and colour type, with chunks before its `data`.
pub fn png(width: u32, height: u32, depth: u8, color: u8, before: &[Vec<u8>], data: &[u8]) -> Vec<u8> {
    let mut head = width.to_be_bytes().to_vec();
    head.extend(height.to_be_bytes());
    head.extend([depth, color, 0, 0, 0]);
    let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
    out.extend(chunk(b"IHDR", &head));
    before.iter().for_each(|chunk| out.extend(chunk));
    out.extend(chunk(b"IDAT", data));
    out.extend(chunk(b"IEND", &[]));
    out
}

/// A segment of a JPEG file.
pub fn segment(kind: u8, data: &[u8]) -> Vec<u8> {
    let mut out = vec![0xff, kind];
    out.extend((data.len() as u16 + 2).to_be_bytes());
    out.extend(data);
    out
}

/// A JPEG with a segment put behind its first mark.
pub fn with_segment(jpeg: &[u8], segment: &[u8]) -> Vec<u8> {
    [&jpeg[..2], segment, &jpeg[2..]].concat()
}

/// EXIF that says nothing but an orientation, with its bytes in either order.
pub fn exif(orientation: u16, big: bool) -> Vec<u8> {
    let short = |v: u16| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let long = |v: u32| if big { v.to_be_bytes() } else { v.to_le_bytes() };
    let mut out = if big { b"MM".to_vec() } else { b"II".to_vec() };
    out.extend(short(42));
    out.extend(long(8));
    out.extend(short(1));
    out.extend(short(0x112));
    out.extend(short(3));
    out.extend(long(1));
    out.extend(short(orientation));
    out.extend([0; 6]);
    out
}

/// A RIFF file of WebP chunks.
pub fn webp(chunks: &[(&[u8; 4], Vec<u8>)]) -> Vec<u8> {
    let mut body = b"WEBP".to_vec();
    for (kind, data) in chunks {
        body.extend(*kind);
        body.extend((data.len() as u32).to_le_bytes());
        body.extend(data);
        body.extend(vec![0; data.len() % 2]);
    }
    [b"RIFF".to_vec(), (body.len() as u32).to_le_bytes().to_vec(), body].concat()
}

/// A file of a format whose header claims a size and that holds next to nothing.
pub fn claiming(format: Format, width: u32, height: u32) -> Vec<u8> {
    let (w, h) = (width as u16, height as u16);
    match format {
        Format::Png => png(width, height, 8, 2, &[], &stored(&[0; 64])),
        Format::Jpeg => {
            let mut file = sample(format);
            let at = file.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap() + 5;
            file[at..at + 2].copy_from_slice(&h.to_be_bytes());
            file[at + 2..at + 4].copy_from_slice(&w.to_be_bytes());
            file
        }
        Format::WebP => {
            // The extended header holds sides less one, in three bytes each.
            let side = |n: u32| n.wrapping_sub(1).to_le_bytes()[..3].to_vec();
            let head = [vec![0; 4], side(width), side(height)].concat();
            let inner = sample(format)[20..].to_vec();
            webp(&[(b"VP8X", head), (b"VP8L", inner)])
        }
        Format::Bmp => {
            let mut file = sample(format);
            file[18..22].copy_from_slice(&width.to_le_bytes());
            file[22..26].copy_from_slice(&height.to_le_bytes());
            file
        }
        Format::Gif => {
            // Both the screen and the frame on it.
            let mut file = sample(format);
            let frame = file.windows(5).position(|w| w == [0x2c, 0, 0, 0, 0]).unwrap() + 5;
            for at in [6, frame] {
                file[at..at + 2].copy_from_slice(&w.to_le_bytes());
                file[at + 2..at + 4].copy_from_slice(&h.to_le_bytes());
            }
            file
        }
    }
}
