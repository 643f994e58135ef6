//! Pictures through the vision tower: file to pixels, pixels to the tower's size, then window after window of patches
//! through stage after stage. Each stream has at most one picture under way.

use super::pace::Pace;
use crate::backend::{
    Backend, Input, Lane, Limit, PAGE_ROWS, PageId, Progress, ROUND_ROWS, Round, Row, SliceTimes, Slot,
};
use crate::error::{Code, Error, Result};
use crate::picture::media::View;
use crate::plan::Plan;
use crate::state::{ByteBudget, Page, PageArena, Placed, Reservation, SPARE_PAGES, SeenRows};
use crate::stream::Stream;
use crate::stream::core::Task;
use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How long a picture is worked on before others get their turn.
const TURN: Duration = Duration::from_millis(100);
/// Longest stretch of slices between two looks at the cancel flags.
const CANCEL_INTERVAL: Duration = Duration::from_millis(2);

/// What the tower is made of.
pub struct TowerParts {
    /// Runs `plan`.
    pub backend: Box<dyn Backend>,
    /// The tower and the projector, in stages.
    pub plan: Arc<Plan>,
    /// Counts the backend's pages.
    pub arena: Arc<PageArena>,
    /// Counts stores and rows.
    pub budget: Arc<ByteBudget>,
    /// Bytes of stores for each place of a picture's grid.
    pub store_bytes: u64,
}

/// The vision tower and the pictures in it.
pub struct Tower {
    parts: TowerParts,
    /// By stream.
    jobs: BTreeMap<u64, Job>,
    /// The stream whose turn it is, and what is left of the turn.
    turn: Option<(u64, Duration)>,
    /// The window of the turn's stream is with the backend.
    in_flight: bool,
    window_pace: Pace,
    decode_pace: Pace,
}

/// One picture on its way.
struct Job {
    stream: Weak<Stream>,
    placed: Placed,
    slot: Slot,
    pages: Vec<Vec<Page>>,
    /// Next window.
    stage: usize,
    row: usize,
    /// Rows of the text model, as far as they are there.
    rows: Vec<f32>,
    rows_bytes: Reservation,
    _stores: Reservation,
    took: Duration,
}

/// What one piece of work came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Something was done, and the turn goes on.
    Working,
    /// The next piece is not expected to fit.
    OutOfTime,
    /// The turn is over.
    Over,
}

impl Tower {
    /// An idle tower.
    pub fn new(parts: TowerParts) -> Tower {
        Tower {
            parts,
            jobs: BTreeMap::new(),
            turn: None,
            in_flight: false,
            window_pace: Pace::default(),
            decode_pace: Pace::default(),
        }
    }

    /// Whether a turn goes on.
    pub fn has_turn(&self) -> bool {
        self.turn.is_some()
    }

    /// Slice times for the step report.
    pub fn slice_times(&self) -> SliceTimes {
        let SliceTimes { next, worst } = self.parts.backend.slice_times();
        SliceTimes { next, worst: worst.max(self.window_pace.worst()).max(self.decode_pace.worst()) }
    }

    /// Lets the memory of free pages past `spare` go, unless a window is in flight.
    pub fn trim(&mut self, spare: usize) {
        if !self.in_flight {
            self.parts.arena.trim(self.parts.backend.as_mut(), spare);
        }
    }

    /// Lets go of what nobody waits for any more, and of all free pages unless a window is in flight.
    pub fn make_room(&mut self) {
        self.forget_unwanted();
        self.trim(0);
    }

    /// Begins a turn for a stream that waits for a picture. Where memory for it cannot be had, `make_room` is tried;
    /// then the stream waits for pictures under way to end, or, if there are none, ends with an error.
    pub fn begin(&mut self, stream: &Arc<Stream>, make_room: &mut dyn FnMut()) {
        self.trim(SPARE_PAGES);
        for last_try in [false, true] {
            let Some(core) = stream.scheduled().filter(|core| core.task() == Task::Look) else { return };
            let Some(placed) = core.unseen() else { return };
            let ready = self.jobs.contains_key(&stream.id());
            let made = if ready { Ok(()) } else { self.parts.job(stream, placed).map(|job| self.add(stream, job)) };
            drop(core);
            match made {
                Ok(()) => {
                    self.turn = Some((stream.id(), TURN));
                    return;
                }
                Err(error) if last_try || error.code != Code::Limit => return self.give_up(stream, error),
                Err(_) => {
                    make_room();
                    self.make_room();
                }
            }
        }
    }

