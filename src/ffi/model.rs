//! `lfm3_model`: an open checkpoint, and the work its streams need.

use super::args::{self, Out, Struct, invalid};
use super::guard;
use super::handle::{self, Health, Kind};
use super::model_info::KeptInfo;
use super::status::{LFM3_IDLE, LFM3_MORE, LFM3_OK};
use crate::engine::{Clock, Isa, MAX_THREADS, Model, ModelOptions, Work};
use crate::error::{Code, Error, Result};
use std::ffi::{c_char, c_void};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The best device there is.
pub const LFM3_DEVICE_BEST: i32 = -1;
/// The CPU. Numbers above it are GPUs, in the order of `lfm3_device_info`.
pub const LFM3_DEVICE_CPU: i32 = 0;
/// The best instruction set the CPU has.
pub const LFM3_ISA_AUTO: i32 = 0;
/// Plain code for any CPU.
pub const LFM3_ISA_PORTABLE: i32 = 1;
/// x86-64 with AVX2 and FMA.
pub const LFM3_ISA_AVX2: i32 = 2;
/// Keys and values of attention as 16-bit floats.
pub const LFM3_KV_F16: i32 = 0;
/// A call failed.
pub const LFM3_LOG_ERROR: i32 = 1;
/// Something works, but not as it should.
pub const LFM3_LOG_WARNING: i32 = 2;
/// What was opened, and how.
pub const LFM3_LOG_INFO: i32 = 3;

/// Largest distance of local time from UTC.
const MAX_UTC_OFFSET_SECONDS: i32 = 86_400;

/// Gets a line for the host's log, `len` bytes of UTF-8 without a line end. Runs on the calling thread.
pub type lfm3_log_callback =
    Option<unsafe extern "C" fn(user_data: *mut c_void, level: i32, text: *const c_char, len: usize)>;

/// Learns how far `lfm3_model_open` is, in bytes. Returns 0 to go on and anything else to cancel. Runs on the opening
/// thread.
pub type lfm3_progress_callback = Option<unsafe extern "C" fn(user_data: *mut c_void, done: u64, total: u64) -> i32>;

/// An open model. Made by `lfm3_model_open`, owned by the host, freed by `lfm3_model_free`.
pub struct lfm3_model {
    _opaque: [u8; 0],
}

/// How to open a model. Set by `lfm3_model_params_init`, then changed field by field.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lfm3_model_params {
    /// sizeof(lfm3_model_params).
    pub struct_size: u32,
    /// `LFM3_DEVICE_CPU` (the default), `LFM3_DEVICE_BEST`, or a number `lfm3_device_info` takes.
    pub device: i32,
    /// Threads that compute, the stepping one included; 1 to 256. 0 means 1, which starts no thread.
    pub threads: i32,
    /// `LFM3_ISA_*`. For tests: replies are the same with each.
    pub isa: i32,
    /// Most positions of a stream; 0 is the checkpoint's own limit.
    pub context_limit: u64,
    /// Most tokens of one picture, or of all frames of a video: larger ones are made smaller. 0 is the checkpoint's own
    /// limit, which may be 16,384 and take minutes to look at.
    pub max_picture_tokens: u64,
    /// Most bytes of host memory for weights, pages, states and scratch together; 0 sets no limit.
    pub host_bytes: u64,
    /// Most bytes of device memory; 0 sets no limit. The CPU has none of its own.
    pub device_bytes: u64,
    /// `LFM3_KV_F16`.
    pub kv_type: i32,
    /// 1 rounds unquantized matrices to 8 bits on loading: faster and smaller, a little less exact. 0 keeps them.
    pub round_to_8_bits: u32,
    /// The part of the time, 0 to 1, that running replies get while prompts are filled in. NaN is the default, 0.25.
    /// Checked, but of no effect in this version: replies and prompts take turns.
    pub decode_share: f32,
    /// Offset of local time from UTC in seconds, for chat templates that ask for the time.
    pub utc_offset_seconds: i32,
    /// Seconds since 1970-01-01 UTC that chat templates see; -1, the default, is the system's clock.
    pub unix_seconds: i64,
    /// Gets log lines during open and step, until the model is freed; NULL for none. Calls of the library from inside
    /// it answer `LFM3_ERR_REENTRANT`.
    pub log: lfm3_log_callback,
    /// Learns of progress during open, and may cancel it; NULL for none. The same holds for calls from inside it.
    pub progress: lfm3_progress_callback,
    /// Handed to both callbacks, on whichever thread makes the call. With `log` it must stay valid until the model is
    /// freed.
    pub user_data: *mut c_void,
    /// Gets the text of an error of the call these params are for, 0-terminated, cut to fit; NULL for none.
    pub error: *mut c_char,
    /// Bytes at `error`.
    pub error_size: usize,
}

