//! Pictures and videos as a host gives them, and as the tower looks at them: one view, a frame or a pair, at a time.

use super::config::{PictureConfig, VideoConfig};
use super::patches::patch_row;
use super::resize::Resizer;
use super::{Pixels, Size, decode, video};
use crate::backend::Grid;
use crate::error::{Code, Error, Result};
use crate::state::{ByteBudget, Reservation};
use crate::text::MediaText;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Most frames of a video as given; far fewer are looked at.
pub const MAX_VIDEO_FRAMES: usize = 1 << 20;

/// One frame as given.
#[derive(Clone, Copy, Debug)]
pub enum GivenFrame<'a> {
    /// A file of a format that [`decode`] reads.
    File(&'a [u8]),
    /// Red, green and blue of 8 bits.
    Rgb {
        /// Rows of pixels.
        data: &'a [u8],
        /// Width and height.
        size: Size,
        /// Bytes from one row to the next.
        stride: usize,
    },
}

/// A picture or a video as given.
#[derive(Clone, Debug)]
pub enum Given<'a> {
    /// A picture.
    Picture(GivenFrame<'a>),
    /// A video: all its frames in order.
    Video {
        /// Frames.
        frames: Vec<GivenFrame<'a>>,
        /// Seconds of each frame.
        times: Vec<f64>,
        /// Frames a second.
        fps: f64,
    },
}

/// Tells views apart: the same key, the same patches.
pub type Key = [u8; 32];

/// What a picture or video is in a stream: text with places for rows, and a view for each run of places.
#[derive(Clone, Debug)]
pub struct Medium {
    /// How its placeholders stand in the text.
    pub text: MediaText,
    /// In the order of their runs of placeholders.
    pub views: Vec<Arc<View>>,
}

/// One look of the tower: a frame, or two frames that follow one another.
pub struct View {
    key: Key,
    config: Arc<PictureConfig>,
    resized: Size,
    frames: Vec<Mutex<Frame>>,
    /// Bytes of the frames, told without waiting for one that is being worked on.
    held: AtomicU64,
    budget: Arc<ByteBudget>,
}

/// A frame on its way to the size the tower wants, with its share of the byte budget.
enum Frame {
    File(Vec<u8>, Reservation),
    Pixels(Pixels, Reservation),
    Resizing(Box<Resizer>, Reservation),
    Resized(Pixels, Reservation),
    /// A failure took the pixels.
    Lost,
}

impl GivenFrame<'_> {
    fn size(&self) -> Result<Size> {
        match self {
            GivenFrame::File(file) => Ok(decode::header(file)?.size),
            GivenFrame::Rgb { data, size, stride } => decode::check_rgb(data, *size, *stride).map(|_| *size),
        }
    }

    fn hash(&self, hash: &mut Sha256) {
        match self {
            GivenFrame::File(file) => {
                hash.update(b"file");
                hash.update((file.len() as u64).to_le_bytes());
                hash.update(file);
            }
            GivenFrame::Rgb { data, size, stride } => {
                hash.update(b"rgb ");
                hash.update(size.width.to_le_bytes());
                hash.update(size.height.to_le_bytes());
                let row = 3 * size.width as usize;
                data.chunks(*stride).take(size.height as usize).for_each(|line| hash.update(&line[..row]));
            }
        }
    }

    fn keep(&self, budget: &Arc<ByteBudget>) -> Result<Frame> {
        match self {
            GivenFrame::File(file) => {
                let bytes = budget.reserve(file.len() as u64, "a picture's file")?;
                Ok(Frame::File(file.to_vec(), bytes))
            }
            GivenFrame::Rgb { data, size, stride } => {
                let bytes = budget.reserve(pixel_bytes(*size), "a picture's pixels")?;
                Ok(Frame::Pixels(decode::rgb(data, *size, *stride)?, bytes))
            }
        }
    }
}

fn pixel_bytes(size: Size) -> u64 {
    3 * size.area()
}

/// Takes what hosts give, for one model.
#[derive(Debug)]
pub struct MediaReader {
    picture: Arc<PictureConfig>,
    video: Option<VideoConfig>,
    budget: Arc<ByteBudget>,
}

impl MediaReader {
    /// A reader for a checkpoint's configs; what is kept counts in `budget`.
    pub fn new(picture: PictureConfig, video: Option<VideoConfig>, budget: Arc<ByteBudget>) -> MediaReader {
        MediaReader { picture: Arc::new(picture), video, budget }
    }

