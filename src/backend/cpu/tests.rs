//! Kernels against exact answers, one instruction set against the other, and predicted sizes against allocated ones.

use super::matmul::{BlockScale, Ints, PAIRS, affine_tile, quantize_block};
use super::pack::{Packed, TILE, packed_bytes};
use super::pages::Pages;
use super::*;
use crate::backend::{Band, Encoding, Float, Grid, Input, Lane, PAGE_ROWS, Row, TensorDesc};
use crate::math;
use crate::model::config::{LayerKind, RopeConfig, TextConfig};
use crate::model::vision_config::{VisionConfig, VisionLayer};
use crate::plan::{AttentionShape, Op, RowSet, WeightRole, WeightSpec};

struct Random(u64);

impl Random {
    fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32 ^ (self.0 >> 13) as u32
    }

    fn float(&mut self) -> f32 {
        (self.bits() >> 8) as f32 / (1 << 23) as f32 - 1.0
    }
}

/// A tensor in memory, and what it stands for.
struct Tensor {
    desc: TensorDesc,
    role: WeightRole,
    band: Band,
    exact: Vec<f64>,
}

impl WeightSource for Tensor {
    fn desc(&self) -> &TensorDesc {
        &self.desc
    }

    fn read_rows(&mut self, first: usize, count: usize, band: &mut Band) -> Result<()> {
        let rows = self.desc.rows;
        let part = |b: &[u8]| b[b.len() / rows * first..b.len() / rows * (first + count)].to_vec();
        *band = Band { data: part(&self.band.data), scales: part(&self.band.scales), biases: part(&self.band.biases) };
        Ok(())
    }
}

fn push(float: Float, value: f32, out: &mut Vec<u8>) -> f64 {
    match float {
        Float::Bf16 => {
            let high = (value.to_bits() >> 16) as u16;
            out.extend(high.to_le_bytes());
            f64::from(math::bf16_to_f32(high))
        }
        Float::F16 => {
            let half = math::f32_to_f16(value);
            out.extend(half.to_le_bytes());
            f64::from(math::f16_to_f32(half))
        }
        Float::F32 => {
            out.extend(value.to_le_bytes());
            f64::from(value)
        }
    }
}

fn tensor(rows: usize, cols: usize, role: WeightRole, encoding: Encoding, random: &mut Random) -> Tensor {
    let desc = TensorDesc { name: "test".into(), rows, cols, encoding };
    let mut tensor = Tensor { desc, role, band: Band::default(), exact: Vec::new() };
    match encoding {
        Encoding::Dense(float) => {
            tensor.exact = (0..rows * cols).map(|_| push(float, random.float(), &mut tensor.band.data)).collect();
        }
        Encoding::Affine { bits, group, scales } => {
            // MLX's order: a stream of `bits` wide values, lowest bit first.
            let mut stream = vec![0_u8; rows * cols * usize::from(bits) / 8];
            let mut factors = (0.0, 0.0);
            for i in 0..rows * cols {
                if i % group == 0 {
                    factors.0 = push(scales, 0.01 * random.float(), &mut tensor.band.scales);
                    factors.1 = push(scales, random.float(), &mut tensor.band.biases);
                }
                let q = random.bits() & ((1 << bits) - 1);
                for bit in 0..usize::from(bits) {
                    let at = i * usize::from(bits) + bit;
                    stream[at / 8] |= ((q >> bit & 1) as u8) << (at % 8);
                }
                tensor.exact.push(f64::from(q) * factors.0 + factors.1);
            }
            tensor.band.data = stream;
        }
    }
    tensor
}

fn load(tensor: &mut Tensor, options: &CpuOptions) -> Result<Packed> {
    let spec =
        WeightSpec { names: vec!["w".into()], rows: tensor.desc.rows, cols: tensor.desc.cols, role: tensor.role };
    Packed::load(&spec, tensor, options)
}

fn options() -> CpuOptions {
    CpuOptions { threads: 1, isa: None, round_to_8_bits: false }
}

fn encodings() -> Vec<Encoding> {
    let floats = [Float::Bf16, Float::F16, Float::F32];
    let mut all: Vec<Encoding> = floats.map(Encoding::Dense).to_vec();
    for bits in [4, 6, 8] {
        for group in [32, 64] {
            all.extend(floats.map(|scales| Encoding::Affine { bits, group, scales }));
        }
    }
    all
}

