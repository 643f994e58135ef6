//! Resizing, bit for bit as the reference does it: bicubic, and antialiased where pixels become fewer.
//!
//! Two passes of integer arithmetic, first along rows, then along columns, with 8 bits between them; one that has
//! nothing to change is left out. Weights are made in double precision and then rounded to 16 bits, with as many bits
//! behind the point as the largest allows.

use super::{Pixels, Size};
use crate::error::{Code, Error, Result};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Instant;

/// Most pixels between and after the passes.
pub const MAX_RESIZED_PIXELS: u64 = 1 << 29;

/// The cubic's free parameter.
const CUBIC: f64 = -0.5;
/// How far the cubic reaches, in pixels of the coarser side.
const REACH: f64 = 2.0;
/// Most bits behind the point of a weight.
const MAX_PRECISION: u32 = 22;
/// Rows that go through the first pass together.
const LANES: usize = 32;
/// Values that go through the second pass together.
const WIDE: usize = 512;
/// Weights that go through either pass together.
const TAPS: usize = 4;
/// Products of one slice: some tenths of a millisecond.
const SLICE_PRODUCTS: usize = 400_000;
/// What bringing one value into place costs, in products.
const MOVE_COST: usize = 4;

/// A resizing under way, done slice by slice.
pub struct Resizer {
    /// What the next pass reads; in the end, what was asked for.
    from: Pixels,
    /// What is still to do.
    passes: VecDeque<Pass>,
    /// Columns of up to [`LANES`] rows, turned so that rows lie side by side.
    turned: Vec<u8>,
}

/// One pass.
struct Pass {
    along: Along,
    taps: Taps,
    /// The size it makes.
    to: Size,
    /// What it has written so far; begun rows are whole.
    out: Vec<u8>,
    /// The row that is written next.
    row: usize,
    /// The pixel (along rows) or value (along columns) in it.
    across: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Along {
    Rows,
    Columns,
}

/// What each place of a resized row or column is made of.
struct Taps {
    /// First source of each place, and how many.
    spans: Vec<(u32, u32)>,
    /// `most` weights of each place.
    weights: Vec<i16>,
    most: usize,
    /// Bits behind the point.
    precision: u32,
}

impl Resizer {
    /// Begins to resize `from` to `to`.
    ///
    /// # Errors
    /// `InvalidArgument` where a side is zero or the pixels do not fill their size; `Limit` where more than
    /// [`MAX_RESIZED_PIXELS`] would be made, or memory does not suffice.
    pub fn new(from: Pixels, to: Size) -> Result<Resizer> {
        let size = from.size;
        if size.area() == 0 || to.area() == 0 || from.rgb.len() as u64 != 3 * size.area() {
            let found = format!("{size} to {to}, {} bytes", from.rgb.len());
            return Err(Error::new(Code::InvalidArgument, format!("picture: cannot be resized, {found}")));
        }
        let between = between(size, to);
        if between.area().max(to.area()) > MAX_RESIZED_PIXELS {
            let found = format!("picture: {size} to {to} makes more than {MAX_RESIZED_PIXELS} pixels");
            return Err(Error::new(Code::Limit, found));
        }
        let mut passes = VecDeque::new();
        if size.width != to.width {
            passes.push_back(Pass::new(Along::Rows, Taps::new(size.width, to.width), between)?);
        }
        if size.height != to.height {
            passes.push_back(Pass::new(Along::Columns, Taps::new(size.height, to.height), to)?);
        }
        Ok(Resizer { from, passes, turned: Vec::new() })
    }

    /// Works until the instant `until`, but always does one slice, where there is one. True when all is done.
    pub fn advance(&mut self, until: Instant) -> bool {
        while let Some(pass) = self.passes.front_mut() {
            match pass.along {
                Along::Rows => pass.rows_slice(&self.from, &mut self.turned),
                Along::Columns => pass.columns_slice(&self.from),
            }
            if pass.row == pass.to.height as usize {
                self.from = Pixels { size: pass.to, rgb: std::mem::take(&mut pass.out) };
                self.passes.pop_front();
            }
            if Instant::now() >= until {
                break;
            }
        }
        self.passes.is_empty()
    }

    /// The resized picture; what was not done yet is done now.
    pub fn finish(mut self) -> Pixels {
        while !self.advance(Instant::now()) {}
        self.from
    }

    /// Most bytes held while resizing `from` to `to`, both included.
    pub fn bytes(from: Size, to: Size) -> u64 {
        let mut bytes = 3 * from.area();
        if from.width != to.width {
            let turned = 3 * (LANES as u64) * (u64::from(from.width) + 1);
            bytes += 3 * between(from, to).area() + turned + Taps::bytes(from.width, to.width);
        }
        if from.height != to.height {
            bytes += 3 * to.area() + Taps::bytes(from.height, to.height);
        }
        bytes
    }
}

/// The size between the passes.
fn between(from: Size, to: Size) -> Size {
    Size { width: to.width, height: from.height }
}

impl Pass {
    /// A pass that makes `to`; room for it is taken now, so that none can lack later.
    fn new(along: Along, taps: Taps, to: Size) -> Result<Pass> {
        let bytes = 3 * to.area() as usize;
        let mut out = Vec::new();
        let short = |_| Error::new(Code::Limit, format!("picture: no memory for {bytes} bytes"));
        out.try_reserve_exact(bytes).map_err(short)?;
        Ok(Pass { along, taps, to, out, row: 0, across: 0 })
    }

