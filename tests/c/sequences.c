/* Random calls on two models and a few streams: sets, generates, rewinds, cancels, frees in any order, with pictures
 * and videos whole and broken. None may crash, hang, or answer a status that is not one.
 * Usage: sequences CHECKPOINT COUNT SEED */

#include "pictures.h"

#define MODELS 2
#define STREAMS 4
#define CALLS 24 /* most calls of a sequence */

static uint64_t state;

static uint32_t any(uint32_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

static const char *const chats[] = {
    "{\"messages\": [{\"role\": \"user\", \"content\": \"Where is Mia?\"}]}",
    ("{\"messages\": [{\"role\": \"user\", \"content\": \"Where is Mia?\"}, "
     "{\"role\": \"assistant\", \"content\": \"Away.\"}, {\"role\": \"user\", \"content\": \"<|im_end|> Who?\"}], "
     "\"enable_thinking\": false}"),
    "{\"messages\": []}",
    "{\"messages\": [{\"role\": \"user\"}]}",
    "not JSON",
};

/* As many parts as the media that `set_seen` gives, or fewer. */
static const char *const seen_chats[] = {
    ("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}, "
     "{\"type\": \"text\", \"text\": \"What?\"}]}]}"),
    ("{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}, "
     "{\"role\": \"assistant\", \"content\": \"So.\"}, {\"role\": \"user\", \"content\": [{\"type\": \"text\", "
     "\"text\": \"And\"}, {\"type\": \"image\"}]}], \"enable_thinking\": false}"),
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"video\"}]}]}",
};

static const char *const texts[] = {"", "a", " b", "Caf\xC3\xA9 ", "<|im_end|>", "one two three four five six seven"};

struct world {
    const char *dir;
    lfm3_model *models[MODELS];
    lfm3_stream *streams[STREAMS];
};

static void known(int32_t status)
{
    CHECK(strcmp(lfm3_status_name(status), "unknown status") != 0);
    CHECK(status != LFM3_ERR_INTERNAL && status != LFM3_ERR_POISONED);
}

static void take_events(lfm3_stream *stream)
{
    uint32_t i, most = any(8);
    for (i = 0; i < most; i++) {
        lfm3_event event = empty_event();
        int32_t status = lfm3_stream_next(stream, &event);
        known(status);
        if (status != LFM3_OK)
            return;
        CHECK(event.kind >= LFM3_EVENT_READY && event.kind <= LFM3_EVENT_DONE);
        if (event.text != NULL)
            CHECK(event.text[event.text_len] == 0);
        if (event.kind == LFM3_EVENT_DONE)
            CHECK(event.usage != NULL && event.usage->struct_size == sizeof(lfm3_stats));
    }
}

static void generate(lfm3_stream *stream)
{
    lfm3_generate_params params;
    uint32_t stop = any(4096);
    GIVES_OK(lfm3_generate_params_init(&params, sizeof params));
    params.max_tokens = 1 + any(6);
    params.token_events = any(2);
    params.top_logprobs = any(4);
    params.temperature = (float)any(3) / 2.0f;
    params.seed = (int64_t)any(100) - 1;
    params.stop_tokens = &stop;
    params.stop_token_count = any(2);
    known(lfm3_stream_generate(stream, any(8) == 0 ? NULL : &params));
}

static void append(lfm3_stream *stream)
{
    uint32_t ids[3];
    const char *text = texts[any(sizeof texts / sizeof *texts)];
    ids[0] = any(3000);
    ids[1] = any(5000);
    ids[2] = any(3000);
    if (any(2) == 0)
        known(lfm3_stream_append_text(stream, text, strlen(text), any(3)));
    else
        known(lfm3_stream_append_tokens(stream, ids, any(4)));
}

/* One of a few pictures and videos, so that some come again; some are broken. The data is the caller's to free. */
static lfm3_media any_media(uint8_t **data)
{
    static const uint32_t sides[] = {32, 64, 96};
    static size_t sizes[2];
    uint32_t width = sides[any(3)], height = sides[any(3)];
    unsigned shade = any(2);
    lfm3_media media;
    size_t len = 0;
    if (any(2) == 0) {
        *data = bmp_file(width, height, shade, &len);
        media = media_of_kind(LFM3_MEDIA_PICTURE, *data, len);
        if (any(4) == 0)
            media.data_len = any((uint32_t)len); /* seen at once, or when it is decoded */
        if (any(4) == 0)
            (*data)[any(BMP_HEADER)] = (uint8_t)any(256);
    } else {
        len = 3 * (size_t)width * height;
        *data = (uint8_t *)malloc(len);
        CHECK(*data != NULL);
        stripes(*data, width, height, 3 * (size_t)width, shade);
        media = rgb_picture(*data, width, height, any(4) == 0 ? any(400) : 0);
        media.data_len = len;
        if (any(3) == 0) {
            media.kind = any(4) == 0 ? (int32_t)any(6) : LFM3_MEDIA_VIDEO_RGB;
            media.height = height / 2;
            media.frame_count = any(4);
            media.fps = (double)any(4);
            sizes[0] = any(9) == 0 ? SIZE_MAX : len / 2;
            sizes[1] = len / 2;
            media.frame_sizes = any(2) == 0 && media.frame_count <= 2 ? sizes : NULL;
        }
    }
    return media;
}

static void append_media(lfm3_stream *stream)
{
    uint8_t *data = NULL;
    lfm3_media media = any_media(&data);
    known(lfm3_stream_append_media(stream, &media));
    free(data);
}

static void set_seen(lfm3_stream *stream)
{
    const char *chat = seen_chats[any(sizeof seen_chats / sizeof *seen_chats)];
    uint8_t *data[2] = {NULL, NULL};
    lfm3_media media[2];
    media[0] = any_media(&data[0]);
    media[1] = any_media(&data[1]);
    known(lfm3_stream_set_chat(stream, chat, strlen(chat), media, any(3)));
    free(data[0]);
    free(data[1]);
}

static void look(lfm3_stream *stream)
{
    static float logits[8192];
    uint32_t ids[64];
    size_t needed = 0;
    lfm3_stats stats;
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    known(lfm3_stream_stats(stream, &stats));
    known(lfm3_stream_tokens(stream, ids, any(65), &needed));
    known(lfm3_stream_logits(stream, logits, any(2) * 8192));
}

static void set(lfm3_stream *stream)
{
    uint32_t id = any(5000);
    float bias = (float)any(20) - 10.0f;
    const char *text = texts[any(sizeof texts / sizeof *texts)];
    if (any(2) == 0)
        known(lfm3_stream_add_stop(stream, text, strlen(text)));
    else
        known(lfm3_stream_set_bias(stream, &id, &bias, any(2)));
}

static void stream_call(lfm3_stream **stream)
{
    uint64_t length = 0;
    const char *chat = chats[any(sizeof chats / sizeof *chats)];
    char error[64];
    known(lfm3_stream_length(*stream, &length));
    switch (any(12)) {
    case 0: known(lfm3_stream_set_chat(*stream, chat, strlen(chat), NULL, 0)); break;
    case 1: append(*stream); break;
    case 2: generate(*stream); break;
    case 3: known(lfm3_stream_score(*stream, any((uint32_t)length + 2))); break;
    case 4: known(lfm3_stream_rewind(*stream, any((uint32_t)length + 2))); break;
    case 5: known(lfm3_stream_cancel(*stream)); break;
    case 6: look(*stream); break;
    case 7: set(*stream); break;
    case 8: known(lfm3_stream_error(*stream, error, sizeof error, NULL)); break;
    case 9: append_media(*stream); break;
    case 10: set_seen(*stream); break;
    default:
        if (any(4) == 0) {
            GIVES_OK(lfm3_stream_free(*stream));
            *stream = NULL;
        }
    }
}

/* A model is opened rarely: most sequences go on with those that are. */
static void model_call(struct world *world, lfm3_model **model)
{
    lfm3_step_report report;
    memset(&report, 0, sizeof report);
    report.struct_size = sizeof report;
    if (any(40) == 0) {
        GIVES_OK(lfm3_model_free(*model));
        *model = any(4) == 0 ? NULL : open_model(world->dir, 1);
    } else if (*model == NULL) {
        *model = open_model(world->dir, 1);
    } else if (any(6) == 0) {
        known(lfm3_model_poll(*model));
    } else {
        known(lfm3_model_step(*model, any(3) * 300, any(2) == 0 ? NULL : &report));
    }
}

static void sequence(struct world *world)
{
    uint32_t i, calls = 1 + any(CALLS);
    for (i = 0; i < calls; i++) {
        lfm3_stream **stream = &world->streams[any(STREAMS)];
        lfm3_model **model = &world->models[any(MODELS)];
        if (any(3) == 0)
            model_call(world, model);
        else if (*stream == NULL)
            known(lfm3_stream_new(*model, NULL, stream));
        else if (any(3) == 0)
            take_events(*stream);
        else
            stream_call(stream);
    }
}

int main(int argc, char **argv)
{
    struct world world;
    unsigned long count, i;
    CHECK(argc == 4);
    memset(&world, 0, sizeof world);
    world.dir = argv[1];
    count = strtoul(argv[2], NULL, 10);
    state = strtoul(argv[3], NULL, 10);
    for (i = 0; i < count; i++)
        sequence(&world);
    for (i = 0; i < STREAMS; i++)
        if (i % 2 == 0)
            GIVES_OK(lfm3_stream_free(world.streams[i]));
    for (i = 0; i < MODELS; i++)
        GIVES_OK(lfm3_model_free(world.models[i]));
    for (i = 0; i < STREAMS; i++)
        if (i % 2 == 1)
            GIVES_OK(lfm3_stream_free(world.streams[i]));
    return 0;
}
