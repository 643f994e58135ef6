//! The plan in naive float64: what every other backend is held against. Never optimized.
//!
//! One short function an op, over one row. Keys, values and conv states are kept in float64, not rounded as in the
//! other backends; [`ConvState`] is float32, so a state that is read and set again is rounded once.

use super::check::check_round;
use super::*;
use crate::error::{Code, Error};
use crate::math;
use crate::plan::{AttentionId, AttentionShape, ConvId, ConvShape, Op, Plan, RowSet, StoreId};
use std::collections::HashMap;
use std::sync::Arc;

/// Rows of a weight read at a time.
const BAND_ROWS: usize = 256;

/// Keys and values of one page, `PAGE_ROWS` rows of `kv_heads * head_dim` each.
#[derive(Clone)]
struct Page {
    k: Vec<f64>,
    v: Vec<f64>,
}

/// The round in progress.
struct Running {
    round: Round,
    /// Indices of the rows whose logits are wanted.
    wanted: Vec<usize>,
    /// Ops done.
    done: usize,
    /// By `BufferId`, row after row.
    buffers: Vec<Vec<f64>>,
    /// By `ConvId`: `B * x` of the round's rows.
    gated: Vec<Vec<f64>>,
    /// By lane.
    faulted: Vec<bool>,
    /// Filled at the round's end.
    logits: Vec<f32>,
    /// Where the round's stage ends.
    end: usize,
}

/// Runs a plan in float64, one op a slice, on the calling thread.
pub struct ReferenceBackend {
    plan: Arc<Plan>,
    weights: Vec<Vec<f64>>,
    pages: HashMap<PageId, Page>,
    /// For each conv layer `taps - 1` columns, oldest first.
    convs: HashMap<Slot, Vec<Vec<f64>>>,
    /// By slot and `StoreId`: rows of a picture by position.
    stores: HashMap<(Slot, StoreId), Vec<f64>>,
    /// The picture whose rows a slot's stores have.
    grids: HashMap<Slot, Grid>,
    running: Option<Running>,
    times: SliceTimes,
}

impl ReferenceBackend {
    /// A backend for `plan` without weights, pages or states.
    pub fn new(plan: Arc<Plan>) -> ReferenceBackend {
        ReferenceBackend {
            weights: vec![Vec::new(); plan.weights.len()],
            pages: HashMap::new(),
            convs: HashMap::new(),
            stores: HashMap::new(),
            grids: HashMap::new(),
            running: None,
            times: SliceTimes::default(),
            plan,
        }
    }

    /// Conv states of `slot` as float64, zeros where it was never set.
    fn states(&self, slot: Slot) -> Vec<Vec<f64>> {
        let zeros = || self.plan.convs.iter().map(|c| vec![0.0; (c.taps - 1) * c.width]).collect();
        self.convs.get(&slot).cloned().unwrap_or_else(zeros)
    }

    /// One layer's state of `lane` after its first `rows` rows.
    fn state_after(&self, running: &Running, lane: usize, rows: usize, layer: ConvId) -> Vec<f64> {
        let (lane, width) = (&running.round.lanes[lane], self.plan.convs[layer.0].width);
        let mut state = self.states(lane.slot).swap_remove(layer.0);
        let first = lane.first_row * width;
        state.extend_from_slice(&running.gated[layer.0][first..first + rows * width]);
        state.drain(..rows * width);
        state
    }

    /// Every layer's state of `lane` after its first `rows` rows.
    fn states_after(&self, running: &Running, lane: usize, rows: usize) -> Vec<Vec<f64>> {
        (0..self.plan.convs.len()).map(|layer| self.state_after(running, lane, rows, ConvId(layer))).collect()
    }

    /// Refuses a round that would read outside of what there is.
    fn check(&self, round: &Round) -> Result<()> {
        let refuse = |what: String| Err(Error::new(Code::InvalidArgument, format!("round refused: {what}")));
        if self.running.is_some() {
            return Err(Error::new(Code::State, "a round was submitted before the one before it had ended"));
        }
        if let Some(id) = self.weights.iter().position(Vec::is_empty) {
            return refuse(format!("weight {} is not loaded", self.plan.weights[id].names[0]));
        }
        check_round(&self.plan, round).or_else(refuse)?;
        // Other blocks alone need no other room; tests take rows for another order's so.
        let same = |a: Grid, b: Grid| (a.rows, a.cols) == (b.rows, b.cols);
        for (slot, grid) in round.lanes.iter().filter_map(|lane| Some((lane.slot, lane.grid?))) {
            if let Some(old) = self.grids.get(&slot).filter(|old| !same(**old, grid)) {
                let message = format!("slot {} holds a picture of {old:?}, not {grid:?}: release it first", slot.0);
                return Err(Error::new(Code::State, message));
            }
        }
        Ok(())
    }

