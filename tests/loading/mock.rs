//! A backend that reads every weight, dequantizes it bit by bit and keeps the values.

use lfm3::backend::*;
use lfm3::error::{Code, Error, Result};
use lfm3::model::checkpoint::Checkpoint;
use lfm3::model::forward::text_plan;
use lfm3::model::load::load_weights;
use lfm3::model::vision::vision_plan;
use lfm3::plan::{BufferId, Plan, WeightId};
use std::collections::BTreeMap;
use std::path::Path;

/// Reads all of a tensor in bands of `band_rows`.
pub fn values(source: &mut dyn WeightSource, band_rows: usize) -> Result<Vec<f32>> {
    let desc = source.desc().clone();
    let (mut all, mut band) = (Vec::new(), Band::default());
    for first in (0..desc.rows).step_by(band_rows) {
        let count = band_rows.min(desc.rows - first);
        source.read_rows(first, count, &mut band)?;
        for row in 0..count {
            all.extend((0..desc.cols).map(|col| value(&desc, &band, row, col)));
        }
    }
    Ok(all)
}

fn value(desc: &TensorDesc, band: &Band, row: usize, col: usize) -> f32 {
    match desc.encoding {
        Encoding::Dense(kind) => float(kind, &band.data, row * desc.cols + col),
        Encoding::Affine { bits, group, scales } => {
            let bits = usize::from(bits);
            let first_bit = (row * desc.cols + col) * bits;
            let bit = |i: usize| u32::from(band.data[i / 8] >> (i % 8) & 1);
            let q: u32 = (0..bits).map(|i| bit(first_bit + i) << i).sum();
            let at = (row * desc.cols + col) / group;
            q as f32 * float(scales, &band.scales, at) + float(scales, &band.biases, at)
        }
    }
}

fn float(kind: Float, bytes: &[u8], i: usize) -> f32 {
    match kind {
        Float::Bf16 => f32::from_bits(u32::from(u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]])) << 16),
        Float::F16 => half::f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        Float::F32 => f32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().unwrap()),
    }
}

pub struct Mock {
    band_rows: usize,
    /// How often each tensor is read.
    pub passes: usize,
    pub weights: BTreeMap<usize, (TensorDesc, Vec<f32>)>,
}

impl Mock {
    /// Reads each tensor in bands of `band_rows`.
    pub fn in_bands_of(band_rows: usize) -> Mock {
        Mock { band_rows, passes: 1, weights: BTreeMap::new() }
    }
}

impl Backend for Mock {
    fn load(&mut self, id: WeightId, source: &mut dyn WeightSource) -> Result<()> {
        for _ in 1..self.passes {
            values(source, self.band_rows)?;
        }
        let values = values(source, self.band_rows)?;
        if values.iter().any(|v| !v.is_finite()) {
            return Err(Error::new(Code::Numeric, format!("tensor {}: a value is not finite", source.desc().name)));
        }
        let first = self.weights.insert(id.0, (source.desc().clone(), values));
        assert!(first.is_none(), "each weight is loaded once");
        Ok(())
    }

    fn submit(&mut self, _: Round) -> Result<()> {
        unimplemented!()
    }
    fn advance(&mut self, _: Limit) -> Result<Progress> {
        unimplemented!()
    }
    fn faulted(&self, _: usize) -> bool {
        unimplemented!()
    }
    fn logits(&self, _: usize) -> &[f32] {
        unimplemented!()
    }
    fn conv_state_after(&self, _: usize, _: usize) -> ConvState {
        unimplemented!()
    }
    fn commit(&mut self, _: &[usize]) {}
    fn abandon(&mut self) {}
    fn conv_state(&self, _: Slot) -> ConvState {
        unimplemented!()
    }
    fn set_conv_state(&mut self, _: Slot, _: &ConvState) {}
    fn reset_conv_state(&mut self, _: Slot) {}
    fn copy_page(&mut self, _: PageId, _: PageId) {}
    fn release_stores(&mut self, _slot: Slot) {}
    fn release_page(&mut self, _: PageId) {}
    fn slice_times(&self) -> SliceTimes {
        unimplemented!()
    }
    fn read_buffer(&self, _: BufferId) -> Vec<f32> {
        unimplemented!()
    }
    fn write_buffer(&mut self, _: BufferId, _: &[f32]) {}
}

/// A plan and the backend that got its weights.
pub type Loaded = (Plan, Mock);

/// Opens, plans and loads text model and vision tower.
pub fn load_both(folder: &Path) -> Result<(Checkpoint, Loaded, Option<Loaded>)> {
    let checkpoint = Checkpoint::open(folder)?;
    let (plan, vision) = plans(&checkpoint);
    let (mut mock, mut tower) = (Mock::in_bands_of(5), Mock::in_bands_of(7));
    let part = vision.as_ref().map(|plan| (plan, &mut tower as &mut dyn Backend));
    load_weights(&checkpoint, (&plan, &mut mock), part, &mut |_, _| true)?;
    Ok((checkpoint, (plan, mock), vision.map(|plan| (plan, tower))))
}

/// Opens, plans and loads, and gives what the text model got.
pub fn load(folder: &Path) -> Result<(Checkpoint, Plan, Mock)> {
    let (checkpoint, (plan, mock), _) = load_both(folder)?;
    Ok((checkpoint, plan, mock))
}

/// The checkpoint's plans.
pub fn plans(checkpoint: &Checkpoint) -> (Plan, Option<Plan>) {
    (text_plan(&checkpoint.config.text), checkpoint.config.vision.as_ref().map(vision_plan))
}

/// Opens and binds, reading no data.
pub fn bind(folder: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(folder)?;
    let (text, vision) = plans(&checkpoint);
    checkpoint.bind(&text, vision.as_ref()).map(|_| ())
}

/// The error of opening and binding, which must be of `code` and name all of `parts`.
pub fn refused(folder: &Path, code: Code, parts: &[&str]) {
    let Err(error) = bind(folder) else { panic!("accepted, expected an error about {parts:?}") };
    assert_eq!(error.code, code, "{error}");
    for part in parts {
        assert!(error.message.contains(part), "expected {part:?} in: {error}");
    }
}
