//! What pictures and videos are in a prompt: the placeholder the template wrote, once for each of their rows.

use crate::error::{Code, Error, Result};
use crate::text::Tokenizer;
use std::ops::Range;

/// Most placeholder tokens of one prompt.
pub const MAX_MEDIA_TOKENS: usize = 1 << 24;
/// Most pairs of frames of one video.
const MAX_PAIRS: usize = 1 << 16;
/// Latest time of a pair, in seconds.
const MAX_SECONDS: f64 = 1e9;

/// What a picture or video becomes in a prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum MediaText {
    /// A picture of so many rows.
    Image {
        /// Rows, each of which takes one token's place.
        tokens: usize,
    },
    /// A video.
    Video {
        /// Of each pair of frames its time in seconds and its rows.
        pairs: Vec<(f64, usize)>,
    },
}

/// The tokens a checkpoint has for pictures and videos.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaTokens {
    /// Stands for a picture's row.
    pub image: Option<u32>,
    /// Stands for a video's.
    pub video: Option<u32>,
    /// Before a run of them.
    pub start: Option<u32>,
    /// Behind it.
    pub end: Option<u32>,
}

/// A part of a rendered chat.
#[derive(Debug)]
pub(super) enum Part {
    /// Ordinary text, never empty.
    Text(String),
    Control(u32),
}

/// A prompt with its placeholders.
#[derive(Debug, Default)]
pub(super) struct Expanded {
    pub tokens: Vec<u32>,
    /// Of each picture and video, where its placeholders stand.
    pub runs: Vec<Vec<Range<usize>>>,
}

impl MediaTokens {
    /// Fails where the checkpoint has no token for one of `media`, or there are too many rows.
    pub(super) fn check(&self, media: &[MediaText]) -> Result<()> {
        let mut left = MAX_MEDIA_TOKENS;
        for (index, medium) in media.iter().enumerate() {
            let (kind, id) = match medium {
                MediaText::Image { .. } => ("an image", self.image),
                MediaText::Video { .. } => ("a video", self.video),
            };
            if id.is_none() {
                let message = format!("media {index} is {kind}: this checkpoint has no token for it");
                return Err(Error::new(Code::Unsupported, message));
            }
            let rows = medium.rows(index)?;
            left = left.checked_sub(rows).ok_or_else(|| {
                Error::new(Code::Limit, format!("the media take more than {MAX_MEDIA_TOKENS} tokens"))
            })?;
        }
        Ok(())
    }
}

impl MediaText {
    /// All its rows; fails where its times are none or its pairs too many.
    fn rows(&self, index: usize) -> Result<usize> {
        let pairs = match self {
            MediaText::Image { tokens } => return Ok(*tokens),
            MediaText::Video { pairs } => pairs,
        };
        if pairs.len() > MAX_PAIRS {
            let found = pairs.len();
            let message = format!("media {index}: a video of {found} pairs of frames, more than {MAX_PAIRS}");
            return Err(Error::new(Code::Limit, message));
        }
        if let Some((seconds, _)) = pairs.iter().find(|(seconds, _)| !(0.0..=MAX_SECONDS).contains(seconds)) {
            let message = format!("media {index}: a frame at {seconds} seconds, expected 0 to {MAX_SECONDS}");
            return Err(Error::new(Code::InvalidArgument, message));
        }
        Ok(pairs.iter().fold(0, |rows: usize, (_, more)| rows.saturating_add(*more)))
    }
}

/// The tokens of a picture or video that stands in no chat, and where its placeholders are: each run between the
/// checkpoint's start and end tokens, where it has them. Fails as rendering it in a chat does.
pub fn media_run(
    tokenizer: &Tokenizer,
    medium: &MediaText,
    ids: &MediaTokens,
) -> Result<(Vec<u32>, Vec<Range<usize>>)> {
    ids.check(std::slice::from_ref(medium))?;
    let mut out = Writer::new(tokenizer);
    let runs = match (medium, ids.image, ids.video) {
        (MediaText::Image { tokens }, Some(image), _) => vec![out.run(image, *tokens, ids)?],
        (MediaText::Video { pairs }, _, Some(video)) => out.video(pairs, video, ids)?,
        _ => Vec::new(),
    };
    Ok((out.finish()?, runs))
}