    /// Runs one op over all its rows.
    fn run(&mut self, running: &mut Running, op: &Op) -> Result<()> {
        let plan = Arc::clone(&self.plan);
        let (plan, rows, eps) = (&*plan, running.round.rows.len(), f64::from(self.plan.norm_eps));
        let w = |id: WeightId| &self.weights[id.0][..];
        match *op {
            Op::Embed { table, out } => running.put(plan, out, running.embed(w(table), plan.width(out))),
            Op::Input { out } => running.put(plan, out, running.embed(&[], 0)),
            Op::LayerNorm { x, weight, bias, eps } => {
                running.fill(plan, x, |_, x| layer_norm(x, w(weight), w(bias), f64::from(eps)));
            }
            Op::RmsNorm { x, weight, out } => {
                let x = running.copy(plan, x);
                running.fill(plan, out, |r, _| rms_norm(&x[r], w(weight), eps));
            }
            Op::Matmul { x, weight, bias, out } => {
                let x = running.copy(plan, x);
                running.fill(plan, out, |r, _| matmul(&x[r], w(weight), bias.map(w)));
            }
            Op::HeadNorm { x, weight } => running.fill(plan, x, |_, x| head_norm(x, w(weight), eps)),
            Op::Rope { x, rope: index } => {
                let rows = running.round.rows.clone();
                running.fill(plan, x, |r, x| rope(x, rows[r].position, &plan.ropes[index]));
            }
            Op::GridRope { x, rope } => {
                let at = (0..rows).map(|r| running.place(r)).collect::<Result<Vec<_>>>()?;
                running.fill(plan, x, |r, x| grid_rope(x, at[r], &plan.ropes[rope]));
            }
            Op::StoreKv { k, v, layer } => {
                let (k, v) = (running.copy(plan, k), running.copy(plan, v));
                (0..rows).try_for_each(|r| self.store(&running.round, layer, r, &k[r], &v[r]))?;
            }
            Op::Attend { q, layer, out } => {
                let (q, shape) = (running.copy(plan, q), &plan.attentions[layer.0]);
                let seen = (0..rows).map(|r| self.visible(&running.round, layer, r)).collect::<Result<Vec<_>>>()?;
                running.fill(plan, out, |r, _| attend(&q[r], &seen[r], shape));
            }
            Op::HeadGate { x, gate } => {
                let gate = running.copy(plan, gate);
                running.fill(plan, x, |r, x| head_gate(x, &gate[r]));
            }
            Op::ShortConv { bcx, taps, bias, layer, out } => {
                let bcx = running.copy(plan, bcx);
                running.gated[layer.0] = bcx.iter().flat_map(|bcx| gated_input(bcx)).collect();
                let conv = |r: usize| short_conv(&bcx[r], &self.columns(running, layer, r), w(taps), bias.map(w));
                running.put(plan, out, (0..rows).map(conv).collect());
            }
            Op::SwiGlu { gate, up, out } => {
                let (gate, up) = (running.copy(plan, gate), running.copy(plan, up));
                running.fill(plan, out, |r, _| swiglu(&gate[r], &up[r]));
            }
            Op::Add { x, to } => {
                let x = running.copy(plan, x);
                running.fill(plan, to, |r, to| add(&x[r], to));
            }
            Op::StoreGated { bcx, gated, gates } => {
                let bcx = running.copy(plan, bcx);
                self.save(&running.round, gated, &bcx.iter().map(|bcx| gated_input(bcx)).collect::<Vec<_>>())?;
                self.save(&running.round, gates, &bcx.iter().map(|bcx| middle(bcx)).collect::<Vec<_>>())?;
            }
            Op::GridConv { gated, gates, taps, out } => {
                let convolved = (0..rows).map(|r| self.grid_conv(running, gated, gates, taps, r));
                running.put(plan, out, convolved.collect::<Result<_>>()?);
            }
            Op::Save { x, store } => self.save(&running.round, store, &running.copy(plan, x))?,
            Op::Load { store, out } => {
                let width = plan.width(out);
                let loaded = (0..rows).map(|r| self.load_row(&running.round, store, width, r));
                running.put(plan, out, loaded.collect::<Result<_>>()?);
            }
            Op::Gelu { x } => running.fill(plan, x, |_, x| x.iter().map(|v| gelu(*v)).collect()),
            Op::Gather { x, out } => {
                let x = running.copy(plan, x);
                running.put(plan, out, running.wanted.iter().map(|r| x[*r].clone()).collect());
            }
        }
        Ok(())
    }