    /// Some pixels of up to [`LANES`] rows, made from pixels of the same rows.
    fn rows_slice(&mut self, from: &Pixels, turned: &mut Vec<u8>) {
        let (width, stride) = (self.to.width as usize, 3 * self.to.width as usize);
        let lanes = LANES.min(self.to.height as usize - self.row);
        let rows = self.row..self.row + lanes;
        if self.across == 0 {
            self.out.resize(rows.end * stride, 0);
        }
        let moved = MOVE_COST * from.size.width as usize / width;
        let count = SLICE_PRODUCTS / (3 * LANES * (self.taps.most + moved));
        let places = self.across..(self.across + count.max(1)).min(width);
        let sources = self.taps.sources(places.clone());
        turn(from, rows.clone(), sources.clone(), turned);
        let (mut scratch, mut values) = (Scratch::new(), [0; 3 * LANES]);
        let values = &mut values[..3 * lanes];
        for x in places.clone() {
            let (start, weights) = self.taps.place(x);
            let columns = &turned[3 * lanes * (start - sources.start)..];
            self.taps.weigh(columns, 3 * lanes, weights, &mut scratch, values);
            for (c, values) in values.chunks_exact(lanes).enumerate() {
                let column = self.out[rows.start * stride + 3 * x + c..].iter_mut().step_by(stride);
                column.zip(values).for_each(|(to, value)| *to = *value);
            }
        }
        self.across = places.end;
        if self.across == width {
            (self.row, self.across) = (rows.end, 0);
        }
    }

    /// Some values of a row, made from values of the same columns.
    fn columns_slice(&mut self, from: &Pixels) {
        let stride = 3 * self.to.width as usize;
        if self.across == 0 {
            self.out.resize((self.row + 1) * stride, 0);
        }
        let (start, weights) = self.taps.place(self.row);
        let count = (SLICE_PRODUCTS / weights.len().max(1)).max(LANES);
        let end = (self.across + count).min(stride);
        let row = &mut self.out[self.row * stride..][self.across..end];
        let mut scratch = Scratch::new();
        for (block, values) in row.chunks_mut(WIDE).enumerate() {
            let above = start * stride + self.across + block * WIDE;
            self.taps.weigh(&from.rgb[above..], stride, weights, &mut scratch, values);
        }
        self.across = end;
        if self.across == stride {
            (self.row, self.across) = (self.row + 1, 0);
        }
    }
}

/// Lays pixels `sources` of `rows` out column by column: for each value of a pixel, the rows side by side.
fn turn(from: &Pixels, rows: Range<usize>, sources: Range<usize>, turned: &mut Vec<u8>) {
    let (lanes, width) = (rows.len(), from.size.width as usize);
    turned.resize(3 * lanes * sources.len(), 0);
    for (lane, row) in rows.enumerate() {
        let values = &from.rgb[3 * (row * width + sources.start)..][..3 * sources.len()];
        let column = turned[lane..].iter_mut().step_by(lanes);
        column.zip(values).for_each(|(turned, value)| *turned = *value);
    }
}

/// Room for up to [`WIDE`] values that are made together.
struct Scratch {
    sums: [i32; WIDE],
    /// Each of [`TAPS`] weights, once for each value: only what is read in the loop is known to have 16 bits, and such
    /// products are several times faster.
    spread: [[i16; WIDE]; TAPS],
}

impl Scratch {
    fn new() -> Scratch {
        Scratch { sums: [0; WIDE], spread: [[0; WIDE]; TAPS] }
    }
}

// Sums stay far from overflowing: weights add up to 1, or 2^22 at most, those below zero to less than a third of that.
// Wrapping says so to the compiler, which then uses vectors in debug builds too. Not inlined, since lengths known to
// the compiler make it unroll these loops in place of that.

/// Adds a run of values, each times its weight.
#[inline(never)]
fn add(sums: &mut [i32], values: &[u8], weights: &[i16]) {
    for ((sum, value), weight) in sums.iter_mut().zip(values).zip(weights) {
        *sum = sum.wrapping_add(product(*value, *weight));
    }
}

/// Adds [`TAPS`] runs of values, each times its weights.
#[inline(never)]
fn add_taps(sums: &mut [i32], values: [&[u8]; TAPS], weights: [&[i16]; TAPS]) {
    // Bound one by one, so that the compiler knows their lengths.
    let n = sums.len();
    let ([a, b, c, d], [u, v, w, x]) = (values, weights);
    let (a, b, c, d) = (&a[..n], &b[..n], &c[..n], &d[..n]);
    let (u, v, w, x) = (&u[..n], &v[..n], &w[..n], &x[..n]);
    for (i, sum) in sums.iter_mut().enumerate() {
        let (one, two) = (product(a[i], u[i]), product(b[i], v[i]));
        let (three, four) = (product(c[i], w[i]), product(d[i], x[i]));
        *sum = sum.wrapping_add(one).wrapping_add(two).wrapping_add(three).wrapping_add(four);
    }
}

#[inline(always)]
fn product(value: u8, weight: i16) -> i32 {
    i32::from(value).wrapping_mul(i32::from(weight))
}

/// What sums come to: without the bits behind the point, from 0 to 255.
#[inline(never)]
fn cut(sums: &[i32], precision: u32, values: &mut [u8]) {
    for (value, sum) in values.iter_mut().zip(sums) {
        *value = (sum >> (precision & 31)).clamp(0, 255) as u8;
    }
}

impl Taps {
    /// What `to` places are made of, from `from` sources.
    fn new(from: u32, to: u32) -> Taps {
        let scale = f64::from(from) / f64::from(to);
        let (coarse, most) = (scale.max(1.0), Taps::most(from, to));
        let inverse = if scale >= 1.0 { 1.0 / scale } else { 1.0 };
        let mut exact = vec![0.0; most * to as usize];
        let mut spans = Vec::with_capacity(to as usize);
        let mut largest = 0.0_f64;
        for (i, weights) in exact.chunks_exact_mut(most).enumerate() {
            let center = scale * (i as f64 + 0.5);
            let first = (center - REACH * coarse + 0.5).max(0.0).trunc();
            let end = (center + REACH * coarse + 0.5).trunc().min(f64::from(from));
            let count = ((end - first).max(0.0) as usize).min(most);
            let weights = &mut weights[..count];
            for (j, weight) in weights.iter_mut().enumerate() {
                *weight = cubic((j as f64 + first - center + 0.5) * inverse);
            }
            let total: f64 = weights.iter().sum();
            for weight in weights.iter_mut().filter(|_| total != 0.0) {
                *weight /= total;
                largest = largest.max(*weight);
            }
            spans.push((first as u32, count as u32));
        }
        let fits = |bits: &u32| 0.5 + largest * f64::from(1_u32 << bits) < 32768.0;
        let precision = (1..=MAX_PRECISION).take_while(fits).last().unwrap_or(0);
        let one = f64::from(1_u32 << precision);
        // Half away from zero; the conversion cuts what is behind the point.
        let rounded = |weight: &f64| (weight * one + 0.5_f64.copysign(*weight)) as i16;
        Taps { spans, weights: exact.iter().map(rounded).collect(), most, precision }
    }

