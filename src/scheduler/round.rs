//! A round in flight: rows of some streams on their way through the plan.

use super::turns::Turn;
use crate::backend::{Backend, Input, Lane, Round, Row};
use crate::error::{Code, Error, Result};
use crate::state::Restore;
use crate::stream::Stream;
use crate::stream::core::{Core, Share, Task};
use parking_lot::MutexGuard;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// One stream's part.
struct Part {
    stream: Weak<Stream>,
    epoch: u64,
    start: usize,
    rows: usize,
    /// Positions of its wanted rows, with their index among the round's wanted rows.
    wanted: Vec<(usize, usize)>,
    /// Rows to be kept, once its results were read.
    kept: usize,
}

/// A submitted round and what was read of it.
pub struct RoundInFlight {
    parts: Vec<Part>,
    computed: bool,
    /// Parts whose results were read.
    read: usize,
    /// Wanted rows read of the part at `read`.
    read_rows: usize,
    took: Duration,
}

impl RoundInFlight {
    /// Plans and submits a round of the turn's streams; none when no stream has rows after all. `make_room` is for when
    /// memory lacks.
    pub fn begin(
        backend: &mut dyn Backend,
        streams: &[Arc<Stream>],
        turn: &Turn,
        make_room: &mut dyn FnMut(),
    ) -> Result<Option<RoundInFlight>> {
        let (mut round, mut parts, mut wanted) = (Round::default(), Vec::new(), 0);
        for stream in streams.iter().filter(|s| turn.streams.contains(&s.id())) {
            let Some(share) = share_of(stream, turn.rows, make_room) else { continue };
            match &share.restore {
                Some(Restore::Zero) => backend.reset_conv_state(stream.slot()),
                Some(Restore::State(state)) => backend.set_conv_state(stream.slot(), state),
                None => {}
            }
            parts.push(add_lane(&mut round, &mut wanted, stream, share));
        }
        if parts.is_empty() {
            return Ok(None);
        }
        backend.submit(round)?;
        Ok(Some(RoundInFlight { parts, computed: false, read: 0, read_rows: 0, took: Duration::ZERO }))
    }

    /// Whether a stream still waits for it. Carries out cancels.
    pub fn still_wanted(&self) -> bool {
        self.parts.iter().any(|part| part.stream.upgrade().is_some_and(|stream| part.core(&stream).is_some()))
    }

    /// Adds to its time and notes whether all ops are done.
    pub fn spent(&mut self, time: Duration, computed: bool) {
        self.took += time;
        self.computed = computed;
    }

    /// Whether all ops are done.
    pub fn is_computed(&self) -> bool {
        self.computed
    }

    /// Reads one wanted row or ends one part; commits after the last. True when the round is over.
    pub fn finish_part(&mut self, backend: &mut dyn Backend) -> bool {
        if let Some(part) = self.parts.get_mut(self.read) {
            if part.read(backend, self.read, self.read_rows, self.took) {
                self.read_rows += 1;
                return false;
            }
            self.read += 1;
            self.read_rows = 0;
            if self.read < self.parts.len() {
                return false;
            }
        }
        let kept: Vec<usize> = self.parts.iter().map(|part| part.kept).collect();
        backend.commit(&kept);
        true
    }
}

impl Part {
    /// The stream's state, where what this part computed is still of use to it.
    fn core<'a>(&self, stream: &'a Stream) -> Option<MutexGuard<'a, Core>> {
        stream.scheduled().filter(|core| core.context.epoch() == self.epoch)
    }

    /// Gives the stream its next wanted row, or commits its rows when none is left. False once it is done with.
    fn read(&mut self, backend: &dyn Backend, lane: usize, row: usize, took: Duration) -> bool {
        let Some(stream) = self.stream.upgrade() else { return false };
        let Some(mut core) = self.core(&stream) else { return false };
        if backend.faulted(lane) {
            let (start, end) = (self.start, self.start + self.rows);
            let message = format!(
                "a value in the rows of tokens {start} to {end} is not finite: \
                 the weights or the prompt drive the model out of float32's range"
            );
            core.fail(Error::new(Code::Numeric, message));
            return false;
        }
        if let Some((position, index)) = self.wanted.get(row) {
            core.read_logits(*position, backend.logits(*index));
            return true;
        }
        core.commit(self.rows, took, &|rows| backend.conv_state_after(lane, rows));
        self.kept = self.rows;
        false
    }
}

/// Up to `most` rows of `stream`, which ends with an error where its pages cannot be had after `make_room` either.
fn share_of(stream: &Stream, most: usize, make_room: &mut dyn FnMut()) -> Option<Share> {
    for last_try in [false, true] {
        // Another thread may have taken back what the turn was chosen for.
        let has_rows = |core: &MutexGuard<'_, Core>| matches!(core.task(), Task::Decode | Task::Fill(_));
        let mut core = stream.scheduled().filter(has_rows)?;
        match core.share(most) {
            Ok(share) => return share,
            Err(error) if last_try || error.code != Code::Limit => {
                core.fail(error);
                return None;
            }
            Err(_) => drop(core),
        }
        make_room();
    }
    None
}

/// Appends a stream's rows to `round`.
fn add_lane(round: &mut Round, wanted: &mut usize, stream: &Arc<Stream>, share: Share) -> Part {
    let (lane, first_row, rows) = (round.lanes.len(), round.rows.len(), share.inputs.len());
    let earlier = round.rows.iter().filter(|row| matches!(row.input, Input::Vector(_))).count() as u32;
    let mut wanted_rows = Vec::new();
    for (i, (input, is_wanted)) in share.inputs.iter().zip(&share.wanted).enumerate() {
        let position = share.start + i;
        if *is_wanted {
            wanted_rows.push((position, *wanted));
            *wanted += 1;
        }
        let input = match *input {
            Input::Vector(index) => Input::Vector(earlier + index),
            other => other,
        };
        round.rows.push(Row { input, position: position as u32, lane: lane as u32, wanted: *is_wanted });
    }
    round.vectors.extend_from_slice(&share.vectors);
    round.lanes.push(Lane { slot: stream.slot(), first_row, rows, pages: share.pages, grid: None });
    Part { stream: Arc::downgrade(stream), epoch: share.epoch, start: share.start, rows, wanted: wanted_rows, kept: 0 }
}