    /// Writes row `r`'s key and value into its stream's page.
    fn store(&mut self, round: &Round, layer: AttentionId, r: usize, k: &[f64], v: &[f64]) -> Result<()> {
        let (row, width) = (round.rows[r], k.len());
        let position = row.position as usize;
        let id = round.lanes[row.lane as usize].pages[layer.0][position / PAGE_ROWS];
        if id == PageId::NONE {
            return Err(no_page(layer, position));
        }
        let empty = || Page { k: vec![0.0; PAGE_ROWS * width], v: vec![0.0; PAGE_ROWS * width] };
        let page = self.pages.entry(id).or_insert_with(empty);
        let at = position % PAGE_ROWS * width;
        page.k[at..at + width].copy_from_slice(k);
        page.v[at..at + width].copy_from_slice(v);
        Ok(())
    }

    /// Keeps the round's rows of a picture.
    fn save(&mut self, round: &Round, store: StoreId, rows: &[Vec<f64>]) -> Result<()> {
        for (row, values) in round.rows.iter().zip(rows) {
            let lane = &round.lanes[row.lane as usize];
            let places = lane.grid.ok_or_else(|| no_row(store, row.position as usize))?.len();
            let kept = self.stores.entry((lane.slot, store)).or_insert_with(|| vec![0.0; places * values.len()]);
            kept[row.position as usize * values.len()..][..values.len()].copy_from_slice(values);
        }
        Ok(())
    }

    /// Row `r`, as wide as `width`, of what was kept.
    fn load_row(&self, round: &Round, store: StoreId, width: usize, r: usize) -> Result<Vec<f64>> {
        let row = round.rows[r];
        let kept = self.stores.get(&(round.lanes[row.lane as usize].slot, store));
        let values = kept.and_then(|kept| kept.get(row.position as usize * width..)?.get(..width));
        values.map(<[f64]>::to_vec).ok_or_else(|| no_row(store, row.position as usize))
    }

    /// Row `r` of the convolution over a grid.
    fn grid_conv(
        &self,
        running: &Running,
        gated: StoreId,
        gates: StoreId,
        taps: WeightId,
        r: usize,
    ) -> Result<Vec<f64>> {
        let row_of = running.round.rows[r];
        let lane = &running.round.lanes[row_of.lane as usize];
        let grid = lane.grid.ok_or_else(|| no_row(gated, r))?;
        let width = self.plan.stores[gated.0].width;
        let store = |id| self.stores.get(&(lane.slot, id)).ok_or_else(|| no_row(id, row_of.position as usize));
        let (gated, gates, taps) = (store(gated)?, store(gates)?, &self.weights[taps.0]);
        let count = taps.len() / width;
        let side = count.isqrt();
        let (y, x) = grid.place(row_of.position as usize);
        let mut out = vec![0.0; width];
        for tap in 0..count {
            let (dy, dx) = ((tap / side) as i64 - side as i64 / 2, (tap % side) as i64 - side as i64 / 2);
            let (y, x) = (i64::from(y) + dy, i64::from(x) + dx);
            if y < 0 || x < 0 || y >= i64::from(grid.rows) || x >= i64::from(grid.cols) {
                continue;
            }
            let neighbour = row(gated, grid.index(y as u32, x as u32), width);
            (0..width).for_each(|c| out[c] += taps[c * count + tap] * neighbour[c]);
        }
        let gate = row(gates, row_of.position as usize, width);
        Ok(out.iter().zip(gate).map(|(sum, gate)| sum * gate).collect())
    }

