//! Hands a checkpoint's weights to backends, one tensor after the other.

use super::checkpoint::Checkpoint;
use super::tensors::Tensor;
use crate::backend::Backend;
use crate::error::{Code, Error, Result};
use crate::plan::{Plan, WeightId};

/// Bytes read between two reports of progress, at least; one read may add [`super::tensors::READ_BYTES`].
pub const REPORT_BYTES: u64 = 1 << 20;

/// A plan and the backend that gets its weights.
pub type Part<'a> = (&'a Plan, &'a mut dyn Backend);

/// Loads every weight of the text plan, and of the vision plan where there is one. `progress(done, total)`, in bytes of
/// the files for both together, is called at the start, every few megabytes and at the end; where it returns false,
/// loading stops.
///
/// # Errors
/// What [`Checkpoint::bind`] and the backends give; `Format` where a file got shorter since it was opened; `Cancelled`.
pub fn load_weights(
    checkpoint: &Checkpoint,
    text: Part,
    vision: Option<Part>,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<()> {
    let bound = checkpoint.bind(text.0, vision.as_ref().map(|(plan, _)| *plan))?;
    let total = bound.text.iter().chain(&bound.vision).map(Tensor::bytes).sum();
    let mut report = |done: u64| match progress(done, total) {
        true => Ok(()),
        false => Err(Error::new(Code::Cancelled, format!("loading was cancelled after {done} of {total} bytes"))),
    };
    report(0)?;
    let mut reader = Reader { checkpoint, before: 0, told: 0, report: &mut report };
    reader.load(&bound.text, text.1)?;
    if let Some((_, backend)) = vision {
        reader.load(&bound.vision, backend)?;
    }
    report(total)
}

/// Reads tensors and tells how far it is.
struct Reader<'a> {
    checkpoint: &'a Checkpoint,
    /// Bytes of the tensors that are loaded.
    before: u64,
    /// Bytes told of last.
    told: u64,
    report: &'a mut dyn FnMut(u64) -> Result<()>,
}

impl Reader<'_> {
    /// Loads a plan's tensors.
    fn load(&mut self, tensors: &[Tensor], backend: &mut dyn Backend) -> Result<()> {
        for (index, tensor) in tensors.iter().enumerate() {
            let after = self.before + tensor.bytes();
            let mut done = self.before;
            // A backend may read some rows again, so a tensor's part of the progress is capped at its size.
            let mut watch = |bytes: u64| {
                done = after.min(done + bytes);
                if done < self.told + REPORT_BYTES {
                    return Ok(());
                }
                self.told = done;
                (self.report)(done)
            };
            backend.load(WeightId(index), &mut self.checkpoint.source(tensor)?.watched(&mut watch))?;
            self.before = after;
        }
        Ok(())
    }
}
