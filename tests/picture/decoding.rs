//! Every format and kind of pixel, as it must come out.

use crate::files::{encoded, exif, png, sample, segment, stored, webp, with_segment, written};
use crate::formula::{alpha, data, each, grey, rgb, rgba, size, value};
use image::ExtendedColorType;
use lfm3::error::Code;
use lfm3::picture::decode::{self, Format, decode, header};
use lfm3::picture::{Pixels, Size};

const SIZES: [(u32, u32); 5] = [(1, 1), (97, 61), (33, 100), (256, 3), (2, 300)];

/// A value seen through alpha on white: half rounds up.
fn on_white(value: u8, alpha: u8) -> u8 {
    let exact = (f64::from(value) * f64::from(alpha) + 255.0 * (255.0 - f64::from(alpha))) / 255.0;
    (exact + 0.5).floor() as u8
}

/// Decodes, and holds the header to what comes out.
fn decoded(file: &[u8], format: Format) -> Pixels {
    let header = header(file).unwrap();
    let pixels = decode(file).unwrap();
    assert_eq!((header.format, header.size), (format, pixels.size));
    assert!(header.bytes >= pixels.rgb.len() as u64);
    pixels
}

#[test]
fn lossless_formats_give_the_picture_back() {
    for (width, height) in SIZES {
        let size = size(width, height);
        for format in [Format::Png, Format::Bmp, Format::WebP] {
            let file = encoded(format, &rgb(size).rgb, size, ExtendedColorType::Rgb8);
            assert_eq!(decoded(&file, format), rgb(size), "{format}");
        }
        let file = encoded(Format::Png, &grey(size), size, ExtendedColorType::L8);
        let expected = each(size, |x, y| [value(x, y, 0, 0); 3]);
        assert_eq!(decoded(&file, Format::Png).rgb, expected);
    }
}

#[test]
fn alpha_is_composited_onto_white() {
    let white = |x, y| [0, 1, 2].map(|c| on_white(value(x, y, c, 0), alpha(x, y)));
    for (width, height) in SIZES {
        let size = size(width, height);
        for format in [Format::Png, Format::Bmp, Format::WebP] {
            let file = encoded(format, &rgba(size), size, ExtendedColorType::Rgba8);
            assert_eq!(decoded(&file, format).rgb, each(size, white), "{format}");
        }
        let pixels = each(size, |x, y| [value(x, y, 0, 0), alpha(x, y)]);
        let file = encoded(Format::Png, &pixels, size, ExtendedColorType::La8);
        assert_eq!(decoded(&file, Format::Png).rgb, each(size, |x, y| [white(x, y)[0]; 3]));
    }
    // Every value through every alpha.
    let all = size(256, 256);
    let file = encoded(Format::Png, &each(all, |x, y| [x as u8, y as u8]), all, ExtendedColorType::La8);
    assert_eq!(decode(&file).unwrap().rgb, each(all, |x, y| [on_white(x as u8, y as u8); 3]));
}

#[test]
fn of_sixteen_bits_the_higher_eight_are_kept() {
    let size = size(61, 9);
    let low = |x: u32, y: u32| (31 * x + 3 * y) as u8;
    let wide = |v: u8, x, y| u16::from_be_bytes([v, low(x, y)]).to_ne_bytes();
    let v = |x, y, c| value(x, y, c, 0);
    let file = |pixels: &[u8], kind| encoded(Format::Png, pixels, size, kind);

    let one = each(size, |x, y| wide(v(x, y, 0), x, y));
    let expected = each(size, |x, y| [v(x, y, 0); 3]);
    assert_eq!(decoded(&file(&one, ExtendedColorType::L16), Format::Png).rgb, expected);

    let three = each(size, |x, y| <[u8; 6]>::try_from([0, 1, 2].map(|c| wide(v(x, y, c), x, y)).concat()).unwrap());
    assert_eq!(decoded(&file(&three, ExtendedColorType::Rgb16), Format::Png), rgb(size));

    let with_alpha = |x, y| [v(x, y, 0), v(x, y, 1), v(x, y, 2), alpha(x, y)].map(|v| wide(v, x, y));
    let four = each(size, |x, y| <[u8; 8]>::try_from(with_alpha(x, y).concat()).unwrap());
    let expected = each(size, |x, y| [0, 1, 2].map(|c| on_white(v(x, y, c), alpha(x, y))));
    assert_eq!(decoded(&file(&four, ExtendedColorType::Rgba16), Format::Png).rgb, expected);

    let two = each(size, |x, y| {
        let (value, alpha) = (wide(v(x, y, 0), x, y), wide(alpha(x, y), x, y));
        [value[0], value[1], alpha[0], alpha[1]]
    });
    let expected = each(size, |x, y| [on_white(v(x, y, 0), alpha(x, y)); 3]);
    assert_eq!(decoded(&file(&two, ExtendedColorType::La16), Format::Png).rgb, expected);
}