    /// The keys and values row `r` sees, oldest first.
    fn visible(&self, round: &Round, layer: AttentionId, r: usize) -> Result<Vec<(&[f64], &[f64])>> {
        let (row, shape) = (round.rows[r], self.plan.attentions[layer.0]);
        let width = shape.kv_heads * shape.head_dim;
        let position = row.position as usize;
        let first = shape.window.map_or(0, |window| (position + 1).saturating_sub(window));
        let pages = &round.lanes[row.lane as usize].pages[layer.0];
        let at = |p: usize| {
            let page = self.pages.get(&pages[p / PAGE_ROWS]).ok_or_else(|| no_page(layer, p))?;
            let range = p % PAGE_ROWS * width..(p % PAGE_ROWS + 1) * width;
            Ok((&page.k[range.clone()], &page.v[range]))
        };
        let last = match running_grid(round, r) {
            Some(grid) if shape.bidirectional => grid.len() - 1,
            _ => position,
        };
        (first..=last).map(at).collect()
    }

    /// The `taps` columns of `B * x` that end with row `r`, oldest first.
    fn columns(&self, running: &Running, layer: ConvId, r: usize) -> Vec<f64> {
        let lane = running.round.rows[r].lane as usize;
        let before = r - running.round.lanes[lane].first_row;
        let mut columns = self.state_after(running, lane, before, layer);
        columns.extend_from_slice(row(&running.gated[layer.0], r, self.plan.convs[layer.0].width));
        columns
    }
}

impl Running {
    fn new(plan: &Plan, round: Round) -> Running {
        let wanted: Vec<usize> = (0..round.rows.len()).filter(|&r| round.rows[r].wanted).collect();
        let size = |rows| if rows == RowSet::All { round.rows.len() } else { wanted.len() };
        Running {
            done: plan.stage_ops(round.stage).start,
            buffers: plan.buffers.iter().map(|b| vec![0.0; size(b.rows) * b.width]).collect(),
            gated: plan.convs.iter().map(|c| vec![0.0; round.rows.len() * c.width]).collect(),
            faulted: vec![false; round.lanes.len()],
            logits: Vec::new(),
            wanted,
            end: plan.stage_ops(round.stage).end,
            round,
        }
    }

    /// What each row is given as.
    fn inputs(&self) -> Vec<Given> {
        let vectors = self.round.rows.iter().filter(|row| matches!(row.input, Input::Vector(_))).count().max(1);
        let width = self.round.vectors.len() / vectors;
        let given = |row: &Row| match row.input {
            Input::Token(id) => Given::Token(id as usize),
            Input::Vector(index) => {
                let values = &self.round.vectors[index as usize * width..][..width];
                Given::Values(values.iter().map(|v| f64::from(*v)).collect())
            }
            Input::Stored => Given::Values(vec![0.0; width]),
        };
        self.round.rows.iter().map(given).collect()
    }

    /// Each row as it is given: a row of `table`, or values.
    fn embed(&self, table: &[f64], width: usize) -> Vec<Vec<f64>> {
        let given = self.inputs().into_iter().map(|given| match given {
            Given::Token(id) => row(table, id, width).to_vec(),
            Given::Values(values) => values,
        });
        given.collect()
    }

    /// Row and column of row `r` in its grid.
    fn place(&self, r: usize) -> Result<(u32, u32)> {
        let grid = running_grid(&self.round, r);
        let grid = grid.ok_or_else(|| Error::new(Code::Internal, format!("row {r} stands in no grid")))?;
        Ok(grid.place(self.round.rows[r].position as usize))
    }

    /// The rows of a buffer.
    fn copy(&self, plan: &Plan, id: BufferId) -> Vec<Vec<f64>> {
        self.buffers[id.0].chunks(plan.width(id)).map(<[f64]>::to_vec).collect()
    }

    /// Replaces the rows of buffer `out`.
    fn put(&mut self, plan: &Plan, out: BufferId, rows: Vec<Vec<f64>>) {
        self.fill(plan, out, |r, _| rows[r].clone());
    }

    /// Replaces each row of buffer `out` by `f(row's index in the buffer, row)`, noting lanes whose rows leave float32.
    fn fill(&mut self, plan: &Plan, out: BufferId, f: impl Fn(usize, &[f64]) -> Vec<f64>) {
        let all = plan.buffers[out.0].rows == RowSet::All;
        for (r, row) in self.buffers[out.0].chunks_mut(plan.width(out)).enumerate() {
            row.copy_from_slice(&f(r, row));
            if row.iter().any(|&v| !(v as f32).is_finite()) {
                let r = if all { r } else { self.wanted[r] };
                self.faulted[self.round.rows[r].lane as usize] = true;
            }
        }
    }
}

