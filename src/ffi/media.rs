//! `lfm3_media`: a picture or a video as a host gives it.

use super::args::{self, Struct, invalid};
use super::guard;
use crate::error::{Code, Error, Result};
use crate::picture::Size;
use crate::picture::media::{Given, GivenFrame, MAX_VIDEO_FRAMES};

/// A picture as a file's bytes: PNG, JPEG, WebP, BMP or GIF, at most 128 MiB. Of an animation the first frame counts.
pub const LFM3_MEDIA_PICTURE: i32 = 1;
/// A picture as rows of red, green and blue, 8 bits each.
pub const LFM3_MEDIA_PICTURE_RGB: i32 = 2;
/// A video as frames, each a picture's file, one behind the other; all of one size in pixels.
pub const LFM3_MEDIA_VIDEO: i32 = 3;
/// A video as frames of rows of red, green and blue; all of one size in pixels.
pub const LFM3_MEDIA_VIDEO_RGB: i32 = 4;

/// Most media of one chat.
const MAX_MEDIA: usize = 4096;
/// Most bytes of one medium: 2 GiB, for frames of a video.
const MAX_MEDIA_BYTES: usize = i32::MAX as usize;

/// A picture or a video. Set by `lfm3_media_init`, then changed field by field. What it points to is copied during the
/// call that takes it. A picture, or a frame, has sides of at most 65,535 pixels, one at most 200 times the other, and
/// at most 134,217,728 pixels; a file's orientation (EXIF) is applied, and what is transparent becomes white.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lfm3_media {
    /// sizeof(lfm3_media).
    pub struct_size: u32,
    /// `LFM3_MEDIA_*`.
    pub kind: i32,
    /// The file, the rows, or all frames.
    pub data: *const u8,
    /// Bytes at `data`, below 2 GiB.
    pub data_len: usize,
    /// RGB: pixels of a row.
    pub width: u32,
    /// RGB: rows.
    pub height: u32,
    /// RGB: bytes from one row to the next; 0 is 3 x `width`.
    pub stride: usize,
    /// Videos: frames, 2 to 1,048,576. All that the video has: the library chooses among them as the checkpoint wants.
    pub frame_count: usize,
    /// `LFM3_MEDIA_VIDEO_RGB`: bytes from one frame to the next; 0 is `stride` x `height`.
    pub frame_stride: usize,
    /// `LFM3_MEDIA_VIDEO`: bytes of each frame's file, `frame_count` numbers.
    pub frame_sizes: *const usize,
    /// Videos: seconds of each frame from the video's start, `frame_count` numbers of 0 or more, none less than the one
    /// before; NULL where frame `i` is at `i / fps`.
    pub frame_times: *const f64,
    /// Videos: frames a second of the source. 0 with `frame_times`: their mean rate.
    pub fps: f64,
}

// SAFETY: `repr(C)` without padding, numbers and raw pointers only, begins with its size.
unsafe impl Struct for lfm3_media {
    const NAME: &'static str = "lfm3_media";
}

impl Default for lfm3_media {
    fn default() -> Self {
        lfm3_media {
            struct_size: size_of::<Self>() as u32,
            kind: LFM3_MEDIA_PICTURE,
            data: std::ptr::null(),
            data_len: 0,
            width: 0,
            height: 0,
            stride: 0,
            frame_count: 0,
            frame_stride: 0,
            frame_sizes: std::ptr::null(),
            frame_times: std::ptr::null(),
            fps: 0.0,
        }
    }
}

/// Writes the defaults into `media`: a picture's file, without data.
///
/// - `media`: where; `size`: sizeof(lfm3_media), which also sets `struct_size`.
/// - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_media_init(media: *mut lfm3_media, size: usize) -> i32 {
    // SAFETY: the host promises `size` bytes at `media`.
    guard::status(|| unsafe { args::init(media, size, lfm3_media::default()) })
}

/// An array of media; they are as far apart as the first one's `struct_size` says.
///
/// # Safety
/// `media` is NULL or valid for `count` structs of the size they state, and so is what they point to, while the result
/// is used.
pub(super) unsafe fn given_all<'a>(media: *const lfm3_media, count: usize) -> Result<Vec<Given<'a>>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    if count > MAX_MEDIA {
        return Err(Error::new(Code::Limit, format!("{count} media; the most is {MAX_MEDIA}")));
    }
    if media.is_null() {
        return Err(invalid(format!("the media are NULL, with {count} of them")));
    }
    // SAFETY: not NULL, and the first is valid for the size it states.
    let size = unsafe { args::struct_size(media)? };
    let one = |index: usize| {
        // SAFETY: the host's array has `count` structs of this size.
        let at = unsafe { media.cast::<u8>().add(index * size).cast::<lfm3_media>() };
        // SAFETY: as above.
        let found = unsafe { args::struct_size(at)? };
        if found != size {
            return Err(invalid(format!("media {index}: struct_size is {found}, of media 0 it is {size}")));
        }
        // SAFETY: the caller's promise is ours.
        let given = unsafe { given(at) };
        given.map_err(|error| Error::new(error.code, format!("media {index}: {}", error.message)))
    };
    (0..count).map(one).collect()
}

