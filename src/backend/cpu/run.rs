//! Runs units of a phase: which rows, tiles or blocks a unit is, and which kernel does it.

use super::attend::{Attention, BLOCK_ROWS, Chunk, SPAN, STATE_EXTRA};
use super::budget::Kind;
use super::conv::{BLOCK_CHANNELS, Convolution};
use super::dense::{self, CHAINS, Chains};
use super::grid::{self, Around, Stores};
use super::matmul::{self, BlockScale, Ints, PAIRS, ROWS_AT_ONCE};
use super::pack::{BLOCK, Packed, TILE};
use super::pages::{self, Pages};
use super::phases::{Product, Step};
use super::pool::{Pool, Shared};
use super::round::Active;
use super::{Isa, elementwise, norm, rope};
use crate::backend::{Grid, Input, KEY_CHUNK, PAGE_ROWS, ROUND_LOGITS, ROUND_ROWS};
use crate::plan::{AttentionId, BufferId, ConvId, Op, Plan, RowSet, StoreId, WeightId};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::mem::take;
use std::ops::Range;
use std::sync::Arc;

/// Which units to do, and how many a thread takes at a time.
pub struct Task {
    /// Units of the phase.
    pub units: Range<usize>,
    /// Units claimed at once; all of them keeps the work on the caller.
    pub chunk: usize,
}

/// Everything kernels work on.
pub struct Runner {
    pub plan: Arc<Plan>,
    pub isa: Isa,
    pub pool: Arc<Mutex<Pool>>,
    pub threads: usize,
    pub weights: Vec<Option<Packed>>,
    pub buffers: Vec<Vec<f32>>,
    pub pages: Pages,
    pub states: BTreeMap<u32, Vec<f32>>,
    pub stores: Stores,
    pub round: Option<Active>,
    scratch: Scratch,
}

/// What rounds need beside buffers.
struct Scratch {
    pairs: Vec<[i32; PAIRS]>,
    scales: Vec<BlockScale>,
    /// `B * x` of the round's rows, by conv layer.
    gated: Vec<Vec<f32>>,
    /// For each row and query head: maximum, sum, summed values.
    attention: Vec<f32>,
    threads: Vec<Mutex<ThreadScratch>>,
}

/// What one thread needs.
struct ThreadScratch {
    chunk: Chunk,
    q: Vec<f32>,
    chains: Vec<Chains>,
}

/// What kernels read while a phase runs.
struct View<'a> {
    isa: Isa,
    plan: &'a Plan,
    weights: &'a [Option<Packed>],
    buffers: &'a [Vec<f32>],
    stores: &'a Stores,
    round: &'a Active,
}

impl View<'_> {
    fn row(&self, id: BufferId, row: usize) -> &[f32] {
        let width = self.plan.width(id);
        &self.buffers[id.0][row * width..][..width]
    }

    fn weight(&self, id: WeightId) -> &Packed {
        self.weights[id.0].as_ref().expect("submit saw every weight")
    }

    fn vector(&self, id: WeightId) -> &[f32] {
        match self.weight(id) {
            Packed::Vector(values) | Packed::Taps(values) => values,
            Packed::Affine(_) | Packed::Dense(_) => unreachable!("loaded by role"),
        }
    }

    /// A row's slot and grid; stages that ask for it were checked to have one.
    fn place(&self, row: usize) -> (u32, Grid, usize) {
        let row = &self.round.round.rows[row];
        let lane = &self.round.round.lanes[row.lane as usize];
        (lane.slot.0, lane.grid.expect("submit saw a grid"), row.position as usize)
    }

    /// The values a row is given as.
    fn values(&self, index: u32, width: usize) -> &[f32] {
        &self.round.round.vectors[index as usize * width..][..width]
    }

    /// The round's row behind a buffer's row.
    fn round_row(&self, set: RowSet, row: usize) -> usize {
        match set {
            RowSet::All => row,
            RowSet::Wanted => self.round.wanted[row],
        }
    }
}

/// Rows a buffer has room for.
fn capacity(set: RowSet) -> usize {
    match set {
        RowSet::All => ROUND_ROWS,
        RowSet::Wanted => ROUND_LOGITS,
    }
}

/// Largest head_dim and largest `head_dim * heads / kv_heads`.
fn attention_sizes(plan: &Plan) -> (usize, usize) {
    let head_dim = plan.attentions.iter().map(|a| a.head_dim).max().unwrap_or(0);
    let group = plan.attentions.iter().map(|a| a.head_dim * (a.heads / a.kv_heads.max(1))).max().unwrap_or(0);
    (head_dim, group)
}

