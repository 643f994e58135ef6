//! Text held back while it may begin a stop string.

use super::reply::Piece;
use crate::error::{Code, Error, Result};
use std::collections::VecDeque;

/// Most stop strings.
pub const MAX_STOPS: usize = 64;
/// Longest stop string, in bytes.
pub const MAX_STOP_BYTES: usize = 1024;

/// Checks one more stop string beside `count` others: 1 to 1024 bytes, at most 64 of them.
pub fn check_stop(stop: &str, count: usize) -> Result<()> {
    if stop.is_empty() || stop.len() > MAX_STOP_BYTES {
        let found = stop.len();
        let message = format!("stop string: expected 1 to {MAX_STOP_BYTES} bytes, found {found}");
        return Err(Error::new(Code::InvalidArgument, message));
    }
    if count >= MAX_STOPS {
        return Err(Error::new(Code::Limit, format!("more than {MAX_STOPS} stop strings")));
    }
    Ok(())
}

/// A stop string and how much of it the text so far ends with.
struct Stop {
    text: Box<str>,
    /// For each prefix, the length of its longest proper prefix that it also ends with (Knuth, Morris, Pratt).
    shorter: Box<[u16]>,
    matched: usize,
}

impl Stop {
    fn new(text: &str) -> Stop {
        let bytes = text.as_bytes();
        let mut shorter = vec![0u16; bytes.len()];
        let mut matched = 0;
        for i in 1..bytes.len() {
            while matched > 0 && bytes[i] != bytes[matched] {
                matched = shorter[matched - 1] as usize;
            }
            matched += (bytes[i] == bytes[matched]) as usize;
            shorter[i] = matched as u16;
        }
        Stop { text: text.into(), shorter: shorter.into(), matched: 0 }
    }

    /// Takes one more byte of text; whether the string now ends there.
    fn advance(&mut self, byte: u8) -> bool {
        let bytes = self.text.as_bytes();
        while self.matched > 0 && byte != bytes[self.matched] {
            self.matched = self.shorter[self.matched - 1] as usize;
        }
        self.matched += (byte == bytes[self.matched]) as usize;
        self.matched == bytes.len()
    }
}

/// Text in, pieces out, up to a stop string.
pub(super) struct Stops {
    stops: Vec<Stop>,
    /// Text not given out yet; in the end what may begin a stop string.
    pending: String,
    /// Bytes of `pending` in turn, and whether they are thinking.
    runs: VecDeque<(bool, usize)>,
    stopped: Option<usize>,
}

impl Stops {
    /// Fails on stop strings that [`check_stop`] refuses.
    pub fn new(stops: &[String]) -> Result<Stops> {
        for (count, stop) in stops.iter().enumerate() {
            check_stop(stop, count)?;
        }
        let stops = stops.iter().map(|stop| Stop::new(stop)).collect();
        Ok(Stops { stops, pending: String::new(), runs: VecDeque::new(), stopped: None })
    }

    /// The stop string that came.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.map(|stop| &*self.stops[stop].text)
    }

    /// Takes more text. After a stop string nothing counts.
    pub fn take(&mut self, text: &str, reasoning: bool) {
        if text.is_empty() || self.stopped.is_some() {
            return;
        }
        let before = self.pending.len();
        self.pending.push_str(text);
        match self.runs.back_mut() {
            Some((kind, len)) if *kind == reasoning => *len += text.len(),
            _ => self.runs.push_back((reasoning, text.len())),
        }
        for (i, byte) in text.bytes().enumerate() {
            if let Some(place) = self.advance(byte) {
                self.pending.truncate(before + i + 1 - self.stops[place].text.len());
                self.stopped = Some(place);
                return;
            }
        }
    }

    /// Takes one more byte of text; the longest stop string that ends there.
    fn advance(&mut self, byte: u8) -> Option<usize> {
        let mut longest: Option<usize> = None;
        for place in 0..self.stops.len() {
            let ends = self.stops[place].advance(byte);
            if ends && longest.is_none_or(|other| self.stops[other].text.len() < self.stops[place].text.len()) {
                longest = Some(place);
            }
        }
        longest
    }

    /// Gives out what no stop string may begin in.
    pub fn release(&mut self, pieces: &mut Vec<Piece>) {
        let kept = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
        let end = if self.stopped.is_some() { self.pending.len() } else { self.pending.len() - kept };
        self.give_out(end, pieces);
    }

    /// Gives out all: no stop string goes on behind here.
    pub fn release_all(&mut self, pieces: &mut Vec<Piece>) {
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        self.give_out(self.pending.len(), pieces);
    }

    fn give_out(&mut self, end: usize, pieces: &mut Vec<Piece>) {
        let mut start = 0;
        while start < end
            && let Some((reasoning, len)) = self.runs.front_mut()
        {
            let taken = (*len).min(end - start);
            let text = self.pending[start..start + taken].to_owned();
            pieces.push(if *reasoning { Piece::Reasoning(text) } else { Piece::Text(text) });
            *len -= taken;
            start += taken;
            if *len == 0 {
                self.runs.pop_front();
            }
        }
        self.pending.drain(..end);
    }
}
