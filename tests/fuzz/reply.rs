//! Any bytes, however cut, through the reply filter: the same text as uncut, and no stop string in it.
//!
//! The input is a byte of flags, stop strings each ended by 1, a zero byte, and the reply.

#![no_main]

use lfm3::text::{Piece, ReplyFilter};
use libfuzzer_sys::fuzz_target;

/// The answer, the thinking, and the stop string found, when `reply` comes in parts of these lengths, over and over.
fn filtered(
    stops: &[String],
    open: bool,
    mut reply: &[u8],
    parts: &[usize],
) -> Option<(String, String, Option<String>)> {
    let mut filter = ReplyFilter::new(stops, open).ok()?;
    let (mut answer, mut thinking) = (String::new(), String::new());
    let mut take = |pieces: Vec<Piece>| {
        for piece in pieces {
            match piece {
                Piece::Text(text) => answer += &text,
                Piece::Reasoning(text) => thinking += &text,
            }
        }
    };
    for part in parts.iter().cycle() {
        let (now, later) = reply.split_at((*part).min(reply.len()));
        take(filter.push(now));
        reply = later;
        if reply.is_empty() {
            break;
        }
    }
    take(filter.finish());
    let stopped = filter.stopped().map(str::to_string);
    Some((answer, thinking, stopped))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((flags, rest)) = bytes.split_first() else { return };
    let (stops, reply) = rest.split_at(rest.iter().position(|b| *b == 0).unwrap_or(0));
    let stops: Vec<String> =
        stops.split(|b| *b == 1).map(|s| String::from_utf8_lossy(s).into_owned()).filter(|s| !s.is_empty()).collect();
    let open = flags & 1 == 1;
    let Some(whole) = filtered(&stops, open, reply, &[usize::MAX]) else { return };
    let parts = [1 + usize::from(flags >> 1 & 7), 1 + usize::from(flags >> 4), 1];
    assert_eq!(filtered(&stops, open, reply, &parts).as_ref(), Some(&whole));
    for stop in &stops {
        assert!(!whole.0.contains(stop.as_str()), "{stop:?} is shown");
    }
});