/// Places for blocks of integers: for the widest input of a matmul, and its rows.
fn input_blocks(plan: &Plan) -> usize {
    let inputs = plan.ops.iter().filter_map(|op| match op {
        Op::Matmul { x, .. } => Some(&plan.buffers[x.0]),
        _ => None,
    });
    inputs.map(|b| b.width.div_ceil(BLOCK) * capacity(b.rows)).max().unwrap_or(0)
}

/// Values of the running states of attention.
fn attention_state_len(plan: &Plan) -> usize {
    let row = plan.attentions.iter().map(|a| a.heads * (a.head_dim + STATE_EXTRA)).max().unwrap_or(0);
    row * ROUND_ROWS
}

/// Bytes of buffers and scratch [`Runner::new`] makes.
pub fn scratch_bytes(plan: &Plan, threads: usize) -> u64 {
    let buffers: usize = plan.buffers.iter().map(|b| b.width * capacity(b.rows) * 4).sum();
    let ints = input_blocks(plan) * (PAIRS * 4 + size_of::<BlockScale>());
    let gated: usize = plan.convs.iter().map(|c| c.width * ROUND_ROWS * 4).sum();
    let (head_dim, group) = attention_sizes(plan);
    let thread = 2 * KEY_CHUNK * head_dim * 4 + BLOCK_ROWS * group * 4 + ROWS_AT_ONCE * size_of::<Chains>();
    (buffers + ints + gated + attention_state_len(plan) * 4 + threads * thread) as u64
}

impl Scratch {
    fn new(plan: &Plan, threads: usize) -> Scratch {
        let blocks = input_blocks(plan);
        let (head_dim, group) = attention_sizes(plan);
        let thread = || {
            let chains = vec![[[0.0; TILE]; CHAINS]; ROWS_AT_ONCE];
            Mutex::new(ThreadScratch { chunk: Chunk::new(head_dim), q: vec![0.0; BLOCK_ROWS * group], chains })
        };
        Scratch {
            pairs: vec![[0; PAIRS]; blocks],
            scales: vec![BlockScale::default(); blocks],
            gated: plan.convs.iter().map(|c| vec![0.0; c.width * ROUND_ROWS]).collect(),
            attention: vec![0.0; attention_state_len(plan)],
            threads: (0..threads).map(|_| thread()).collect(),
        }
    }
}

impl Runner {
    /// Makes buffers and scratch.
    pub fn new(plan: Arc<Plan>, isa: Isa, pool: Arc<Mutex<Pool>>) -> Runner {
        let buffers = plan.buffers.iter().map(|b| vec![0.0; b.width * capacity(b.rows)]).collect();
        let weights = plan.weights.iter().map(|_| None).collect();
        let threads = pool.lock().threads();
        let scratch = Scratch::new(&plan, threads);
        let (pages, states, stores) = (Pages::default(), BTreeMap::new(), Stores::default());
        Runner { plan, isa, pool, threads, weights, buffers, pages, states, stores, round: None, scratch }
    }

    /// Bytes of weights, buffers and scratch as allocated.
    pub fn bytes(&self) -> u64 {
        let floats = self.buffers.iter().chain(&self.scratch.gated).chain([&self.scratch.attention]);
        let mut bytes = floats.map(|v| v.capacity() * 4).sum::<usize>();
        bytes += self.scratch.pairs.capacity() * PAIRS * 4;
        bytes += self.scratch.scales.capacity() * size_of::<BlockScale>();
        for thread in &self.scratch.threads {
            let thread = thread.lock();
            bytes += (thread.chunk.keys.capacity() * pages::KEY_TILE + thread.chunk.values.capacity()) * 4;
            bytes += thread.q.capacity() * 4 + thread.chains.capacity() * size_of::<Chains>();
        }
        bytes as u64 + self.weights.iter().flatten().map(Packed::bytes).sum::<u64>()
    }

    /// The round submitted.
    pub fn active(&self) -> &Active {
        self.round.as_ref().expect("a round was submitted")
    }

    /// Rows a buffer has in this round.
    pub fn rows(&self, id: BufferId) -> usize {
        match self.plan.buffers[id.0].rows {
            RowSet::All => self.active().round.rows.len(),
            RowSet::Wanted => self.active().wanted.len(),
        }
    }