#[test]
fn packed_rows_are_the_tensors_rows_and_sizes_are_as_predicted() {
    let mut random = Random(1);
    for encoding in encodings() {
        for (rows, cols) in [(16, 64), (35, 96), (1, 192)] {
            if matches!(encoding, Encoding::Affine { group, .. } if cols % group != 0) {
                continue;
            }
            for round_to_8_bits in [false, true] {
                let options = CpuOptions { round_to_8_bits, ..options() };
                let mut tensor = tensor(rows, cols, WeightRole::Matrix, encoding, &mut random);
                let packed = load(&mut tensor, &options).unwrap();
                assert_eq!(packed.bytes(), packed_bytes(&tensor.desc, WeightRole::Matrix, &options));
                let rounded = round_to_8_bits && matches!(encoding, Encoding::Dense(_));
                // Half a step of the 255 between the extremes of a group; else float32's own rounding.
                let tolerance = if rounded { 1.001 / 255.0 } else { 2e-7 };
                let mut row = vec![0.0; cols];
                for n in 0..rows {
                    match &packed {
                        Packed::Affine(matrix) => matrix.row(n, &mut row),
                        Packed::Dense(matrix) => matrix.row(n, &mut row),
                        _ => panic!("not a matrix"),
                    }
                    for (k, value) in row.iter().enumerate() {
                        let exact = tensor.exact[n * cols + k];
                        let bound = tolerance * exact.abs().max(1.0);
                        assert!((f64::from(*value) - exact).abs() <= bound, "{encoding:?} [{n}, {k}]: {value} {exact}");
                    }
                }
            }
        }
    }
}

#[test]
fn vectors_and_taps_become_float32_and_taps_are_turned() {
    let mut random = Random(2);
    for float in [Float::Bf16, Float::F16, Float::F32] {
        let mut vector = tensor(37, 1, WeightRole::Vector, Encoding::Dense(float), &mut random);
        let packed = load(&mut vector, &options()).unwrap();
        assert_eq!(packed.bytes(), packed_bytes(&vector.desc, vector.role, &options()));
        let Packed::Vector(values) = packed else { panic!("not a vector") };
        assert!(values.iter().zip(&vector.exact).all(|(a, b)| f64::from(*a) == *b));
        let mut taps = tensor(37, 7, WeightRole::Taps, Encoding::Dense(float), &mut random);
        let packed = load(&mut taps, &options()).unwrap();
        assert_eq!(packed.bytes(), packed_bytes(&taps.desc, taps.role, &options()));
        let Packed::Taps(values) = packed else { panic!("not taps") };
        for (channel, tap) in (0..37).flat_map(|c| (0..7).map(move |t| (c, t))) {
            assert_eq!(f64::from(values[tap * 37 + channel]), taps.exact[channel * 7 + tap]);
        }
    }
}

#[test]
fn tensors_that_do_not_fit_are_refused_by_name() {
    let mut random = Random(3);
    let affine = |bits, group| Encoding::Affine { bits, group, scales: Float::F16 };
    let refuse = |tensor: &mut Tensor, code: Code, part: &str| {
        let error = load(tensor, &options()).err().expect("refused");
        assert!(error.code == code && error.message.contains(part), "{error}");
    };
    let mut bad_scale = tensor(20, 128, WeightRole::Matrix, affine(4, 64), &mut random);
    bad_scale.band.scales[2 * (17 * 2 + 1)..][..2].copy_from_slice(&[0, 0x7c]);
    refuse(&mut bad_scale, Code::Numeric, "test: the scale at [17, 1]");
    let mut bad_bias = tensor(20, 128, WeightRole::Matrix, affine(6, 32), &mut random);
    bad_bias.band.biases[..2].copy_from_slice(&[1, 0xfe]);
    refuse(&mut bad_bias, Code::Numeric, "test: the bias at [0, 0]");
    for (float, nan) in
        [(Float::Bf16, &[0xc0_u8, 0x7f][..]), (Float::F32, &[0, 0, 0x80, 0xff]), (Float::F16, &[0, 0x7c])]
    {
        let mut bad = tensor(20, 32, WeightRole::Matrix, Encoding::Dense(float), &mut random);
        bad.band.data[float.bytes() * (19 * 32 + 31)..].copy_from_slice(nan);
        refuse(&mut bad, Code::Numeric, "test: the value at [19, 31]");
    }
    let mut short = tensor(20, 32, WeightRole::Matrix, affine(8, 32), &mut random);
    short.band.data.truncate(600);
    refuse(&mut short, Code::Format, "data of 600 bytes, not 640");
    let mut odd = tensor(4, 96, WeightRole::Matrix, affine(4, 32), &mut random);
    odd.desc.encoding = affine(4, 64);
    refuse(&mut odd, Code::Format, "96 columns");
    odd.desc.encoding = affine(5, 32);
    refuse(&mut odd, Code::Unsupported, "5 bits");
    let mut vector = tensor(1, 32, WeightRole::Vector, affine(4, 32), &mut random);
    refuse(&mut vector, Code::Unsupported, "quantized");
}

