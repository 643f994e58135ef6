//! Files to pixels: PNG, JPEG, WebP, BMP, GIF, and raw pixels.
//!
//! Files come from anywhere. Sizes are checked in the header, before there is memory for pixels, and what decoding will
//! hold is told then. Of animations the first frame is taken. EXIF orientation is applied.

use super::container::{self, JpegFacts};
use super::flatten::flatten;
use super::{MAX_SIDE, Pixels, Size};
use crate::error::{Code, Error, Result};
use crate::model::files::shown;
use image::codecs::{bmp::BmpDecoder, gif::GifDecoder, jpeg::JpegDecoder, png::PngDecoder, webp::WebPDecoder};
use image::error::{ImageError, LimitErrorKind};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, Limits, RgbImage};
use std::fmt;
use std::io::Cursor;

/// Most bytes of a file.
pub const MAX_FILE_BYTES: usize = 1 << 27;
/// Most pixels of a picture.
pub const MAX_PIXELS: u64 = 1 << 27;

/// Most pixels of all scans of a JPEG together.
pub const MAX_SCANNED_PIXELS: u64 = 1 << 31;

/// What a decoder holds besides what grows with the picture or the file: tables, buffers.
const TABLE_BYTES: u64 = 2 << 20;
/// What a PNG's profile and texts may take besides the file's own length.
const PNG_METADATA_BYTES: u64 = 4 << 20;
/// Rows a decoder holds at once, 8 bytes a pixel.
const WORKING_ROWS: u64 = 80;

/// Kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Portable network graphics.
    Png,
    /// JPEG, baseline or progressive.
    Jpeg,
    /// WebP, lossy or lossless.
    WebP,
    /// Windows bitmap.
    Bmp,
    /// Graphics interchange format.
    Gif,
}

/// What a file says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Kind of file.
    pub format: Format,
    /// Size of the picture as it is meant to be seen: after EXIF orientation.
    pub size: Size,
    /// Most bytes held while decoding it, the picture included, the file itself not.
    pub bytes: u64,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Png => "PNG",
            Format::Jpeg => "JPEG",
            Format::WebP => "WebP",
            Format::Bmp => "BMP",
            Format::Gif => "GIF",
        })
    }
}

/// Reads a file's header.
///
/// # Errors
/// `Unsupported` for formats other than [`Format`]'s; `Format` for broken headers and sizes of zero; `Limit` for more
/// than [`MAX_FILE_BYTES`], [`MAX_SIDE`] or [`MAX_PIXELS`].
pub fn header(file: &[u8]) -> Result<Header> {
    open(file).map(|opened| opened.header)
}

/// Decodes a file.
///
/// Alpha is composited onto white: (value * alpha + 255 * (255 - alpha)) / 255, rounded to the nearest. Grey and
/// palettes become RGB. Of 16 bits the higher 8 are kept.
///
/// # Errors
/// As [`header`], and `Format` where what follows it is broken or cut off.
pub fn decode(file: &[u8]) -> Result<Pixels> {
    let Opened { decoder, orientation, stored, header } = open(file)?;
    let color = decoder.color_type();
    let mut buffer = room(decoder.total_bytes())?;
    decoder.read_image_boxed(&mut buffer).map_err(|e| refused(header.format, &e))?;
    let mut rgb = buffer;
    if color != ColorType::Rgb8 {
        let mut flat = room(3 * stored.area())?;
        flatten(&rgb, color, &mut flat)?;
        rgb = flat;
    }
    let pixels = oriented(Pixels { size: stored, rgb }, orientation);
    match pixels.filter(|p| p.size == header.size && p.rgb.len() as u64 == 3 * header.size.area()) {
        Some(pixels) => Ok(pixels),
        None => Err(broken(header.format, format!("the pixels are not {}, as the header says", header.size))),
    }
}

/// Pixels given as they are: three bytes each, `stride` bytes from a row's beginning to the next's.
///
/// # Errors
/// `InvalidArgument` where a side is zero, `stride` is shorter than a row, or `data` than the rows; `Limit` for more
/// than [`MAX_SIDE`] or [`MAX_PIXELS`].
pub fn rgb(data: &[u8], size: Size, stride: usize) -> Result<Pixels> {
    let row = check_rgb(data, size, stride)?;
    let mut rgb = room(3 * size.area())?;
    for (to, from) in rgb.chunks_exact_mut(row).zip(data.chunks(stride)) {
        to.copy_from_slice(&from[..row]);
    }
    Ok(Pixels { size, rgb })
}