    /// The part sums of a phase that must end one after the other; one for all steps but attention.
    pub fn spans(&self, step: &Step) -> Range<usize> {
        let Step::Attend { layer, .. } = step else { return 0..1 };
        let shape = &self.plan.attentions[layer.0];
        let spans = self.active().blocks.iter().map(|block| block.spans(shape));
        spans.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or(0..0)
    }

    /// Units of a phase in one of its spans. Of products, those of ops before `before_op` only.
    pub fn units(&self, step: &Step, span: usize, before_op: usize) -> usize {
        match step {
            Step::Embed { out: id, .. }
            | Step::Input { out: id }
            | Step::RmsNorm { out: id, .. }
            | Step::LayerNorm { x: id, .. }
            | Step::Prepare { x: id, .. }
            | Step::HeadNorm { x: id, .. }
            | Step::Rope { x: id, .. }
            | Step::GridRope { x: id, .. }
            | Step::StoreGated { bcx: id, .. }
            | Step::GridConv { out: id, .. }
            | Step::Save { x: id, .. }
            | Step::Load { out: id, .. }
            | Step::Gelu { x: id }
            | Step::StoreKv { k: id, .. }
            | Step::HeadGate { x: id, .. }
            | Step::SwiGlu { out: id, .. }
            | Step::Add { to: id, .. }
            | Step::Copy { to: id, .. }
            | Step::Gather { out: id, .. } => self.rows(*id),
            Step::Multiply { x, products } => {
                let products = products.iter().filter(|p| p.op < before_op);
                products.map(|p| self.tiles(p)).sum::<usize>() * self.rows(*x).div_ceil(ROWS_AT_ONCE)
            }
            Step::Attend { layer, .. } => {
                let shape = &self.plan.attentions[layer.0];
                let blocks = self.active().blocks.iter().filter(|b| b.spans(shape).contains(&span));
                blocks.count() * shape.kv_heads
            }
            Step::ShortConv { out, .. } => self.plan.width(*out).div_ceil(BLOCK_CHANNELS),
        }
    }

    fn tiles(&self, product: &Product) -> usize {
        self.plan.width(product.out).div_ceil(TILE)
    }

    /// What a unit costs: its kind, and about how many values it goes through.
    pub fn work(&self, step: &Step, span: usize) -> (Kind, f64) {
        let width = |id: &BufferId| self.plan.width(*id) as f64;
        match step {
            Step::Embed { out, .. } => (Kind::Embed, width(out)),
            Step::RmsNorm { x, .. } | Step::HeadNorm { x, .. } | Step::LayerNorm { x, .. } => (Kind::Norm, width(x)),
            Step::Prepare { x, .. } => (Kind::Prepare, width(x)),
            Step::Rope { x, .. } | Step::GridRope { x, .. } => (Kind::Rope, width(x)),
            Step::StoreKv { k, .. } => (Kind::Store, 2.0 * width(k)),
            Step::GridConv { taps, .. } => {
                let taps = &self.plan.weights[taps.0];
                (Kind::Conv, (taps.rows * taps.cols) as f64)
            }
            Step::Gelu { x } => (Kind::Gelu, width(x)),
            Step::HeadGate { x: id, .. }
            | Step::Input { out: id }
            | Step::StoreGated { bcx: id, .. }
            | Step::Save { x: id, .. }
            | Step::Load { out: id, .. }
            | Step::Add { to: id, .. }
            | Step::Copy { to: id, .. }
            | Step::Gather { out: id, .. } => (Kind::Pass, width(id)),
            Step::SwiGlu { out, .. } => (Kind::SwiGlu, width(out)),
            Step::ShortConv { layer, .. } => {
                let rows = self.active().round.rows.len() * self.plan.convs[layer.0].taps;
                (Kind::Conv, (rows * BLOCK_CHANNELS) as f64)
            }
            Step::Multiply { x, products } => {
                let rows = self.rows(*x);
                let kind = match self.weights[products[0].weight.0].as_ref() {
                    Some(Packed::Affine(m)) if m.bits == 4 => Kind::Four,
                    Some(Packed::Affine(m)) if m.bits == 6 => Kind::Six,
                    Some(Packed::Affine(_)) => Kind::Eight,
                    _ => Kind::Dense,
                };
                (kind, TILE as f64 * width(x) * rows as f64 / rows.div_ceil(ROWS_AT_ONCE).max(1) as f64)
            }
            Step::Attend { layer, .. } => (Kind::Attend, self.attend_work(*layer, span)),
        }
    }

