//! Broken and malicious files: a status with a message, in bounded time and memory.

use crate::files::{FORMATS, chunk, claiming, encoded, png, sample, segment, stored, webp, with_segment};
use crate::formula::{data, rgb, size};
use crate::memory::peak;
use crate::rng::Rng;
use image::ExtendedColorType;
use lfm3::error::Code;
use lfm3::picture::decode::{Format, MAX_FILE_BYTES, MAX_PIXELS, decode, header};
use lfm3::picture::{MAX_SIDE, Pixels};
use std::time::{Duration, Instant};

/// Longest time a file may take on a busy machine.
const MOST_TIME: Duration = Duration::from_secs(20);
/// Most bytes for reading a header, besides four times the file's length.
const HEADER_BYTES: u64 = 6 << 20;
/// Pixels up to which the flips' tests decode; headers that claim more are only read.
const DECODED_PIXELS: u64 = 1 << 22;

/// Reads the file and holds it to its bounds; the error's code where there is one.
fn check(file: &[u8], most_pixels: u64, what: &str) -> Result<Option<Pixels>, Code> {
    let start = Instant::now();
    let (head, held) = peak(|| header(file));
    assert!(held <= HEADER_BYTES + 4 * file.len() as u64, "{what}: {held} bytes for the header");
    let head = match head {
        Ok(head) => head,
        Err(error) => {
            assert!(error.message.len() > 20, "{what}: {error}");
            let (again, held) = peak(|| decode(file));
            assert_eq!(again.unwrap_err().code, error.code, "{what}");
            assert!(held <= HEADER_BYTES + 4 * file.len() as u64, "{what}: {held} bytes for nothing");
            return Err(error.code);
        }
    };
    assert!(
        head.size.area() > 0 && head.size.area() <= MAX_PIXELS && head.size.width.max(head.size.height) <= MAX_SIDE
    );
    if head.size.area() > most_pixels {
        return Ok(None);
    }
    let (result, held) = peak(|| decode(file));
    assert!(held <= head.bytes, "{what}: {held} bytes held, {} told", head.bytes);
    assert!(start.elapsed() < MOST_TIME, "{what}: {:?}", start.elapsed());
    match result {
        Ok(pixels) => {
            assert!(pixels.size == head.size && pixels.rgb.len() as u64 == 3 * head.size.area(), "{what}");
            Ok(Some(pixels))
        }
        Err(error) => {
            assert!(error.message.len() > 20, "{what}: {error}");
            Err(error.code)
        }
    }
}

/// Files of every format, by several encoders.
fn files() -> Vec<(String, Vec<u8>)> {
    let made = [
        "baseline.jpg",
        "halved.jpg",
        "progressive.jpg",
        "grey.jpg",
        "cmyk.jpg",
        "lossy.webp",
        "palette.png",
        "palette.bmp",
        "animated.gif",
        "animated.webp",
    ];
    let small = size(12, 9);
    let wide = encoded(Format::Png, &[7; 12 * 9 * 8], small, ExtendedColorType::Rgba16);
    let clear = encoded(Format::WebP, &[9; 12 * 9 * 4], small, ExtendedColorType::Rgba8);
    let samples = FORMATS.iter().map(|format| (format.to_string(), sample(*format)));
    let made = made.iter().map(|name| (name.to_string(), data(name)));
    samples.chain(made).chain([("16 bits".into(), wide), ("clear WebP".into(), clear)]).collect()
}

#[test]
fn files_cut_at_any_byte_are_refused_or_whole() {
    for (name, file) in files() {
        let whole = decode(&file).unwrap();
        let mut good = 0;
        for length in 0..file.len() {
            if let Ok(Some(found)) = check(&file[..length], u64::MAX, &format!("{name} cut to {length}")) {
                assert_eq!(found, whole, "{name} cut to {length}");
                good += 1;
            }
        }
        // What comes after the pixels may be missing: an end mark, padding, further frames.
        let after = if name.starts_with("animated") { file.len() / 2 } else { 24 };
        assert!(good <= after, "{name}: {good} of {}", file.len());
    }
}

/// A PNG's checksums made right again, so that what was changed is looked at.
fn repaired(file: &[u8]) -> Vec<u8> {
    let mut out = file[..8.min(file.len())].to_vec();
    let mut rest = &file[out.len()..];
    while rest.len() >= 12 {
        let length = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        if length > rest.len() - 12 {
            break;
        }
        out.extend(chunk(&[rest[4], rest[5], rest[6], rest[7]], &rest[8..8 + length]));
        rest = &rest[12 + length..];
    }
    [out, rest.to_vec()].concat()
}

