//! Turns the streams' work into rounds and runs them within a time budget.

mod pace;
mod round;
mod tower;
mod turns;

pub use tower::TowerParts;

use crate::backend::{Backend, Limit, Progress, SliceTimes};
use crate::error::Result;
use crate::state::{PageArena, SPARE_PAGES};
use crate::stream::Stream;
use crate::stream::core::Task;
use pace::Pace;
use round::RoundInFlight;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tower::{Look, Tower};
use turns::{Turn, Turns};

/// Longest stretch of slices between two looks at the cancel flags.
const CANCEL_INTERVAL: Duration = Duration::from_millis(2);

/// One model's rounds. At most one round is in flight.
pub struct Scheduler {
    backend: Box<dyn Backend>,
    arena: Arc<PageArena>,
    round: Option<RoundInFlight>,
    /// Where the checkpoint has one.
    tower: Option<Tower>,
    turns: Turns,
    settle_pace: Pace,
    finish_pace: Pace,
}

/// What one call of [`Scheduler::advance`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Something was done.
    Worked,
    /// What comes next is not expected to fit before the deadline.
    OutOfTime,
    /// No stream has work.
    Idle,
}

impl Scheduler {
    /// A scheduler over `backend`, whose pages `arena` counts, and a vision tower.
    pub fn new(backend: Box<dyn Backend>, arena: Arc<PageArena>, tower: Option<TowerParts>) -> Self {
        Scheduler {
            backend,
            arena,
            round: None,
            tower: tower.map(Tower::new),
            turns: Turns::default(),
            settle_pace: Pace::default(),
            finish_pace: Pace::default(),
        }
    }

    /// Slice times for the step report.
    pub fn slice_times(&self) -> SliceTimes {
        let text = self.backend.slice_times();
        let worst = text.worst.max(self.settle_pace.worst()).max(self.finish_pace.worst());
        let Some(tower) = &self.tower else { return SliceTimes { worst, ..text } };
        let vision = tower.slice_times();
        let next = if tower.has_turn() { vision.next } else { text.next };
        SliceTimes { next, worst: worst.max(vision.worst) }
    }

    /// Lets the memory of all free pages go, unless a round is in flight.
    pub fn release_spare(&mut self) {
        if self.round.is_none() {
            self.arena.trim(self.backend.as_mut(), 0);
        }
        self.tower.iter_mut().for_each(Tower::make_room);
    }

    /// Works until `deadline`; always does one slice where there is one to do. True when work is left.
    pub fn step(&mut self, streams: &[Arc<Stream>], deadline: Instant) -> Result<bool> {
        let mut first = true;
        loop {
            match self.advance(streams, deadline, first)? {
                Outcome::Worked => first = false,
                Outcome::OutOfTime => return Ok(true),
                Outcome::Idle => {
                    self.arena.trim(self.backend.as_mut(), SPARE_PAGES);
                    self.tower.iter_mut().for_each(Tower::make_room);
                    return Ok(false);
                }
            }
            if Instant::now() >= deadline {
                return Ok(true);
            }
        }
    }

    /// Does the next piece of work; `must` even when it is not expected to fit.
    fn advance(&mut self, streams: &[Arc<Stream>], deadline: Instant, must: bool) -> Result<Outcome> {
        if self.round.is_some() {
            return self.advance_round(deadline, must);
        }
        if let Some(tower) = self.tower.as_mut().filter(|tower| tower.has_turn()) {
            let mut room = || make_room(streams, &self.arena, self.backend.as_mut());
            return Ok(match tower.advance(deadline, must, &mut room)? {
                Look::OutOfTime => Outcome::OutOfTime,
                Look::Working | Look::Over => Outcome::Worked,
            });
        }
        let tasks: Vec<(u64, Task)> = streams.iter().map(|s| (s.id(), task_of(s))).collect();
        if let Some(at) = tasks.iter().position(|(_, task)| *task == Task::Settle) {
            if !must && !self.settle_pace.fits(deadline) {
                return Ok(Outcome::OutOfTime);
            }
            self.settle_pace.time(|| {
                if let Some(mut core) = streams[at].scheduled().filter(|core| core.task() == Task::Settle) {
                    core.settle();
                }
            });
            return Ok(Outcome::Worked);
        }
        let Some(turn) = self.turns.next(&tasks) else { return Ok(Outcome::Idle) };
        self.begin(streams, &turn)?;
        Ok(Outcome::Worked)
    }

    /// Plans and submits a round, or turns to a picture. A stream whose share cannot be had ends with an error, the
    /// others go on.
    fn begin(&mut self, streams: &[Arc<Stream>], turn: &Turn) -> Result<()> {
        self.tower.iter_mut().for_each(Tower::forget_unwanted);
        if turn.look {
            let stream = streams.iter().find(|stream| turn.streams.contains(&stream.id()));
            if let (Some(tower), Some(stream)) = (&mut self.tower, stream) {
                tower.begin(stream, &mut || make_room(streams, &self.arena, self.backend.as_mut()));
            }
            return Ok(());
        }
        self.arena.trim(self.backend.as_mut(), SPARE_PAGES);
        let tower = &mut self.tower;
        let mut room = || {
            streams.iter().for_each(|stream| stream.drop_snapshots());
            tower.iter_mut().for_each(Tower::make_room);
        };
        self.round = RoundInFlight::begin(self.backend.as_mut(), streams, turn, &mut room)?;
        Ok(())
    }

    fn advance_round(&mut self, deadline: Instant, must: bool) -> Result<Outcome> {
        let Some(round) = &mut self.round else { return Ok(Outcome::Idle) };
        if !round.still_wanted() {
            self.backend.abandon();
            self.round = None;
            return Ok(Outcome::Worked);
        }
        if !round.is_computed() {
            let now = Instant::now();
            if !must && now + self.backend.slice_times().next > deadline {
                return Ok(Outcome::OutOfTime);
            }
            let until = deadline.min(now + CANCEL_INTERVAL);
            let progress = self.backend.advance(Limit::Until(until))?;
            round.spent(now.elapsed(), progress == Progress::Done);
            return Ok(Outcome::Worked);
        }
        if !must && !self.finish_pace.fits(deadline) {
            return Ok(Outcome::OutOfTime);
        }
        let backend = self.backend.as_mut();
        if self.finish_pace.time(|| round.finish_part(backend)) {
            self.round = None;
        }
        Ok(Outcome::Worked)
    }
}

/// Lets go of what only saves work: snapshots, and free pages; call with no round in flight.
fn make_room(streams: &[Arc<Stream>], arena: &PageArena, backend: &mut dyn Backend) {
    streams.iter().for_each(|stream| stream.drop_snapshots());
    arena.trim(backend, 0);
}

/// What `stream` could do now, after a cancel that waits is carried out.
fn task_of(stream: &Stream) -> Task {
    stream.scheduled().map_or(Task::None, |core| core.task())
}