    /// Mean over the units of a span: conversions, and products of every row and head.
    fn attend_work(&self, layer: AttentionId, span: usize) -> f64 {
        let shape = &self.plan.attentions[layer.0];
        let heads = shape.heads / shape.kv_heads;
        let (mut work, mut units) = (0, 0);
        for block in self.active().blocks.iter().filter(|b| b.spans(shape).contains(&span)) {
            let visible = block.visible(shape);
            let keys = visible.end.min((span + 1) * SPAN) - visible.start.max(span * SPAN);
            work += 2 * keys * shape.head_dim * (1 + block.rows * heads);
            units += 1;
        }
        work as f64 / f64::from(units.max(1))
    }

    /// Does some units of a phase.
    pub fn run(&mut self, step: &Step, span: usize, task: Task) {
        let isa = self.isa;
        match *step {
            Step::Embed { table, out } => self.embed(table, out, task),
            Step::Input { out } => self.input(out, task),
            Step::LayerNorm { x, weight, bias, eps } => self
                .each_row(x, task, |view, _, x| norm::layer_norm(isa, x, view.vector(weight), view.vector(bias), eps)),
            Step::RmsNorm { x, weight, out } => self.each_row(out, task, |view, row, to| {
                if x != out {
                    to.copy_from_slice(view.row(x, row));
                }
                norm::rms_norm(isa, to, view.vector(weight), view.plan.norm_eps)
            }),
            Step::HeadNorm { x, weight } => {
                self.each_row(x, task, |view, _, x| norm::head_norm(isa, x, view.vector(weight), view.plan.norm_eps))
            }
            Step::Rope { x, rope } => self.each_row(x, task, |view, row, heads| {
                let row = view.round_row(view.plan.buffers[x.0].rows, row);
                rope::rotate(isa, heads, &view.plan.ropes[rope], view.round.round.rows[row].position);
                true
            }),
            Step::GridRope { x, rope } => self.grid_rope(x, rope, task),
            Step::GridConv { gated, gates, taps, out } => self.grid_convolve((gated, gates), taps, out, task),
            Step::Load { store, out } => self.load_rows(store, out, task),
            Step::Gelu { x } => self.each_row(x, task, |_, _, x| {
                elementwise::gelu(isa, x);
                true
            }),
            Step::Save { x, store } => self.save(x, store, task),
            Step::StoreGated { bcx, gated, gates } => self.store_gated(bcx, gated, gates, task),
            Step::HeadGate { x, gate } => self.each_row(x, task, |view, row, x| {
                elementwise::head_gate(isa, x, view.row(gate, row));
                true
            }),
            Step::SwiGlu { gate, up, out } => self.each_row(out, task, |view, row, to| {
                if gate != out {
                    to.copy_from_slice(view.row(gate, row));
                }
                elementwise::swiglu(isa, to, view.row(up, row));
                true
            }),
            Step::Add { x, to } => self.each_row(to, task, |view, row, to| {
                elementwise::add(isa, to, view.row(x, row));
                true
            }),
            Step::Copy { x, to } => self.each_row(to, task, |view, row, to| {
                to.copy_from_slice(view.row(x, row));
                true
            }),
            Step::Gather { x, out } => self.each_row(out, task, |view, row, out| {
                out.copy_from_slice(view.row(x, view.round.wanted[row]));
                true
            }),
            Step::Prepare { x, ref weights } => self.prepare(x, weights, task),
            Step::Multiply { x, ref products } => self.multiply(x, products, task),
            Step::StoreKv { k, v, layer } => self.store(k, v, layer, task),
            Step::Attend { x, layer } => self.attend(x, layer, span, task),
            Step::ShortConv { bcx, taps, bias, layer, out } => self.convolve(bcx, (taps, bias), layer, out, task),
        }
    }

    /// Tokens from the table, other rows as they are given.
    fn embed(&mut self, table: WeightId, out: BufferId, task: Task) {
        let isa = self.isa;
        self.each_row(out, task, |view, row, out| {
            let token = match view.round.round.rows[row].input {
                Input::Vector(index) => {
                    out.copy_from_slice(view.values(index, out.len()));
                    return elementwise::all_finite(isa, out);
                }
                Input::Token(token) => token as usize,
                Input::Stored => unreachable!("submit saw tokens and values only"),
            };
            match view.weight(table) {
                Packed::Affine(matrix) => matrix.row(token, out),
                Packed::Dense(matrix) => matrix.row(token, out),
                Packed::Vector(_) | Packed::Taps(_) => unreachable!("loaded by role"),
            }
            true
        });
    }

