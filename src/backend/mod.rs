//! What runs a plan: the face every backend shows the scheduler.
//!
//! A round is submitted, advanced until it is done, read, and committed or abandoned. Nothing a round computes is
//! part of a stream before its commit: KV rows past a stream's length are dead, conv states are written by `commit`.

use crate::error::Result;
use crate::plan::{BufferId, WeightId};
use std::time::{Duration, Instant};

pub mod check;
pub mod cpu;
pub mod reference;

/// Positions a KV page holds; a multiple of [`KEY_CHUNK`].
pub const PAGE_ROWS: usize = 64;
/// Keys folded together in attention, counted from absolute position 0. Part of the arithmetic.
pub const KEY_CHUNK: usize = 32;
/// Most rows of one round.
pub const ROUND_ROWS: usize = 64;
/// Most rows of one round whose logits are wanted.
pub const ROUND_LOGITS: usize = 16;

/// A page of one attention layer: keys and values of `PAGE_ROWS` positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PageId(pub u32);

impl PageId {
    /// Stands where a page was freed behind the window.
    pub const NONE: PageId = PageId(u32::MAX);
}

/// A stream's place for conv states in the backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slot(pub u32);

/// What a row is given as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// Token id, checked against the vocabulary by the caller.
    Token(u32),
    /// Values: the row of [`Round::vectors`] with this index.
    Vector(u32),
    /// Nothing: the stage begins with what earlier stages stored.
    Stored,
}

/// How the rows of a picture lie: in blocks of `merge` x `merge`, block after block row by row, and inside a block row
/// by row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Rows, a multiple of `merge`.
    pub rows: u32,
    /// Columns, a multiple of `merge`.
    pub cols: u32,
    /// Side of a block.
    pub merge: u32,
}

impl Grid {
    /// Places.
    pub fn len(&self) -> usize {
        self.rows as usize * self.cols as usize
    }

    /// Whether there is no place.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Row and column of the place with this index.
    pub fn place(&self, index: usize) -> (u32, u32) {
        let merge = self.merge as usize;
        let (block, inside) = (index / (merge * merge), index % (merge * merge));
        let across = self.cols as usize / merge;
        let (row, col) = (block / across * merge + inside / merge, block % across * merge + inside % merge);
        (row as u32, col as u32)
    }

    /// Index of the place at a row and column.
    pub fn index(&self, row: u32, col: u32) -> usize {
        let (merge, row, col) = (self.merge as usize, row as usize, col as usize);
        let block = row / merge * (self.cols as usize / merge) + col / merge;
        block * merge * merge + row % merge * merge + col % merge
    }
}

/// One row of a round.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// What it is given as.
    pub input: Input,
    /// Position in its stream; for a picture, counted in rows of the round's stage.
    pub position: u32,
    /// Index in [`Round::lanes`].
    pub lane: u32,
    /// Whether its logits are wanted.
    pub wanted: bool,
}

/// One stream's part in a round: a run of consecutive rows with consecutive positions.
#[derive(Clone, Debug)]
pub struct Lane {
    /// Where its conv states are.
    pub slot: Slot,
    /// Index of its first row in [`Round::rows`].
    pub first_row: usize,
    /// How many rows.
    pub rows: usize,
    /// For each attention layer, the page of positions `i * PAGE_ROWS ..`, covering the lane's last position and, for a
    /// picture, its grid.
    pub pages: Vec<Vec<PageId>>,
    /// How a picture's rows lie. Its slot tells whose stores these are.
    pub grid: Option<Grid>,
}

/// Work for one pass over the weights. Rows stand lane by lane.
#[derive(Clone, Debug, Default)]
pub struct Round {
    /// Which of the plan's stages; 0 where it has none. All rows of a picture go through a stage before the next.
    pub stage: usize,
    /// At most [`ROUND_ROWS`].
    pub rows: Vec<Row>,
    /// One per stream.
    pub lanes: Vec<Lane>,
    /// Rows given as values, one after the other, as wide as the output of the plan's `Embed` or `Input`.
    pub vectors: Vec<f32>,
}

/// How far `advance` may go.
#[derive(Clone, Copy, Debug)]
pub enum Limit {
    /// Until this instant: starts no slice expected to end after it, but always does one slice.
    Until(Instant),
    /// Exactly this many slices of the smallest size (tests of resumption).
    Slices(usize),
    /// Until this many ops of the plan are done (taps), counted from its first op also where the stage begins later.
    Ops(usize),
    /// To the round's end.
    End,
}

