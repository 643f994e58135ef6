//! Replies: how they are asked for.

use super::args::{self, Struct, invalid};
use super::guard;
use super::handle;
use super::status::LFM3_OK;
use super::stream::{OpenStream, call, lfm3_stream};
use crate::error::{Code, Error, Result};
use crate::sampler::Sampling;
use crate::stream::{GenerateOptions, MAX_STOP_TOKENS, MAX_TOP_LOGPROBS};
use std::ffi::c_char;

/// Most ids `top_logprobs` may ask for.
pub const LFM3_MAX_TOP_LOGPROBS: u32 = 64;
const _: () = assert!(LFM3_MAX_TOP_LOGPROBS as usize == MAX_TOP_LOGPROBS);

/// How to generate. Set by `lfm3_generate_params_init`, then changed field by field. The defaults of sampling are the
/// checkpoint's own, from its generation_config.json.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct lfm3_generate_params {
    /// sizeof(lfm3_generate_params).
    pub struct_size: u32,
    /// 1 sends an `LFM3_EVENT_TOKEN` for each token.
    pub token_events: u32,
    /// Most tokens of the reply; 0 is up to the context limit.
    pub max_tokens: u64,
    /// With the position, the key of every draw: the same seed gives the same reply. -1 is the default.
    pub seed: i64,
    /// 0 always takes the likeliest token; higher is more varied. NaN is the default.
    pub temperature: f32,
    /// Only the k likeliest; 0 is all, -1 the default.
    pub top_k: i32,
    /// Only the likeliest that together reach this probability, 0 to 1; 1 is all, NaN or 0 the default.
    pub top_p: f32,
    /// Only those at least this times as likely as the likeliest, 0 to 1; 0 is all, NaN the default.
    pub min_p: f32,
    /// Divides the logits of tokens met before (multiplies negative ones); 1 is off, NaN or 0 the default.
    pub repetition_penalty: f32,
    /// Subtracted once from the logits of tokens met before; NaN is the default.
    pub presence_penalty: f32,
    /// Subtracted for each time a token was met before; NaN is the default.
    pub frequency_penalty: f32,
    /// Tokens that the penalties look back; INT32_MAX is all, -1 the default.
    pub penalty_reach: i32,
    /// Least run of tokens met before that makes the library draft what followed there. Makes copying faster and
    /// changes no reply. 0 is off, -1 the default. Checked, but of no effect in this version, which drafts nothing.
    pub copy_match: i32,
    /// Likeliest ids each token event lists, at most `LFM3_MAX_TOP_LOGPROBS`.
    pub top_logprobs: u32,
    /// 1 holds tool calls to the tools' schemas; this version knows 0 only.
    pub constrain_tool_calls: u32,
    /// 0.
    pub reserved: u32,
    /// Stop tokens beside the checkpoint's; copied. NULL for none.
    pub stop_tokens: *const u32,
    /// Ids at `stop_tokens`.
    pub stop_token_count: usize,
}

// SAFETY: `repr(C)` without padding, numbers and raw pointers only, begins with its size.
unsafe impl Struct for lfm3_generate_params {
    const NAME: &'static str = "lfm3_generate_params";
}

impl Default for lfm3_generate_params {
    fn default() -> Self {
        lfm3_generate_params {
            struct_size: size_of::<Self>() as u32,
            token_events: 0,
            max_tokens: 0,
            seed: -1,
            temperature: f32::NAN,
            top_k: -1,
            top_p: f32::NAN,
            min_p: f32::NAN,
            repetition_penalty: f32::NAN,
            presence_penalty: f32::NAN,
            frequency_penalty: f32::NAN,
            penalty_reach: -1,
            copy_match: -1,
            top_logprobs: 0,
            constrain_tool_calls: 0,
            reserved: 0,
            stop_tokens: std::ptr::null(),
            stop_token_count: 0,
        }
    }
}