    /// Rows as they are given.
    fn input(&mut self, out: BufferId, task: Task) {
        let isa = self.isa;
        self.each_row(out, task, |view, row, out| {
            let Input::Vector(index) = view.round.round.rows[row].input else { unreachable!("submit saw values only") };
            out.copy_from_slice(view.values(index, out.len()));
            elementwise::all_finite(isa, out)
        });
    }

    /// Positions in a grid.
    fn grid_rope(&mut self, x: BufferId, rope: usize, task: Task) {
        let isa = self.isa;
        self.each_row(x, task, |view, row, heads| {
            let (_, grid, position) = view.place(row);
            let (row, col) = grid.place(position);
            rope::rotate_grid(isa, heads, &view.plan.ropes[rope], row, col);
            true
        });
    }

    /// Convolution over a grid.
    fn grid_convolve(&mut self, stores: (StoreId, StoreId), taps: WeightId, out: BufferId, task: Task) {
        let isa = self.isa;
        self.each_row(out, task, |view, row, out| {
            let (slot, grid, position) = view.place(row);
            let around = Around::new(view.stores, (slot, grid), stores, view.vector(taps), out.len(), position);
            grid::grid_conv(isa, &around, out);
            true
        });
    }

    /// Rows of a store, some side by side where `out` is wider.
    fn load_rows(&mut self, store: StoreId, out: BufferId, task: Task) {
        self.each_row(out, task, |view, row, out| {
            let (slot, _, position) = view.place(row);
            let width = view.plan.stores[store.0].width;
            let count = out.len() / width;
            out.copy_from_slice(view.stores.rows(slot, store, position * count, count, width));
            true
        });
    }

