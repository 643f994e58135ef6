//! Hands a checkpoint's weights to a backend, one tensor after the other.

use super::checkpoint::Checkpoint;
use crate::backend::Backend;
use crate::error::{Code, Error, Result};
use crate::plan::{Plan, WeightId};

/// Bytes read between two reports of progress, at least; one read may add [`super::tensors::READ_BYTES`].
pub const REPORT_BYTES: u64 = 1 << 20;

/// Loads every weight of `plan` into `backend`. `progress(done, total)`, in bytes of the files, is called at the start,
/// every few megabytes and at the end; where it returns false, loading stops.
///
/// # Errors
/// What [`Checkpoint::bind`] and the backend give; `Format` where a file got shorter since it was opened; `Cancelled`.
pub fn load_weights(
    checkpoint: &Checkpoint,
    plan: &Plan,
    backend: &mut dyn Backend,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<()> {
    let tensors = checkpoint.bind(plan)?;
    let total = tensors.iter().map(|tensor| tensor.bytes()).sum();
    let mut report = |done: u64| match progress(done, total) {
        true => Ok(()),
        false => Err(Error::new(Code::Cancelled, format!("loading was cancelled after {done} of {total} bytes"))),
    };
    report(0)?;
    let (mut before, mut told) = (0, 0);
    for (index, tensor) in tensors.iter().enumerate() {
        let after = before + tensor.bytes();
        let mut done = before;
        // A backend may read some rows again, so a tensor's part of the progress is capped at its size.
        let mut watch = |bytes: u64| {
            done = after.min(done + bytes);
            if done < told + REPORT_BYTES {
                return Ok(());
            }
            told = done;
            report(done)
        };
        backend.load(WeightId(index), &mut checkpoint.source(tensor)?.watched(&mut watch))?;
        before = after;
    }
    report(total)
}
