/*
 * liblfm3: runs LFM3 language models inside other programs. Apache-2.0 OR MIT.
 *
 * This file is generated from src/ffi by `make header`; edit it there.
 *
 * The smallest host opens a checkpoint, asks, and prints the answer:
 *
 *     const char *dir = "examples/demo-model";
 *     const char *json = "{\"messages\": [{\"role\": \"user\", \"content\": \"Mia is in the attic. Where is Mia?\"}]}";
 *     lfm3_model *model = NULL;
 *     lfm3_stream *stream = NULL;
 *     lfm3_event event;
 *     event.struct_size = sizeof event;
 *     lfm3_model_open(dir, strlen(dir), NULL, &model);
 *     lfm3_stream_new(model, NULL, &stream);
 *     lfm3_stream_set_chat(stream, json, strlen(json), NULL, 0);
 *     lfm3_stream_generate(stream, NULL);
 *     for (;;) {
 *         int32_t status = lfm3_stream_next(stream, &event);
 *         if (status == LFM3_PENDING) lfm3_model_step(model, 8000, NULL);     // 8 ms, then back to the host's own loop
 *         else if (status != LFM3_OK) break;                                 // LFM3_DONE, or an error
 *         else if (event.kind == LFM3_EVENT_TEXT) fwrite(event.text, 1, event.text_len, stdout);
 *     }
 *     lfm3_stream_free(stream);
 *     lfm3_model_free(model);
 *
 * (Without checks: each call refuses what an earlier one failed to make, so the loop ends at once.)
 *
 * What holds for every function:
 *
 * - Statuses. Functions return an int32_t: LFM3_OK, a positive number that says how far things are, or a negative
 *   error. The text of the last error stays on the handle (lfm3_model_error, lfm3_stream_error); functions without a
 *   handle write it into their params' error buffer. One stream's error never touches another.
 * - Structs begin with struct_size, which the host sets: by *_params_init for params, by hand for structs that get
 *   something. Later versions only append fields. A shorter struct of an older header is accepted; a longer one of a
 *   newer header too, as long as what this version does not know is 0. NULL params are defaults.
 * - Texts are a pointer and a length in bytes, UTF-8, checked; NULL with length 0 is the empty text.
 * - Results go to pointers only on success; a handle that could not be made is NULL. Arrays follow the two-call rule:
 *   ask with NULL and 0, get LFM3_ERR_BUFFER_TOO_SMALL and the size in `needed`, and call again with that much room.
 * - The host frees handles and nothing else, in any order, on any thread.
 * - Threads. One thread steps a model at a time (LFM3_ERR_BUSY otherwise). Beside a running step other threads may use
 *   the streams, one thread a stream at a time; lfm3_stream_cancel, model info and tokenizing any thread, any time.
 *   The library starts threads only for models opened with more than one, and they sleep between steps.
 * - Callbacks run inside the calling function, on its thread, and must return (no longjmp, no exceptions). Calls from
 *   inside one answer LFM3_ERR_REENTRANT, except lfm3_abi_version, lfm3_version_string and lfm3_status_name.
 * - The library prints nothing, reads no environment variables, opens no sockets and sets no signal handlers.
 * - Numbers. On one device and build, what a stream computes depends on its own tokens and the weights only, to the
 *   bit: not on other streams, budgets, threads or how its input was cut. CPUs agree with each other to the bit.
 */

#ifndef LFM3_H
#define LFM3_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32) && defined(LFM3_SHARED)
#define LFM3_API __declspec(dllimport)
#else
#define LFM3_API extern
#endif

/* Clang and Swift learn which pointers may be NULL; other compilers see nothing of it. */
#if defined(__clang__)
#define LFM3_NULLABLE _Nullable
#define LFM3_NONNULL _Nonnull
#define LFM3_NULLABILITY_BEGIN \
    _Pragma("clang diagnostic push") \
    _Pragma("clang diagnostic ignored \"-Wnullability-extension\"") \
    _Pragma("clang assume_nonnull begin")
#define LFM3_NULLABILITY_END \
    _Pragma("clang assume_nonnull end") \
    _Pragma("clang diagnostic pop")
#else
#define LFM3_NULLABLE
#define LFM3_NONNULL
#define LFM3_NULLABILITY_BEGIN
#define LFM3_NULLABILITY_END
#endif