#[test]
fn flipped_bytes_never_break_more_than_the_picture() {
    for (name, file) in files() {
        let mut rng = Rng(file.len() as u64);
        let (mut refused, mut read) = (0, 0);
        for round in 0..2000 {
            let mut bytes = file.clone();
            for _ in 0..1 + rng.below(3) {
                let at = rng.below(bytes.len());
                bytes[at] ^= 1 + rng.below(255) as u8;
            }
            if name.contains("palette.png") || name == "PNG" || (name == "16 bits" && round % 2 == 0) {
                bytes = repaired(&bytes);
            }
            match check(&bytes, DECODED_PIXELS, &format!("{name}, round {round}")) {
                Ok(_) => read += 1,
                Err(_) => refused += 1,
            }
        }
        println!("{name}: {refused} refused, {read} read");
        assert!(refused > 0 && refused + read == 2000, "{name}");
    }
}

#[test]
fn headers_that_claim_too_much_are_refused_before_any_pixel() {
    for format in FORMATS {
        for (width, height) in [(65_535, 65_535), (65_535, 2049), (2049, 65_535)] {
            let (result, held) = peak(|| header(&claiming(format, width, height)));
            assert_eq!(result.unwrap_err().code, Code::Limit, "{format}");
            assert!(held < HEADER_BYTES, "{format}: {held}");
            check(&claiming(format, width, height), u64::MAX, "too large").unwrap_err();
        }
        assert!(header(&claiming(format, 200, 100)).is_ok(), "{format}");
    }
    for side in [65_536, 1 << 24, u32::MAX] {
        for format in [Format::Png, Format::Bmp] {
            for (width, height) in [(side, 1), (1, side)] {
                let _ = check(&claiming(format, width, height), 1 << 20, "long side");
                let found = header(&claiming(format, width, height)).map(|head| head.size);
                // A BMP's height below zero means that rows go downwards.
                let down = format == Format::Bmp && found.as_ref().is_ok_and(|s| *s == size(1, 1));
                assert!(found.is_err() || down, "{format} {width} x {height}: {found:?}");
            }
        }
    }
}

#[test]
fn sizes_of_zero_are_refused() {
    for format in FORMATS {
        for (width, height) in [(0, 5), (5, 0), (0, 0)] {
            check(&claiming(format, width, height), u64::MAX, &format!("{format} {width} x {height}")).unwrap_err();
        }
    }
    let mut lossy = data("lossy.webp");
    let at = lossy.windows(3).position(|w| w == [0x9d, 0x01, 0x2a]).unwrap() + 3;
    lossy[at..at + 2].fill(0);
    assert_eq!(check(&lossy, u64::MAX, "lossy WebP").unwrap_err(), Code::Format);
}

#[test]
fn what_is_no_picture_is_refused_by_name() {
    for file in [&b""[..], b"B", b"hello, world", b"II*\0\x08\0\0\0", b"RIFF\x10\0\0\0WAVEfmt ", &[0; 64]] {
        let error = decode(file).unwrap_err();
        assert_eq!(error.code, Code::Unsupported);
        assert!(error.message.contains("expected a PNG, JPEG, WebP, BMP or GIF"), "{error}");
    }
    let mut long = vec![0; MAX_FILE_BYTES + 1];
    long[..6].copy_from_slice(b"GIF89a");
    let (result, held) = peak(|| decode(&long));
    assert_eq!(result.unwrap_err().code, Code::Limit);
    assert!(held < 1000);
}

#[test]
fn kinds_of_jpeg_that_are_not_read_are_refused_by_name() {
    let file = data("baseline.jpg");
    let at = file.windows(2).position(|pair| pair == [0xff, 0xc0]).unwrap();
    // Lossless, hierarchical, arithmetic.
    for kind in [0xc3, 0xc5, 0xc9, 0xca, 0xcb] {
        let mut file = file.clone();
        file[at + 1] = kind;
        let code = check(&file, u64::MAX, &format!("SOF {kind:x}")).unwrap_err();
        assert!(matches!(code, Code::Format | Code::Unsupported), "{kind:x}");
    }
    // Twelve bits, and five colours.
    for (place, value) in [(4, 12), (9, 5)] {
        let mut file = file.clone();
        file[at + place] = value;
        check(&file, u64::MAX, "odd header").unwrap_err();
    }
}

/// Bits, the first in the lowest place of a byte.
#[derive(Default)]
struct Bits {
    bytes: Vec<u8>,
    used: usize,
}