impl Backend for ReferenceBackend {
    fn load(&mut self, id: WeightId, source: &mut dyn WeightSource) -> Result<()> {
        let desc = source.desc().clone();
        let spec = &self.plan.weights[id.0];
        if (desc.rows, desc.cols) != (spec.rows, spec.cols) {
            let message =
                format!("{}: expected {} x {}, found {} x {}", desc.name, spec.rows, spec.cols, desc.rows, desc.cols);
            return Err(Error::new(Code::Format, message));
        }
        let (mut values, mut band) = (Vec::with_capacity(desc.rows * desc.cols), Band::default());
        for first in (0..desc.rows).step_by(BAND_ROWS) {
            source.read_rows(first, BAND_ROWS.min(desc.rows - first), &mut band)?;
            dequantize(&desc, &band, &mut values);
        }
        self.weights[id.0] = values;
        Ok(())
    }

    fn submit(&mut self, round: Round) -> Result<()> {
        self.check(&round)?;
        self.grids.extend(round.lanes.iter().filter_map(|lane| Some((lane.slot, lane.grid?))));
        self.running = Some(Running::new(&self.plan, round));
        Ok(())
    }

    fn advance(&mut self, limit: Limit) -> Result<Progress> {
        let Some(mut running) = self.running.take() else {
            return Err(Error::new(Code::State, "no round to advance"));
        };
        let plan = Arc::clone(&self.plan);
        let first = running.done;
        let mut outcome = Ok(());
        while outcome.is_ok() && running.done < running.end {
            let stop = match limit {
                Limit::Until(end) => running.done > first && Instant::now() + self.times.next > end,
                Limit::Slices(slices) => running.done - first >= slices,
                Limit::Ops(ops) => running.done >= ops,
                Limit::End => false,
            };
            if stop {
                break;
            }
            let start = Instant::now();
            let op = &plan.ops[running.done];
            outcome = self.run(&mut running, op);
            running.done += 1;
            self.times.next = start.elapsed();
            self.times.worst = self.times.worst.max(self.times.next);
        }
        let done = running.done == running.end;
        if let (true, Some(id)) = (done, plan.logits) {
            running.logits = running.buffers[id.0].iter().map(|&v| v as f32).collect();
        }
        self.running = Some(running);
        outcome.map(|()| if done { Progress::Done } else { Progress::Working })
    }

    fn faulted(&self, lane: usize) -> bool {
        self.running.as_ref().is_some_and(|running| running.faulted[lane])
    }

    fn logits(&self, wanted: usize) -> &[f32] {
        match (&self.running, self.plan.logits) {
            (Some(running), Some(id)) if !running.logits.is_empty() => {
                let width = self.plan.width(id);
                &running.logits[wanted * width..(wanted + 1) * width]
            }
            _ => &[],
        }
    }

    fn conv_state_after(&self, lane: usize, rows: usize) -> ConvState {
        let states = self.running.as_ref().map(|running| self.states_after(running, lane, rows));
        flatten(&states.unwrap_or_default())
    }

    fn commit(&mut self, kept: &[usize]) {
        let Some(running) = self.running.take() else { return };
        for (lane, &rows) in kept.iter().enumerate() {
            let states = self.states_after(&running, lane, rows);
            self.convs.insert(running.round.lanes[lane].slot, states);
        }
    }

    fn abandon(&mut self) {
        self.running = None;
    }

    fn conv_state(&self, slot: Slot) -> ConvState {
        flatten(&self.states(slot))
    }

    fn set_conv_state(&mut self, slot: Slot, state: &ConvState) {
        let mut values = state.0.iter().map(|&v| f64::from(v));
        let mut layer = |c: &ConvShape| values.by_ref().take((c.taps - 1) * c.width).collect();
        let states = self.plan.convs.iter().map(&mut layer).collect();
        self.convs.insert(slot, states);
    }

    fn reset_conv_state(&mut self, slot: Slot) {
        self.convs.remove(&slot);
    }

    fn copy_page(&mut self, from: PageId, to: PageId) {
        if let Some(page) = self.pages.get(&from).cloned() {
            self.pages.insert(to, page);
        }
    }

    fn release_page(&mut self, page: PageId) {
        self.pages.remove(&page);
    }

    fn release_stores(&mut self, slot: Slot) {
        self.stores.retain(|(owner, _), _| *owner != slot);
        self.grids.remove(&slot);
    }