/// Writes the defaults into `params`.
///
/// - `params`: where; `size`: sizeof(lfm3_generate_params), which also sets `struct_size`.
/// - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_generate_params_init(params: *mut lfm3_generate_params, size: usize) -> i32 {
    // SAFETY: the host promises `size` bytes at `params`.
    guard::status(|| unsafe { args::init(params, size, lfm3_generate_params::default()) })
}

/// Asks for a reply behind what the stream holds, after what is queued is filled in. It comes as events while the
/// model is stepped. After DONE, another call goes on from there.
///
/// - `params`: NULL for defaults; copied.
/// - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT`; `LFM3_ERR_LIMIT` for more than 1024 stop tokens;
///   `LFM3_ERR_STATE` for an empty stream or while a reply runs.
/// - Numbers: for the same build, device, tokens, params and seed the reply is the same, whatever runs beside it.
/// - Threads: one a stream at a time, also beside a step. Nothing is computed here. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_generate(stream: *mut lfm3_stream, params: *const lfm3_generate_params) -> i32 {
    // SAFETY: the host promises a live stream, a struct of the size it states, and the ids it points to.
    unsafe {
        handle::call::<OpenStream>(stream, |inner| {
            let params = args::read(params, lfm3_generate_params::default())?;
            let mut options = options(&params, inner.stream.default_sampling())?;
            let stops = args::slice(params.stop_tokens, params.stop_token_count, "stop_tokens")?;
            check_stops(stops, inner.vocab_size)?;
            options.stop_tokens = stops.to_vec();
            inner.stream.generate(&options)?;
            Ok(LFM3_OK)
        })
    }
}

/// Stops the reply, or what is being filled in, at the next slice. Events sent before still come, then DONE with
/// `LFM3_DONE_CANCELLED`. Queued input that was not filled in is dropped; what the stream held before stays. Nothing to
/// stop is fine, and gives no event.
///
/// - Returns: `LFM3_OK`.
/// - Threads: any, any time. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_cancel(stream: *mut lfm3_stream) -> i32 {
    // SAFETY: the host promises a live stream.
    unsafe { call(stream, |stream| stream.cancel().map(|()| LFM3_OK)) }
}

/// Adds a stop string for the replies that follow. However tokens cut it, it is never shown, and nothing before it is
/// lost.
///
/// - `text`: `len` bytes of UTF-8; 0 bytes remove all stop strings.
/// - Returns: `LFM3_OK`; `LFM3_ERR_LIMIT` for more than 64; `LFM3_ERR_INVALID_ARGUMENT` for more than 1024 bytes.
/// - Threads: one a stream at a time, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_add_stop(stream: *mut lfm3_stream, text: *const c_char, len: usize) -> i32 {
    // SAFETY: the host promises a live stream and `len` bytes at `text`.
    unsafe {
        call(stream, |stream| {
            stream.add_stop(args::text(text, len, "the stop string")?)?;
            Ok(LFM3_OK)
        })
    }
}

/// Sets what is added to the logits of the replies that follow, in place of earlier biases.
///
/// - `ids`, `biases`: `count` tokens and what each gets; -INFINITY forbids a token. 0 removes all.
/// - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` for NaN, +INFINITY or an id outside the vocabulary.
/// - Threads: one a stream at a time, also beside a step. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_set_bias(
    stream: *mut lfm3_stream,
    ids: *const u32,
    biases: *const f32,
    count: usize,
) -> i32 {
    // SAFETY: the host promises a live stream and `count` elements at both arrays.
    unsafe {
        handle::call::<OpenStream>(stream, |inner| {
            let ids = args::slice(ids, count, "ids")?;
            let biases = args::slice(biases, count, "biases")?;
            let pairs: Vec<(u32, f32)> = ids.iter().copied().zip(biases.iter().copied()).collect();
            check_bias(&pairs, inner.vocab_size)?;
            inner.stream.set_bias(&pairs)?;
            Ok(LFM3_OK)
        })
    }
}