#[test]
fn few_bits_are_spread_over_eight() {
    // One row of the values 0 to 3, two bits each, after the row's filter byte.
    let file = png(4, 1, 2, 0, &[], &stored(&[0, 0b00_01_10_11]));
    assert_eq!(decode(&file).unwrap().rgb, [0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255]);
    let file = png(8, 1, 1, 0, &[], &stored(&[0, 0b1011_0010]));
    let grey: Vec<u8> = decode(&file).unwrap().rgb.chunks(3).map(|p| p[0]).collect();
    assert_eq!(grey, [255, 0, 255, 255, 0, 0, 255, 0]);
}

/// Column and row of the 48 x 40 pictures made elsewhere.
const MADE: Size = Size { width: 48, height: 40 };

/// The palette of the pictures made elsewhere.
fn few(x: u32, y: u32) -> [u8; 3] {
    let i = (x / 3 + y / 5) % 16;
    [16 * i, 255 - 16 * i, (40 * i) % 256].map(|v| v as u8)
}

fn smooth(x: u32, y: u32) -> [u8; 3] {
    [5 * x, 6 * y, 255 - 2 * x - 3 * y].map(|v| v as u8)
}

#[test]
fn palettes_become_rgb_and_a_clear_colour_white() {
    assert_eq!(decoded(&data("palette.bmp"), Format::Bmp).rgb, each(MADE, few));
    let clear = |x: u32, y: u32| if (x / 3 + y / 5) % 16 == 5 { [255; 3] } else { few(x, y) };
    assert_eq!(decoded(&data("palette.png"), Format::Png).rgb, each(MADE, clear));
}

#[test]
fn of_animations_the_first_frame_is_taken() {
    assert_eq!(decoded(&data("animated.gif"), Format::Gif).rgb, each(MADE, few));
    assert_eq!(decoded(&data("animated.webp"), Format::WebP).rgb, each(MADE, smooth));
}

#[test]
fn a_gif_frame_lies_on_its_canvas_which_is_white() {
    let mut file = sample(Format::Gif);
    let inside = decode(&file).unwrap();
    // A larger screen, and the frame at column 5, row 3.
    file[6..10].copy_from_slice(&[40, 0, 30, 0]);
    let at = file.windows(5).position(|w| w == [0x2c, 0, 0, 0, 0]).unwrap();
    file[at + 1..at + 5].copy_from_slice(&[5, 0, 3, 0]);
    let canvas = decoded(&file, Format::Gif);
    assert_eq!(canvas.size, size(40, 30));
    let (w, h) = (inside.size.width, inside.size.height);
    let expected = each(size(40, 30), |x, y| match (x.checked_sub(5), y.checked_sub(3)) {
        (Some(x), Some(y)) if x < w && y < h => {
            let at = 3 * (y * w + x) as usize;
            [inside.rgb[at], inside.rgb[at + 1], inside.rgb[at + 2]]
        }
        _ => [255; 3],
    });
    assert_eq!(canvas.rgb, expected);
}

/// Largest and mean difference to the pixels another decoder gave.
fn difference(name: &str, expected: &str, format: Format) -> (u8, f64) {
    let (found, expected) = (decoded(&data(name), format), decode(&data(expected)).unwrap());
    assert_eq!(found.size, expected.size, "{name}");
    let off: Vec<u8> = found.rgb.iter().zip(&expected.rgb).map(|(a, b)| a.abs_diff(*b)).collect();
    let mean = off.iter().map(|d| f64::from(*d)).sum::<f64>() / off.len() as f64;
    (off.into_iter().max().unwrap(), mean)
}