#[test]
fn activations_round_to_integers_of_sixteen_bits() {
    let mut random = Random(4);
    for isa in [Isa::Portable, Isa::best()] {
        for size in [1.0, 1e-30, 1e-42, 1e38, 0.0] {
            let x: Vec<f32> = (0..64).map(|_| random.float() * size).collect();
            let (mut pairs, mut scale) = ([0; PAIRS], BlockScale::default());
            assert!(quantize_block(isa, &x, &mut pairs, &mut scale));
            let mut sums = [0; 2];
            for (k, value) in x.iter().enumerate() {
                let pair = pairs[k / 4 * 2 + k % 2];
                let int = if k % 4 < 2 { i32::from(pair as i16) } else { pair >> 16 };
                sums[k / 32] += int;
                assert!(int.abs() <= 32639);
                let error = (f64::from(int) * f64::from(scale.scale) - f64::from(*value)).abs();
                let top = f64::from(x.iter().fold(0.0_f32, |a, b| a.max(b.abs())));
                assert!(error <= 0.51 * top / 32639.0 + 1.5e-45 * 32639.0, "{size} {k}: {error}");
            }
            assert_eq!(sums, scale.sums);
        }
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let (mut pairs, mut scale) = ([1; PAIRS], BlockScale { scale: 1.0, sums: [1; 2] });
            assert!(!quantize_block(isa, &[1.0, bad], &mut pairs, &mut scale));
            assert_eq!((pairs, scale), ([0; PAIRS], BlockScale::default()));
        }
    }
}

/// The products of the specification, written down with i64 sums and one chain.
fn chain_by_the_book(tensor: &Tensor, n: usize, ints: &[i32], scales: &[f32]) -> f32 {
    let Encoding::Affine { bits, group, scales: float } = tensor.desc.encoding else { panic!("affine") };
    let (cols, bits) = (tensor.desc.cols, usize::from(bits));
    let q = |k: usize| {
        let first = (n * cols + k) * bits;
        (0..bits).map(|b| i64::from(tensor.band.data[(first + b) / 8] >> ((first + b) % 8) & 1) << b).sum::<i64>()
    };
    let factor = |bytes: &[u8], g: usize| {
        let at = (n * (cols / group) + g) * float.bytes();
        match float {
            Float::F32 => f32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()),
            Float::Bf16 => math::bf16_to_f32(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())),
            Float::F16 => math::f16_to_f32(u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap())),
        }
    };
    let mut acc = 0.0_f32;
    for g in 0..cols / group {
        let range = g * group..(g + 1) * group;
        let dot: i64 = range.clone().map(|k| q(k) * i64::from(ints[k])).sum();
        let sum: i64 = range.map(|k| i64::from(ints[k])).sum();
        let sx = scales[g * group / 64];
        acc = (dot as f32).mul_add(sx * factor(&tensor.band.scales, g), acc);
        acc = (sum as f32).mul_add(sx * factor(&tensor.band.biases, g), acc);
    }
    acc
}