    /// Runs `f(view, row, row of out)` for rows of `out`; false from it marks the row's lane.
    fn each_row(&mut self, out: BufferId, task: Task, f: impl Fn(&View<'_>, usize, &mut [f32]) -> bool + Sync) {
        let mut rows = take(&mut self.buffers[out.0]);
        let (width, set) = (self.plan.width(out), self.plan.buffers[out.0].rows);
        let shared = Shared::new(&mut rows);
        let (view, pool, _) = self.split();
        pool.lock().run(task.units, task.chunk, &|_, units| {
            for row in units {
                // SAFETY: each row is one unit, and a unit is done by one thread.
                let part = unsafe { shared.part(row * width, width) };
                if !f(&view, row, part) {
                    view.round.fault(view.round_row(set, row));
                }
            }
        });
        self.buffers[out.0] = rows;
    }

    fn prepare(&mut self, x: BufferId, weights: &[WeightId], task: Task) {
        let (rows, set) = (self.rows(x), self.plan.buffers[x.0].rows);
        let (view, pool, scratch) = self.split();
        let integers = weights.iter().any(|w| matches!(view.weight(*w), Packed::Affine(_)));
        let pairs = Shared::new(&mut scratch.pairs);
        let scales = Shared::new(&mut scratch.scales);
        let round_off = |row: usize| {
            let mut finite = true;
            for (block, values) in view.row(x, row).chunks(BLOCK).enumerate() {
                let at = block * rows + row;
                // SAFETY: each row is one unit, done by one thread, and the place is this row's alone.
                let (pairs, scale) = unsafe { (&mut pairs.part(at, 1)[0], &mut scales.part(at, 1)[0]) };
                finite &= matmul::quantize_block(view.isa, values, pairs, scale);
            }
            finite
        };
        pool.lock().run(task.units, task.chunk, &|_, units| {
            for row in units {
                let finite =
                    if integers { round_off(row) } else { elementwise::all_finite(view.isa, view.row(x, row)) };
                if !finite {
                    view.round.fault(view.round_row(set, row));
                }
            }
        });
    }

    fn multiply(&mut self, x: BufferId, products: &[Product], task: Task) {
        let rows = self.rows(x);
        let mut outs: Vec<Vec<f32>> = products.iter().map(|p| take(&mut self.buffers[p.out.0])).collect();
        let (view, pool, scratch) = self.split();
        let ends = products.iter().scan(0, |end, p| {
            *end += view.plan.width(p.out).div_ceil(TILE) * rows.div_ceil(ROWS_AT_ONCE);
            Some(*end)
        });
        let multiplication = Multiplication {
            x,
            rows,
            ints: Ints { rows, pairs: &scratch.pairs, scales: &scratch.scales },
            products,
            ends: ends.collect(),
            outs: outs.iter_mut().map(|out| Shared::new(out)).collect(),
            view,
        };
        let threads = &scratch.threads;
        pool.lock().run(task.units, task.chunk, &|thread, units| {
            let mut scratch = threads[thread].lock();
            units.for_each(|unit| multiplication.unit(unit, &mut scratch.chains));
        });
        for (product, out) in products.iter().zip(outs) {
            self.buffers[product.out.0] = out;
        }
    }

    fn store(&mut self, k: BufferId, v: BufferId, layer: AttentionId, task: Task) {
        let round = self.round.as_ref().expect("a round was submitted");
        let head_dim = self.plan.attentions[layer.0].head_dim;
        let width = self.plan.width(k);
        for index in task.units {
            let row = &round.round.rows[index];
            let (page, at) = (row.position as usize / PAGE_ROWS, row.position as usize % PAGE_ROWS);
            let page = self.pages.get_mut(round.round.lanes[row.lane as usize].pages[layer.0][page]);
            let k = &self.buffers[k.0][index * width..][..width];
            let v = &self.buffers[v.0][index * width..][..width];
            if !(elementwise::all_finite(self.isa, k) && elementwise::all_finite(self.isa, v)) {
                round.fault(index);
            }
            pages::store_row(self.isa, page, head_dim, at, k, v);
        }
    }

    /// Keeps rows of `x`.
    fn save(&mut self, x: BufferId, store: StoreId, task: Task) {
        let width = self.plan.width(x);
        for index in task.units {
            let (slot, position) = self.kept_at(index);
            let row = &self.buffers[x.0][index * width..][..width];
            self.stores.row_mut(slot, store, position, width).copy_from_slice(row);
        }
    }

    /// Keeps `B * x` and C.
    fn store_gated(&mut self, bcx: BufferId, gated: StoreId, gates: StoreId, task: Task) {
        let width = self.plan.width(bcx) / 3;
        for index in task.units {
            let (slot, position) = self.kept_at(index);
            let row = &self.buffers[bcx.0][index * 3 * width..][..3 * width];
            grid::gate_input(self.isa, row, self.stores.row_mut(slot, gated, position, width));
            self.stores.row_mut(slot, gates, position, width).copy_from_slice(&row[width..2 * width]);
        }
    }

    /// The slot and position of a row.
    fn kept_at(&self, row: usize) -> (u32, usize) {
        let round = &self.active().round;
        let row = &round.rows[row];
        (round.lanes[row.lane as usize].slot.0, row.position as usize)
    }

    fn attend(&mut self, x: BufferId, layer: AttentionId, span: usize, task: Task) {
        let shape = self.plan.attentions[layer.0];
        let mut out = take(&mut self.buffers[x.0]);
        let pages = take(&mut self.pages);
        let (view, pool, scratch) = self.split();
        let blocks = view.round.blocks.iter().filter(|b| b.spans(&shape).contains(&span));
        let attention = Attention {
            isa: view.isa,
            shape,
            layer: layer.0,
            span,
            pages: &pages,
            round: view.round,
            blocks: blocks.copied().collect(),
            out: Shared::new(&mut out),
            states: Shared::new(&mut scratch.attention),
        };
        let threads = &scratch.threads;
        pool.lock().run(task.units, task.chunk, &|thread, units| {
            let scratch = &mut *threads[thread].lock();
            units.for_each(|unit| attention.unit(unit, &mut scratch.chunk, &mut scratch.q));
        });
        self.buffers[x.0] = out;
        self.pages = pages;
    }

    fn convolve(
        &mut self,
        bcx: BufferId,
        weights: (WeightId, Option<WeightId>),
        layer: ConvId,
        out: BufferId,
        task: Task,
    ) {
        let mut rows = take(&mut self.buffers[out.0]);
        let states = take(&mut self.states);
        let (view, pool, scratch) = self.split();
        let convolution = Convolution {
            isa: view.isa,
            shape: view.plan.convs[layer.0],
            bcx: &view.buffers[bcx.0],
            taps: view.vector(weights.0),
            bias: weights.1.map(|id| view.vector(id)),
            lanes: &view.round.round.lanes,
            states: &states,
            state_start: state_start(view.plan, layer),
            gated: Shared::new(&mut scratch.gated[layer.0]),
            out: Shared::new(&mut rows),
        };
        pool.lock().run(task.units, task.chunk, &|_, units| units.for_each(|unit| convolution.unit(unit)));
        self.buffers[out.0] = rows;
        self.states = states;
    }

    /// What a phase reads, the pool, and scratch.
    fn split(&mut self) -> (View<'_>, &Mutex<Pool>, &mut Scratch) {
        let view = View {
            isa: self.isa,
            plan: &self.plan,
            weights: &self.weights,
            buffers: &self.buffers,
            stores: &self.stores,
            round: self.round.as_ref().expect("a round was submitted"),
        };
        (view, &self.pool, &mut self.scratch)
    }

    /// Brings `states`, a lane's conv states before the round, to after the first `rows` of its rows: for each layer
    /// the last `taps - 1` of its columns and the round's.
    pub fn move_state(&self, lane: usize, rows: usize, states: &mut [f32]) {
        let lane = &self.active().round.lanes[lane];
        for (layer, shape) in self.plan.convs.iter().enumerate() {
            let (width, columns) = (shape.width, shape.taps - 1);
            let state = &mut states[state_start(&self.plan, ConvId(layer))..][..columns * width];
            let new = rows.min(columns);
            state.copy_within(new * width.., 0);
            let first = lane.first_row + rows - new;
            let gated = &self.scratch.gated[layer][first * width..][..new * width];
            state[(columns - new) * width..].copy_from_slice(gated);
        }
    }
}

/// Where a layer's columns begin in a stream's conv states.
fn state_start(plan: &Plan, layer: ConvId) -> usize {
    plan.convs[..layer.0].iter().map(|c| c.width * (c.taps - 1)).sum()
}

/// Values of a stream's conv states.
pub fn state_len(plan: &Plan) -> usize {
    state_start(plan, ConvId(plan.convs.len()))
}

/// Matrices times the rows of one input. A unit is a tile of 16 outputs and a block of rows.
struct Multiplication<'a> {
    view: View<'a>,
    x: BufferId,
    rows: usize,
    ints: Ints<'a>,
    products: &'a [Product],
    /// Where each product's units end.
    ends: Vec<usize>,
    outs: Vec<Shared<'a, f32>>,
}