/// One medium.
///
/// # Safety
/// `media` is NULL or valid for the size it states, and so is what it points to, while the result is used.
pub(super) unsafe fn given<'a>(media: *const lfm3_media) -> Result<Given<'a>> {
    if media.is_null() {
        return Err(invalid("the medium is NULL"));
    }
    // SAFETY: not NULL, and valid for the size it states.
    let media = unsafe { args::read(media, lfm3_media::default())? };
    // SAFETY: the host promises `data_len` bytes.
    let data = unsafe { args::slice_up_to(media.data, media.data_len, MAX_MEDIA_BYTES, "data")? };
    if data.is_empty() {
        return Err(invalid("data_len is 0"));
    }
    match media.kind {
        LFM3_MEDIA_PICTURE => Ok(Given::Picture(GivenFrame::File(data))),
        LFM3_MEDIA_PICTURE_RGB => Ok(Given::Picture(rgb(&media, data)?)),
        LFM3_MEDIA_VIDEO | LFM3_MEDIA_VIDEO_RGB => {
            if media.frame_count == 0 || media.frame_count > MAX_VIDEO_FRAMES {
                let count = media.frame_count;
                return Err(invalid(format!("frame_count is {count}, expected 1 to {MAX_VIDEO_FRAMES}")));
            }
            let frames = if media.kind == LFM3_MEDIA_VIDEO {
                // SAFETY: the host promises `frame_count` numbers.
                let sizes = unsafe { args::slice(media.frame_sizes, media.frame_count, "frame_sizes")? };
                file_frames(data, sizes)?
            } else {
                rgb_frames(&media, data)?
            };
            // SAFETY: as above.
            let (times, fps) = unsafe { times(&media)? };
            Ok(Given::Video { frames, times, fps })
        }
        other => Err(invalid(format!("kind {other} is not LFM3_MEDIA_* of this version"))),
    }
}

/// Bytes from row to row.
fn stride(media: &lfm3_media) -> Result<usize> {
    let row = media.width as usize * 3;
    match media.stride {
        0 => Ok(row),
        stride if stride >= row => Ok(stride),
        stride => Err(invalid(format!("stride is {stride}, less than the {row} bytes of a row"))),
    }
}

fn rgb<'a>(media: &lfm3_media, data: &'a [u8]) -> Result<GivenFrame<'a>> {
    let size = Size { width: media.width, height: media.height };
    if media.width == 0 || media.height == 0 {
        return Err(invalid(format!("the picture is {} x {} pixels", media.width, media.height)));
    }
    Ok(GivenFrame::Rgb { data, size, stride: stride(media)? })
}

fn file_frames<'a>(data: &'a [u8], sizes: &[usize]) -> Result<Vec<GivenFrame<'a>>> {
    let mut rest = data;
    let mut frames = Vec::with_capacity(sizes.len());
    for (index, size) in sizes.iter().enumerate() {
        let Some((frame, later)) = rest.split_at_checked(*size) else {
            return Err(invalid(format!("frame_sizes[{index}] is {size}, but {} bytes of data are left", rest.len())));
        };
        frames.push(GivenFrame::File(frame));
        rest = later;
    }
    match rest.len() {
        0 => Ok(frames),
        left => Err(invalid(format!("{left} bytes of data are left behind the last frame"))),
    }
}

fn rgb_frames<'a>(media: &lfm3_media, data: &'a [u8]) -> Result<Vec<GivenFrame<'a>>> {
    let whole = stride(media)?.checked_mul(media.height as usize);
    let step = if media.frame_stride == 0 { whole } else { Some(media.frame_stride) };
    let start = |index: usize| step.and_then(|step| step.checked_mul(index));
    let frame = |index: usize| {
        let rest = start(index).and_then(|start| data.get(start..));
        let rest =
            rest.ok_or_else(|| invalid(format!("frame {index} begins behind the {} bytes of data", data.len())))?;
        rgb(media, &rest[..rest.len().min(step.unwrap_or(usize::MAX))])
    };
    (0..media.frame_count).map(frame).collect()
}

/// Seconds of each frame, and frames a second.
///
/// # Safety
/// `frame_times` is NULL or valid for `frame_count` numbers.
unsafe fn times(media: &lfm3_media) -> Result<(Vec<f64>, f64)> {
    let is_rate = |fps: f64| fps > 0.0 && fps.is_finite();
    if !is_rate(media.fps) && media.fps != 0.0 {
        return Err(invalid(format!("fps is {}, expected a number above 0", media.fps)));
    }
    if media.frame_times.is_null() {
        if media.fps == 0.0 {
            return Err(invalid("a video needs fps or frame_times"));
        }
        return Ok(((0..media.frame_count).map(|index| index as f64 / media.fps).collect(), media.fps));
    }
    // SAFETY: the caller's promise is ours.
    let times = unsafe { args::slice(media.frame_times, media.frame_count, "frame_times")? };
    let ascending = times.windows(2).all(|pair| pair[0] <= pair[1]);
    if !ascending || !times.iter().all(|time| time.is_finite() && *time >= 0.0) {
        return Err(invalid("frame_times: expected seconds of 0 or more, ascending"));
    }
    let mean = (times.len() - 1) as f64 / (times[times.len() - 1] - times[0]);
    let fps = if media.fps > 0.0 { media.fps } else { mean };
    // One frame, or frames all at once, have no rate: any will do.
    Ok((times.to_vec(), if is_rate(fps) { fps } else { 1.0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_may_be_larger_than_other_arrays() {
        let data = vec![0_u8; (1 << 26) + 3 * 4096];
        let medium = lfm3_media {
            kind: LFM3_MEDIA_PICTURE_RGB,
            data: data.as_ptr(),
            data_len: data.len(),
            width: 4096,
            height: 5461,
            ..lfm3_media::default()
        };
        // SAFETY: a whole struct, and data of the length it states.
        let taken = unsafe { given(&medium) };
        assert!(matches!(taken, Ok(Given::Picture(GivenFrame::Rgb { .. }))), "{taken:?}");
        let longer = lfm3_media { data_len: MAX_MEDIA_BYTES + 1, ..medium };
        // SAFETY: a length past the limit is refused before anything is read.
        let refused = unsafe { given(&longer) };
        assert_eq!(refused.unwrap_err().code, Code::Limit);
    }
}