#[test]
fn quantized_products_equal_the_specification_bit_for_bit() {
    let mut random = Random(5);
    for encoding in encodings().into_iter().filter(|e| matches!(e, Encoding::Affine { .. })) {
        let Encoding::Affine { group, .. } = encoding else { continue };
        let (outputs, cols, rows) = (21, if group == 32 { 160 } else { 192 }, 13);
        let mut tensor = tensor(outputs, cols, WeightRole::Matrix, encoding, &mut random);
        let Packed::Affine(matrix) = load(&mut tensor, &options()).unwrap() else { panic!("affine") };
        let blocks = cols.div_ceil(64);
        let (mut pairs, mut scales) = (vec![[0; PAIRS]; blocks * rows], vec![BlockScale::default(); blocks * rows]);
        // The extremes of 16 bits among them: the sums must not overflow or saturate.
        let extreme = |row: usize, k: usize| if (row + k / 5).is_multiple_of(2) { 1.0 } else { -1.0 };
        let x: Vec<f32> = (0..rows * cols)
            .map(|i| if i / cols < 4 { extreme(i / cols, if i / cols == 0 { 0 } else { i }) } else { random.float() })
            .collect();
        for (row, x) in x.chunks(cols).enumerate() {
            for (block, x) in x.chunks(64).enumerate() {
                let at = block * rows + row;
                assert!(quantize_block(Isa::Portable, x, &mut pairs[at], &mut scales[at]));
            }
        }
        let ints = Ints { rows, pairs: &pairs, scales: &scales };
        for (isa, tile) in [Isa::Portable, Isa::best()].into_iter().flat_map(|isa| [(isa, 0), (isa, 1)]) {
            let mut together = [[0.0; TILE]; 13];
            affine_tile(isa, &matrix, tile, ints, 0, &mut together);
            for row in 0..rows {
                let mut alone = [[0.0; TILE]; 1];
                affine_tile(isa, &matrix, tile, ints, row, &mut alone);
                assert_eq!(alone[0].map(f32::to_bits), together[row].map(f32::to_bits));
                let of_row: Vec<i32> = (0..cols)
                    .map(|k| {
                        let pair = pairs[k / 64 * rows + row][k % 64 / 4 * 2 + k % 2];
                        if k % 4 < 2 { i32::from(pair as i16) } else { pair >> 16 }
                    })
                    .collect();
                let row_scales: Vec<f32> = (0..blocks).map(|b| scales[b * rows + row].scale).collect();
                for (lane, value) in together[row].iter().enumerate().take(outputs - tile * TILE) {
                    let book = chain_by_the_book(&tensor, tile * TILE + lane, &of_row, &row_scales);
                    assert_eq!(value.to_bits(), book.to_bits(), "{encoding:?} {isa:?} row {row}");
                }
            }
        }
    }
}

/// Results of every kernel but the matrices' on the same random input, as bits.
fn kernel_bits(isa: Isa) -> Vec<u32> {
    let mut random = Random(6);
    let mut bits = Vec::new();
    for len in [1, 15, 16, 17, 64, 200] {
        let mut row = |size: f32| -> Vec<f32> { (0..len).map(|_| random.float() * size).collect() };
        let (mut a, b, mut c, d) = (row(3.0), row(1.0), row(20.0), row(1e-20));
        assert!(norm::rms_norm(isa, &mut a, &b, 1e-5));
        elementwise::swiglu(isa, &mut c, &a);
        elementwise::add(isa, &mut c, &d);
        let mut e = row(5.0);
        elementwise::head_gate(isa, &mut e, &b[..1]);
        let mut f: Vec<f32> = [row(2.0), row(2.0)].concat();
        assert!(norm::head_norm(isa, &mut f, &b, 1e-5));
        rope::rotate(isa, &mut f, &d.iter().map(|v| v.abs() * 1e20).collect::<Vec<_>>(), 262_143);
        assert!(elementwise::all_finite(isa, &f));
        let (mut g, mut h) = (row(4.0), row(30.0));
        assert!(norm::layer_norm(isa, &mut g, &a, &b, 1e-6));
        elementwise::gelu(isa, &mut h);
        let quarter: Vec<f32> = b.iter().map(|v| v.abs()).collect();
        let mut i: Vec<f32> = [row(2.0), row(2.0), row(2.0), row(2.0)].concat();
        rope::rotate_grid(isa, &mut i, &quarter[..len.min(64)], 1_000, 524_287);
        let mut j = row(0.0);
        grid::gate_input(isa, &[&c[..], &b, &e].concat(), &mut j);
        for values in [a, c, e, f, g, h, i, j] {
            bits.extend(values.iter().map(|v| v.to_bits()));
        }
    }
    bits
}

#[test]
fn kernels_give_the_same_bits_on_every_instruction_set() {
    assert_eq!(kernel_bits(Isa::Portable), kernel_bits(Isa::best()));
}

#[test]
fn norms_and_gates_are_near_float64() {
    let mut random = Random(7);
    let x: Vec<f32> = (0..200).map(|_| random.float() * 3.0).collect();
    let w: Vec<f32> = (0..200).map(|_| random.float()).collect();
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / 200.0;
    let mut normed = x.clone();
    assert!(norm::rms_norm(Isa::best(), &mut normed, &w, 1e-5));
    for i in 0..200 {
        let exact = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(w[i]);
        assert!((f64::from(normed[i]) - exact).abs() < 5e-7 * exact.abs().max(1e-3));
    }
    let mut bad = x.clone();
    bad[150] = f32::NAN;
    assert!(!norm::rms_norm(Isa::best(), &mut bad, &w, 1e-5) && !elementwise::all_finite(Isa::best(), &bad));
    let mut gated = x.clone();
    elementwise::head_gate(Isa::best(), &mut gated, &[0.3, -40.0]);
    assert!((gated[5] - x[5] * 0.574_442_5).abs() < 1e-6 && gated[150].abs() < 1e-16);
}