impl Multiplication<'_> {
    fn unit(&self, unit: usize, chains: &mut [Chains]) {
        let index = self.ends.partition_point(|end| *end <= unit);
        let unit = unit - if index > 0 { self.ends[index - 1] } else { 0 };
        let blocks = self.rows.div_ceil(ROWS_AT_ONCE);
        let (tile, first) = (unit / blocks, unit % blocks * ROWS_AT_ONCE);
        let product = &self.products[index];
        let mut results = [[0.0; TILE]; ROWS_AT_ONCE];
        let results = &mut results[..ROWS_AT_ONCE.min(self.rows - first)];
        match self.view.weight(product.weight) {
            Packed::Affine(matrix) => matmul::affine_tile(self.view.isa, matrix, tile, self.ints, first, results),
            Packed::Dense(matrix) => {
                let (x, chains) = (&self.view.buffers[self.x.0], &mut chains[..results.len()]);
                dense::dense_tile(self.view.isa, matrix, tile, x, first, chains, results);
            }
            Packed::Vector(_) | Packed::Taps(_) => unreachable!("loaded by role"),
        }
        let (width, set) = (self.view.plan.width(product.out), self.view.plan.buffers[product.out.0].rows);
        let valid = TILE.min(width - tile * TILE);
        for (row, result) in results.iter_mut().enumerate() {
            let result = &mut result[..valid];
            if let Some(bias) = product.bias {
                elementwise::add(self.view.isa, result, &self.view.vector(bias)[tile * TILE..][..valid]);
            }
            // SAFETY: a tile of a block of rows is one unit, done by one thread; tiles do not overlap.
            let part = unsafe { self.outs[index].part((first + row) * width + tile * TILE, valid) };
            part.copy_from_slice(result);
            if !elementwise::all_finite(self.view.isa, result) {
                self.view.round.fault(self.view.round_row(set, first + row));
            }
        }
    }
}
