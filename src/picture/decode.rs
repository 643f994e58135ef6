//! temporary
use super::{Pixels, Size};
use crate::error::{Code, Error, Result};
pub struct Header {
    pub size: Size,
    pub bytes: u64,
}
fn bad(e: image::ImageError) -> Error {
    Error::new(Code::Format, e.to_string())
}
pub fn header(file: &[u8]) -> Result<Header> {
    let (width, height) = image::ImageReader::new(std::io::Cursor::new(file))
        .with_guessed_format()
        .unwrap()
        .into_dimensions()
        .map_err(bad)?;
    Ok(Header { size: Size { width, height }, bytes: 0 })
}
pub fn decode(file: &[u8]) -> Result<Pixels> {
    let image = image::load_from_memory(file).map_err(bad)?.to_rgb8();
    Ok(Pixels { size: Size { width: image.width(), height: image.height() }, rgb: image.into_raw() })
}
pub fn check_rgb(data: &[u8], size: Size, stride: usize) -> Result<()> {
    rgb(data, size, stride).map(|_| ())
}
pub fn rgb(data: &[u8], size: Size, stride: usize) -> Result<Pixels> {
    let rgb = data
        .chunks(stride)
        .take(size.height as usize)
        .flat_map(|l| l[..3 * size.width as usize].iter().copied())
        .collect();
    Ok(Pixels { size, rgb })
}