fn text_config() -> TextConfig {
    TextConfig {
        vocab_size: 203,
        hidden: 192,
        ffn: 320,
        layers: vec![LayerKind::Conv, LayerKind::FullAttention, LayerKind::SlidingAttention],
        heads: 4,
        kv_heads: 2,
        head_dim: 40,
        taps: 7,
        conv_bias: false,
        attention_bias: false,
        window: 50,
        norm_eps: 1e-5,
        sandwich: true,
        gate: true,
        tied: true,
        max_positions: 1000,
        rope_full: RopeConfig { theta: 1e6, partial: 0.5 },
        rope_sliding: RopeConfig { theta: 1e4, partial: 1.0 },
    }
}

#[test]
fn predicted_scratch_pages_and_states_are_what_is_allocated() {
    let plan = Arc::new(crate::model::forward::text_plan(&text_config()));
    for threads in [1, 3] {
        let options = CpuOptions { threads, ..options() };
        let backend = CpuBackend::new(Arc::clone(&plan), &options).unwrap();
        assert_eq!(backend.bytes(), scratch_bytes(&plan, &options));
        assert_eq!(backend.conv_state(Slot(0)).0.capacity() as u64 * 4, conv_state_bytes(&plan));
    }
    let tower = Arc::new(crate::model::vision::vision_plan(&tower_config()));
    for threads in [1, 3] {
        let options = CpuOptions { threads, ..options() };
        let backend = CpuBackend::new(Arc::clone(&tower), &options).unwrap();
        assert_eq!(backend.bytes(), scratch_bytes(&tower, &options));
    }
    for layer in 0..2 {
        let mut pages = Pages::default();
        pages.ensure(PageId(5), &plan.attentions[layer]).unwrap();
        assert_eq!(pages.bytes(), page_bytes(&plan, AttentionId(layer)));
        pages.copy(PageId(5), PageId(9));
        assert_eq!(pages.bytes(), 2 * page_bytes(&plan, AttentionId(layer)));
        pages.release(PageId(5));
        pages.release(PageId(9));
        assert_eq!(pages.bytes(), 0);
    }
}

/// Two layers of each kind.
fn tower_config() -> VisionConfig {
    use VisionLayer::{Attention, Conv};
    VisionConfig {
        hidden: 48,
        ffn: 80,
        layers: vec![Conv, Conv, Attention, Attention],
        heads: 6,
        kv_heads: 2,
        head_dim: 20,
        patch: 4,
        frames: 2,
        merge: 2,
        norm_eps: 1e-5,
        theta: 1e6,
        projector_hidden: 70,
        projector_bias: true,
        text_hidden: 36,
    }
}

/// A round of the first rows of a grid in `lane`'s slot.
fn grid_round(plan: &Plan, stage: usize, slot: u32, grid: Grid, rows: usize) -> Round {
    let row = |i: usize| Row { input: Input::Stored, position: i as u32, lane: 0, wanted: false };
    let pages = (0..grid.len().div_ceil(PAGE_ROWS) as u32).map(PageId).collect::<Vec<_>>();
    let pages =
        (0..plan.attentions.len() as u32).map(|layer| pages.iter().map(|p| PageId(p.0 + 100 * layer)).collect());
    let lane = Lane { slot: Slot(slot), first_row: 0, rows, pages: pages.collect(), grid: Some(grid) };
    Round { stage, rows: (0..rows).map(row).collect(), lanes: vec![lane], vectors: Vec::new() }
}

/// A plan of one attention over a grid, which has no weights.
fn grid_attention() -> Plan {
    let shape = AttentionShape { heads: 6, kv_heads: 2, head_dim: 20, window: None, bidirectional: true };
    let mut plan = Plan { attentions: vec![shape], ..Plan::default() };
    let q = plan.buffer("q", 120, RowSet::All);
    plan.store("rows", 7);
    plan.store("more rows", 9);
    plan.ops.push(Op::Attend { q, layer: AttentionId(0), out: q });
    plan
}