    /// For a picture that cannot be had: its stream ends with an error, unless the memory that lacks is that of other
    /// pictures under way.
    fn give_up(&self, stream: &Stream, error: Error) {
        if error.code == Code::Limit && self.jobs.values().any(Job::goes_on) {
            return;
        }
        if let Some(mut core) = stream.scheduled().filter(|core| core.task() == Task::Look) {
            core.fail(error);
        }
    }

    fn add(&mut self, stream: &Stream, job: Job) {
        self.jobs.insert(stream.id(), job);
    }

    /// Decodes and resizes a picture for a while. True when it is ready.
    fn prepare(&mut self, view: &View, until: Instant, make_room: &mut dyn FnMut()) -> Result<bool> {
        let decodes = view.decodes_next();
        let prepared = if decodes { self.decode_pace.time(|| view.prepare(until)) } else { view.prepare(until) };
        match prepared {
            Err(error) if error.code == Code::Limit => {
                make_room();
                self.make_room();
                view.prepare(until)
            }
            other => other,
        }
    }

    /// Does the next piece of the turn, even if it is not expected to fit where it `must`. `make_room` is for when
    /// memory lacks.
    pub fn advance(&mut self, deadline: Instant, must: bool, make_room: &mut dyn FnMut()) -> Result<Look> {
        let Some((id, left)) = self.turn else { return Ok(Look::Over) };
        self.forget_unwanted();
        let Some(job) = self.jobs.get_mut(&id) else {
            self.turn = None;
            return Ok(Look::Over);
        };
        let start = Instant::now();
        let until = deadline.min(start + CANCEL_INTERVAL);
        let view = job.placed.view.clone();
        let worked = if self.in_flight {
            if !must && start + self.parts.backend.slice_times().next > deadline {
                return Ok(Look::OutOfTime);
            }
            self.advance_window(id, until)
        } else if !must && (view.decodes_next() || !self.window_pace.fits(deadline)) {
            // Decoding cannot be cut: it gets a step of its own.
            return Ok(Look::OutOfTime);
        } else {
            self.prepare(&view, until, make_room).and_then(|ready| if ready { self.submit(id) } else { Ok(()) })
        };
        let spent = start.elapsed();
        if let Some(job) = self.jobs.get_mut(&id) {
            job.took += spent;
        }
        if let Err(error) = worked {
            self.fail(id, error);
        }
        let left = left.saturating_sub(spent);
        let over = !self.in_flight && (left.is_zero() || !self.jobs.contains_key(&id));
        self.turn = (!over).then_some((id, left));
        Ok(if over { Look::Over } else { Look::Working })
    }

    /// Hands the next window of a stream's picture to the backend.
    fn submit(&mut self, id: u64) -> Result<()> {
        let Some(job) = self.jobs.get(&id) else { return Ok(()) };
        self.window_pace.time(|| self.parts.submit(job))?;
        self.in_flight = true;
        Ok(())
    }

    /// Works on the window in flight; at its end takes what it computed.
    fn advance_window(&mut self, id: u64, until: Instant) -> Result<()> {
        let parts = &mut self.parts;
        if parts.backend.advance(Limit::Until(until))? == Progress::Working {
            return Ok(());
        }
        let Some(job) = self.jobs.get_mut(&id) else { return Ok(()) };
        self.in_flight = false;
        if parts.backend.faulted(0) {
            parts.backend.abandon();
            let message =
                "a value of a picture's rows is not finite: the weights drive the tower out of float32's range";
            return Err(Error::new(Code::Numeric, message));
        }
        if parts.collect(job) {
            self.deliver(id);
        }
        Ok(())
    }

    /// Gives a stream its picture's rows and ends the job.
    fn deliver(&mut self, id: u64) {
        let Some(job) = self.remove(id) else { return };
        let Some(stream) = job.stream.upgrade() else { return };
        let Some(mut core) = stream.scheduled() else { return };
        let width = job.rows.len() / job.placed.view.tokens();
        core.see(&job.placed, SeenRows { values: job.rows, width, bytes: job.rows_bytes }, job.took);
    }