    fn slice_times(&self) -> SliceTimes {
        self.times
    }

    fn read_buffer(&self, id: BufferId) -> Vec<f32> {
        let values = self.running.as_ref().map(|running| running.buffers[id.0].iter().map(|&v| v as f32).collect());
        values.unwrap_or_default()
    }

    fn write_buffer(&mut self, id: BufferId, values: &[f32]) {
        if let Some(running) = &mut self.running {
            running.buffers[id.0] = values.iter().map(|&v| f64::from(v)).collect();
        }
    }
}

/// What a row is given as.
enum Given {
    Token(usize),
    Values(Vec<f64>),
}

/// The grid row `r` stands in.
fn running_grid(round: &Round, r: usize) -> Option<Grid> {
    round.lanes[round.rows[r].lane as usize].grid
}

fn no_row(store: StoreId, position: usize) -> Error {
    Error::new(Code::Internal, format!("store {}: no row at position {position}", store.0))
}

fn no_page(layer: AttentionId, position: usize) -> Error {
    Error::new(Code::Internal, format!("attention layer {}: no page holds position {position}", layer.0))
}

fn row(values: &[f64], index: usize, width: usize) -> &[f64] {
    &values[index * width..(index + 1) * width]
}

fn flatten(states: &[Vec<f64>]) -> ConvState {
    ConvState(states.iter().flatten().map(|&v| v as f32).collect())
}

/// Appends a band's values: floats as they are, affine ones as `q * scale + bias`, both exact in float64.
fn dequantize(desc: &TensorDesc, band: &Band, values: &mut Vec<f64>) {
    let (bits, group, scales) = match desc.encoding {
        Encoding::Dense(float) => return values.extend(floats(float, &band.data)),
        Encoding::Affine { bits, group, scales } => (usize::from(bits), group, scales),
    };
    let (scale, bias): (Vec<f64>, Vec<f64>) = (floats(scales, &band.scales), floats(scales, &band.biases));
    let row_bytes = desc.cols * bits / 8;
    for (r, packed) in band.data.chunks(row_bytes).enumerate() {
        for c in 0..desc.cols {
            let g = r * desc.cols / group + c / group;
            values.push(field(packed, c * bits, bits) * scale[g] + bias[g]);
        }
    }
}

/// The `bits` wide value that starts at bit `at`, little end first.
fn field(packed: &[u8], at: usize, bits: usize) -> f64 {
    let (low, high) = (packed[at / 8], packed.get(at / 8 + 1).copied().unwrap_or(0));
    let word = u16::from_le_bytes([low, high]) >> (at % 8);
    f64::from(word & ((1 << bits) - 1))
}

fn floats(float: Float, bytes: &[u8]) -> Vec<f64> {
    let value = |b: &[u8]| match float {
        Float::Bf16 => f64::from(math::bf16_to_f32(u16::from_le_bytes([b[0], b[1]]))),
        Float::F16 => f64::from(math::f16_to_f32(u16::from_le_bytes([b[0], b[1]]))),
        Float::F32 => f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
    };
    bytes.chunks_exact(float.bytes()).map(value).collect()
}

fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (mean + eps).sqrt();
    x.iter().zip(weight).map(|(v, w)| v * inverse * w).collect()
}

fn layer_norm(x: &[f64], weight: &[f64], bias: &[f64], eps: f64) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|v| (v - mean) * (v - mean)).sum::<f64>() / x.len() as f64;
    let inverse = 1.0 / (variance + eps).sqrt();
    x.iter().zip(weight.iter().zip(bias)).map(|(v, (w, b))| (v - mean) * inverse * w + b).collect()
}