/// Where a round stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// More slices are left.
    Working,
    /// Every op is done.
    Done,
}

/// Slice times, for the step report.
#[derive(Clone, Copy, Debug, Default)]
pub struct SliceTimes {
    /// What the next slice is expected to take.
    pub next: Duration,
    /// The longest slice seen since the backend was made.
    pub worst: Duration,
}

/// Conv states of one stream: for each conv layer `taps - 1` columns of `width` values, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub struct ConvState(pub Vec<f32>);

/// Element types of unquantized tensors, scales and biases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Float {
    /// bfloat16.
    Bf16,
    /// IEEE half.
    F16,
    /// IEEE single.
    F32,
}

impl Float {
    /// Bytes of one value.
    pub fn bytes(self) -> usize {
        match self {
            Float::F32 => 4,
            Float::Bf16 | Float::F16 => 2,
        }
    }
}

/// How a tensor is stored in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// One float per value.
    Dense(Float),
    /// MLX affine: `bits` wide values packed little end first, `weight = q * scale + bias` per `group` columns.
    Affine {
        /// 4, 6 or 8.
        bits: u8,
        /// 32 or 64.
        group: usize,
        /// Type of scales and biases.
        scales: Float,
    },
}

/// A checked tensor: what a backend needs to size and pack it.
#[derive(Clone, Debug)]
pub struct TensorDesc {
    /// Name in the file.
    pub name: String,
    /// Output rows.
    pub rows: usize,
    /// Input columns.
    pub cols: usize,
    /// Storage.
    pub encoding: Encoding,
}

/// Raw little-endian bytes of some rows of a tensor, as stored.
#[derive(Clone, Debug, Default)]
pub struct Band {
    /// Dense values or packed words.
    pub data: Vec<u8>,
    /// Scales (affine only).
    pub scales: Vec<u8>,
    /// Biases (affine only).
    pub biases: Vec<u8>,
}

/// Gives a tensor's rows in bands, so that a large tensor is never held twice.
pub trait WeightSource {
    /// The tensor.
    fn desc(&self) -> &TensorDesc;
    /// Reads rows `first .. first + count` into `band`, replacing what it held.
    fn read_rows(&mut self, first: usize, count: usize, band: &mut Band) -> Result<()>;
}

/// Runs rounds of one plan. Calls follow `submit`, `advance`…, reads, then `commit` or `abandon`.
pub trait Backend: Send {
    /// Reads and packs one weight of the plan.
    fn load(&mut self, id: WeightId, source: &mut dyn WeightSource) -> Result<()>;

    /// Takes a round. The one before must have been committed or abandoned.
    fn submit(&mut self, round: Round) -> Result<()>;
    /// Works on the round up to `limit`.
    fn advance(&mut self, limit: Limit) -> Result<Progress>;
    /// Whether a row of `lane` met a value that is not finite; its results are void, other lanes' are good.
    fn faulted(&self, lane: usize) -> bool;
    /// Logits of the `wanted`-th wanted row, after the round is done.
    fn logits(&self, wanted: usize) -> &[f32];
    /// Conv states as they are after the first `rows` rows of `lane` (0: as before the round).
    fn conv_state_after(&self, lane: usize, rows: usize) -> ConvState;
    /// Makes the first `kept[lane]` rows of each lane part of its stream and ends the round.
    fn commit(&mut self, kept: &[usize]);
    /// Ends the round without effect.
    fn abandon(&mut self);

    /// Conv states of `slot`; zeros where it was never set.
    fn conv_state(&self, slot: Slot) -> ConvState;
    /// Sets them; a new stream starts with [`Backend::reset_conv_state`].
    fn set_conv_state(&mut self, slot: Slot, state: &ConvState);
    /// Zeros them.
    fn reset_conv_state(&mut self, slot: Slot);
    /// Copies a page's rows: copy on write, for streams that come to share a page they both go on in.
    fn copy_page(&mut self, from: PageId, to: PageId);
    /// Lets the memory of a page no stream refers to go.
    fn release_page(&mut self, page: PageId);
    /// Lets what stages stored under `slot` go. Not while a round of it is in flight.
    fn release_stores(&mut self, slot: Slot);

    /// Slice times for the step report.
    fn slice_times(&self) -> SliceTimes;
    /// A buffer's rows as they stand in the round, row after row (taps and tests).
    fn read_buffer(&self, id: BufferId) -> Vec<f32>;
    /// Overwrites a buffer's rows after `submit` (tests of single ops).
    fn write_buffer(&mut self, id: BufferId, values: &[f32]);
}