    fn fail(&mut self, id: u64, error: Error) {
        if self.in_flight {
            self.parts.backend.abandon();
            self.in_flight = false;
        }
        if let Some(stream) = self.remove(id).and_then(|job| job.stream.upgrade()) {
            self.give_up(&stream, error);
        }
    }

    /// Drops jobs whose pictures nobody waits for any more.
    pub fn forget_unwanted(&mut self) {
        let unwanted = self.jobs.iter().filter(|(_, job)| !job.is_wanted()).map(|(id, _)| *id);
        for id in unwanted.collect::<Vec<u64>>() {
            if self.in_flight && self.turn.is_some_and(|(turn, _)| turn == id) {
                self.parts.backend.abandon();
                self.in_flight = false;
            }
            self.remove(id);
        }
    }

    fn remove(&mut self, id: u64) -> Option<Job> {
        let job = self.jobs.remove(&id)?;
        self.parts.backend.release_stores(job.slot);
        Some(job)
    }
}

impl TowerParts {
    /// Takes memory for a picture.
    fn job(&self, stream: &Arc<Stream>, placed: Placed) -> Result<Job> {
        let places = placed.view.grid().len();
        let output = self.plan.output.expect("a tower has an output");
        let rows = placed.view.tokens() * self.plan.width(output);
        let pages = |_| (0..places.div_ceil(PAGE_ROWS)).map(|_| self.arena.allocate()).collect::<Result<Vec<Page>>>();
        Ok(Job {
            stream: Arc::downgrade(stream),
            slot: stream.slot(),
            pages: self.plan.attentions.iter().map(pages).collect::<Result<Vec<_>>>()?,
            stage: 0,
            row: 0,
            rows_bytes: self.budget.reserve(4 * rows as u64, "a picture's rows")?,
            _stores: self.budget.reserve(self.store_bytes * places as u64, "a picture in the vision tower")?,
            rows: Vec::with_capacity(rows),
            took: Duration::ZERO,
            placed,
        })
    }

    /// Hands the job's next window to the backend.
    fn submit(&mut self, job: &Job) -> Result<()> {
        let (grid, count) = (job.placed.view.grid(), self.window(job));
        let mut vectors = Vec::new();
        if job.stage == 0 {
            job.placed.view.patches(job.row..job.row + count, &mut vectors);
        }
        let row = |i: usize| Row {
            input: if job.stage == 0 { Input::Vector(i as u32) } else { Input::Stored },
            position: (job.row + i) as u32,
            lane: 0,
            wanted: false,
        };
        let pages = job.pages.iter().map(|pages| pages.iter().map(Page::id).collect::<Vec<PageId>>());
        let lane = Lane { slot: job.slot, first_row: 0, rows: count, pages: pages.collect(), grid: Some(grid) };
        self.backend.submit(Round { stage: job.stage, rows: (0..count).map(row).collect(), lanes: vec![lane], vectors })
    }

    /// Rows of the job's next window.
    fn window(&self, job: &Job) -> usize {
        ROUND_ROWS.min(self.stage_rows(job) - job.row)
    }

    /// Rows of the job's stage.
    fn stage_rows(&self, job: &Job) -> usize {
        job.placed.view.grid().len() / self.plan.stages[job.stage].grid_rows
    }

    /// Takes the result of the window that is done, and moves the job on. True at its end.
    fn collect(&mut self, job: &mut Job) -> bool {
        let count = self.window(job);
        if job.stage + 1 == self.plan.stages.len() {
            let output = self.plan.output.expect("a tower has an output");
            job.rows.extend(self.backend.read_buffer(output));
        }
        self.backend.commit(&[count]);
        job.row += count;
        if job.row == self.stage_rows(job) {
            (job.stage, job.row) = (job.stage + 1, 0);
        }
        job.stage == self.plan.stages.len()
    }
}

impl Job {
    /// Whether its turn will come again: its stream is not paused.
    fn goes_on(&self) -> bool {
        let stream = self.stream.upgrade();
        stream.as_ref().and_then(|stream| stream.scheduled()).is_some_and(|core| core.task() == Task::Look)
    }

    /// Whether its stream still waits for it. Carries out cancels.
    fn is_wanted(&self) -> bool {
        let stream = self.stream.upgrade();
        let core = stream.as_ref().and_then(|stream| stream.scheduled());
        core.is_some_and(|core| core.context.sights().misses(&self.placed) && core.is_busy())
    }
}