/// Asks for the log-probabilities of the stream's tokens from position `from` on, each after the tokens before it, as
/// `LFM3_EVENT_SCORE` events and READY. Left out are the first token, which has none before it, and tokens that stand
/// for pictures.
///
/// - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` for a position past the end; `LFM3_ERR_STATE` while a reply runs.
/// - Threads: one a stream at a time, also beside a step. Nothing is computed here. Since 0.1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lfm3_stream_score(stream: *mut lfm3_stream, from: u64) -> i32 {
    // SAFETY: the host promises a live stream.
    unsafe {
        call(stream, |stream| {
            stream.score(usize::try_from(from).map_err(|_| invalid("from is past the stream's end"))?)?;
            Ok(LFM3_OK)
        })
    }
}

/// Checks the params and maps them over the checkpoint's `defaults`; stop tokens are the caller's to add.
fn options(params: &lfm3_generate_params, defaults: Sampling) -> Result<GenerateOptions> {
    if params.token_events > 1 {
        return Err(invalid(format!("token_events is {}; it must be 0 or 1", params.token_events)));
    }
    if params.top_logprobs > LFM3_MAX_TOP_LOGPROBS {
        let most = LFM3_MAX_TOP_LOGPROBS;
        return Err(invalid(format!("top_logprobs is {}; it must be at most {most}", params.top_logprobs)));
    }
    if params.constrain_tool_calls != 0 || params.reserved != 0 {
        let text = "constrain_tool_calls and reserved must be 0 in this version of the library";
        return Err(Error::new(Code::Unsupported, text));
    }
    // Nothing is drafted yet, which no reply shows.
    whole("copy_match", params.copy_match, 0)?;
    Ok(GenerateOptions {
        max_tokens: super::model::limit(params.max_tokens),
        token_events: params.token_events == 1,
        top_logprobs: params.top_logprobs as usize,
        ..GenerateOptions::new(sampling(params, defaults)?)
    })
}

fn sampling(params: &lfm3_generate_params, defaults: Sampling) -> Result<Sampling> {
    let zero_is_default = |value: f32| if value == 0.0 { f32::NAN } else { value };
    let positive = f32::MIN_POSITIVE..=f32::MAX;
    let any = f32::MIN..=f32::MAX;
    Ok(Sampling {
        temperature: real("temperature", params.temperature, defaults.temperature, 0.0..=f32::MAX)?,
        top_k: whole("top_k", params.top_k, defaults.top_k)?,
        top_p: real("top_p", zero_is_default(params.top_p), defaults.top_p, 0.0..=1.0)?,
        min_p: real("min_p", params.min_p, defaults.min_p, 0.0..=1.0)?,
        repetition_penalty: real(
            "repetition_penalty",
            zero_is_default(params.repetition_penalty),
            defaults.repetition_penalty,
            positive,
        )?,
        presence_penalty: real("presence_penalty", params.presence_penalty, defaults.presence_penalty, any.clone())?,
        frequency_penalty: real("frequency_penalty", params.frequency_penalty, defaults.frequency_penalty, any)?,
        penalty_reach: match params.penalty_reach {
            i32::MAX => u32::MAX,
            reach => whole("penalty_reach", reach, defaults.penalty_reach)?,
        },
        seed: if params.seed == -1 { defaults.seed } else { params.seed.cast_unsigned() },
    })
}

/// A number whose NaN means the default.
fn real(name: &str, value: f32, default: f32, range: std::ops::RangeInclusive<f32>) -> Result<f32> {
    if value.is_nan() {
        return Ok(default);
    }
    if range.contains(&value) {
        return Ok(value);
    }
    let (least, most) = (range.start(), range.end());
    Err(invalid(format!("{name} is {value:?}; it must be {least:?} to {most:?}, or NaN for the default")))
}

/// A count whose -1 means the default.
fn whole(name: &str, value: i32, default: u32) -> Result<u32> {
    match value {
        -1 => Ok(default),
        _ => u32::try_from(value).map_err(|_| invalid(format!("{name} is {value}; it must be -1 or more"))),
    }
}

fn check_stops(stops: &[u32], vocab_size: usize) -> Result<()> {
    if stops.len() > MAX_STOP_TOKENS {
        let text = format!("{} stop tokens; the most is {MAX_STOP_TOKENS}", stops.len());
        return Err(Error::new(Code::Limit, text));
    }
    stops.iter().try_for_each(|&id| check_id("stop_tokens", id, vocab_size))
}

