/* Random calls on two models and a few streams: sets, generates, rewinds, cancels, frees in any order. None may crash,
 * hang, or answer a status that is not one. Usage: sequences CHECKPOINT COUNT SEED */

#include "check.h"

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
    switch (any(10)) {
    case 0: known(lfm3_stream_set_chat(*stream, chat, strlen(chat), NULL, 0)); break;
    case 1: append(*stream); break;
    case 2: generate(*stream); break;
    case 3: known(lfm3_stream_score(*stream, any((uint32_t)length + 2))); break;
    case 4: known(lfm3_stream_rewind(*stream, any((uint32_t)length + 2))); break;
    case 5: known(lfm3_stream_cancel(*stream)); break;
    case 6: look(*stream); break;
    case 7: set(*stream); break;
    case 8: known(lfm3_stream_error(*stream, error, sizeof error, NULL)); break;
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
