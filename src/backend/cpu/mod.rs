//! The CPU backend: exact integers inside a weight group, fixed float chains elsewhere, so that a row's bits depend on
//! nothing but its own stream and the weights. Not on other rows, threads, slices or the instruction set.
//!
//! `phases` compiles the plan; `run` turns units of a phase into kernel calls, which `pool` spreads over threads;
//! `budget` sizes slices. Kernels: `matmul`, `dense`, `attend`, `conv`, `norm`, `rope`, `elementwise`, each written
//! once and compiled for each instruction set by `simd::kernel!`. `pack` and `pages` are the data they read.

mod attend;
mod budget;
mod conv;
mod dense;
mod elementwise;
mod fpenv;
mod grid;
mod matmul;
mod norm;
mod pack;
mod pages;
mod phases;
mod pool;
mod rope;
mod round;
mod run;
mod simd;

pub use fpenv::FpGuard;
pub use grid::store_bytes;
pub use pack::packed_bytes;
pub use pool::MAX_THREADS;

use crate::backend::{Backend, ConvState, Limit, PageId, Progress, Round, SliceTimes, Slot, WeightSource};
use crate::error::{Code, Error, Result};
use crate::plan::{AttentionId, BufferId, Plan, WeightId};
use budget::{Costs, SHARE_NS, SLICE_TARGET_NS};
use pack::Packed;
use parking_lot::Mutex;
use phases::Phase;
use pool::Pool;
use round::Active;
use run::{Runner, Task};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Instruction sets the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isa {
    /// Plain Rust, any CPU.
    Portable,
    /// AVX2 and FMA.
    Avx2,
}

impl Isa {
    /// The fastest this CPU has.
    pub fn best() -> Isa {
        if Isa::Avx2.available() { Isa::Avx2 } else { Isa::Portable }
    }

    /// Whether this CPU has it.
    pub fn available(self) -> bool {
        match self {
            Isa::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                std::arch::is_x86_feature_detected!("avx2")
                    && std::arch::is_x86_feature_detected!("fma")
                    && std::arch::is_x86_feature_detected!("f16c")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 => false,
        }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Portable => "portable",
            Isa::Avx2 => "avx2",
        }
    }
}

/// How to make a [`CpuBackend`].
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// Threads that compute, the calling one included; 1 to [`MAX_THREADS`].
    pub threads: usize,
    /// Forces an instruction set; `None` takes the best.
    pub isa: Option<Isa>,
    /// Rounds unquantized matrices to 8 bits on loading.
    pub round_to_8_bits: bool,
}

/// Bytes of buffers and scratch [`CpuBackend::new`] allocates.
pub fn scratch_bytes(plan: &Plan, options: &CpuOptions) -> u64 {
    run::scratch_bytes(plan, options.threads)
}

/// Bytes of one page of an attention layer.
pub fn page_bytes(plan: &Plan, layer: AttentionId) -> u64 {
    2 * pages::page_len(&plan.attentions[layer.0]) as u64
}

/// Bytes of one stream's conv states.
pub fn conv_state_bytes(plan: &Plan) -> u64 {
    4 * run::state_len(plan) as u64
}

/// Where the round stands: the next unit.
#[derive(Clone, Copy, Debug, Default)]
struct Cursor {
    phase: usize,
    /// `None` before the phase's first span.
    span: Option<usize>,
    unit: usize,
}

/// The next slice.
#[derive(Clone, Copy, Debug)]
struct Slice {
    span: usize,
    first: usize,
    units: usize,
    /// Threads that share it.
    threads: usize,
    expected_ns: f64,
}

/// Runs a plan on this machine's CPU.
pub struct CpuBackend {
    phases: Vec<Phase>,
    runner: Runner,
    options: CpuOptions,
    cursor: Cursor,
    /// The first phase behind the round's stage.
    end: usize,
    costs: Costs,
    next_ns: f64,
}

impl CpuBackend {
    /// Checks the plan, makes scratch, starts `threads - 1` workers. Fails where the instruction set is not there.
    pub fn new(plan: Arc<Plan>, options: &CpuOptions) -> Result<CpuBackend> {
        let isa = options.isa.unwrap_or_else(Isa::best);
        if !isa.available() {
            let message = format!("instruction set {} is not available on this CPU", isa.name());
            return Err(Error::new(Code::Unsupported, message));
        }
        CpuBackend::with_pool(plan, options, isa, Arc::new(Mutex::new(Pool::new(options.threads)?)))
    }

    /// A backend for another plan with the same options and the same workers. Only one of the two may work at a time.
    pub fn sharing(&self, plan: Arc<Plan>) -> Result<CpuBackend> {
        CpuBackend::with_pool(plan, &self.options, self.runner.isa, Arc::clone(&self.runner.pool))
    }

