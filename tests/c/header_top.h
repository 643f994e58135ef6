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
