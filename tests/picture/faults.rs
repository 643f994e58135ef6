//! Faults that were seen elsewhere, planted here: the sums must notice each.

use crate::files::written;
use crate::formula::{patches, picture_config, resize, rgb, size, sum};
use crate::oracle::{Row, rows};
use crate::resizing::naive;
use lfm3::picture::config::PictureConfig;
use lfm3::picture::decode::decode;
use lfm3::picture::{Pixels, Size};

/// A row, its config, its picture, and the size that goes through the patches.
struct Case {
    row: Row,
    config: PictureConfig,
    pixels: Pixels,
    to: Size,
}

fn case(kind: &str, width: u32, height: u32) -> Case {
    let found = rows().into_iter().find(|r| (r.kind.as_str(), r.width, r.height) == (kind, width, height));
    let row = found.unwrap();
    let config = picture_config(&row.processor);
    let pixels = decode(&written(size(width, height), kind)).unwrap();
    let to = config.resized(pixels.size).unwrap();
    Case { row, config, pixels, to }
}

impl Case {
    /// The sum of a resized picture's values.
    fn sum(&self, resized: &Pixels) -> String {
        sum(&self.values(resized))
    }

    fn values(&self, resized: &Pixels) -> Vec<f32> {
        patches(&self.config, [resized, resized], self.config.grid(self.to))
    }

    fn right(&self, sum: String) -> bool {
        Some(sum) == self.row.sha256
    }
}

#[test]
fn no_antialias_is_noticed() {
    let case = case("rgb", 511, 513);
    let smaller = Case { config: picture_config("demo"), ..self::case("rgb", 640, 480) };
    // Only where pixels become fewer does it make a difference.
    let to = smaller.config.resized(smaller.pixels.size).unwrap();
    assert!(to.width < smaller.pixels.size.width);
    assert!(naive(&smaller.pixels, to, true) == resize(&smaller.pixels, to));
    assert!(naive(&smaller.pixels, to, false) != resize(&smaller.pixels, to));
    assert!(case.right(case.sum(&naive(&case.pixels, case.to, true))));
    assert!(!case.right(case.sum(&naive(&case.pixels, size(512, 512), false))));
}

#[test]
fn alpha_dropped_is_noticed() {
    let case = case("rgba", 90, 70);
    assert!(case.right(case.sum(&resize(&case.pixels, case.to))));
    assert!(!case.right(case.sum(&resize(&rgb(case.pixels.size), case.to))));
}

#[test]
fn normalization_in_two_steps_is_noticed() {
    let case = case("rgb", 97, 61);
    let resized = resize(&case.pixels, case.to);
    assert!(case.right(case.sum(&resized)));
    // The bytes come back exactly: a step is 2 / 255.
    let bytes = case.values(&resized).into_iter().map(|v| (v * 127.5 + 127.5).round());
    let (fused, stepped): (Vec<f32>, Vec<f32>) = bytes.map(|v| ((v - 127.5) / 127.5, (v / 255.0 - 0.5) / 0.5)).unzip();
    assert!(case.right(sum(&fused)));
    assert!(!case.right(sum(&stepped)));
    assert!(fused.iter().zip(&stepped).all(|(a, b)| (a - b).abs() < 1e-6));
}

#[test]
fn patches_in_raster_order_are_noticed() {
    let case = case("rgb", 97, 61);
    let resized = resize(&case.pixels, case.to);
    let (grid, width) = (case.config.grid(case.to), case.config.values());
    let values = case.values(&resized);
    let raster: Vec<f32> = (0..grid.rows)
        .flat_map(|row| (0..grid.cols).map(move |col| grid.index(row, col) * width))
        .flat_map(|at| values[at..at + width].to_vec())
        .collect();
    assert_eq!(raster.len(), values.len());
    assert!(case.right(sum(&values)) && !case.right(sum(&raster)));
}

#[test]
fn width_and_height_swapped_are_noticed() {
    let case = case("rgb", 48, 80);
    let swapped = case.config.resized(size(80, 48)).unwrap();
    assert_ne!(swapped, case.to);
    let resized = resize(&case.pixels, case.to);
    assert!(case.right(case.sum(&resized)));
    let turned = Pixels { size: size(resized.size.height, resized.size.width), rgb: resized.rgb };
    let grid = case.config.grid(swapped);
    assert!(!case.right(sum(&patches(&case.config, [&turned, &turned], grid))));
}

#[test]
fn another_filter_is_noticed() {
    let case = case("rgb", 300, 200);
    assert!(case.right(case.sum(&naive(&case.pixels, case.to, true))));
    // One step in one value is enough.
    let mut resized = resize(&case.pixels, case.to);
    resized.rgb[1000] ^= 1;
    assert!(!case.right(case.sum(&resized)));
}