#ifdef __cplusplus
extern "C" {
#endif

LFM3_NULLABILITY_BEGIN

/* === 1. Statuses ============================================================================================ */

/** Done as asked. */
#define LFM3_OK 0
/** `lfm3_model_step`: there is more to do, call again. */
#define LFM3_MORE 1
/** `lfm3_model_step`: the device is working; poll or wait. */
#define LFM3_WAITING 2
/** `lfm3_model_step`: nothing to do. */
#define LFM3_IDLE 3
/** `lfm3_stream_next`: no event yet; step the model. */
#define LFM3_PENDING 4
/** `lfm3_stream_next`: nothing more will come until something is asked for. */
#define LFM3_DONE 5
/** A NULL, out-of-range, non-UTF-8 or contradictory argument. */
#define LFM3_ERR_INVALID_ARGUMENT (-1)
/** A file could not be opened or read. */
#define LFM3_ERR_IO (-2)
/** A file's content breaks its format: truncated, overlapping, wrong shape, bad JSON. */
#define LFM3_ERR_FORMAT (-3)
/** Well-formed, but not something this version can run. */
#define LFM3_ERR_UNSUPPORTED (-4)
/** A byte or count limit would be passed. */
#define LFM3_ERR_LIMIT (-5)
/** Another thread is inside a call that excludes this one. */
#define LFM3_ERR_BUSY (-6)
/** Called from inside one of the library's own callbacks. */
#define LFM3_ERR_REENTRANT (-7)
/** The model behind this stream was freed. */
#define LFM3_ERR_CLOSED (-8)
/** An earlier call met a bug of the library; only `*_error` and `*_free` are left. */
#define LFM3_ERR_POISONED (-9)
/** The call does not fit what the handle is doing. */
#define LFM3_ERR_STATE (-10)
/** The caller's buffer is too small; the size needed was reported. */
#define LFM3_ERR_BUFFER_TOO_SMALL (-11)
/** Cancelled by the host. */
#define LFM3_ERR_CANCELLED (-12)
/** The stream's context limit is reached. */
#define LFM3_ERR_CONTEXT_FULL (-13)
/** The chat template failed. */
#define LFM3_ERR_TEMPLATE (-14)
/** A value that must be finite is not. */
#define LFM3_ERR_NUMERIC (-15)
/** A bug in the library was caught; the handle is poisoned. */
#define LFM3_ERR_INTERNAL (-16)

/** The name of a status, such as "LFM3_ERR_IO".
 *
 * - `status`: any number.
 * - Returns: a 0-terminated string that stays valid for ever; "unknown status" for other numbers.
 * - Threads: any, any time, callbacks too. Since 0.1. */
LFM3_API const char *lfm3_status_name(int32_t status);

/* === 2. Versions ============================================================================================ */

/** The interface this header describes. It grows when old programs would break; the library's SONAME carries it. */
#define LFM3_ABI_VERSION 1

/** The interface the library was built with; equal to `LFM3_ABI_VERSION` where header and library fit.
 *
 * - Returns: the number.
 * - Threads: any, any time, callbacks too. Since 0.1. */
LFM3_API uint32_t lfm3_abi_version(void);

/** The library's version, such as "0.1.0".
 *
 * - Returns: a 0-terminated string that stays valid for ever.
 * - Threads: any, any time, callbacks too. Since 0.1. */
LFM3_API const char *lfm3_version_string(void);

/* === 3. Models: open, step, free ============================================================================ */

/** The best device there is. */
#define LFM3_DEVICE_BEST (-1)
/** The CPU. Numbers above it are GPUs, in the order of `lfm3_device_info`. */
#define LFM3_DEVICE_CPU 0
/** The best instruction set the CPU has. */
#define LFM3_ISA_AUTO 0
/** Plain code for any CPU. */
#define LFM3_ISA_PORTABLE 1
/** x86-64 with AVX2 and FMA. */
#define LFM3_ISA_AVX2 2
/** Keys and values of attention as 16-bit floats. */
#define LFM3_KV_F16 0
/** A call failed. */
#define LFM3_LOG_ERROR 1
/** Something works, but not as it should. */
#define LFM3_LOG_WARNING 2
/** What was opened, and how. */
#define LFM3_LOG_INFO 3

/** An open model. Made by `lfm3_model_open`, owned by the host, freed by `lfm3_model_free`. */
typedef struct lfm3_model lfm3_model;

/** Gets a line for the host's log, `len` bytes of UTF-8 without a line end. Runs on the calling thread. */
typedef void (*lfm3_log_callback)(void *LFM3_NULLABLE user_data, int32_t level, const char *text, size_t len);

/** Learns how far `lfm3_model_open` is, in bytes. Returns 0 to go on and anything else to cancel. Runs on the opening
 * thread. */
typedef int32_t (*lfm3_progress_callback)(void *LFM3_NULLABLE user_data, uint64_t done, uint64_t total);

/** How to open a model. Set by `lfm3_model_params_init`, then changed field by field. */
typedef struct lfm3_model_params {
    /** sizeof(lfm3_model_params). */
    uint32_t struct_size;
    /** `LFM3_DEVICE_CPU` (the default), `LFM3_DEVICE_BEST`, or a number `lfm3_device_info` takes. */
    int32_t device;
    /** Threads that compute, the stepping one included; 1 to 256. 0 means 1, which starts no thread. */
    int32_t threads;
    /** `LFM3_ISA_*`. For tests: replies are the same with each. */
    int32_t isa;
    /** Most positions of a stream; 0 is the checkpoint's own limit. */
    uint64_t context_limit;
    /** Most tokens of one picture, or of all frames of a video: larger ones are made smaller. 0 is the checkpoint's own
     * limit, which may be 16,384 and take minutes to look at. */
    uint64_t max_picture_tokens;
    /** Most bytes of host memory for weights, pages, states and scratch together; 0 sets no limit. */
    uint64_t host_bytes;
    /** Most bytes of device memory; 0 sets no limit. The CPU has none of its own. */
    uint64_t device_bytes;
    /** `LFM3_KV_F16`. */
    int32_t kv_type;
    /** 1 rounds unquantized matrices to 8 bits on loading: faster and smaller, a little less exact. 0 keeps them. */
    uint32_t round_to_8_bits;
    /** The part of the time, 0 to 1, that running replies get while prompts are filled in. NaN is the default, 0.25.
     * Checked, but of no effect in this version: replies and prompts take turns. */
    float decode_share;
    /** Offset of local time from UTC in seconds, for chat templates that ask for the time. */
    int32_t utc_offset_seconds;
    /** Seconds since 1970-01-01 UTC that chat templates see; -1, the default, is the system's clock. */
    int64_t unix_seconds;
    /** Gets log lines during open and step, until the model is freed; NULL for none. Calls of the library from inside
     * it answer `LFM3_ERR_REENTRANT`. */
    lfm3_log_callback LFM3_NULLABLE log;
    /** Learns of progress during open, and may cancel it; NULL for none. The same holds for calls from inside it. */
    lfm3_progress_callback LFM3_NULLABLE progress;
    /** Handed to both callbacks, on whichever thread makes the call. With `log` it must stay valid until the model is
     * freed. */
    void *LFM3_NULLABLE user_data;
    /** Gets the text of an error of the call these params are for, 0-terminated, cut to fit; NULL for none. */
    char *LFM3_NULLABLE error;
    /** Bytes at `error`. */
    size_t error_size;
} lfm3_model_params;

/** What a step did, and what is left. Set `struct_size` before the call. */
typedef struct lfm3_step_report {
    /** sizeof(lfm3_step_report). */
    uint32_t struct_size;
    /** Streams with work left. */
    uint32_t busy_streams;
    /** Microseconds this step took. */
    uint64_t used_us;
    /** Microseconds the next slice is expected to take: the least budget worth giving. */
    uint64_t next_slice_us;
    /** Microseconds of the longest slice seen: how far a step may pass its budget. */
    uint64_t worst_slice_us;
    /** Microseconds the host may wait before the next step without losing time; UINT64_MAX when nothing is left. */
    uint64_t wait_hint_us;
} lfm3_step_report;

/** Writes the defaults into `params`.
 *
 * - `params`: where; `size`: sizeof(lfm3_model_params), which also sets `struct_size`.
 * - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_model_params_init(lfm3_model_params *params, size_t size);

/** Opens a checkpoint folder: config.json, tokenizer, chat template and safetensors, as released or exported by MLX.
 * Blocks until the weights are packed in memory; the files are not needed afterwards.
 *
 * - `path`: the folder, `path_len` bytes of UTF-8; `params`: NULL for defaults.
 * - `model`: gets the handle, which the host frees with `lfm3_model_free`; NULL after an error.
 * - Returns: `LFM3_OK`; `LFM3_ERR_IO`, `_FORMAT`, `_UNSUPPORTED`, `_LIMIT`, `_CANCELLED` with a text in
 *   `params->error` that names file and tensor; `LFM3_ERR_INVALID_ARGUMENT`.
 * - Threads: any. Several models may be opened at once. Since 0.1. */
LFM3_API int32_t lfm3_model_open(const char *path, size_t path_len, const lfm3_model_params *LFM3_NULLABLE params,
    lfm3_model *LFM3_NULLABLE *LFM3_NONNULL model);

/** Frees a model. Its streams answer `LFM3_ERR_CLOSED` from now on and are still the host's to free. Weights and
 * threads are gone when this returns, or, if another thread is inside a step, when that step does.
 *
 * - `model`: NULL is fine. No call may begin on it afterwards.
 * - Returns: `LFM3_OK`; `LFM3_ERR_REENTRANT` from a callback, and the model stays.
 * - Threads: any. Since 0.1. */
LFM3_API int32_t lfm3_model_free(lfm3_model *LFM3_NULLABLE model);

/** The text of the last error of a call with this model, also where the model is poisoned.
 *
 * - `out`: gets as many whole characters as fit in `capacity` bytes, always with a 0 behind.
 * - `needed`: gets the text's bytes without the 0; may be NULL.
 * - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` where the text was cut. Empty when there was no error yet;
 *   kept until the next one, so look after a negative status only.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_model_error(const lfm3_model *model, char *LFM3_NULLABLE out, size_t capacity,
    size_t *LFM3_NULLABLE needed);

/** Works for the model's streams until about `budget_us` is spent: fills in what was appended, generates what was asked
 * for. At least one slice of work is done, none is begun that is not expected to fit.
 *
 * - `budget_us`: microseconds; 0 does one slice, of some microseconds: thousands make a reply, so not for a call a
 *   frame. More than an hour counts as an hour.
 * - `report`: gets what was done; NULL if not wanted.
 * - Returns: `LFM3_MORE`: call again now or when the host has time. `LFM3_IDLE`: nothing is left to do.
 *   `LFM3_WAITING`: a device works; go on with something else, then `lfm3_model_poll`, or block in
 *   `lfm3_model_wait`. The CPU never waits. `LFM3_ERR_BUSY` while another thread steps. An error of one stream shows
 *   on that stream only.
 * - Numbers: how the work is cut into steps, and which streams share it, changes no bit of any result.
 * - Threads: one at a time a model; streams may be used beside it. Since 0.1. */
LFM3_API int32_t lfm3_model_step(lfm3_model *model, uint64_t budget_us, lfm3_step_report *LFM3_NULLABLE report);

/** Asks what a step would find, without doing any of it.
 *
 * - Returns: `LFM3_MORE`, `LFM3_WAITING` or `LFM3_IDLE` as `lfm3_model_step`.
 * - Threads: any, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_model_poll(lfm3_model *model);

/** Blocks until the device is done with what it was given, or `timeout_us` microseconds are over. On the CPU, where a
 * step does all work itself, this returns at once.
 *
 * - Returns: as `lfm3_model_poll`; `LFM3_WAITING` when the time is over.
 * - Threads: any, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_model_wait(lfm3_model *model, uint64_t timeout_us);

/** Builds a lost device anew, and its streams from their tokens. The CPU is never lost: there is nothing to do.
 *
 * - Returns: `LFM3_OK`.
 * - Threads: not beside a step. Since 0.1. */
LFM3_API int32_t lfm3_model_recover(lfm3_model *model);

/* === 4. Pictures and videos ================================================================================= */

/** A picture as a file's bytes: PNG, JPEG, WebP, BMP or GIF, at most 128 MiB. Of an animation the first frame counts. */
#define LFM3_MEDIA_PICTURE 1
/** A picture as rows of red, green and blue, 8 bits each. */
#define LFM3_MEDIA_PICTURE_RGB 2
/** A video as frames, each a picture's file, one behind the other; all of one size in pixels. */
#define LFM3_MEDIA_VIDEO 3
/** A video as frames of rows of red, green and blue; all of one size in pixels. */
#define LFM3_MEDIA_VIDEO_RGB 4

/** A picture or a video. Set by `lfm3_media_init`, then changed field by field. What it points to is copied during the
 * call that takes it. A picture, or a frame, has sides of at most 65,535 pixels, one at most 200 times the other, and
 * at most 134,217,728 pixels; a file's orientation (EXIF) is applied, and what is transparent becomes white. */
typedef struct lfm3_media {
    /** sizeof(lfm3_media). */
    uint32_t struct_size;
    /** `LFM3_MEDIA_*`. */
    int32_t kind;
    /** The file, the rows, or all frames. */
    const uint8_t *LFM3_NULLABLE data;
    /** Bytes at `data`, below 2 GiB. */
    size_t data_len;
    /** RGB: pixels of a row. */
    uint32_t width;
    /** RGB: rows. */
    uint32_t height;
    /** RGB: bytes from one row to the next; 0 is 3 x `width`. */
    size_t stride;
    /** Videos: frames, 2 to 1,048,576. All that the video has: the library chooses among them as the checkpoint wants. */
    size_t frame_count;
    /** `LFM3_MEDIA_VIDEO_RGB`: bytes from one frame to the next; 0 is `stride` x `height`. */
    size_t frame_stride;
    /** `LFM3_MEDIA_VIDEO`: bytes of each frame's file, `frame_count` numbers. */
    const size_t *LFM3_NULLABLE frame_sizes;
    /** Videos: seconds of each frame from the video's start, `frame_count` numbers of 0 or more, none less than the one
     * before; NULL where frame `i` is at `i / fps`. */
    const double *LFM3_NULLABLE frame_times;
    /** Videos: frames a second of the source. 0 with `frame_times`: their mean rate. */
    double fps;
} lfm3_media;

/** Writes the defaults into `media`: a picture's file, without data.
 *
 * - `media`: where; `size`: sizeof(lfm3_media), which also sets `struct_size`.
 * - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_media_init(lfm3_media *media, size_t size);

/* === 5. Streams: one conversation each ====================================================================== */

/** A flag of text: control tokens spelled in it, such as `<|im_end|>`, become those tokens. Never set it for text that
 * users wrote. */
#define LFM3_TEXT_CONTROL_TOKENS 1

/** One conversation: its tokens, its state and its events. Made by `lfm3_stream_new`, owned by the host, freed by
 * `lfm3_stream_free`. */
typedef struct lfm3_stream lfm3_stream;

/** How to make a stream. Set by `lfm3_stream_params_init`, then changed field by field. */
typedef struct lfm3_stream_params {
    /** sizeof(lfm3_stream_params). */
    uint32_t struct_size;
    /** Most events that wait for `lfm3_stream_next`; a full queue pauses this stream alone. 0 is the default. */
    uint32_t event_limit;
    /** Most positions; 0 is the model's limit. */
    uint64_t context_limit;
    /** Gets the text of an error of `lfm3_stream_new`, 0-terminated, cut to fit; NULL for none. */
    char *LFM3_NULLABLE error;
    /** Bytes at `error`. */
    size_t error_size;
} lfm3_stream_params;

/** Writes the defaults into `params`.
 *
 * - `params`: where; `size`: sizeof(lfm3_stream_params), which also sets `struct_size`.
 * - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_stream_params_init(lfm3_stream_params *params, size_t size);

/** Makes an empty stream.
 *
 * - `params`: NULL for defaults. `stream`: gets the handle, which the host frees with `lfm3_stream_free`; NULL after
 *   an error.
 * - Returns: `LFM3_OK`; `LFM3_ERR_LIMIT` where the model's bytes do not allow it. The text of an error is in
 *   `params->error` and in `lfm3_model_error`.
 * - Threads: any, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_new(lfm3_model *model, const lfm3_stream_params *LFM3_NULLABLE params,
    lfm3_stream *LFM3_NULLABLE *LFM3_NONNULL stream);

/** Frees a stream with all that waits in it. Freed during a step, it is gone after that step.
 *
 * - `stream`: NULL is fine. No call may begin on it afterwards.
 * - Returns: `LFM3_OK`; `LFM3_ERR_REENTRANT` from a callback, and the stream stays.
 * - Threads: any; before or after its model. Since 0.1. */
LFM3_API int32_t lfm3_stream_free(lfm3_stream *LFM3_NULLABLE stream);

/** The text of the last error of this stream: of a call with it, or of its work in a step. Also where it is closed or
 * poisoned.
 *
 * - `out`, `capacity`, `needed`, returns: as `lfm3_model_error`.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_stream_error(const lfm3_stream *stream, char *LFM3_NULLABLE out, size_t capacity,
    size_t *LFM3_NULLABLE needed);

/** Makes the stream hold a chat: renders it with the checkpoint's template, keeps what the stream already holds of it,
 * rewinds to there, and queues the rest. The way to do turns: append the reply and the next message to the JSON, and
 * set it again.
 *
 * - `json`: `len` bytes of `{"messages": [{"role": "user", "content": "…"}, …], "tools": […],
 *   "enable_thinking": true, "add_generation_prompt": true, "template_args": {…}}`; all but `messages` may be left
 *   out. `content` may also be a list of parts: `{"type": "text", "text": "…"}`, `{"type": "image"}`,
 *   `{"type": "video"}`. What messages and tools say never becomes a control token. Without
 *   `enable_thinking` the template decides, and LFM3's thinks: `LFM3_EVENT_REASONING` comes first. A reply goes back
 *   as `{"role": "assistant", "content": "…"}`, escaped as JSON asks, without its reasoning.
 * - `media`, `media_count`: the pictures and videos of the parts, in the order of the parts: those of earlier turns
 *   too, in each call, at most 4,096. NULL and 0 without. What the stream holds already is neither copied nor computed
 *   again.
 * - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` for JSON that does not fit, with the place in it, and for parts
 *   and media that do not match; for a medium what `lfm3_stream_append_media` returns; `LFM3_ERR_LIMIT` for more JSON,
 *   messages or media than are read; `LFM3_ERR_TEMPLATE`; `LFM3_ERR_CONTEXT_FULL`; `LFM3_ERR_STATE` while a reply
 *   runs. After an error the stream holds what it held.
 * - Threads: one a stream at a time, also beside a step. Nothing is computed or decoded here, but media are copied and
 *   hashed. Since 0.1. */
LFM3_API int32_t lfm3_stream_set_chat(lfm3_stream *stream, const char *LFM3_NULLABLE json, size_t len,
    const lfm3_media *LFM3_NULLABLE media, size_t media_count);

/** Queues text behind what the stream holds.
 *
 * - `text`: `len` bytes of UTF-8. `flags`: 0 or `LFM3_TEXT_CONTROL_TOKENS`.
 * - Returns: `LFM3_OK`; `LFM3_ERR_CONTEXT_FULL`; `LFM3_ERR_STATE` while a reply runs.
 * - Threads: one a stream at a time, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_append_text(lfm3_stream *stream, const char *LFM3_NULLABLE text, size_t len,
    uint32_t flags);

/** Queues tokens behind what the stream holds.
 *
 * - `tokens`: `count` ids, each below the vocabulary's size; ids that stand for pictures are refused.
 * - Returns, threads: as `lfm3_stream_append_text`. Since 0.1. */
LFM3_API int32_t lfm3_stream_append_tokens(lfm3_stream *stream, const uint32_t *LFM3_NULLABLE tokens, size_t count);

/** Queues a picture or a video behind what the stream holds, between the tokens that begin and end it; a video with the
 * time before each pair of frames.
 *
 * - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` for fields that do not fit each other; `LFM3_ERR_UNSUPPORTED` for
 *   a file of another format, for a side more than 200 times the other, and where the model has no vision;
 *   `LFM3_ERR_FORMAT` for a broken header; `LFM3_ERR_LIMIT` for too many bytes or pixels; `LFM3_ERR_CONTEXT_FULL`;
 *   `LFM3_ERR_STATE` while a reply runs. After an error the stream holds what it held. A file that is broken behind
 *   its header, or that memory does not suffice for, shows in a step: the stream ends with `LFM3_DONE_ERROR`, and
 *   again at each reply until it is rewound to before it.
 * - Threads: one a stream at a time, also beside a step. The data is copied and hashed here, and decoded in steps: a
 *   file's decoding is one slice, about 10 ms a megapixel; RGB needs none. Since 0.1. */
LFM3_API int32_t lfm3_stream_append_media(lfm3_stream *stream, const lfm3_media *media);

/* === 6. Replies: ask for them =============================================================================== */

/** Most ids `top_logprobs` may ask for. */
#define LFM3_MAX_TOP_LOGPROBS 64

/** How to generate. Set by `lfm3_generate_params_init`, then changed field by field. The defaults of sampling are the
 * checkpoint's own, from its generation_config.json. */
typedef struct lfm3_generate_params {
    /** sizeof(lfm3_generate_params). */
    uint32_t struct_size;
    /** 1 sends an `LFM3_EVENT_TOKEN` for each token. */
    uint32_t token_events;
    /** Most tokens of the reply; 0 is up to the context limit. */
    uint64_t max_tokens;
    /** With the position, the key of every draw: the same seed gives the same reply. -1 is the default. */
    int64_t seed;
    /** 0 always takes the likeliest token; higher is more varied. NaN is the default. */
    float temperature;
    /** Only the k likeliest; 0 is all, -1 the default. */
    int32_t top_k;
    /** Only the likeliest that together reach this probability, 0 to 1; 1 is all, NaN or 0 the default. */
    float top_p;
    /** Only those at least this times as likely as the likeliest, 0 to 1; 0 is all, NaN the default. */
    float min_p;
    /** Divides the logits of tokens met before (multiplies negative ones); 1 is off, NaN or 0 the default. */
    float repetition_penalty;
    /** Subtracted once from the logits of tokens met before; NaN is the default. */
    float presence_penalty;
    /** Subtracted for each time a token was met before; NaN is the default. */
    float frequency_penalty;
    /** Tokens that the penalties look back; INT32_MAX is all, -1 the default. */
    int32_t penalty_reach;
    /** Least run of tokens met before that makes the library draft what followed there. Makes copying faster and
     * changes no reply. 0 is off, -1 the default. Checked, but of no effect in this version, which drafts nothing. */
    int32_t copy_match;
    /** Likeliest ids each token event lists, at most `LFM3_MAX_TOP_LOGPROBS`. */
    uint32_t top_logprobs;
    /** 1 holds tool calls to the tools' schemas; this version knows 0 only. */
    uint32_t constrain_tool_calls;
    /** 0. */
    uint32_t reserved;
    /** Stop tokens beside the checkpoint's; copied. NULL for none. */
    const uint32_t *LFM3_NULLABLE stop_tokens;
    /** Ids at `stop_tokens`. */
    size_t stop_token_count;
} lfm3_generate_params;

/** Writes the defaults into `params`.
 *
 * - `params`: where; `size`: sizeof(lfm3_generate_params), which also sets `struct_size`.
 * - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_generate_params_init(lfm3_generate_params *params, size_t size);

/** Asks for a reply behind what the stream holds, after what is queued is filled in. It comes as events while the
 * model is stepped. After DONE, another call goes on from there.
 *
 * - `params`: NULL for defaults; copied.
 * - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT`; `LFM3_ERR_LIMIT` for more than 1024 stop tokens;
 *   `LFM3_ERR_STATE` for an empty stream or while a reply runs.
 * - Numbers: for the same build, device, tokens, params and seed the reply is the same, whatever runs beside it.
 * - Threads: one a stream at a time, also beside a step. Nothing is computed here. Since 0.1. */
LFM3_API int32_t lfm3_stream_generate(lfm3_stream *stream, const lfm3_generate_params *LFM3_NULLABLE params);

/** Stops the reply, or what is being filled in, at the next slice. Events sent before still come, then DONE with
 * `LFM3_DONE_CANCELLED`. Queued input that was not filled in is dropped; what the stream held before stays. Nothing to
 * stop is fine, and gives no event.
 *
 * - Returns: `LFM3_OK`.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_stream_cancel(lfm3_stream *stream);

/** Adds a stop string for the replies that follow. However tokens cut it, it is never shown, and nothing before it is
 * lost.
 *
 * - `text`: `len` bytes of UTF-8; 0 bytes remove all stop strings.
 * - Returns: `LFM3_OK`; `LFM3_ERR_LIMIT` for more than 64; `LFM3_ERR_INVALID_ARGUMENT` for more than 1024 bytes.
 * - Threads: one a stream at a time, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_add_stop(lfm3_stream *stream, const char *LFM3_NULLABLE text, size_t len);

/** Sets what is added to the logits of the replies that follow, in place of earlier biases.
 *
 * - `ids`, `biases`: `count` tokens and what each gets; -INFINITY forbids a token. 0 removes all.
 * - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` for NaN, +INFINITY or an id outside the vocabulary.
 * - Threads: one a stream at a time, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_set_bias(lfm3_stream *stream, const uint32_t *LFM3_NULLABLE ids,
    const float *LFM3_NULLABLE biases, size_t count);

/** Asks for the log-probabilities of the stream's tokens from position `from` on, each after the tokens before it, as
 * `LFM3_EVENT_SCORE` events and READY. Left out are the first token, which has none before it, and tokens that stand
 * for pictures.
 *
 * - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` for a position past the end; `LFM3_ERR_STATE` while a reply runs.
 * - Threads: one a stream at a time, also beside a step. Nothing is computed here. Since 0.1. */
LFM3_API int32_t lfm3_stream_score(lfm3_stream *stream, uint64_t from);

/* === 7. Events: take them =================================================================================== */

/** All that was appended is filled in, and all that was to be scored is scored. Taken back by later input, if it was
 * not read yet. */
#define LFM3_EVENT_READY 1
/** A piece of the answer: whole UTF-8 characters. */
#define LFM3_EVENT_TEXT 2
/** A piece of the thinking before the answer, with the white space behind it: whole UTF-8 characters. */
#define LFM3_EVENT_REASONING 3
/** A whole call of a tool. What is malformed, longer than 1 MiB, or does not fit the tool's schema comes as TEXT. */
#define LFM3_EVENT_TOOL_CALL 4
/** A generated token, where asked for. */
#define LFM3_EVENT_TOKEN 5
/** A token scored by `lfm3_stream_score`. */
#define LFM3_EVENT_SCORE 6
/** The reply ended, or what was asked for was cancelled or failed; `done_reason` says why. */
#define LFM3_EVENT_DONE 7
/** A stop token came. It is part of the stream and not of the text. */
#define LFM3_DONE_STOP_TOKEN 1
/** A stop string came. It is not part of the text. */
#define LFM3_DONE_STOP_STRING 2
/** `max_tokens` was reached. */
#define LFM3_DONE_LENGTH 3
/** The stream's context limit was reached. */
#define LFM3_DONE_CONTEXT_FULL 4
/** The host cancelled. */
#define LFM3_DONE_CANCELLED 5
/** Something failed; `lfm3_stream_error` says what. */
#define LFM3_DONE_ERROR 6

/** Counts and times of a stream. Set `struct_size` before the call. */
typedef struct lfm3_stats {
    /** sizeof(lfm3_stats). */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Tokens of the last prompt. */
    uint64_t prompt_tokens;
    /** Of those, tokens the stream held already and did not compute again. */
    uint64_t cached_tokens;
    /** Tokens generated in the last reply. */
    uint64_t generated_tokens;
    /** Tokens drafted in the last reply. */
    uint64_t drafted_tokens;
    /** Of those, tokens kept. */
    uint64_t accepted_tokens;
    /** Microseconds from `lfm3_stream_generate` to the first token. */
    uint64_t time_to_first_token_us;
    /** Microseconds spent in the last prompt's rounds. */
    uint64_t prefill_us;
    /** Microseconds spent in the last reply's rounds. */
    uint64_t decode_us;
    /** Bytes of pages, states and snapshots. */
    uint64_t bytes;
    /** Tokens the stream holds, queued ones included. */
    uint64_t length;
} lfm3_stats;

/** What happened on a stream. Set `struct_size` before the call. What it points to is the library's and stays valid
 * until the next `lfm3_stream_next` on that stream, or its free. */
typedef struct lfm3_event {
    /** sizeof(lfm3_event). */
    uint32_t struct_size;
    /** `LFM3_EVENT_*`. Skip kinds you do not know. */
    int32_t kind;
    /** TEXT, REASONING: `text_len` bytes of UTF-8, 0-terminated. TOOL_CALL: the call as the model wrote it, tags
     * included, for the turn's `content` in the next chat, where a message of the role tool answers it; of several
     * calls between one pair of tags, the first has it all and that of the others is empty. */
    const char *LFM3_NULLABLE text;
    /** Bytes at `text`, without the 0. */
    size_t text_len;
    /** TOKEN, SCORE: where the token stands in the stream. */
    uint64_t position;
    /** TOKEN, SCORE: its id. */
    uint32_t token;
    /** TOKEN, SCORE: natural logarithm of its probability under the model's own logits, before sampling. */
    float logprob;
    /** TOKEN: the likeliest ids, likeliest first; NULL without. */
    const uint32_t *LFM3_NULLABLE top_ids;
    /** TOKEN: their logarithms. */
    const float *LFM3_NULLABLE top_logprobs;
    /** TOKEN: how many there are. */
    uint32_t top_count;
    /** DONE: `LFM3_DONE_*`. */
    int32_t done_reason;
    /** DONE: the stream's counts and times; NULL otherwise. */
    const lfm3_stats *LFM3_NULLABLE usage;
    /** TOOL_CALL: the tool's name, `name_len` bytes of UTF-8, 0-terminated; not always one of the chat's tools. */
    const char *LFM3_NULLABLE name;
    /** Bytes at `name`, without the 0. */
    size_t name_len;
    /** TOOL_CALL: a JSON object, 0-terminated: the arguments in the order written, each of a type that the tool's
     * schema names for it. Which there must be, and what lists and objects hold, is yours to check. */
    const char *LFM3_NULLABLE arguments;
    /** Bytes at `arguments`, without the 0. */
    size_t arguments_len;
} lfm3_event;

/** Takes the stream's next event.
 *
 * - `event`: gets it; untouched without one.
 * - Returns: `LFM3_OK` with an event; `LFM3_PENDING`: step the model, then ask again; `LFM3_DONE`: nothing more will
 *   come until something is asked for; `LFM3_ERR_BUSY` while another thread is in this call on the same stream.
 * - Threads: one a stream at a time, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_next(lfm3_stream *stream, lfm3_event *event);

/* === 8. Text and tokens without a stream ==================================================================== */

/** Turns text into tokens.
 *
 * - `text`: `len` bytes of UTF-8. `flags`: 0 or `LFM3_TEXT_CONTROL_TOKENS`. No token is put in front.
 * - `out`: gets the ids, if all fit in `capacity` of them; NULL with 0 to ask for the count.
 * - `needed`: gets the count of ids, also where they do not fit; may be NULL.
 * - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` and nothing is written.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_model_tokenize(const lfm3_model *model, const char *LFM3_NULLABLE text, size_t len,
    uint32_t flags, uint32_t *LFM3_NULLABLE out, size_t capacity, size_t *LFM3_NULLABLE needed);

/** Turns tokens into the bytes of their text, control tokens as they are spelled. A character may be cut where its
 * other tokens are missing, so the bytes are not always whole UTF-8.
 *
 * - `tokens`: `count` ids.
 * - `out`: gets the bytes, if all fit in `capacity`, with a 0 behind where there is room; NULL with 0 to ask.
 * - `needed`: gets the count of bytes without the 0; may be NULL.
 * - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` and nothing is written; `LFM3_ERR_INVALID_ARGUMENT` for an id
 *   outside the vocabulary.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_model_detokenize(const lfm3_model *model, const uint32_t *LFM3_NULLABLE tokens, size_t count,
    char *LFM3_NULLABLE out, size_t capacity, size_t *LFM3_NULLABLE needed);

/** Renders a chat as text: what `lfm3_stream_set_chat` would tokenize, but for pictures and videos, which are one
 * placeholder each.
 *
 * - `json`: `len` bytes, as for `lfm3_stream_set_chat`.
 * - `out`, `capacity`, `needed`: as for `lfm3_model_detokenize`.
 * - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` and nothing is written; `LFM3_ERR_INVALID_ARGUMENT` for JSON
 *   that does not fit, `LFM3_ERR_LIMIT`, `LFM3_ERR_TEMPLATE`.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_model_render_chat(const lfm3_model *model, const char *LFM3_NULLABLE json, size_t len,
    char *LFM3_NULLABLE out, size_t capacity, size_t *LFM3_NULLABLE needed);

/* === 9. Where a stream stands =============================================================================== */

/** Counts the tokens the stream holds, queued ones included.
 *
 * - `length`: gets the count.
 * - Returns: `LFM3_OK`.
 * - Threads: one a stream at a time, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_length(const lfm3_stream *stream, uint64_t *length);

/** The tokens the stream holds, queued ones included.
 *
 * - `out`: gets the ids, if all fit in `capacity` of them; NULL with 0 to ask for the count.
 * - `needed`: gets the count of ids, also where they do not fit; may be NULL.
 * - Returns: `LFM3_OK`, or `LFM3_ERR_BUFFER_TOO_SMALL` and nothing is written.
 * - Threads: one a stream at a time, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_tokens(const lfm3_stream *stream, uint32_t *LFM3_NULLABLE out, size_t capacity,
    size_t *LFM3_NULLABLE needed);

/** Drops everything from position `length` on, queued input too. Events that wait stay.
 *
 * - `length`: at most the stream's. What is kept is not computed again, but for the rows behind the last snapshot. A
 *   length inside a picture keeps the tokens before it; `lfm3_stream_set_chat` makes such a picture whole again.
 * - Returns: `LFM3_OK`; `LFM3_ERR_INVALID_ARGUMENT` past the stream's end; `LFM3_ERR_STATE` while a reply runs.
 * - Numbers: going on from there gives the same bits as a fresh stream would.
 * - Threads: one a stream at a time, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_rewind(lfm3_stream *stream, uint64_t length);

/** The logits behind the stream's last token: one float for each token of the vocabulary, untouched by sampling.
 *
 * - `logits`: gets them; `count`: how many there is room for, at least the vocabulary's size.
 * - Returns: `LFM3_OK`; `LFM3_PENDING` while tokens are still to be filled in: step the model, then ask again;
 *   `LFM3_ERR_BUFFER_TOO_SMALL`; `LFM3_ERR_STATE` for an empty stream or while a reply runs.
 * - Numbers: the same bits for the same tokens, however they came about. CPU and GPU differ within a tolerance.
 * - Threads: one a stream at a time, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_logits(lfm3_stream *stream, float *logits, size_t count);

/** The stream's counts and times.
 *
 * - `stats`: gets them.
 * - Returns: `LFM3_OK`.
 * - Threads: any, also beside a step. Since 0.1. */
LFM3_API int32_t lfm3_stream_stats(const lfm3_stream *stream, lfm3_stats *stats);

/* === 10. Devices ============================================================================================ */

/** A device of kind CPU. */
#define LFM3_DEVICE_KIND_CPU 1
/** A device of kind GPU. */
#define LFM3_DEVICE_KIND_GPU 2

/** What a device is. Set `struct_size` before the call. */
typedef struct lfm3_device_desc {
    /** sizeof(lfm3_device_desc). */
    uint32_t struct_size;
    /** `LFM3_DEVICE_KIND_*`. */
    int32_t kind;
    /** What it calls itself, 0-terminated. Stays valid for ever. */
    const char *name;
    /** Bytes of its own memory; 0 where it shares the host's or is not known. */
    uint64_t memory_bytes;
    /** Threads worth using; 0 where the word means nothing. */
    uint32_t threads;
    /** 1 if results do not depend, to the bit, on how work is cut and shared. */
    uint32_t bit_exact;
} lfm3_device_desc;

/** Counts the devices models can run on.
 *
 * - Returns: at least 1, since the CPU is device 0, or a negative error.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_device_count(void);

/** Says what a device is.
 *
 * - `index`: below `lfm3_device_count()`; the number `lfm3_model_params.device` takes. `info`: gets it.
 * - Returns: `LFM3_OK` or `LFM3_ERR_INVALID_ARGUMENT`.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_device_info(uint32_t index, lfm3_device_desc *info);

/* === 11. What a model is and needs ========================================================================== */

/** Stands where a model has no such token. */
#define LFM3_NO_TOKEN 4294967295

/** What a model is. Set `struct_size` before the call. */
typedef struct lfm3_model_desc {
    /** sizeof(lfm3_model_desc). */
    uint32_t struct_size;
    /** Tokens of the vocabulary; token ids are below it. */
    uint32_t vocab_size;
    /** Most positions of a stream. */
    uint64_t context_limit;
    /** Parameters of the text model. */
    uint64_t parameters;
    /** Bytes of host memory held by weights and scratch. */
    uint64_t host_bytes;
    /** Bytes of device memory held; 0 on the CPU. */
    uint64_t device_bytes;
    /** Layers of the text model. */
    uint32_t layers;
    /** Width of its hidden rows. */
    uint32_t hidden;
    /** Bits of most weights as stored. */
    uint32_t bits;
    /** First token of a chat, or `LFM3_NO_TOKEN`. */
    uint32_t bos;
    /** Threads in use. */
    uint32_t threads;
    /** 1 if the checkpoint has a vision tower. */
    uint32_t has_vision;
    /** 1 if results do not depend, to the bit, on how work is cut and shared. Always 1 on the CPU. */
    uint32_t bit_exact;
    /** Stop tokens at `eos`. */
    uint32_t eos_count;
    /** The checkpoint's stop tokens. Valid until the model is freed. */
    const uint32_t *eos;
    /** `model_type` of the checkpoint, 0-terminated. Valid until the model is freed. */
    const char *kind;
    /** The instruction set in use, 0-terminated. Valid until the model is freed. */
    const char *isa;
} lfm3_model_desc;

/** Bytes a model needs. Set `struct_size` before the call. */
typedef struct lfm3_memory_report {
    /** sizeof(lfm3_memory_report). */
    uint32_t struct_size;
    /** 0. */
    uint32_t reserved;
    /** Packed weights. */
    uint64_t weights;
    /** Scratch of rounds and the tokenizer. */
    uint64_t scratch;
    /** Needed while loading only, on top of the rest. */
    uint64_t loading;
    /** Each stream's constant part: its conv states and the pages of its sliding windows. */
    uint64_t stream;
    /** Each 1,000 tokens of a stream's context. Snapshots to rewind to come on top, where `host_bytes` leaves room. */
    uint64_t per_1000_tokens;
    /** The checkpoint's tensors on disk. */
    uint64_t file;
    /** Of weights and scratch, bytes on the device; 0 on the CPU. */
    uint64_t device;
    /** Each 1,000 tokens of a picture while a stream looks at it, its file and its pixels in full size aside.
     * Afterwards 3 bytes of each resized pixel stay with the stream. */
    uint64_t per_1000_picture_tokens;
} lfm3_memory_report;

/** Says what an open model is.
 *
 * - `info`: gets it. Its pointers stay valid until the model is freed.
 * - Returns: `LFM3_OK`.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_model_info(const lfm3_model *model, lfm3_model_desc *info);

/** Predicts what a model will need, reading headers only: nothing is loaded.
 *
 * - `path`, `path_len`, `params`: as for `lfm3_model_open`. `memory`: gets the bytes.
 * - Returns: `LFM3_OK`, or the error `lfm3_model_open` would give for the headers, its text in `params->error`.
 * - Numbers: within 5 % of what is held after loading.
 * - Threads: any, any time. Since 0.1. */
LFM3_API int32_t lfm3_model_memory(const char *path, size_t path_len, const lfm3_model_params *LFM3_NULLABLE params,
    lfm3_memory_report *memory);

LFM3_NULLABILITY_END

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* LFM3_H */