// SAFETY: `repr(C)` without padding, numbers, raw pointers and optional callbacks only, begins with its size.
unsafe impl Struct for lfm3_model_params {
    const NAME: &'static str = "lfm3_model_params";
}

impl Default for lfm3_model_params {
    fn default() -> Self {
        lfm3_model_params {
            struct_size: size_of::<Self>() as u32,
            device: LFM3_DEVICE_CPU,
            threads: 0,
            isa: LFM3_ISA_AUTO,
            context_limit: 0,
            max_picture_tokens: 0,
            host_bytes: 0,
            device_bytes: 0,
            kv_type: LFM3_KV_F16,
            round_to_8_bits: 0,
            decode_share: f32::NAN,
            utc_offset_seconds: 0,
            unix_seconds: -1,
            log: None,
            progress: None,
            user_data: std::ptr::null_mut(),
            error: std::ptr::null_mut(),
            error_size: 0,
        }
    }
}

/// What a step did, and what is left. Set `struct_size` before the call.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct lfm3_step_report {
    /// sizeof(lfm3_step_report).
    pub struct_size: u32,
    /// Streams with work left.
    pub busy_streams: u32,
    /// Microseconds this step took.
    pub used_us: u64,
    /// Microseconds the next slice is expected to take: the least budget worth giving.
    pub next_slice_us: u64,
    /// Microseconds of the longest slice seen: how far a step may pass its budget.
    pub worst_slice_us: u64,
    /// Microseconds the host may wait before the next step without losing time; UINT64_MAX when nothing is left.
    pub wait_hint_us: u64,
}

// SAFETY: `repr(C)` without padding, numbers only, begins with its size.
unsafe impl Struct for lfm3_step_report {
    const NAME: &'static str = "lfm3_step_report";
}

/// Writes the defaults into `params`.
///
/// - `params`: where; `size`: sizeof(lfm3_model_params), which also sets `struct_size`.
/// - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_params_init(params: *mut lfm3_model_params, size: usize) -> i32 {
    // SAFETY: the host promises `size` bytes at `params`.
    guard::status(|| unsafe { args::init(params, size, lfm3_model_params::default()) })
}

/// Opens a checkpoint folder: config.json, tokenizer, chat template and safetensors, as released or exported by MLX.
/// Blocks until the weights are packed in memory; the files are not needed afterwards.
///
/// - `path`: the folder, `path_len` bytes of UTF-8; `params`: NULL for defaults.
/// - `model`: gets the handle, which the host frees with `lfm3_model_free`; NULL after an error.
/// - Returns: `LFM3_OK`; `LFM3_ERR_IO`, `_FORMAT`, `_UNSUPPORTED`, `_LIMIT`, `_CANCELLED` with a text in
///   `params->error` that names file and tensor; `LFM3_ERR_INVALID_ARGUMENT`.
/// - Threads: any. Several models may be opened at once. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_open(
    path: *const c_char,
    path_len: usize,
    params: *const lfm3_model_params,
    model: *mut *mut lfm3_model,
) -> i32 {
    guard::status(|| {
        // SAFETY: the host promises a struct of the size it states, and the texts and places it points to.
        unsafe {
            let model = args::handle_out(model)?;
            let params = args::read(params, lfm3_model_params::default())?;
            args::explain((params.error, params.error_size), || {
                let path = args::text(path, path_len, "the path")?;
                let log = Log::of(&params);
                let opened = guard::run(|| open(path, &params, log));
                *model = opened.inspect_err(|error| log.write(LFM3_LOG_ERROR, &error.message))?;
                Ok(LFM3_OK)
            })
        }
    })
}

