/* Callbacks: progress is seen and can cancel; calls from inside one are refused; the library works on afterwards.
 * Usage: callbacks CHECKPOINT */

#include "check.h"

struct seen {
    uint64_t calls, last, total;
    uint64_t cancel_at; /* the call of progress that cancels; 0 is none */
    int lines;
    lfm3_model *other;
    lfm3_stream *stream;
};

/* Every function that answers a status refuses to be called from a callback. */
static void all_refused(struct seen *seen)
{
    lfm3_model *model = NULL;
    lfm3_stream *stream = NULL;
    lfm3_model_params params;
    lfm3_generate_params generate;
    lfm3_stream_params stream_params;
    lfm3_device_desc device;
    lfm3_model_desc info;
    lfm3_memory_report report;
    lfm3_stats stats;
    lfm3_event event = empty_event();
    lfm3_media media;
    char bytes[8];
    uint64_t length;
    uint32_t id = 0;
    float number = 0;
    size_t needed;
    device.struct_size = sizeof device;
    info.struct_size = sizeof info;
    report.struct_size = sizeof report;
    stats.struct_size = sizeof stats;
    memset(&media, 0, sizeof media);
    media.struct_size = sizeof media;
#define REFUSED(call) GIVES(LFM3_ERR_REENTRANT, call)
    REFUSED(lfm3_model_params_init(&params, sizeof params));
    REFUSED(lfm3_stream_params_init(&stream_params, sizeof stream_params));
    REFUSED(lfm3_generate_params_init(&generate, sizeof generate));
    REFUSED(lfm3_media_init(&media, sizeof media));
    REFUSED(lfm3_device_count());
    REFUSED(lfm3_device_info(0, &device));
    REFUSED(lfm3_model_open("x", 1, NULL, &model));
    REFUSED(lfm3_model_memory("x", 1, NULL, &report));
    REFUSED(lfm3_model_free(seen->other));
    REFUSED(lfm3_model_info(seen->other, &info));
    REFUSED(lfm3_model_error(seen->other, bytes, sizeof bytes, &needed));
    REFUSED(lfm3_model_step(seen->other, 0, NULL));
    REFUSED(lfm3_model_poll(seen->other));
    REFUSED(lfm3_model_wait(seen->other, 0));
    REFUSED(lfm3_model_recover(seen->other));
    REFUSED(lfm3_model_tokenize(seen->other, "a", 1, 0, &id, 1, &needed));
    REFUSED(lfm3_model_detokenize(seen->other, &id, 1, bytes, sizeof bytes, &needed));
    REFUSED(lfm3_model_render_chat(seen->other, "{}", 2, bytes, sizeof bytes, &needed));
    REFUSED(lfm3_stream_new(seen->other, NULL, &stream));
    REFUSED(lfm3_stream_free(seen->stream));
    REFUSED(lfm3_stream_error(seen->stream, bytes, sizeof bytes, &needed));
    REFUSED(lfm3_stream_append_text(seen->stream, "a", 1, 0));
    REFUSED(lfm3_stream_append_tokens(seen->stream, &id, 1));
    REFUSED(lfm3_stream_append_media(seen->stream, &media));
    REFUSED(lfm3_stream_set_chat(seen->stream, "{}", 2, NULL, 0));
    REFUSED(lfm3_stream_generate(seen->stream, NULL));
    REFUSED(lfm3_stream_add_stop(seen->stream, "a", 1));
    REFUSED(lfm3_stream_set_bias(seen->stream, &id, &number, 1));
    REFUSED(lfm3_stream_score(seen->stream, 0));
    REFUSED(lfm3_stream_next(seen->stream, &event));
    REFUSED(lfm3_stream_cancel(seen->stream));
    REFUSED(lfm3_stream_length(seen->stream, &length));
    REFUSED(lfm3_stream_tokens(seen->stream, &id, 1, &needed));
    REFUSED(lfm3_stream_rewind(seen->stream, 0));
    REFUSED(lfm3_stream_logits(seen->stream, &number, 1));
    REFUSED(lfm3_stream_stats(seen->stream, &stats));
    CHECK(lfm3_abi_version() == LFM3_ABI_VERSION && strlen(lfm3_version_string()) > 0);
}

static int32_t on_progress(void *user_data, uint64_t done, uint64_t total)
{
    struct seen *seen = (struct seen *)user_data;
    CHECK(done <= total && done >= seen->last);
    if (seen->calls == 0 && seen->other != NULL)
        all_refused(seen);
    seen->calls++;
    seen->last = done;
    seen->total = total;
    return seen->calls == seen->cancel_at;
}

static void on_log(void *user_data, int32_t level, const char *text, size_t len)
{
    struct seen *seen = (struct seen *)user_data;
    CHECK(level >= LFM3_LOG_ERROR && level <= LFM3_LOG_INFO && text != NULL && len > 0 && text[len - 1] != '\n');
    if (seen->other != NULL)
        all_refused(seen);
    seen->lines++;
}

static int32_t open_seen(const char *dir, struct seen *seen, lfm3_model **model)
{
    lfm3_model_params params;
    GIVES_OK(lfm3_model_params_init(&params, sizeof params));
    params.progress = on_progress;
    params.log = on_log;
    params.user_data = seen;
    return lfm3_model_open(dir, strlen(dir), &params, model);
}

int main(int argc, char **argv)
{
    struct seen seen;
    lfm3_model *model = NULL;
    uint64_t calls;
    CHECK(argc == 2);
    memset(&seen, 0, sizeof seen);
    GIVES_OK(open_seen(argv[1], &seen, &model));
    CHECK(seen.calls > 1 && seen.last == seen.total && seen.total > 0 && seen.lines == 1);
    calls = seen.calls;

    memset(&seen, 0, sizeof seen);
    seen.other = model;
    GIVES_OK(lfm3_stream_new(model, NULL, &seen.stream));
    seen.cancel_at = calls / 2 + 1;
    model = (lfm3_model *)(void *)&seen;
    GIVES(LFM3_ERR_CANCELLED, open_seen(argv[1], &seen, &model));
    CHECK(model == NULL && seen.calls == seen.cancel_at && seen.lines == 1);

    GIVES_OK(lfm3_stream_append_text(seen.stream, "a", 1, 0)); /* not refused any more */
    GIVES_OK(lfm3_stream_free(seen.stream));
    GIVES_OK(lfm3_model_free(seen.other));
    return 0;
}