/// Checks pixels as [`rgb`] takes them, without copying. The bytes of a row.
///
/// # Errors
/// As [`rgb`].
pub fn check_rgb(data: &[u8], size: Size, stride: usize) -> Result<usize> {
    let invalid = |what: String| Error::new(Code::InvalidArgument, format!("pixels: {what}"));
    if size.area() == 0 {
        return Err(invalid(format!("expected a width and a height, found {size}")));
    }
    check_size("pixels", size)?;
    let row = 3 * size.width as usize;
    if stride < row {
        return Err(invalid(format!("expected a stride of at least {row} bytes for {size}, found {stride}")));
    }
    let needed = stride.checked_mul(size.height as usize - 1).and_then(|above| above.checked_add(row));
    if needed.is_none_or(|needed| needed > data.len()) {
        let found = format!("{size} with a stride of {stride} needs more than the {} bytes given", data.len());
        return Err(invalid(found));
    }
    Ok(row)
}

/// A file whose header was found good.
struct Opened<'a> {
    decoder: Box<dyn ImageDecoder + 'a>,
    orientation: Orientation,
    /// The size before orientation.
    stored: Size,
    header: Header,
}

fn open(file: &[u8]) -> Result<Opened<'_>> {
    if file.len() > MAX_FILE_BYTES {
        let found = format!("picture: expected at most {MAX_FILE_BYTES} bytes, found {}", file.len());
        return Err(Error::new(Code::Limit, found));
    }
    let format = sniff(file)?;
    let jpeg = match format {
        Format::Jpeg => container::jpeg(file).map_err(|what| broken(format, what))?,
        _ => JpegFacts::default(),
    };
    let mut decoder = decoder(file, format).map_err(|e| refused(format, &e))?;
    let (width, height) = decoder.dimensions();
    let stored = Size { width, height };
    if stored.area() == 0 {
        return Err(broken(format, format!("expected a width and a height, found {stored}")));
    }
    check_size(&format!("picture ({format})"), stored)?;
    if stored.area().saturating_mul(jpeg.scans) > MAX_SCANNED_PIXELS {
        let found = format!("picture ({format}): {} scans of {stored} are too many", jpeg.scans);
        return Err(Error::new(Code::Limit, found));
    }
    let tables = match format {
        Format::WebP => container::webp(file, stored).map_err(|what| broken(format, what))?,
        _ => 0,
    };
    // A frame that does not fill the picture goes through memory of its own.
    let mut limits = limits();
    limits.max_alloc = Some(4 * stored.area());
    decoder.set_limits(limits).map_err(|e| refused(format, &e))?;
    // Broken metadata does not make a picture unreadable.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let size = if turns(orientation) { Size { width: height, height: width } } else { stored };
    let held = held(format, file.len() as u64, stored, decoder.color_type(), jpeg, tables);
    let bytes = if turns(orientation) { held.max(6 * stored.area()) } else { held };
    Ok(Opened { decoder, orientation, stored, header: Header { format, size, bytes } })
}

/// The format whose mark a file begins with.
fn sniff(file: &[u8]) -> Result<Format> {
    const MARKS: [(&[u8], Format); 5] = [
        (b"\x89PNG\r\n\x1a\n", Format::Png),
        (b"\xff\xd8\xff", Format::Jpeg),
        (b"BM", Format::Bmp),
        (b"GIF87a", Format::Gif),
        (b"GIF89a", Format::Gif),
    ];
    if file.starts_with(b"RIFF") && file.get(8..12) == Some(b"WEBP") {
        return Ok(Format::WebP);
    }
    if let Some((_, format)) = MARKS.iter().find(|(mark, _)| file.starts_with(mark)) {
        return Ok(*format);
    }
    let begin = &file[..file.len().min(12)];
    let found = format!("picture: expected a PNG, JPEG, WebP, BMP or GIF file, found {begin:02x?}");
    Err(Error::new(Code::Unsupported, found))
}