#[test]
fn stores_take_what_was_predicted_and_are_freed() {
    let plan = Arc::new(grid_attention());
    let mut backend = CpuBackend::new(Arc::clone(&plan), &options()).unwrap();
    let [small, large] = [Grid { rows: 2, cols: 6, merge: 2 }, Grid { rows: 30, cols: 22, merge: 2 }];
    for (slot, grid) in [(3, small), (5, large), (3, small)] {
        backend.submit(grid_round(&plan, 0, slot, grid, 8)).unwrap();
        backend.abandon();
    }
    assert_eq!(store_bytes(&plan), 4 * (7 + 9));
    assert_eq!(backend.runner.stores.bytes(), store_bytes(&plan) * (12 + 660));
    backend.release_stores(Slot(5));
    assert_eq!(backend.runner.stores.bytes(), store_bytes(&plan) * 12);
    backend.release_stores(Slot(3));
    assert_eq!(backend.runner.stores.bytes(), 0);
}

/// Units of all spans together go through every key once for each head, whatever the rows' positions are.
#[test]
fn work_of_attention_over_a_grid_is_that_of_all_its_keys() {
    let plan = Arc::new(grid_attention());
    let mut backend = CpuBackend::new(Arc::clone(&plan), &options()).unwrap();
    for (rows, grid) in [(64, Grid { rows: 30, cols: 22, merge: 2 }), (9, Grid { rows: 16, cols: 16, merge: 2 })] {
        backend.release_stores(Slot(0));
        backend.submit(grid_round(&plan, 0, 0, grid, rows)).unwrap();
        let step = &backend.phases[0].step;
        let spans = backend.runner.spans(step);
        assert_eq!(spans, 0..grid.len().div_ceil(256));
        let work: f64 = spans
            .map(|span| backend.runner.units(step, span, usize::MAX) as f64 * backend.runner.work(step, span).1)
            .sum();
        // Three query heads a kv head; each block of 8 rows converts each key once.
        let products = 2 * grid.len() * 20 * 2 * (rows * 3 + rows.div_ceil(8));
        assert!((work - products as f64).abs() < 1e-6 * work, "{work} {products}");
        backend.abandon();
    }
}

#[test]
fn stages_that_do_not_fit_are_refused() {
    let make = |spoil: fn(&mut Plan)| {
        let mut plan = crate::model::vision::vision_plan(&tower_config());
        spoil(&mut plan);
        CpuBackend::new(Arc::new(plan), &options()).err().map(|error| error.code)
    };
    assert_eq!(make(|_| ()), None);
    type Spoil = (&'static str, fn(&mut Plan));
    let spoils: [Spoil; 8] = [
        ("a stage past the ops", |plan| plan.stages[5].ops.end += 1),
        ("a stage that ends before it begins", |plan| plan.stages[1].ops.end = 3),
        ("rows given twice", |plan| plan.ops[1] = Op::Input { out: BufferId(1) }),
        ("more places side by side than a row stands for", |plan| plan.stages[5].grid_rows = 1),
        ("fewer places side by side", |plan| plan.stages[5].grid_rows = 9),
        ("a convolution over merged rows", |plan| plan.stages[1].grid_rows = 4),
        ("a store of another width", |plan| plan.stores[0].width += 1),
        ("no stages where one merges", |plan| plan.stages.clear()),
    ];
    for (what, spoil) in spoils {
        assert_eq!(make(spoil), Some(Code::Unsupported), "{what}");
    }
}

#[test]
fn plans_and_options_that_do_not_fit_are_refused() {
    let make = |spoil: fn(&mut Plan)| {
        let mut plan = crate::model::forward::text_plan(&text_config());
        spoil(&mut plan);
        CpuBackend::new(Arc::new(plan), &options()).err().map(|error| error.code)
    };
    assert_eq!(make(|_| ()), None);
    let spoils: [fn(&mut Plan); 5] = [
        |plan| plan.buffers[1].width += 1,
        |plan| plan.weights[0].cols = 0,
        |plan| plan.attentions[0].kv_heads = 3,
        |plan| plan.convs[0].taps = 0,
        |plan| plan.ropes[0] = Vec::new(),
    ];
    for spoil in spoils {
        assert_eq!(make(spoil), Some(Code::Unsupported));
    }
    let plan = Arc::new(crate::model::forward::text_plan(&text_config()));
    assert!(CpuBackend::new(Arc::clone(&plan), &CpuOptions { threads: 0, ..options() }).is_err());
    if !Isa::Avx2.available() {
        assert!(CpuBackend::new(plan, &CpuOptions { isa: Some(Isa::Avx2), ..options() }).is_err());
    }
}