/// Frees a model. Its streams answer `LFM3_ERR_CLOSED` from now on and are still the host's to free. Weights and
/// threads are gone when this returns, or, if another thread is inside a step, when that step does.
///
/// - `model`: NULL is fine. No call may begin on it afterwards.
/// - Returns: `LFM3_OK`; `LFM3_ERR_REENTRANT` from a callback, and the model stays.
/// - Threads: any. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_free(model: *mut lfm3_model) -> i32 {
    // SAFETY: the host promises a live model or NULL, and to use it no more.
    unsafe { handle::free::<OpenModel>(model, |inner| inner.model.close()) }
}

/// The text of the last error of a call with this model, also where the model is poisoned.
///
/// - `out`: gets as many whole characters as fit in `capacity` bytes, always with a 0 behind.
/// - `needed`: gets the text's bytes without the 0; may be NULL.
/// - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` where the text was cut. Empty when there was no error yet;
///   kept until the next one, so look after a negative status only.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_error(
    model: *const lfm3_model,
    out: *mut c_char,
    capacity: usize,
    needed: *mut usize,
) -> i32 {
    // SAFETY: the host promises a live model and `capacity` bytes at `out`.
    unsafe { handle::last_error::<OpenModel>(model, out, capacity, needed) }
}

/// Works for the model's streams until about `budget_us` is spent: fills in what was appended, generates what was asked
/// for. At least one slice of work is done, none is begun that is not expected to fit.
///
/// - `budget_us`: microseconds; 0 does one slice, of some microseconds: thousands make a reply, so not for a call a
///   frame. More than an hour counts as an hour.
/// - `report`: gets what was done; NULL if not wanted.
/// - Returns: `LFM3_MORE`: call again now or when the host has time. `LFM3_IDLE`: nothing is left to do.
///   `LFM3_WAITING`: a device works; go on with something else, then `lfm3_model_poll`, or block in
///   `lfm3_model_wait`. The CPU never waits. `LFM3_ERR_BUSY` while another thread steps. An error of one stream shows
///   on that stream only.
/// - Numbers: how the work is cut into steps, and which streams share it, changes no bit of any result.
/// - Threads: one at a time a model; streams may be used beside it. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_step(model: *mut lfm3_model, budget_us: u64, report: *mut lfm3_step_report) -> i32 {
    // SAFETY: the host promises a live model and a report of the size it states.
    unsafe {
        handle::call::<OpenModel>(model, |inner| {
            let report = Out::optional(report)?;
            let stepped = inner.model.step(Duration::from_micros(budget_us));
            let (work, done) = stepped.inspect_err(|error| inner.log_step_error(error))?;
            if let Some(report) = report {
                report.write(lfm3_step_report {
                    struct_size: 0,
                    busy_streams: u32::try_from(done.busy_streams).unwrap_or(u32::MAX),
                    used_us: micros(done.used),
                    next_slice_us: micros(done.next_slice),
                    worst_slice_us: micros(done.worst_slice),
                    wait_hint_us: micros(done.wait_hint),
                });
            }
            Ok(work_status(work))
        })
    }
}

/// Asks what a step would find, without doing any of it.
///
/// - Returns: `LFM3_MORE`, `LFM3_WAITING` or `LFM3_IDLE` as `lfm3_model_step`.
/// - Threads: any, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_poll(model: *mut lfm3_model) -> i32 {
    // SAFETY: the host promises a live model.
    unsafe { handle::call::<OpenModel>(model, |inner| inner.model.poll().map(work_status)) }
}

/// Blocks until the device is done with what it was given, or `timeout_us` microseconds are over. On the CPU, where a
/// step does all work itself, this returns at once.
///
/// - Returns: as `lfm3_model_poll`; `LFM3_WAITING` when the time is over.
/// - Threads: any, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_wait(model: *mut lfm3_model, timeout_us: u64) -> i32 {
    let _ = timeout_us;
    // SAFETY: the host promises a live model.
    unsafe { handle::call::<OpenModel>(model, |inner| inner.model.poll().map(work_status)) }
}

