/* NULL, bad sizes and out-of-order calls for every function: each is refused with a status, and nothing is written.
 * Usage: null_calls [checkpoint folder]; without one, only what needs no model is tried. */

#include "check.h"

#include <math.h>

#if defined(__clang__) /* the header tells clang what may not be NULL; here it is, on purpose */
#pragma clang diagnostic ignored "-Wnonnull"
#endif

static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}";

static int untouched(const void *bytes, size_t size)
{
    const unsigned char *at = (const unsigned char *)bytes;
    size_t i;
    for (i = 0; i < size; i++)
        if (at[i] != 0xA5)
            return 0;
    return 1;
}

static void library_calls(void)
{
    lfm3_device_desc desc;
    int32_t status;
    CHECK(lfm3_abi_version() == LFM3_ABI_VERSION);
    CHECK(strlen(lfm3_version_string()) > 0);
    for (status = -100; status < 100; status++)
        CHECK(strlen(lfm3_status_name(status)) > 0);
    CHECK(strcmp(lfm3_status_name(LFM3_ERR_CLOSED), "LFM3_ERR_CLOSED") == 0);
    CHECK(lfm3_device_count() >= 1);
    memset(&desc, 0, sizeof desc);
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_device_info(0, NULL));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_device_info(0, &desc)); /* struct_size is 0 */
    desc.struct_size = sizeof desc;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_device_info((uint32_t)lfm3_device_count(), &desc));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_device_info(UINT32_MAX, &desc));
    GIVES_OK(lfm3_device_info(0, &desc));
    CHECK(desc.kind == LFM3_DEVICE_KIND_CPU && desc.bit_exact == 1 && desc.threads >= 1 && strlen(desc.name) > 0);
}

static void params_calls(void)
{
    static const size_t bad[] = {0, 4, 7, 12, 4104, SIZE_MAX};
    unsigned char room[256];
    size_t i;
    lfm3_generate_params generate;
    lfm3_model_params model;
    lfm3_stream_params stream;
    lfm3_media media;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_media_init(NULL, sizeof(lfm3_media)));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_params_init(NULL, sizeof(lfm3_model_params)));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_params_init(NULL, sizeof(lfm3_stream_params)));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_generate_params_init(NULL, sizeof(lfm3_generate_params)));
    memset(room, 0xA5, sizeof room);
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_params_init((lfm3_model_params *)(void *)room, bad[i]));
        GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_params_init((lfm3_stream_params *)(void *)room, bad[i]));
        GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_generate_params_init((lfm3_generate_params *)(void *)room, bad[i]));
        GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_media_init((lfm3_media *)(void *)room, bad[i]));
        CHECK(untouched(room, sizeof room));
    }
    GIVES_OK(lfm3_generate_params_init((lfm3_generate_params *)(void *)room, 16)); /* an older header's */
    CHECK(untouched(room + 16, sizeof room - 16));
    GIVES_OK(lfm3_generate_params_init(&generate, sizeof generate));
    CHECK(generate.struct_size == sizeof generate && isnan(generate.temperature) && generate.seed == -1);
    GIVES_OK(lfm3_model_params_init(&model, sizeof model));
    CHECK(model.struct_size == sizeof model && isnan(model.decode_share) && model.device == LFM3_DEVICE_CPU);
    GIVES_OK(lfm3_stream_params_init(&stream, sizeof stream));
    CHECK(stream.struct_size == sizeof stream && stream.error == NULL);
    memset(&media, 0xA5, sizeof media);
    GIVES_OK(lfm3_media_init(&media, sizeof media));
    CHECK(media.struct_size == sizeof media && media.kind == LFM3_MEDIA_PICTURE && media.data == NULL);
    CHECK(media.frame_sizes == NULL && media.frame_times == NULL && media.fps == 0);
}

