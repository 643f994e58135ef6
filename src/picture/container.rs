//! What must be known of a file's parts before its decoder is trusted with it.

use super::Size;

/// Groups of codes that a lossless WebP may name: two bytes do it.
const WEBP_MOST_GROUPS: u64 = 65_536;
/// Codes of a group: green with lengths, red, blue, alpha, distances.
const WEBP_GROUP_CODES: u64 = 5;
/// Most bytes that a code's tables take.
const WEBP_CODE_BYTES: u64 = 6144;
/// Most bytes of code tables that a byte of a WebP file can ask for; a test builds such a file.
const WEBP_TABLE_RATIO: u64 = 400;
/// Most bytes of a lossy frame's part, taken before it is known whether the file has them.
const WEBP_PART_BYTES: u64 = 1 << 24;

/// What decides how much memory and time a JPEG takes.
#[derive(Clone, Copy, Default)]
pub(super) struct JpegFacts {
    /// Whether all coefficients are held until the last is read.
    pub holds_all: bool,
    /// Colours.
    pub components: u8,
    /// How often the whole picture is gone through.
    pub scans: u64,
}

/// Walks a JPEG's segments up to its first scan, and counts scans. One whose end is missing is refused: its decoder
/// would fill it up with grey.
pub(super) fn jpeg(file: &[u8]) -> Result<JpegFacts, String> {
    let mut facts: Option<JpegFacts> = None;
    let mut at = 2;
    while let Some(&[mark, kind]) = file.get(at..at + 2) {
        match (mark, kind) {
            (0xff, 0xff) | (0x00..=0xfe, _) => at += 1,
            (_, 0x01 | 0xd0..=0xd8 | 0x00) => at += 2,
            (_, 0xd9) => break,
            (_, kind) => {
                let length = file.get(at + 2..at + 4).map_or(0, |b| usize::from(u16::from_be_bytes([b[0], b[1]])));
                if matches!(kind, 0xc0..=0xc3 | 0xc5..=0xc7 | 0xc9..=0xcb | 0xcd..=0xcf) {
                    let components = file.get(at + 9).copied().unwrap_or(0);
                    // Nothing but 0xc0 and 0xc1 is sure to be read row by row.
                    facts = Some(JpegFacts { holds_all: kind > 0xc1, components, scans: 1 });
                }
                let next = at + 2 + length.max(2);
                if kind == 0xda {
                    let mut facts = facts.ok_or("the first scan comes before the size")?;
                    facts.holds_all |= file.get(at + 4).is_none_or(|count| *count < facts.components);
                    facts.scans += later_scans(file.get(next..).unwrap_or(&[]))?;
                    return Ok(facts);
                }
                at = next;
            }
        }
    }
    Err("the file has no scan".into())
}

/// Scans that begin before the end mark.
fn later_scans(rest: &[u8]) -> Result<u64, String> {
    let mut scans = 0;
    for pair in rest.windows(2) {
        match pair {
            [0xff, 0xd9] => return Ok(scans),
            [0xff, 0xda] => scans += 1,
            _ => {}
        }
    }
    Err("the file is cut off: its end mark is missing".into())
}

/// Checks a WebP's chunks and tells how many bytes they can ask for besides planes and frames.
///
/// A lossy frame larger than its canvas is refused: its decoder would find out only afterwards.
pub(super) fn webp(file: &[u8], canvas: Size) -> Result<u64, String> {
    chunks(file.get(12..).unwrap_or(&[]), canvas, true)
}

fn chunks(mut rest: &[u8], canvas: Size, outer: bool) -> Result<u64, String> {
    let mut tables = 0_u64;
    while let Some((head, after)) = rest.split_first_chunk::<8>() {
        let length = u32::from_le_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let data = &after[..length.min(after.len())];
        match &head[..4] {
            b"VP8 " => {
                let side = |at: usize| data.get(at..at + 2).map_or(0, |b| u16::from_le_bytes([b[0], b[1]]) & 0x3fff);
                let size = Size { width: u32::from(side(6)), height: u32::from(side(8)) };
                if size.width > canvas.width || size.height > canvas.height {
                    return Err(format!("a frame of {size} is larger than the canvas of {canvas}"));
                }
                tables = tables.max(WEBP_PART_BYTES);
            }
            b"VP8L" | b"ALPH" => {
                let most =
                    (data.len() as u64 * WEBP_TABLE_RATIO).min(WEBP_MOST_GROUPS * WEBP_GROUP_CODES * WEBP_CODE_BYTES);
                tables = tables.max(most);
            }
            b"ANMF" if outer => tables = tables.max(chunks(data.get(16..).unwrap_or(&[]), canvas, false)?),
            _ => {}
        }
        rest = after.get(length.saturating_add(length % 2)..).unwrap_or(&[]);
    }
    Ok(tables)
}