fn gelu(x: f64) -> f64 {
    x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

/// `2 / sqrt(pi) * exp(-x^2) * sum of 2^n x^(2n + 1) / (1 * 3 * ... * (2n + 1))`: all terms of one sign. Its rounding
/// grows with the terms that count, so from 2 on it is 1 less the rest.
fn erf(x: f64) -> f64 {
    if x.abs() > 2.0 {
        return x.signum() * (1.0 - erf_rest(x.abs()));
    }
    let (mut term, mut sum, mut n) = (x, x, 0.0);
    while term.abs() > 1e-17 * sum.abs() {
        n += 1.0;
        term *= 2.0 * x * x / (2.0 * n + 1.0);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

/// `1 - erf(x)` behind 2: `exp(-x^2) / sqrt(pi) / (x + 1/2 / (x + 2/2 / (x + 3/2 / ...)))`.
fn erf_rest(x: f64) -> f64 {
    let fraction = (1..200).rev().fold(x, |below, n| x + f64::from(n) / 2.0 / below);
    std::f64::consts::FRAC_2_SQRT_PI / 2.0 * (-x * x).exp() / fraction
}

fn matmul(x: &[f64], weight: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let output = |(n, w)| dot(x, w) + bias.map_or(0.0, |bias| bias[n]);
    weight.chunks(x.len()).enumerate().map(output).collect()
}

/// Eight sums side by side, so that a demo model's prompt takes seconds and not minutes.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

fn head_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    x.chunks(weight.len()).flat_map(|head| rms_norm(head, weight, eps)).collect()
}

/// The angle is the float32 product that the models were trained with; its sine and cosine are exact.
fn rope(x: &[f64], position: u32, frequencies: &[f32]) -> Vec<f64> {
    let (mut out, pairs) = (x.to_vec(), frequencies.len());
    for head in out.chunks_mut(2 * pairs) {
        for (i, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = f64::from(position as f32 * frequency).sin_cos();
            let (a, b) = (head[i], head[i + pairs]);
            head[i] = a * cos - b * sin;
            head[i + pairs] = b * cos + a * sin;
        }
    }
    out
}

/// As [`rope`]; the first half of the pairs turns by the row, the second by the column.
fn grid_rope(x: &[f64], (row, col): (u32, u32), frequencies: &[f32]) -> Vec<f64> {
    let (mut out, axis) = (x.to_vec(), frequencies.len());
    for head in out.chunks_mut(4 * axis) {
        for i in 0..2 * axis {
            let at = if i < axis { row } else { col };
            let (sin, cos) = f64::from(at as f32 * frequencies[i % axis]).sin_cos();
            let (a, b) = (head[i], head[i + 2 * axis]);
            head[i] = a * cos - b * sin;
            head[i + 2 * axis] = b * cos + a * sin;
        }
    }
    out
}

fn attend(q: &[f64], seen: &[(&[f64], &[f64])], shape: &AttentionShape) -> Vec<f64> {
    let d = shape.head_dim;
    let scale = 1.0 / (d as f64).sqrt();
    let head = |h: usize| {
        let kv = h / (shape.heads / shape.kv_heads);
        let scores: Vec<f64> = seen.iter().map(|(k, _)| dot(row(q, h, d), row(k, kv, d)) * scale).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let parts: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = parts.iter().sum();
        let mut out = vec![0.0; d];
        for (part, (_, v)) in parts.iter().zip(seen) {
            out.iter_mut().zip(row(v, kv, d)).for_each(|(o, v)| *o += part / total * v);
        }
        out
    };
    (0..shape.heads).flat_map(head).collect()
}

fn head_gate(x: &[f64], gate: &[f64]) -> Vec<f64> {
    let heads = x.chunks(x.len() / gate.len()).zip(gate);
    heads.flat_map(|(head, g)| head.iter().map(move |v| v * sigmoid(*g))).collect()
}

/// `B * x` of one row of B, C, x.
fn gated_input(bcx: &[f64]) -> Vec<f64> {
    let width = bcx.len() / 3;
    bcx[..width].iter().zip(&bcx[2 * width..]).map(|(b, x)| b * x).collect()
}

/// C of one row of B, C, x.
fn middle(bcx: &[f64]) -> Vec<f64> {
    let width = bcx.len() / 3;
    bcx[width..2 * width].to_vec()
}

/// `columns` are the last `taps` columns of `B * x`, oldest first.
fn short_conv(bcx: &[f64], columns: &[f64], taps: &[f64], bias: Option<&[f64]>) -> Vec<f64> {
    let width = bcx.len() / 3;
    let count = taps.len() / width;
    let channel = |c: usize| {
        let sum: f64 = (0..count).map(|j| taps[c * count + j] * columns[j * width + c]).sum();
        bcx[width + c] * (sum + bias.map_or(0.0, |bias| bias[c]))
    };
    (0..width).map(channel).collect()
}

fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter().zip(up).map(|(g, u)| g * sigmoid(*g) * u).collect()
}

fn add(x: &[f64], to: &[f64]) -> Vec<f64> {
    x.iter().zip(to).map(|(x, to)| x + to).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}