#[test]
fn lossy_formats_come_near_another_decoder() {
    // Decoders round the inverse transform and the colours in ways of their own: two steps. Where colour is stored at
    // half the size they also fill in differently.
    let near = [
        ("baseline.jpg", "baseline.png", Format::Jpeg, 2, 0.05),
        ("progressive.jpg", "progressive.png", Format::Jpeg, 2, 0.05),
        ("grey.jpg", "grey.png", Format::Jpeg, 1, 0.05),
        ("cmyk.jpg", "cmyk.png", Format::Jpeg, 1, 0.05),
        ("halved.jpg", "halved.png", Format::Jpeg, 4, 0.4),
        ("lossy.webp", "lossy.png", Format::WebP, 1, 0.05),
    ];
    for (name, expected, format, largest, mean) in near {
        let found = difference(name, expected, format);
        assert!(found.0 <= largest && found.1 <= mean, "{name}: off by {found:?}");
    }
    let other = difference("baseline.jpg", "grey.png", Format::Jpeg);
    assert!(other.0 > 50, "{other:?}");
}

/// Where the pixel at a column and row of the upright picture is stored.
fn stored_at(orientation: u16, stored: Size, x: u32, y: u32) -> (u32, u32) {
    let (right, below) = (stored.width - 1, stored.height - 1);
    match orientation {
        2 => (right - x, y),
        3 => (right - x, below - y),
        4 => (x, below - y),
        5 => (y, x),
        6 => (y, below - x),
        7 => (right - y, below - x),
        8 => (right - y, x),
        _ => (x, y),
    }
}

fn upright(stored: &Pixels, orientation: u16) -> Pixels {
    let Size { width, height } = stored.size;
    let size = if (5..=8).contains(&orientation) { size(height, width) } else { stored.size };
    let rgb = each(size, |x, y| {
        let (x, y) = stored_at(orientation, stored.size, x, y);
        let at = 3 * (y * width + x) as usize;
        [stored.rgb[at], stored.rgb[at + 1], stored.rgb[at + 2]]
    });
    Pixels { size, rgb }
}

#[test]
fn pictures_are_turned_as_exif_says() {
    let jpeg = data("baseline.jpg");
    let plain = decode(&jpeg).unwrap();
    for orientation in 0..=9 {
        let expected = upright(&plain, orientation);
        for big in [false, true] {
            let app = [b"Exif\0\0".to_vec(), exif(orientation, big)].concat();
            let file = with_segment(&jpeg, &segment(0xe1, &app));
            assert_eq!(decoded(&file, Format::Jpeg), expected, "{orientation}");
        }
        let small = size(7, 4);
        let turned = upright(&rgb(small), orientation);
        let mut file = written(small, "rgb");
        let chunk = crate::files::chunk(b"eXIf", &exif(orientation, true));
        file.splice(33..33, chunk);
        assert_eq!(decoded(&file, Format::Png), turned, "{orientation}");
        let inner = encoded(Format::WebP, &rgb(small).rgb, small, ExtendedColorType::Rgb8)[20..].to_vec();
        let head = vec![8, 0, 0, 0, 6, 0, 0, 3, 0, 0];
        let file = webp(&[(b"VP8X", head), (b"VP8L", inner), (b"EXIF", exif(orientation, false))]);
        assert_eq!(decoded(&file, Format::WebP), turned, "{orientation}");
    }
    assert_ne!(upright(&plain, 6), upright(&plain, 8));
}

#[test]
fn raw_pixels_are_taken_row_by_row() {
    let (size, stride) = (size(5, 3), 21);
    let mut data = vec![99; 2 * stride + 15];
    for (y, row) in rgb(size).rgb.chunks(15).enumerate() {
        data[y * stride..y * stride + 15].copy_from_slice(row);
    }
    assert_eq!(decode::rgb(&data, size, stride).unwrap(), rgb(size));
    assert_eq!(decode::rgb(&rgb(size).rgb, size, 15).unwrap(), rgb(size));
}

#[test]
fn raw_pixels_that_do_not_fit_are_refused() {
    let data = vec![0; 45];
    let refused = |width, height, stride, code| {
        let error = decode::rgb(&data, size(width, height), stride).unwrap_err();
        assert_eq!(error.code, code, "{error}");
        assert!(error.message.len() > 20);
    };
    refused(5, 3, 14, Code::InvalidArgument);
    refused(5, 3, 16, Code::InvalidArgument);
    refused(5, 4, 15, Code::InvalidArgument);
    refused(0, 3, 15, Code::InvalidArgument);
    refused(5, 0, 15, Code::InvalidArgument);
    refused(5, 3, usize::MAX, Code::InvalidArgument);
    refused(5, 3, usize::MAX / 2, Code::InvalidArgument);
    refused(u32::MAX, u32::MAX, usize::MAX, Code::Limit);
    refused(65_535, 65_535, usize::MAX, Code::Limit);
    refused(65_536, 1, usize::MAX, Code::Limit);
    assert!(decode::rgb(&data, size(5, 3), 15).is_ok());
}