fn check_bias(pairs: &[(u32, f32)], vocab_size: usize) -> Result<()> {
    pairs.iter().try_for_each(|&(id, bias)| {
        check_id("ids", id, vocab_size)?;
        let fine = bias.is_finite() || bias == f32::NEG_INFINITY;
        fine.then_some(()).ok_or_else(|| invalid(format!("the bias of token {id} is {bias}; it must be finite")))
    })
}

fn check_id(what: &str, id: u32, vocab_size: usize) -> Result<()> {
    if (id as usize) < vocab_size {
        return Ok(());
    }
    Err(invalid(format!("{what} holds {id}; the vocabulary ends at {vocab_size}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULTS: Sampling = Sampling {
        temperature: 0.1,
        top_k: 50,
        top_p: 0.9,
        min_p: 0.05,
        repetition_penalty: 1.1,
        presence_penalty: 0.2,
        frequency_penalty: 0.3,
        penalty_reach: 64,
        seed: 11,
    };

    fn changed(change: impl FnOnce(&mut lfm3_generate_params)) -> Result<GenerateOptions> {
        let mut params = lfm3_generate_params::default();
        change(&mut params);
        options(&params, DEFAULTS)
    }

    #[test]
    fn untouched_params_are_the_checkpoints_own() {
        let options = changed(|_| ()).unwrap();
        assert_eq!(options.sampling, DEFAULTS);
        assert_eq!((options.max_tokens, options.token_events), (None, false));
    }

    #[test]
    fn zeros_that_mean_something_reach_the_sampler() {
        let sampling = changed(|p| {
            (p.temperature, p.top_k, p.min_p, p.seed, p.penalty_reach, p.copy_match) = (0.0, 0, 0.0, 0, 0, 0);
            (p.presence_penalty, p.frequency_penalty, p.top_p, p.repetition_penalty) = (0.0, 0.0, 0.0, 0.0);
        })
        .unwrap()
        .sampling;
        let want = Sampling {
            temperature: 0.0,
            top_k: 0,
            min_p: 0.0,
            seed: 0,
            penalty_reach: 0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            ..DEFAULTS
        };
        assert_eq!(sampling, want);
        assert_eq!(changed(|p| p.penalty_reach = i32::MAX).unwrap().sampling.penalty_reach, u32::MAX);
    }

    #[test]
    fn values_out_of_range_are_refused_by_name() {
        let refused = |change: fn(&mut lfm3_generate_params), name: &str| {
            let error = changed(change).unwrap_err();
            assert!(error.message.contains(name), "{error}");
        };
        refused(|p| p.temperature = -0.1, "temperature");
        refused(|p| p.temperature = f32::INFINITY, "temperature");
        refused(|p| p.top_k = -2, "top_k");
        refused(|p| p.top_p = 1.1, "top_p");
        refused(|p| p.min_p = -1.0, "min_p");
        refused(|p| p.repetition_penalty = -1.0, "repetition_penalty");
        refused(|p| p.presence_penalty = f32::NEG_INFINITY, "presence_penalty");
        refused(|p| p.penalty_reach = i32::MIN, "penalty_reach");
        refused(|p| p.copy_match = -2, "copy_match");
        refused(|p| p.top_logprobs = 65, "top_logprobs");
        refused(|p| p.token_events = 2, "token_events");
        refused(|p| p.constrain_tool_calls = 1, "constrain_tool_calls");
        assert_eq!(check_stops(&[4095], 4096).map_err(|e| e.code), Ok(()));
        assert_eq!(check_stops(&[4096], 4096).unwrap_err().code, Code::InvalidArgument);
        assert_eq!(check_bias(&[(1, f32::NEG_INFINITY)], 4096).map_err(|e| e.code), Ok(()));
        assert_eq!(check_bias(&[(1, f32::NAN)], 4096).unwrap_err().code, Code::InvalidArgument);
    }
}