impl Bits {
    fn put(&mut self, value: u32, count: usize) {
        for i in 0..count {
            if self.used.is_multiple_of(8) {
                self.bytes.push(0);
            }
            *self.bytes.last_mut().unwrap() |= ((value >> i & 1) as u8) << (self.used % 8);
            self.used += 1;
        }
    }
}

/// A zlib stream of about `count` zeros, 158 of them a byte.
fn zeros(count: usize) -> Vec<u8> {
    let mut bits = Bits::default();
    bits.put(0x0178, 16);
    // One last block of fixed codes; a zero, then runs of 258 that copy the byte before.
    bits.put(0b011, 3);
    bits.put(0b0000_1100, 8);
    for _ in 0..count / 258 {
        bits.put(0b1010_0011, 8);
        bits.put(0, 5);
    }
    bits.put(0, 7);
    let mut out = bits.bytes;
    out.extend((((count / 258 * 258 + 1) % 65_521) as u32).wrapping_shl(16).wrapping_add(1).to_be_bytes());
    out
}

#[test]
fn a_png_of_nothing_but_zeros_takes_what_it_says() {
    // The bomb is a good file as long as it is what its header says.
    let row = 3 * 4000 + 1;
    let file = png(4000, 3000, 8, 2, &[], &zeros(row * 3000 + 258));
    assert!(file.len() < 300_000);
    let found = check(&file, u64::MAX, "zeros").unwrap().unwrap();
    assert!(found.rgb.iter().all(|v| *v == 0));
}

#[test]
fn bombs_do_not_go_off() {
    let gigabyte = zeros(1 << 30);
    let with = |kind: &[u8; 4], begin: &[u8]| {
        let chunk = chunk(kind, &[begin, &gigabyte].concat());
        png(2, 2, 8, 2, &[chunk], &stored(&[0; 14]))
    };
    let bomb = |what, file: &[u8]| check(file, u64::MAX, what).map(|pixels| pixels.map(|pixels| pixels.size));
    // More pixels than the size has, and a profile: both are left packed. A text of megabytes is too long even so.
    assert_eq!(bomb("pixels", &png(16, 16, 8, 2, &[], &gigabyte)), Ok(Some(size(16, 16))));
    assert_eq!(bomb("profile", &with(b"iCCP", b"a\0\0")), Ok(Some(size(2, 2))));
    assert_eq!(bomb("text", &with(b"zTXt", b"a\0\0")), Err(Code::Limit));
    // Nearly nothing behind a large size; a JPEG's decoder makes grey of it.
    for format in FORMATS {
        let expected = if format == Format::Jpeg { Ok(Some(size(11_000, 3_000))) } else { Err(Code::Format) };
        assert_eq!(bomb("large and empty", &claiming(format, 11_000, 3_000)), expected, "{format}");
    }
    let progressive = data("progressive.jpg");
    let at = progressive.windows(2).position(|pair| pair == [0xff, 0xc2]).unwrap() + 5;
    let mut large = progressive.clone();
    large[at..at + 4].copy_from_slice(&[0x10, 0, 0x10, 0]);
    assert_eq!(bomb("large progressive", &large), Ok(Some(size(4096, 4096))));
    // The same scan again and again: over all pixels that may be scanned, and over the decoder's own limit.
    let scan = progressive.windows(2).position(|pair| pair == [0xff, 0xda]).unwrap();
    let end = scan + 2 + progressive[scan + 2..].windows(2).position(|p| p[0] == 0xff && p[1] >= 0xc0).unwrap();
    let again = |file: &[u8], count| [&file[..end], &progressive[scan..end].repeat(count), &file[end..]].concat();
    let refused = decode(&again(&large, 200)).unwrap_err();
    assert!(refused.code == Code::Limit && refused.message.contains("scans"), "{refused}");
    assert_eq!(check(&again(&progressive, 2000), u64::MAX, "many scans").unwrap_err(), Code::Format);
    assert!(check(&again(&progressive, 10), u64::MAX, "some scans").is_ok());
}