/* Opening what cannot be opened leaves NULL in the handle's place and a text in the error buffer. */
static void open_calls(void)
{
    static const char not_utf8[] = "a\xFF";
    char error[16];
    lfm3_model *model = (lfm3_model *)(void *)&error;
    lfm3_model_params params;
    lfm3_memory_report report;
    struct {
        lfm3_model_params params;
        uint64_t tail;
    } newer;

    GIVES_OK(lfm3_model_params_init(&params, sizeof params));
    params.error = error;
    params.error_size = sizeof error;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_open("x", 1, NULL, NULL));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_open(NULL, 1, &params, &model));
    CHECK(model == NULL && strlen(error) == sizeof error - 1);
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_open("", 0, &params, &model));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_open(not_utf8, 2, &params, &model));
    GIVES(LFM3_ERR_LIMIT, lfm3_model_open("x", SIZE_MAX, &params, &model));
    params.device = 1;
    GIVES(LFM3_ERR_UNSUPPORTED, lfm3_model_open("x", 1, &params, &model));
    params.device = 0;
    params.threads = -1;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_open("x", 1, &params, &model));
    params.threads = 0;
    params.struct_size = 12;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_open("x", 1, &params, &model));
    memset(&newer, 0, sizeof newer);
    GIVES_OK(lfm3_model_params_init(&newer.params, sizeof newer));
    newer.tail = 1;
    GIVES(LFM3_ERR_UNSUPPORTED, lfm3_model_open("x", 1, &newer.params, &model));
    newer.tail = 0;
    GIVES(LFM3_ERR_IO, lfm3_model_open("no such folder", 14, &newer.params, &model));
    GIVES(LFM3_ERR_IO, lfm3_model_open("no such folder", 14, NULL, &model));
    CHECK(model == NULL);

    memset(&report, 0, sizeof report);
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_memory("x", 1, NULL, NULL));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_memory("x", 1, NULL, &report));
    report.struct_size = sizeof report;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_memory(NULL, 1, NULL, &report));
    GIVES(LFM3_ERR_IO, lfm3_model_memory("no such folder", 14, NULL, &report));
    CHECK(report.weights == 0);
}

static void model_calls_on(lfm3_model *model, int32_t status)
{
    uint32_t ids[4];
    char bytes[4];
    size_t needed;
    lfm3_model_desc info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    GIVES(status, lfm3_model_info(model, &info));
    GIVES(status, lfm3_model_error(model, bytes, sizeof bytes, &needed));
    GIVES(status, lfm3_model_step(model, 0, NULL));
    GIVES(status, lfm3_model_poll(model));
    GIVES(status, lfm3_model_wait(model, 1));
    GIVES(status, lfm3_model_recover(model));
    GIVES(status, lfm3_model_tokenize(model, "a", 1, 0, ids, 4, &needed));
    GIVES(status, lfm3_model_detokenize(model, ids, 0, bytes, sizeof bytes, &needed));
    GIVES(status, lfm3_model_render_chat(model, chat, strlen(chat), bytes, sizeof bytes, &needed));
}

static void stream_calls_on(lfm3_stream *stream, int32_t status)
{
    uint64_t length;
    uint32_t id = 0;
    float logit = 0;
    size_t needed;
    lfm3_event event = empty_event();
    lfm3_stats stats;
    lfm3_media media;
    GIVES_OK(lfm3_media_init(&media, sizeof media));
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    GIVES(status, lfm3_stream_append_text(stream, "a", 1, 0));
    GIVES(status, lfm3_stream_append_tokens(stream, &id, 1));
    GIVES(status, lfm3_stream_append_media(stream, &media));
    GIVES(status, lfm3_stream_set_chat(stream, chat, strlen(chat), NULL, 0));
    GIVES(status, lfm3_stream_add_stop(stream, "a", 1));
    GIVES(status, lfm3_stream_set_bias(stream, &id, &logit, 1));
    GIVES(status, lfm3_stream_generate(stream, NULL));
    GIVES(status, lfm3_stream_score(stream, 0));
    GIVES(status, lfm3_stream_next(stream, &event));
    GIVES(status, lfm3_stream_cancel(stream));
    GIVES(status, lfm3_stream_length(stream, &length));
    GIVES(status, lfm3_stream_tokens(stream, &id, 1, &needed));
    GIVES(status, lfm3_stream_rewind(stream, 0));
    GIVES(status, lfm3_stream_logits(stream, &logit, 1));
    GIVES(status, lfm3_stream_stats(stream, &stats));
}