fn decoder(file: &[u8], format: Format) -> std::result::Result<Box<dyn ImageDecoder + '_>, ImageError> {
    let reader = Cursor::new(file);
    Ok(match format {
        Format::Png => {
            let mut limits = limits();
            limits.max_alloc = Some(PNG_METADATA_BYTES + file.len() as u64);
            Box::new(PngDecoder::with_limits(reader, limits)?)
        }
        Format::Jpeg => Box::new(JpegDecoder::new(reader)?),
        Format::WebP => Box::new(WebPDecoder::new(reader)?),
        Format::Bmp => Box::new(BmpDecoder::new(reader)?),
        Format::Gif => Box::new(GifDecoder::new(reader)?),
    })
}

fn limits() -> Limits {
    let mut limits = Limits::no_limits();
    limits.max_image_width = Some(MAX_SIDE);
    limits.max_image_height = Some(MAX_SIDE);
    limits
}

fn check_size(what: &str, size: Size) -> Result<()> {
    if size.width.max(size.height) > MAX_SIDE {
        return Err(Error::new(Code::Limit, format!("{what}: sides may have {MAX_SIDE} pixels, found {size}")));
    }
    if size.area() > MAX_PIXELS {
        return Err(Error::new(Code::Limit, format!("{what}: at most {MAX_PIXELS} pixels are read, found {size}")));
    }
    Ok(())
}

/// Most bytes held from opening to flat pixels.
fn held(format: Format, file: u64, size: Size, color: ColorType, jpeg: JpegFacts, tables: u64) -> u64 {
    let area = size.area();
    let rows = WORKING_ROWS * 8 * (u64::from(size.width) + 64);
    let padded = |side: u32| (u64::from(side) + 1).next_multiple_of(64);
    let padded = padded(size.width) * padded(size.height);
    let decoding = match format {
        // Buffers of metadata grow by being copied.
        Format::Png => 2 * (file + PNG_METADATA_BYTES),
        // The file is copied, and its metadata; where it may take several scans, all coefficients are held.
        Format::Jpeg => 3 * file + if jpeg.holds_all { 2 * padded * u64::from(jpeg.components) } else { 0 },
        // Planes of a lossy frame, its alpha as four values and as one, the frame, the canvas.
        Format::WebP => file + 12 * padded + tables,
        Format::Bmp => 0,
        Format::Gif => file + 4 * area,
    };
    let flat = if color == ColorType::Rgb8 { 0 } else { 3 * area };
    let buffer = u64::from(color.bytes_per_pixel()) * area;
    TABLE_BYTES + rows + buffer + decoding.max(flat)
}

/// Whether width and height change places.
fn turns(orientation: Orientation) -> bool {
    use Orientation::{Rotate90, Rotate90FlipH, Rotate270, Rotate270FlipH};
    matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)
}

fn oriented(pixels: Pixels, orientation: Orientation) -> Option<Pixels> {
    if orientation == Orientation::NoTransforms {
        return Some(pixels);
    }
    let Size { width, height } = pixels.size;
    let mut picture = DynamicImage::ImageRgb8(RgbImage::from_raw(width, height, pixels.rgb)?);
    picture.apply_orientation(orientation);
    let size = Size { width: picture.width(), height: picture.height() };
    Some(Pixels { size, rgb: picture.into_rgb8().into_raw() })
}

/// So many zeros, or an error where memory does not suffice.
fn room(bytes: u64) -> Result<Vec<u8>> {
    let short = || Error::new(Code::Limit, format!("picture: no memory for {bytes} bytes"));
    let bytes = usize::try_from(bytes).map_err(|_| short())?;
    let mut room = Vec::new();
    room.try_reserve_exact(bytes).map_err(|_| short())?;
    room.resize(bytes, 0);
    Ok(room)
}

fn broken(format: Format, what: impl fmt::Display) -> Error {
    Error::new(Code::Format, format!("picture ({format}): {what}"))
}

fn refused(format: Format, error: &ImageError) -> Error {
    let code = match error {
        ImageError::Limits(_) => Code::Limit,
        ImageError::Unsupported(_) => Code::Unsupported,
        _ => Code::Format,
    };
    let what = match error {
        ImageError::Limits(e) if matches!(e.kind(), LimitErrorKind::DimensionError) => {
            format!("sides may have {MAX_SIDE} pixels, the header says more")
        }
        ImageError::Limits(_) => "decoding needs more memory than the picture's size explains".to_string(),
        ImageError::Parameter(_) => "there is no picture in the file".to_string(),
        other => shown(other),
    };
    Error::new(code, format!("picture ({format}): {what}"))
}