    /// Checks headers and sizes, and copies what `known` has no view of yet. Nothing is decoded.
    ///
    /// # Errors
    /// `InvalidArgument`, `Format` or `Unsupported` for what cannot be read or resized, `Limit` for what is too large.
    pub fn take(&self, given: &Given, known: &dyn Fn(&Key) -> Option<Arc<View>>) -> Result<Medium> {
        match given {
            Given::Picture(frame) => {
                let resized = self.picture.resized(frame.size()?)?;
                let view = self.view(&self.picture, &[*frame], resized, known)?;
                Ok(Medium { text: MediaText::Image { tokens: view.tokens() }, views: vec![view] })
            }
            Given::Video { frames, times, fps } => self.take_video(frames, times, *fps, known),
        }
    }

    fn take_video(
        &self,
        frames: &[GivenFrame],
        times: &[f64],
        fps: f64,
        known: &dyn Fn(&Key) -> Option<Arc<View>>,
    ) -> Result<Medium> {
        let Some(config) = &self.video else {
            let message = "the checkpoint has no video_preprocessor_config.json, so it takes no videos";
            return Err(Error::new(Code::Unsupported, message));
        };
        if frames.len() > MAX_VIDEO_FRAMES {
            let message = format!("a video of {} frames, more than {MAX_VIDEO_FRAMES}", frames.len());
            return Err(Error::new(Code::Limit, message));
        }
        if times.len() != frames.len() {
            let message = format!("video: expected a time for each of {} frames, found {}", frames.len(), times.len());
            return Err(Error::new(Code::InvalidArgument, message));
        }
        let chosen = config.sample(frames.len(), fps)?;
        let size = frames[chosen[0]].size()?;
        for index in &chosen[1..] {
            let found = frames[*index].size()?;
            if found != size {
                let message = format!(
                    "frame {index} is {} x {}, frame {} is {} x {}: all must be alike",
                    found.width, found.height, chosen[0], size.width, size.height
                );
                return Err(Error::new(Code::InvalidArgument, message));
            }
        }
        let resized = config.resized(chosen.len(), size)?;
        let picture = Arc::new(config.picture.clone());
        let pair = |pair: &[usize]| {
            let frames: Vec<GivenFrame> = pair.iter().map(|index| frames[*index]).collect();
            self.view(&picture, &frames, resized, known)
        };
        let views = chosen.chunks(picture.frames as usize).map(pair).collect::<Result<Vec<_>>>()?;
        let times: Vec<f64> = chosen.iter().map(|index| times[*index]).collect();
        let pairs = video::pairs(&times).into_iter().zip(views.iter().map(|view| view.tokens()));
        Ok(Medium { text: MediaText::Video { pairs: pairs.collect() }, views })
    }

    fn view(
        &self,
        config: &Arc<PictureConfig>,
        frames: &[GivenFrame],
        resized: Size,
        known: &dyn Fn(&Key) -> Option<Arc<View>>,
    ) -> Result<Arc<View>> {
        // Equal pixels are not alike where they become other values.
        let mut hash = Sha256::new();
        for number in config.shift.iter().chain(&config.scale) {
            hash.update(number.to_bits().to_le_bytes());
        }
        hash.update(config.patch.to_le_bytes());
        hash.update(config.merge.to_le_bytes());
        hash.update(resized.width.to_le_bytes());
        hash.update(resized.height.to_le_bytes());
        frames.iter().for_each(|frame| frame.hash(&mut hash));
        let key: Key = hash.finalize().into();
        if let Some(view) = known(&key) {
            return Ok(view);
        }
        let frames = frames.iter().map(|frame| frame.keep(&self.budget)).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(View {
            key,
            config: config.clone(),
            resized,
            held: AtomicU64::new(frames.iter().map(Frame::bytes).sum()),
            frames: frames.into_iter().map(Mutex::new).collect(),
            budget: self.budget.clone(),
        }))
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "view of {} frames, {}", self.frames.len(), self.resized)
    }
}

impl View {
    /// Tells it from views of other pixels.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// How its patches lie.
    pub fn grid(&self) -> Grid {
        self.config.grid(self.resized)
    }

    /// Tokens it stands for.
    pub fn tokens(&self) -> usize {
        self.config.tokens(self.resized)
    }