/// Builds a lost device anew, and its streams from their tokens. The CPU is never lost: there is nothing to do.
///
/// - Returns: `LFM3_OK`.
/// - Threads: not beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_model_recover(model: *mut lfm3_model) -> i32 {
    // SAFETY: the host promises a live model.
    unsafe { handle::call::<OpenModel>(model, |_| Ok(LFM3_OK)) }
}

/// What a model's handle holds.
pub(super) struct OpenModel {
    /// The engine's.
    pub(super) model: Arc<Model>,
    /// The handle's, for the streams.
    pub(super) health: Arc<Health>,
    /// Strings and arrays `lfm3_model_info` points to.
    pub(super) info: KeptInfo,
    log: Log,
}

impl Kind for OpenModel {
    type Opaque = lfm3_model;
    const MAGIC: u64 = u64::from_le_bytes(*b"lfm3modl");
    const NAME: &'static str = "model";
}

impl OpenModel {
    fn log_step_error(&self, error: &Error) {
        if error.code != Code::Busy {
            self.log.write(LFM3_LOG_ERROR, &error.message);
        }
    }
}

fn open(path: &str, params: &lfm3_model_params, log: Log) -> Result<*mut lfm3_model> {
    let options = options(params)?;
    if path.is_empty() {
        return Err(invalid("the path is empty"));
    }
    let (progress, user_data) = (params.progress, params.user_data);
    let mut go_on = |done, total| {
        // SAFETY: the host promises a callback that may be called with its user data.
        progress.is_none_or(|progress| guard::callback(|| unsafe { progress(user_data, done, total) == 0 }))
    };
    let model = Model::open(Path::new(path), &options, &mut go_on)?;
    let info = KeptInfo::new(model.info());
    log.write(LFM3_LOG_INFO, &format!("opened {path}: {}", info.summary()));
    let health = Arc::<Health>::default();
    Ok(handle::new(OpenModel { model, health: health.clone(), info, log }, health))
}

/// Checks the params and maps them to the engine's options.
pub(super) fn options(params: &lfm3_model_params) -> Result<ModelOptions> {
    let unsupported = |text: String| Err(Error::new(Code::Unsupported, text));
    if params.device > LFM3_DEVICE_CPU {
        return unsupported(format!("device {}: this version runs on the CPU, device 0", params.device));
    }
    if params.device < LFM3_DEVICE_BEST {
        return Err(invalid(format!("device is {}; it must be -1 or more", params.device)));
    }
    if !(0..=MAX_THREADS as i32).contains(&params.threads) {
        return Err(invalid(format!("threads is {}; it must be 0 to {MAX_THREADS}", params.threads)));
    }
    if params.kv_type != LFM3_KV_F16 {
        return unsupported(format!("kv_type {}: this version has LFM3_KV_F16, 0", params.kv_type));
    }
    if params.round_to_8_bits > 1 {
        return Err(invalid(format!("round_to_8_bits is {}; it must be 0 or 1", params.round_to_8_bits)));
    }
    if params.decode_share < 0.0 || params.decode_share > 1.0 {
        return Err(invalid(format!("decode_share is {}; it must be 0 to 1, or NaN", params.decode_share)));
    }
    if params.unix_seconds < -1 || params.utc_offset_seconds.unsigned_abs() > MAX_UTC_OFFSET_SECONDS as u32 {
        let (time, offset) = (params.unix_seconds, params.utc_offset_seconds);
        return Err(invalid(format!("the clock is {time} s, {offset} s from UTC; that is no time")));
    }
    let isa = match params.isa {
        LFM3_ISA_AUTO => None,
        LFM3_ISA_PORTABLE => Some(Isa::Portable),
        LFM3_ISA_AVX2 => Some(Isa::Avx2),
        other => return unsupported(format!("isa {other} is not an LFM3_ISA_* of this version")),
    };
    Ok(ModelOptions {
        threads: params.threads.max(1) as usize,
        isa,
        round_to_8_bits: params.round_to_8_bits == 1,
        context_limit: limit(params.context_limit),
        max_picture_tokens: Some(params.max_picture_tokens).filter(|&most| most > 0),
        host_bytes: Some(params.host_bytes).filter(|&bytes| bytes > 0),
        clock: Clock {
            unix_seconds: Some(params.unix_seconds).filter(|&seconds| seconds >= 0),
            utc_offset_seconds: params.utc_offset_seconds,
        },
    })
}