#[test]
fn frames_that_their_canvas_does_not_hold_are_refused() {
    let mut gif = sample(Format::Gif);
    let frame = gif.windows(5).position(|w| w == [0x2c, 0, 0, 0, 0]).unwrap() + 5;
    gif[frame..frame + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    assert_eq!(check(&gif, u64::MAX, "GIF").unwrap_err(), Code::Limit);

    let mut frame = data("lossy.webp")[20..].to_vec();
    frame[6..10].copy_from_slice(&[0xff, 0x3f, 0xff, 0x3f]);
    let canvas = vec![0; 10];
    let file = webp(&[(b"VP8X", canvas), (b"VP8 ", frame.clone())]);
    assert_eq!(check(&file, u64::MAX, "WebP").unwrap_err(), Code::Format);
    let inner = webp(&[(b"VP8 ", frame)])[12..].to_vec();
    let moving = [vec![0; 16], inner].concat();
    let head = vec![2, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let file = webp(&[(b"VP8X", head), (b"ANIM", vec![0; 6]), (b"ANMF", moving)]);
    assert_eq!(check(&file, u64::MAX, "moving WebP").unwrap_err(), Code::Format);
}

/// A lossless WebP of one pixel with `groups` groups of code tables, each as large as few bits can make it.
fn tables(groups: u32) -> Vec<u8> {
    let mut bits = Bits::default();
    bits.put(0x2f, 8);
    bits.put(0, 14);
    bits.put(0, 14);
    // No alpha, version 0, no transform, no colour cache; codes for parts of the picture, of the least size.
    bits.put(0, 1 + 3 + 1 + 1);
    bits.put(1, 1);
    bits.put(0, 3);
    // Which codes: one pixel without colour cache, whose red and green name the last group. One symbol for each value.
    bits.put(0, 1);
    for value in [(groups - 1) & 0xff, (groups - 1) >> 8, 0, 0, 0] {
        bits.put(0b101, 3);
        bits.put(value, 8);
    }
    for _ in 0..5 * groups {
        // Code lengths 1 to 10 and 10 again. They are coded themselves, 1 to 6 in three bits and 7 to 10 in four; how
        // is said in an order of its own, which begins 17, 18, 0, 1 to 5, 16, 6 to 10.
        bits.put(0, 1);
        bits.put(10, 4);
        for length in [0, 0, 0, 3, 3, 3, 3, 3, 0, 3, 4, 4, 4, 4] {
            bits.put(length, 3);
        }
        // Eleven symbols: two more than nine, in four bits.
        bits.put(1, 1);
        bits.put(1, 3);
        bits.put(9, 4);
        for length in [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 10] {
            let (code, count) = if length <= 6 { (length - 1, 3) } else { (length + 5, 4) };
            (0..count).rev().for_each(|bit| bits.put(code >> bit & 1, 1));
        }
    }
    bits.put(0, 32);
    webp(&[(b"VP8L", bits.bytes)])
}

#[test]
fn code_tables_are_counted_before_they_are_made() {
    let file = tables(2000);
    let told = header(&file).unwrap().bytes;
    let (result, held) = peak(|| decode(&file));
    assert_eq!(result.unwrap().size, size(1, 1));
    // The bomb is one: it would hold far more than a picture of its length should.
    assert!(held > 300 * file.len() as u64 && held <= told, "{held} held, {told} told");
}

#[test]
fn broken_metadata_leaves_the_picture_readable() {
    let jpeg = data("baseline.jpg");
    let whole = decode(&jpeg).unwrap();
    let mut rng = Rng(5);
    for length in 0..200 {
        let noise: Vec<u8> = (0..length).map(|_| rng.bits() as u8).collect();
        let app = [b"Exif\0\0MM\0*".to_vec(), noise].concat();
        let found = decode(&with_segment(&jpeg, &segment(0xe1, &app))).unwrap();
        assert_eq!(found.size.area(), whole.size.area());
    }
}

#[test]
fn many_colours_and_many_frames_make_no_difference() {
    // A palette of 256 colours for a few pixels, and a thousand frames behind the first.
    let small = size(5, 4);
    let mut file = encoded(Format::Gif, &rgb(small).rgb, small, ExtendedColorType::Rgb8);
    let first = decode(&file).unwrap();
    let frame = file.windows(5).position(|w| w == [0x2c, 0, 0, 0, 0]).unwrap();
    let frames = file[frame..file.len() - 1].repeat(1000);
    let end = file.len() - 1;
    file.splice(end..end, frames);
    assert_eq!(check(&file, u64::MAX, "frames").unwrap().unwrap(), first);
    let palette = chunk(b"PLTE", &[5; 768]);
    let file = png(3, 1, 8, 3, &[palette], &stored(&[0, 0, 255, 7]));
    assert_eq!(check(&file, u64::MAX, "palette").unwrap().unwrap().rgb, [5; 9]);
    // A colour that the palette does not have.
    let file = png(3, 1, 8, 3, &[chunk(b"PLTE", &[5; 3])], &stored(&[0, 0, 255, 7]));
    let _ = check(&file, u64::MAX, "palette");
}