static void null_handles(void)
{
    char bytes[4];
    lfm3_stream *stream = (lfm3_stream *)(void *)bytes;
    GIVES_OK(lfm3_model_free(NULL));
    GIVES_OK(lfm3_stream_free(NULL));
    model_calls_on(NULL, LFM3_ERR_INVALID_ARGUMENT);
    stream_calls_on(NULL, LFM3_ERR_INVALID_ARGUMENT);
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_error(NULL, bytes, sizeof bytes, NULL));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_new(NULL, NULL, &stream));
    CHECK(stream == NULL);
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_new(NULL, NULL, NULL));
}

/* An odd handle: memory that is no handle of ours. */
static void foreign_handles(void)
{
    union {
        uint64_t words[64];
        char bytes[512];
    } memory;
    memset(&memory, 0, sizeof memory);
    model_calls_on((lfm3_model *)(void *)memory.words, LFM3_ERR_INVALID_ARGUMENT);
    stream_calls_on((lfm3_stream *)(void *)memory.words, LFM3_ERR_INVALID_ARGUMENT);
    stream_calls_on((lfm3_stream *)(void *)(memory.bytes + 1), LFM3_ERR_INVALID_ARGUMENT);
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_free((lfm3_model *)(void *)memory.words));
}

/* NULL places and bad values on a live model. */
static void model_arguments(lfm3_model *model, uint32_t vocab_size)
{
    uint32_t ids[8];
    char bytes[64];
    size_t needed = 99;
    lfm3_step_report report;
    memset(&report, 0, sizeof report);
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_info(model, NULL));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_step(model, 0, &report)); /* struct_size is 0 */
    report.struct_size = sizeof report;
    GIVES(LFM3_IDLE, lfm3_model_step(model, UINT64_MAX, &report));
    GIVES(LFM3_IDLE, lfm3_model_poll(model));
    GIVES(LFM3_IDLE, lfm3_model_wait(model, UINT64_MAX));
    GIVES_OK(lfm3_model_recover(model));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_tokenize(model, NULL, 1, 0, ids, 8, &needed));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_tokenize(model, "\x80", 1, 0, ids, 8, &needed));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_tokenize(model, "a", 1, 2, ids, 8, &needed));
    GIVES(LFM3_ERR_LIMIT, lfm3_model_tokenize(model, "a", SIZE_MAX, 0, ids, 8, &needed));
    CHECK(needed == 99);
    GIVES_OK(lfm3_model_tokenize(model, NULL, 0, 0, NULL, 0, &needed));
    CHECK(needed == 0);
    GIVES(LFM3_ERR_BUFFER_TOO_SMALL, lfm3_model_tokenize(model, "a", 1, 0, NULL, 0, &needed));
    CHECK(needed == 1);
    GIVES_OK(lfm3_model_tokenize(model, "a", 1, 0, ids, 1, NULL));
    GIVES(LFM3_ERR_BUFFER_TOO_SMALL, lfm3_model_detokenize(model, ids, 1, NULL, 0, &needed));
    CHECK(needed == 1);
    GIVES_OK(lfm3_model_detokenize(model, ids, 1, bytes, 2, &needed));
    CHECK(strcmp(bytes, "a") == 0);
    ids[0] = vocab_size;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_detokenize(model, ids, 1, bytes, sizeof bytes, &needed));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_detokenize(model, NULL, 1, bytes, sizeof bytes, &needed));
    GIVES(LFM3_ERR_LIMIT, lfm3_model_detokenize(model, ids, SIZE_MAX, bytes, sizeof bytes, &needed));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_render_chat(model, "{", 1, bytes, sizeof bytes, &needed));
    GIVES(LFM3_ERR_BUFFER_TOO_SMALL, lfm3_model_error(model, bytes, 0, NULL));
    CHECK(lfm3_model_error(model, bytes, sizeof bytes, &needed) != LFM3_ERR_INVALID_ARGUMENT);
    CHECK(needed > 0 && strlen(bytes) > 0);
}

