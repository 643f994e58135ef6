//! The processor against sums of the reference's pixel values, bit for bit.

use crate::files::written;
use crate::formula::{data, frame, patches, picture_config, resize, rgb, shared, size, sum, video_config};
use lfm3::error::Error;
use lfm3::picture::config::PictureConfig;
use lfm3::picture::decode::decode;
use lfm3::picture::video::pairs;
use lfm3::picture::{Pixels, Size};
use serde::Deserialize;

/// One row of pixels.json.
#[derive(Deserialize)]
pub struct Row {
    pub processor: String,
    pub kind: String,
    pub width: u32,
    pub height: u32,
    pub total: Option<usize>,
    pub fps: Option<f64>,
    pub frames: Option<Vec<usize>>,
    pub times: Option<Vec<String>>,
    pub grid_thw: Option<[u32; 3]>,
    pub sha256: Option<String>,
    pub error: Option<String>,
}

/// All rows that the repository ships, which are all there are.
pub fn rows() -> Vec<Row> {
    let rows: Vec<Row> = serde_json::from_slice(&data("pixels.json")).unwrap();
    assert_eq!(rows.len(), 56);
    rows
}

/// What the processor makes of a picture: its grid and the sum of its values.
pub fn processed(config: &PictureConfig, pixels: &Pixels) -> Result<([u32; 3], String), Error> {
    let to = config.resized(pixels.size)?;
    let resized = resize(pixels, to);
    let grid = config.grid(to);
    assert_eq!(grid.len(), config.tokens(to) * 4);
    Ok(([1, grid.rows, grid.cols], sum(&patches(config, [&resized, &resized], grid))))
}

/// The picture of a row; one with alpha or of grey as a file that is decoded.
fn picture(row: &Row) -> Pixels {
    let size = size(row.width, row.height);
    match row.kind.as_str() {
        "rgb" => rgb(size),
        kind => decode(&written(size, kind)).unwrap(),
    }
}

fn check(row: &Row, found: Result<([u32; 3], String), Error>) {
    let what = format!("{} {} {} x {}", row.processor, row.kind, row.width, row.height);
    match (&row.error, found) {
        (None, Ok((grid, sum))) => {
            assert_eq!(Some(grid), row.grid_thw, "{what}");
            assert_eq!(Some(sum), row.sha256, "{what}");
        }
        (Some(expected), Err(found)) => assert!(found.message.len() > 20, "{what}: {expected}, {found}"),
        (expected, found) => panic!("{what}: expected {expected:?}, found {found:?}"),
    }
}

#[test]
fn every_picture_has_the_references_bits() {
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.kind != "clip").collect();
    assert_eq!(rows.len(), 44);
    assert_eq!(rows.iter().filter(|row| row.error.is_some()).count(), 4);
    for row in &rows {
        check(row, processed(&picture_config(&row.processor), &picture(row)));
    }
}

#[test]
fn every_clip_has_the_references_bits() {
    let config = video_config();
    let rows: Vec<Row> = rows().into_iter().filter(|row| row.kind == "clip").collect();
    assert_eq!(rows.len(), 12);
    for row in &rows {
        let (total, fps) = (row.total.unwrap(), row.fps.unwrap());
        let chosen = config.sample(total, fps).unwrap();
        let to = config.resized(chosen.len(), size(row.width, row.height));
        let found = to.map(|to| clip(&config.picture, &chosen, size(row.width, row.height), to));
        if row.error.is_none() {
            assert_eq!(Some(&chosen), row.frames.as_ref(), "{total} {fps}");
            let times: Vec<f64> = chosen.iter().map(|i| *i as f64 / fps).collect();
            let times: Vec<String> = pairs(&times).iter().map(|time| format!("{time:.1}")).collect();
            assert_eq!(Some(times), row.times, "{total} {fps}");
        }
        check(row, found);
    }
}

/// Grid and sum of a clip's chosen frames.
fn clip(config: &PictureConfig, chosen: &[usize], from: Size, to: Size) -> ([u32; 3], String) {
    let frames: Vec<Pixels> = chosen.iter().map(|t| resize(&frame(from, *t as u32), to)).collect();
    let grid = config.grid(to);
    let pairs = frames.chunks(2).map(|pair| [&pair[0], &pair[pair.len() - 1]]);
    let values: Vec<f32> = pairs.clone().flat_map(|pair| patches(config, pair, grid)).collect();
    ([pairs.len() as u32, grid.rows, grid.cols], sum(&values))
}

#[test]
fn the_rows_shipped_are_the_rows_shared() {
    let Some(shared) = shared() else { return };
    let theirs: Vec<Row> = serde_json::from_slice(&std::fs::read(shared.join("oracle/pixels.json")).unwrap()).unwrap();
    let key = |row: &Row| (row.processor.clone(), row.kind.clone(), row.width, row.height, row.total);
    let of = |rows: &[Row]| rows.iter().map(|row| (key(row), row.sha256.clone(), row.grid_thw)).collect::<Vec<_>>();
    assert_eq!(of(&rows()), of(&theirs));
}

/// A case whose pictures the reference read from files.
#[derive(Deserialize)]
struct Case {
    pictures: Vec<String>,
    grid_thw: Vec<[u32; 3]>,
    pixel_values_sha256: String,
}

fn check_case(case: &Case, file: impl Fn(&str) -> Vec<u8>) {
    let config = picture_config("demo");
    let (mut grids, mut values) = (Vec::new(), Vec::new());
    for name in &case.pictures {
        let pixels = decode(&file(name)).unwrap();
        let to = config.resized(pixels.size).unwrap();
        let (resized, grid) = (resize(&pixels, to), config.grid(to));
        grids.push([1, grid.rows, grid.cols]);
        values.extend(patches(&config, [&resized, &resized], grid));
    }
    assert_eq!(grids, case.grid_thw, "{:?}", case.pictures);
    assert_eq!(sum(&values), case.pixel_values_sha256, "{:?}", case.pictures);
}

#[test]
fn pictures_from_files_have_the_references_bits() {
    let cases: Vec<Case> = serde_json::from_slice(&data("cases.json")).unwrap();
    assert!(cases.len() >= 4 && cases.iter().any(|case| case.pictures.len() == 2));
    cases.iter().for_each(|case| check_case(case, data));
}

#[test]
fn shared_pictures_have_the_references_bits() {
    let Some(shared) = shared() else { return };
    let oracle = shared.join("oracle");
    let cases = std::fs::read(oracle.join("lfm3-vl-demo/cases.json")).unwrap();
    let cases: Vec<serde_json::Value> = serde_json::from_slice(&cases).unwrap();
    let mut seen = 0;
    for case in cases.into_iter().filter(|case| case["pixel_values_sha256"].is_string()) {
        let messages = case["messages"].as_array().unwrap();
        let parts = messages.iter().filter_map(|message| message["content"].as_array()).flatten();
        let pictures: Vec<String> = parts.filter_map(|part| part["path"].as_str()).map(str::to_string).collect();
        let grid_thw = serde_json::from_value(case["grid_thw"].clone()).unwrap();
        let pixel_values_sha256 = case["pixel_values_sha256"].as_str().unwrap().to_string();
        seen += pictures.len();
        check_case(&Case { pictures, grid_thw, pixel_values_sha256 }, |name| std::fs::read(oracle.join(name)).unwrap());
    }
    assert!(seen >= 7, "{seen} pictures");
}