    fn with_pool(plan: Arc<Plan>, options: &CpuOptions, isa: Isa, pool: Arc<Mutex<Pool>>) -> Result<CpuBackend> {
        let phases = phases::compile(&plan)?;
        let end = phases.len();
        let (runner, options) = (Runner::new(plan, isa, pool), options.clone());
        let (cursor, costs) = (Cursor::default(), Costs::default());
        Ok(CpuBackend { phases, runner, options, cursor, end, costs, next_ns: 0.0 })
    }

    /// Puts the cursor before the first phase of a stage.
    fn enter(&mut self, stage: usize) {
        let ops = self.runner.plan.stage_ops(stage);
        let first_of = |op| self.phases.partition_point(|phase| phase.op < op);
        self.end = first_of(ops.end);
        self.cursor = Cursor { phase: first_of(ops.start), ..Cursor::default() };
    }

    /// Bytes held by weights loaded so far, buffers and scratch.
    pub fn bytes(&self) -> u64 {
        self.runner.bytes()
    }

    /// Moves the cursor past what is finished. False when the round is done.
    fn settle(&mut self) -> bool {
        while let Some(phase) = self.phases[..self.end].get(self.cursor.phase) {
            let spans = self.runner.spans(&phase.step);
            let span = *self.cursor.span.get_or_insert(spans.start);
            if span >= spans.end {
                self.cursor = Cursor { phase: self.cursor.phase + 1, ..Cursor::default() };
            } else if self.cursor.unit < self.runner.units(&phase.step, span, usize::MAX) {
                return true;
            } else {
                self.cursor = Cursor { span: Some(span + 1), unit: 0, ..self.cursor };
            }
        }
        false
    }

    /// The next slice of about `target_ns`, at least one unit; `None` when all ops before `before_op` are done.
    fn plan_slice(&self, before_op: usize, target_ns: f64) -> Option<Slice> {
        let phase = &self.phases[self.cursor.phase];
        let (span, first) = (self.cursor.span.unwrap_or(0), self.cursor.unit);
        let end = self.runner.units(&phase.step, span, before_op);
        if phase.op >= before_op || first >= end {
            return None;
        }
        let (kind, work) = self.runner.work(&phase.step, span);
        let unit_ns = self.costs.expect(kind, self.runner.active().round.rows.len(), work).max(1.0);
        let threads = self.runner.threads.min(end - first);
        let alone = unit_ns * (end - first) as f64 <= SHARE_NS || phase.step.is_serial();
        let threads = if alone { 1 } else { threads };
        let turns = ((target_ns / unit_ns) as usize).max(1);
        let units = turns.saturating_mul(threads).min(end - first);
        let expected_ns = unit_ns * units.div_ceil(threads) as f64;
        Some(Slice { span, first, units, threads, expected_ns })
    }

    fn run_slice(&mut self, slice: Slice) {
        let phase = &self.phases[self.cursor.phase];
        // A few turns a thread, so that one held up for a moment does not hold up all.
        let chunk = if slice.threads == 1 { slice.units } else { slice.units.div_ceil(4 * slice.threads) };
        let task = Task { units: slice.first..slice.first + slice.units, chunk };
        self.runner.run(&phase.step, slice.span, task);
    }

    /// Keeps what a slice took.
    fn learn(&mut self, slice: Slice, wall: Duration) {
        let phase = &self.phases[self.cursor.phase];
        let (kind, work) = self.runner.work(&phase.step, slice.span);
        // Cost is what a thread spends on a unit: an uneven last turn leaves threads idle.
        let turns = slice.units.div_ceil(slice.threads) as f64;
        self.costs.learn(kind, self.runner.active().round.rows.len(), work * turns, wall);
    }

    fn work(&mut self, limit: Limit) -> Progress {
        let mut now = Instant::now();
        let mut done = 0;
        loop {
            if !self.settle() {
                self.next_ns = 0.0;
                return Progress::Done;
            }
            let left_ns = match limit {
                Limit::Until(end) => end.saturating_duration_since(now).as_nanos() as f64,
                _ => f64::INFINITY,
            };
            let (before_op, target_ns) = match limit {
                Limit::Ops(ops) => (ops, SLICE_TARGET_NS),
                Limit::Slices(_) => (usize::MAX, 0.0),
                Limit::End | Limit::Until(_) => (usize::MAX, SLICE_TARGET_NS.min(left_ns)),
            };
            let Some(mut slice) = self.plan_slice(before_op, target_ns) else { return Progress::Working };
            if let Limit::Slices(most) = limit {
                if done == most {
                    return Progress::Working;
                }
                slice = Slice { units: 1, threads: 1, ..slice };
            }
            if done > 0 && slice.expected_ns > left_ns {
                self.next_ns = slice.expected_ns;
                return Progress::Working;
            }
            self.run_slice(slice);
            let end = Instant::now();
            self.learn(slice, end - now);
            now = end;
            self.cursor.unit += slice.units;
            done += 1;
        }
    }
}