/* NULL places, bad values and calls out of order on a live, empty stream. */
static void stream_arguments(lfm3_stream *stream, uint32_t vocab_size)
{
    uint32_t id = vocab_size;
    float bias = NAN;
    char bytes[8];
    lfm3_event event = empty_event();
    lfm3_generate_params params;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_append_text(stream, NULL, 1, 0));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_append_text(stream, "\xC3", 1, 0));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_append_text(stream, "a", 1, 0x80000000u));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_append_tokens(stream, NULL, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_append_tokens(stream, &id, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_set_chat(stream, NULL, 5, NULL, 0));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_append_media(stream, NULL));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_set_chat(stream, chat, strlen(chat), NULL, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_set_chat(stream, "{", 1, NULL, 0));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_set_chat(stream, NULL, 0, NULL, 0));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_add_stop(stream, NULL, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_set_bias(stream, NULL, &bias, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_set_bias(stream, &id, NULL, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_set_bias(stream, &id, &bias, 1));
    id = 0;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_set_bias(stream, &id, &bias, 1)); /* NaN */
    GIVES_OK(lfm3_stream_set_bias(stream, NULL, NULL, 0));
    GIVES_OK(lfm3_generate_params_init(&params, sizeof params));
    params.top_p = 2;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_generate(stream, &params));
    params.top_p = NAN;
    params.stop_token_count = 1;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_generate(stream, &params));
    id = vocab_size;
    params.stop_tokens = &id;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_generate(stream, &params));
    CHECK(lfm3_stream_error(stream, bytes, sizeof bytes, NULL) == LFM3_ERR_BUFFER_TOO_SMALL && strlen(bytes) == 7);
    GIVES(LFM3_ERR_STATE, lfm3_stream_generate(stream, NULL)); /* nothing to go on from */
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_score(stream, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_score(stream, UINT64_MAX));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_next(stream, NULL));
    event.struct_size = 4;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_next(stream, &event));
    event.struct_size = sizeof event;
    GIVES(LFM3_DONE, lfm3_stream_next(stream, &event));
    GIVES_OK(lfm3_stream_cancel(stream));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_length(stream, NULL));
    GIVES_OK(lfm3_stream_tokens(stream, NULL, 0, NULL));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_rewind(stream, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_rewind(stream, UINT64_MAX));
    GIVES_OK(lfm3_stream_rewind(stream, 0));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_logits(stream, NULL, 0));
    GIVES(LFM3_ERR_STATE, lfm3_stream_logits(stream, &bias, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_stats(stream, NULL));
}

static void live_handles(const char *dir)
{
    lfm3_model *model = open_model(dir, 1);
    lfm3_stream *stream = NULL, *other = NULL;
    lfm3_model_desc info;
    lfm3_stream_params params;
    char bytes[256];
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    GIVES_OK(lfm3_model_info(model, &info));
    CHECK(info.vocab_size > 0 && strlen(info.kind) > 0 && strlen(info.isa) > 0 && info.eos_count > 0);
    model_arguments(model, info.vocab_size);
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_new(model, NULL, NULL));
    GIVES_OK(lfm3_stream_params_init(&params, sizeof params));
    params.struct_size = 1;
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_new(model, &params, &stream));
    CHECK(stream == NULL);
    GIVES_OK(lfm3_stream_new(model, NULL, &stream));
    GIVES_OK(lfm3_stream_new(model, NULL, &other));
    stream_arguments(stream, info.vocab_size);
    GIVES_OK(lfm3_stream_error(other, bytes, sizeof bytes, NULL));
    CHECK(bytes[0] == 0); /* one stream's error is not another's */
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_model_free((lfm3_model *)(void *)stream));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_free((lfm3_stream *)(void *)model));
    GIVES_OK(lfm3_stream_free(other));
    GIVES_OK(lfm3_model_free(model));
    stream_calls_on(stream, LFM3_ERR_CLOSED);
    GIVES_OK(lfm3_stream_error(stream, bytes, sizeof bytes, NULL));
    CHECK(strlen(bytes) > 0);
    GIVES_OK(lfm3_stream_free(stream));
}

int main(int argc, char **argv)
{
    library_calls();
    params_calls();
    open_calls();
    null_handles();
    foreign_handles();
    if (argc > 1)
        live_handles(argv[1]);
    return 0;
}