    /// Bytes it holds.
    pub fn bytes(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether the next call of [`View::prepare`] decodes a file, which cannot be cut into slices.
    pub fn decodes_next(&self) -> bool {
        let waiting = self.frames.iter().map(|frame| frame.lock()).find(|frame| !matches!(**frame, Frame::Resized(..)));
        waiting.is_some_and(|frame| matches!(*frame, Frame::File(..)))
    }

    /// Decodes and resizes: at least one slice, and on until `until`. True when all frames are ready.
    ///
    /// # Errors
    /// What decoding gives, or `Limit` where the byte budget does not allow it; the view is as before.
    pub fn prepare(&self, until: Instant) -> Result<bool> {
        for frame in &self.frames {
            let mut frame = frame.lock();
            if !matches!(*frame, Frame::Resized(..)) {
                let before = frame.bytes();
                let worked = frame.advance(self.resized, &self.budget, until);
                self.held.fetch_add(frame.bytes().wrapping_sub(before), Ordering::Relaxed);
                return worked.map(|()| false);
            }
        }
        Ok(true)
    }

    /// Appends the patches of some places, row after row.
    ///
    /// # Panics
    /// Where it is not prepared.
    pub fn patches(&self, places: Range<usize>, out: &mut Vec<f32>) {
        let frames: Vec<_> = self.frames.iter().map(|frame| frame.lock()).collect();
        let pixels: Vec<&Pixels> = frames.iter().map(|frame| frame.resized()).collect();
        // A still picture, or a video's odd last frame, is its own second frame.
        let pair = [pixels[0], pixels[pixels.len() - 1]];
        let (grid, values) = (self.grid(), self.config.values());
        for place in places {
            let start = out.len();
            out.resize(start + values, 0.0);
            patch_row(&self.config, pair, grid, place, &mut out[start..]);
        }
    }
}

impl Frame {
    fn bytes(&self) -> u64 {
        match self {
            Frame::File(_, bytes) | Frame::Pixels(_, bytes) | Frame::Resizing(_, bytes) | Frame::Resized(_, bytes) => {
                bytes.bytes()
            }
            Frame::Lost => 0,
        }
    }

    fn resized(&self) -> &Pixels {
        match self {
            Frame::Resized(pixels, _) => pixels,
            _ => panic!("a view is prepared before its patches are taken"),
        }
    }

    /// Does the next piece of work.
    fn advance(&mut self, to: Size, budget: &Arc<ByteBudget>, until: Instant) -> Result<()> {
        match self {
            Frame::File(file, _) => {
                let header = decode::header(file)?;
                let _working = budget.reserve(header.bytes, "decoding a picture")?;
                let bytes = budget.reserve(pixel_bytes(header.size), "a picture's pixels")?;
                *self = Frame::Pixels(decode::decode(file)?, bytes);
            }
            Frame::Pixels(pixels, _) => {
                let bytes = budget.reserve(Resizer::bytes(pixels.size, to), "resizing a picture")?;
                let Frame::Pixels(pixels, _) = std::mem::replace(self, Frame::Lost) else { return Ok(()) };
                *self = Frame::Resizing(Box::new(Resizer::new(pixels, to)?), bytes);
            }
            Frame::Resizing(resizer, _) => {
                if resizer.advance(until) {
                    let bytes = budget.reserve(pixel_bytes(to), "a resized picture")?;
                    let Frame::Resizing(resizer, _) = std::mem::replace(self, Frame::Lost) else { return Ok(()) };
                    *self = Frame::Resized(resizer.finish(), bytes);
                }
            }
            Frame::Resized(..) => {}
            Frame::Lost => {
                let message = "this picture could not be resized before; rewind to before it and give it again";
                return Err(Error::new(Code::State, message));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &[u8] = include_bytes!("../../examples/demo-model/preprocessor_config.json");

    #[test]
    fn what_a_view_holds_is_told_while_a_frame_is_worked_on() {
        let config = PictureConfig::parse("preprocessor_config.json", CONFIG).unwrap();
        let reader = MediaReader::new(config, None, ByteBudget::new(1 << 20, 0));
        let (data, size) = (vec![0; 3 * 64 * 64], Size { width: 64, height: 64 });
        let given = Given::Picture(GivenFrame::Rgb { data: &data, size, stride: 3 * 64 });
        let view = reader.take(&given, &|_| None).unwrap().views.remove(0);
        let working = view.frames[0].lock();
        let (tell, told) = std::sync::mpsc::channel();
        let asked = view.clone();
        std::thread::spawn(move || tell.send(asked.bytes()));
        let bytes = told.recv_timeout(std::time::Duration::from_secs(20));
        assert_eq!(bytes.ok(), Some(data.len() as u64));
        drop(working);
        while !view.prepare(Instant::now()).unwrap() {}
        assert_eq!(view.bytes(), pixel_bytes(view.resized));
    }
}