impl Backend for CpuBackend {
    fn load(&mut self, id: WeightId, source: &mut dyn WeightSource) -> Result<()> {
        let _fp = FpGuard::new();
        let spec = &self.runner.plan.weights[id.0];
        self.runner.weights[id.0] = Some(Packed::load(spec, source, &self.options)?);
        Ok(())
    }

    fn submit(&mut self, round: Round) -> Result<()> {
        if self.runner.round.is_some() {
            return Err(Error::new(Code::State, "a round was submitted before the last one ended"));
        }
        if let Some(missing) = self.runner.weights.iter().position(Option::is_none) {
            let name = &self.runner.plan.weights[missing].names[0];
            return Err(Error::new(Code::State, format!("weight {name} was not loaded")));
        }
        let plan = Arc::clone(&self.runner.plan);
        let active = Active::new(&plan, round)?;
        for lane in &active.round.lanes {
            self.runner.stores.ensure(lane, &plan)?;
            self.runner.states.entry(lane.slot.0).or_insert_with(|| vec![0.0; run::state_len(&plan)]);
            for (layer, shape) in plan.attentions.iter().enumerate() {
                for page in active.pages(lane, layer, shape) {
                    self.runner.pages.ensure(page, shape)?;
                }
            }
        }
        self.enter(active.round.stage);
        self.runner.round = Some(active);
        Ok(())
    }

    fn advance(&mut self, limit: Limit) -> Result<Progress> {
        if self.runner.round.is_none() {
            return Err(Error::new(Code::State, "no round was submitted"));
        }
        let _fp = FpGuard::new();
        self.runner.pool.lock().begin();
        let progress = self.work(limit);
        self.runner.pool.lock().rest();
        Ok(progress)
    }

    fn faulted(&self, lane: usize) -> bool {
        self.runner.active().faulted(lane)
    }

    fn logits(&self, wanted: usize) -> &[f32] {
        let id = self.runner.plan.logits.expect("the plan has logits");
        let width = self.runner.plan.width(id);
        &self.runner.buffers[id.0][wanted * width..][..width]
    }

    fn conv_state_after(&self, lane: usize, rows: usize) -> ConvState {
        let mut state = self.conv_state(self.runner.active().round.lanes[lane].slot);
        self.runner.move_state(lane, rows, &mut state.0);
        state
    }

    fn commit(&mut self, kept: &[usize]) {
        for (lane, &rows) in kept.iter().enumerate().filter(|(_, rows)| **rows > 0) {
            let slot = self.runner.active().round.lanes[lane].slot;
            let Some(mut state) = self.runner.states.remove(&slot.0) else { continue };
            self.runner.move_state(lane, rows, &mut state);
            self.runner.states.insert(slot.0, state);
        }
        self.runner.round = None;
    }

    fn abandon(&mut self) {
        self.runner.round = None;
    }

    fn conv_state(&self, slot: Slot) -> ConvState {
        let zeros = || vec![0.0; run::state_len(&self.runner.plan)];
        ConvState(self.runner.states.get(&slot.0).cloned().unwrap_or_else(zeros))
    }

    fn set_conv_state(&mut self, slot: Slot, state: &ConvState) {
        assert_eq!(state.0.len(), run::state_len(&self.runner.plan), "conv states of another plan");
        self.runner.states.insert(slot.0, state.0.clone());
    }

    fn reset_conv_state(&mut self, slot: Slot) {
        self.runner.states.remove(&slot.0);
    }

    fn copy_page(&mut self, from: PageId, to: PageId) {
        self.runner.pages.copy(from, to);
    }

    fn release_page(&mut self, page: PageId) {
        self.runner.pages.release(page);
    }

    fn release_stores(&mut self, slot: Slot) {
        self.runner.stores.release(slot.0);
    }

    fn slice_times(&self) -> SliceTimes {
        SliceTimes { next: Duration::from_nanos(self.next_ns as u64), worst: self.costs.worst() }
    }

    fn read_buffer(&self, id: BufferId) -> Vec<f32> {
        self.runner.buffers[id.0][..self.runner.rows(id) * self.runner.plan.width(id)].to_vec()
    }

    fn write_buffer(&mut self, id: BufferId, values: &[f32]) {
        let len = self.runner.rows(id) * self.runner.plan.width(id);
        self.runner.buffers[id.0][..len].copy_from_slice(values);
    }
}

#[cfg(test)]
mod tests;