    /// Most sources of a place.
    fn most(from: u32, to: u32) -> usize {
        let reach = REACH * (f64::from(from) / f64::from(to)).max(1.0);
        2 * reach.ceil() as usize + 1
    }

    /// Most bytes held while they are made.
    fn bytes(from: u32, to: u32) -> u64 {
        let weight = size_of::<f64>() + size_of::<i16>();
        u64::from(to) * (weight * Taps::most(from, to) + size_of::<(u32, u32)>()) as u64
    }

    /// The first source of a place, and the weights from there on.
    fn place(&self, place: usize) -> (usize, &[i16]) {
        let (first, count) = self.spans[place];
        (first as usize, &self.weights[place * self.most..][..count as usize])
    }

    /// The sources of some places.
    fn sources(&self, places: Range<usize>) -> Range<usize> {
        let spans = &self.spans[places];
        let first = spans.iter().map(|span| span.0).min().unwrap_or(0);
        let end = spans.iter().map(|span| span.0 + span.1).max().unwrap_or(0);
        first as usize..end as usize
    }

    /// Weighs runs of values that begin `stride` from each other, as long as `values`, where the result goes.
    fn weigh(&self, runs: &[u8], stride: usize, weights: &[i16], scratch: &mut Scratch, values: &mut [u8]) {
        let Scratch { sums, spread } = scratch;
        let (wide, sums) = (values.len(), &mut sums[..values.len()]);
        // Cutting then rounds.
        sums.fill((1 << self.precision) >> 1);
        let run = |k: usize| &runs[k * stride..][..wide];
        let (fours, rest) = weights.as_chunks::<TAPS>();
        for (i, four) in fours.iter().enumerate() {
            spread.iter_mut().zip(four).for_each(|(spread, weight)| spread[..wide].fill(*weight));
            add_taps(sums, std::array::from_fn(|k| run(i * TAPS + k)), spread.each_ref().map(|spread| &spread[..wide]));
        }
        for (i, weight) in rest.iter().enumerate() {
            spread[0][..wide].fill(*weight);
            add(sums, run(fours.len() * TAPS + i), &spread[0][..wide]);
        }
        cut(sums, self.precision, values);
    }
}

/// The cubic, at a distance from its middle.
fn cubic(x: f64) -> f64 {
    let x = x.abs();
    if x < 1.0 {
        ((CUBIC + 2.0) * x - (CUBIC + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((CUBIC * x - 5.0 * CUBIC) * x + 8.0 * CUBIC) * x - 4.0 * CUBIC
    } else {
        0.0
    }
}