/// A limit of the host, where 0 sets none.
pub(super) fn limit(value: u64) -> Option<usize> {
    (value > 0).then(|| usize::try_from(value).unwrap_or(usize::MAX))
}

fn work_status(work: Work) -> i32 {
    match work {
        Work::More => LFM3_MORE,
        Work::Idle => LFM3_IDLE,
    }
}

/// Whole microseconds.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// The host's log.
#[derive(Clone, Copy)]
struct Log {
    write: lfm3_log_callback,
    user_data: *mut c_void,
}

// SAFETY: the header tells the host that both are used on whichever thread calls.
unsafe impl Send for Log {}
// SAFETY: as above.
unsafe impl Sync for Log {}

impl Log {
    fn of(params: &lfm3_model_params) -> Log {
        Log { write: params.log, user_data: params.user_data }
    }

    fn write(&self, level: i32, text: &str) {
        if let Some(write) = self.write {
            // SAFETY: the host promises a callback that may be called with its user data.
            guard::callback(|| unsafe { write(self.user_data, level, text.as_ptr().cast(), text.len()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(change: impl FnOnce(&mut lfm3_model_params)) -> Result<ModelOptions> {
        let mut params = lfm3_model_params::default();
        change(&mut params);
        options(&params)
    }

    #[test]
    fn defaults_are_one_thread_no_limits_and_the_systems_clock() {
        let options = changed(|_| ()).unwrap();
        assert_eq!((options.threads, options.isa, options.context_limit, options.host_bytes), (1, None, None, None));
        assert!(options.clock.unix_seconds.is_none() && !options.round_to_8_bits);
    }

    #[test]
    fn each_field_reaches_the_engine() {
        let options = changed(|params| {
            params.threads = 3;
            params.isa = LFM3_ISA_PORTABLE;
            params.context_limit = 512;
            params.host_bytes = 1 << 30;
            params.round_to_8_bits = 1;
            params.unix_seconds = 0;
            params.utc_offset_seconds = -3600;
        })
        .unwrap();
        assert_eq!((options.threads, options.isa), (3, Some(Isa::Portable)));
        assert_eq!((options.context_limit, options.host_bytes), (Some(512), Some(1 << 30)));
        assert!(options.round_to_8_bits);
        assert_eq!((options.clock.unix_seconds, options.clock.utc_offset_seconds), (Some(0), -3600));
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |change: fn(&mut lfm3_model_params), code, name: &str| {
            let error = changed(change).unwrap_err();
            assert!(error.code == code && error.message.contains(name), "{error}");
        };
        refused(|p| p.device = 1, Code::Unsupported, "device");
        refused(|p| p.device = -2, Code::InvalidArgument, "device");
        refused(|p| p.threads = -1, Code::InvalidArgument, "threads");
        refused(|p| p.threads = 257, Code::InvalidArgument, "threads");
        refused(|p| p.isa = 9, Code::Unsupported, "isa");
        refused(|p| p.kv_type = 1, Code::Unsupported, "kv_type");
        refused(|p| p.round_to_8_bits = 2, Code::InvalidArgument, "round_to_8_bits");
        refused(|p| p.decode_share = 1.5, Code::InvalidArgument, "decode_share");
        refused(|p| p.unix_seconds = -2, Code::InvalidArgument, "clock");
        refused(|p| p.utc_offset_seconds = i32::MIN, Code::InvalidArgument, "clock");
    }

    #[test]
    fn micros_and_limits_saturate() {
        assert_eq!(micros(Duration::MAX), u64::MAX);
        assert_eq!((limit(0), limit(7)), (None, Some(7)));
    }

    #[test]
    fn work_maps_to_statuses() {
        assert_eq!((work_status(Work::More), work_status(Work::Idle)), (LFM3_MORE, LFM3_IDLE));
    }
}