/// Tokens of `parts`, with each placeholder replaced by the next of `media`.
pub(super) fn expand(
    parts: Vec<Part>,
    media: &[MediaText],
    ids: &MediaTokens,
    tokenizer: &Tokenizer,
) -> Result<Expanded> {
    let mut out = Writer::new(tokenizer);
    let mut runs: Vec<Vec<Range<usize>>> = Vec::with_capacity(media.len());
    let mut placeholders = 0;
    let mut rest: &[Part] = &parts;
    while let Some((part, mut after)) = rest.split_first() {
        let id = match part {
            Part::Text(text) => {
                out.text.push_str(text);
                rest = after;
                continue;
            }
            Part::Control(id) => *id,
        };
        // A video comes with a start and an end of its own for each pair.
        let around = match (ids.start, ids.end, after) {
            (Some(start), Some(end), [Part::Control(video), Part::Control(last), behind @ ..]) => {
                (id == start && Some(*video) == ids.video && *last == end).then_some(behind)
            }
            _ => None,
        };
        let (is_image, is_video) = (Some(id) == ids.image, Some(id) == ids.video || around.is_some());
        after = around.unwrap_or(after);
        rest = after;
        if !is_image && !is_video {
            out.control(id)?;
            continue;
        }
        placeholders += 1;
        runs.extend(match (media.get(placeholders - 1), ids.video) {
            (None, _) => None,
            (Some(MediaText::Image { tokens }), _) if is_image => Some(vec![out.placeholders(id, *tokens)?]),
            (Some(MediaText::Video { pairs }), Some(video)) if is_video => Some(out.video(pairs, video, ids)?),
            _ => {
                let (wrote, index) = (if is_image { "an image" } else { "a video" }, placeholders - 1);
                let message = format!("the template writes {wrote} where media {index} belongs, which is another kind");
                return Err(Error::new(Code::Template, message));
            }
        });
    }
    if placeholders != media.len() {
        let (found, parts) = (placeholders, media.len());
        let message = format!("the template writes {found} placeholders for {parts} parts of type image or video");
        return Err(Error::new(Code::Template, message));
    }
    Ok(Expanded { tokens: out.finish()?, runs })
}

/// Tokens in the making. Ordinary text is tokenized in one piece up to the next control token.
struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    tokens: Vec<u32>,
    text: String,
}

impl<'a> Writer<'a> {
    fn new(tokenizer: &'a Tokenizer) -> Self {
        Writer { tokenizer, tokens: Vec::new(), text: String::new() }
    }

    fn control(&mut self, id: u32) -> Result<()> {
        self.placeholders(id, 1).map(drop)
    }

    fn placeholders(&mut self, id: u32, count: usize) -> Result<Range<usize>> {
        self.tokenizer.encode_plain(&std::mem::take(&mut self.text), &mut self.tokens)?;
        let start = self.tokens.len();
        self.tokens.resize(start + count, id);
        Ok(start..start + count)
    }

    /// Placeholders between the tokens that stand around them.
    fn run(&mut self, id: u32, count: usize, ids: &MediaTokens) -> Result<Range<usize>> {
        ids.start.map_or(Ok(()), |start| self.control(start))?;
        let run = self.placeholders(id, count)?;
        ids.end.map_or(Ok(()), |end| self.control(end))?;
        Ok(run)
    }

    fn video(&mut self, pairs: &[(f64, usize)], id: u32, ids: &MediaTokens) -> Result<Vec<Range<usize>>> {
        let pair = |(seconds, rows): &(f64, usize)| {
            self.text.push_str(&format!("<{seconds:.1} seconds>"));
            self.run(id, *rows, ids)
        };
        pairs.iter().map(pair).collect()
    }

    fn finish(mut self) -> Result<Vec<u32>> {
        self.tokenizer.encode_plain(&self.text, &mut self.tokens)?;
        Ok(self.tokens)
    }
}
