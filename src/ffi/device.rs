//! Devices a model can run on.

use super::args::{Out, Struct, invalid};
use super::guard;
use super::status::LFM3_OK;
use std::ffi::{CStr, c_char};

/// A device of kind CPU.
pub const LFM3_DEVICE_KIND_CPU: i32 = 1;
/// A device of kind GPU.
pub const LFM3_DEVICE_KIND_GPU: i32 = 2;

/// Devices of this version: the CPU.
const DEVICES: u32 = 1;

/// What a device is. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lfm3_device_desc {
    /// sizeof(lfm3_device_desc).
    pub struct_size: u32,
    /// `LFM3_DEVICE_KIND_*`.
    pub kind: i32,
    /// What it calls itself, 0-terminated. Stays valid for ever.
    pub name: *const c_char,
    /// Bytes of its own memory; 0 where it shares the host's or is not known.
    pub memory_bytes: u64,
    /// Threads worth using; 0 where the word means nothing.
    pub threads: u32,
    /// 1 if results do not depend, to the bit, on how work is cut and shared.
    pub bit_exact: u32,
}

// SAFETY: `repr(C)` without padding, numbers and raw pointers only, begins with its size.
unsafe impl Struct for lfm3_device_desc {
    const NAME: &'static str = "lfm3_device_desc";
}

/// Counts the devices models can run on.
///
/// - Returns: at least 1, since the CPU is device 0, or a negative error.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub extern "C" fn lfm3_device_count() -> i32 {
    guard::status(|| Ok(DEVICES as i32))
}

/// Says what a device is.
///
/// - `index`: below `lfm3_device_count()`; the number `lfm3_model_params.device` takes. `info`: gets it.
/// - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_device_info(index: u32, info: *mut lfm3_device_desc) -> i32 {
    guard::status(|| {
        // SAFETY: the host promises a struct of the size it states.
        let info = unsafe { Out::required(info)? };
        if index >= DEVICES {
            return Err(invalid(format!("device {index} of {DEVICES}")));
        }
        info.write(lfm3_device_desc {
            struct_size: 0,
            kind: LFM3_DEVICE_KIND_CPU,
            name: cpu_name().as_ptr(),
            memory_bytes: 0,
            threads: std::thread::available_parallelism().map_or(1, |count| count.get() as u32),
            bit_exact: 1,
        });
        Ok(LFM3_OK)
    })
}

fn cpu_name() -> &'static CStr {
    if cfg!(target_arch = "x86_64") {
        c"CPU (x86-64)"
    } else if cfg!(target_arch = "aarch64") {
        c"CPU (arm64)"
    } else {
        c"CPU"
    }
}
