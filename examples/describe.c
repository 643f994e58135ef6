/*
 * Describes the pictures of a folder: one JSON line a picture on stdout, in the order of their names. Several are
 * asked about at once, each in a stream of its own.
 *
 *     describe [options] FOLDER
 *
 *     {"file": "a.png", "text": "A red ring on the left.", "tokens": 8}
 *     {"file": "b.png", "error": "…"}
 *
 * Exits with 0 when all were described, with 1 when some were not.
 */

#define _POSIX_C_SOURCE 200809L

#include "lfm3.h"

#include "files.h"
#include "text.h"

#define STEP_US 100000 /* no one waits for this program's loop */
#define MAX_STREAMS 64

static const char usage[] =
    "usage: describe [options] FOLDER\n"
    "  --model DIR      checkpoint folder (examples/demo-model)\n"
    "  --question TEXT  what to ask about each picture (Describe the picture.)\n"
    "  --streams N      pictures at once, 1 to 64 (4)\n"
    "  --max-tokens N   most tokens of an answer (256)\n"
    "  --threads N      threads that compute (2)\n";

struct options {
    const char *model, *question, *folder;
    long streams, max_tokens, threads;
};

/* One picture's line. */
struct job {
    const char *path;
    struct text line; /* empty until it is done */
};

/* One stream, and the picture it is at. */
struct lane {
    lfm3_stream *stream;
    struct job *job; /* NULL: free for the next */
    struct text answer;
};

struct work {
    lfm3_model *model;
    const struct options *options;
    struct text chat;
    struct job *jobs;
    size_t count, begun, printed;
    int failed;
};

/* ---- options ---- */

static long number(const char *name, const char *value, long most)
{
    char *end;
    long parsed = strtol(value, &end, 10);
    if (*value == 0 || *end != 0 || parsed < 1 || parsed > most) {
        fprintf(stderr, "describe: %s takes a number from 1 to %ld, not \"%s\"\n", name, most, value);
        exit(2);
    }
    return parsed;
}

static void parse(int argc, char **argv, struct options *options)
{
    int i;
    options->model = "examples/demo-model";
    options->question = "Describe the picture.";
    options->folder = NULL;
    options->streams = 4;
    options->max_tokens = 256;
    options->threads = 2;
    for (i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strncmp(name, "--", 2) != 0 && options->folder == NULL) {
            options->folder = name;
            continue;
        }
        i++;
        if (value != NULL && strcmp(name, "--model") == 0) {
            options->model = value;
        } else if (value != NULL && strcmp(name, "--question") == 0) {
            options->question = value;
        } else if (value != NULL && strcmp(name, "--streams") == 0) {
            options->streams = number(name, value, MAX_STREAMS);
        } else if (value != NULL && strcmp(name, "--max-tokens") == 0) {
            options->max_tokens = number(name, value, 1000000);
        } else if (value != NULL && strcmp(name, "--threads") == 0) {
            options->threads = number(name, value, 1024);
        } else {
            fputs(usage, strcmp(name, "--help") == 0 ? stdout : stderr);
            exit(strcmp(name, "--help") == 0 ? 0 : 2);
        }
    }
    if (options->folder == NULL) {
        fputs(usage, stderr);
        exit(2);
    }
}

/* ---- lines ---- */

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void begin_line(struct job *job, const char *key, const char *text, size_t len)
{
    const char *name = file_name(job->path);
    append_string(&job->line, "{\"file\": ");
    append_json(&job->line, name, strlen(name));
    append_string(&job->line, ", \"");
    append_string(&job->line, key);
    append_string(&job->line, "\": ");
    append_json(&job->line, text, len);
}

static void write_error(struct work *work, struct job *job, const char *error)
{
    begin_line(job, "error", error, strlen(error));
    append_string(&job->line, "}");
    work->failed = 1;
}

static void write_stream_error(struct work *work, struct lane *lane)
{
    char error[1024] = "";
    lfm3_stream_error(lane->stream, error, sizeof error, NULL);
    write_error(work, lane->job, error);
}

static void write_answer(struct job *job, const struct text *answer, uint64_t tokens)
{
    char end[64];
    begin_line(job, "text", answer->len > 0 ? answer->bytes : "", answer->len);
    snprintf(end, sizeof end, ", \"tokens\": %llu}", (unsigned long long)tokens);
    append_string(&job->line, end);
}

/* Lines wait for those before them. */
static void print_lines(struct work *work)
{
    for (; work->printed < work->count && work->jobs[work->printed].line.len > 0; work->printed++) {
        struct text *line = &work->jobs[work->printed].line;
        puts(line->bytes);
        fflush(stdout);
        free(line->bytes);
        memset(line, 0, sizeof *line);
    }
}

/* ---- asking ---- */

/* Asks about a lane's picture. The library has a copy of the file once it is asked. */
static int32_t ask(const struct work *work, struct lane *lane, const struct text *file)
{
    lfm3_generate_params params;
    lfm3_media media;
    int32_t status;
    lfm3_media_init(&media, sizeof media);
    media.data = (const uint8_t *)file->bytes;
    media.data_len = file->len;
    lfm3_generate_params_init(&params, sizeof params);
    params.temperature = 0;
    params.max_tokens = (uint64_t)work->options->max_tokens;
    status = lfm3_stream_set_chat(lane->stream, work->chat.bytes, work->chat.len, &media, 1);
    return status == LFM3_OK ? lfm3_stream_generate(lane->stream, &params) : status;
}

/* Gives a free lane the next picture that can be asked about. */
static void begin_next(struct work *work, struct lane *lane)
{
    while (lane->job == NULL && work->begun < work->count) {
        struct text file = {NULL, 0, 0};
        int error;
        lane->job = &work->jobs[work->begun++];
        lane->answer.len = 0;
        error = read_file(lane->job->path, &file);
        if (error != 0) {
            write_error(work, lane->job, strerror(error));
            lane->job = NULL;
        } else if (ask(work, lane, &file) != LFM3_OK) {
            write_stream_error(work, lane);
            lane->job = NULL;
        }
        free(file.bytes);
    }
}

/* Takes the events that are there. */
static void take(struct work *work, struct lane *lane)
{
    lfm3_event event;
    memset(&event, 0, sizeof event);
    event.struct_size = sizeof event;
    while (lane->job != NULL) {
        int32_t status = lfm3_stream_next(lane->stream, &event);
        int failed = status < 0 || (status == LFM3_OK && event.kind == LFM3_EVENT_DONE &&
                                    event.done_reason == LFM3_DONE_ERROR);
        if (failed) {
            write_stream_error(work, lane);
            lane->job = NULL;
        } else if (status != LFM3_OK) {
            return;
        } else if (event.kind == LFM3_EVENT_TEXT) {
            append(&lane->answer, event.text, event.text_len);
        } else if (event.kind == LFM3_EVENT_DONE) {
            write_answer(lane->job, &lane->answer, event.usage->generated_tokens);
            lane->job = NULL;
        }
    }
}

/* Runs until every picture has its line; -1 where the model fails. */
static int run(struct work *work, struct lane *lanes, size_t lane_count)
{
    size_t i;
    int idle = 0;
    while (work->printed < work->count) {
        int32_t status = lfm3_model_step(work->model, STEP_US, NULL);
        idle = status == LFM3_IDLE ? idle + 1 : 0;
        if (status < 0 || idle > 2) {
            char error[1024] = "";
            lfm3_model_error(work->model, error, sizeof error, NULL);
            fprintf(stderr, "describe: %s (%s)\n", error, lfm3_status_name(status));
            return -1;
        }
        for (i = 0; i < lane_count; i++) {
            take(work, &lanes[i]);
            begin_next(work, &lanes[i]);
        }
        print_lines(work);
    }
    return 0;
}

static lfm3_model *load(const struct options *options)
{
    char error[1024] = "";
    lfm3_model_params params;
    lfm3_model *model = NULL;
    lfm3_model_params_init(&params, sizeof params);
    params.threads = (int32_t)options->threads;
    params.error = error;
    params.error_size = sizeof error;
    if (lfm3_model_open(options->model, strlen(options->model), &params, &model) != LFM3_OK)
        fprintf(stderr, "describe: cannot open %s: %s\n", options->model, error);
    return model;
}

/* Makes the streams, no more than there are pictures; how many. */
static size_t make_lanes(const struct work *work, struct lane *lanes)
{
    char error[1024] = "";
    lfm3_stream_params params;
    size_t count = 0;
    lfm3_stream_params_init(&params, sizeof params);
    params.error = error;
    params.error_size = sizeof error;
    while (count < (size_t)work->options->streams && count < work->count) {
        if (lfm3_stream_new(work->model, &params, &lanes[count].stream) != LFM3_OK) {
            fprintf(stderr, "describe: %s\n", error);
            break; /* fewer do, too */
        }
        count++;
    }
    return count;
}

int main(int argc, char **argv)
{
    static struct lane lanes[MAX_STREAMS];
    struct options options;
    struct work work;
    struct paths pictures = {NULL, 0};
    size_t lane_count = 0, i;
    int error, result = -1;

    parse(argc, argv, &options);
    error = list_pictures(options.folder, &pictures);
    if (error != 0 || pictures.count == 0) {
        fprintf(stderr, "describe: no pictures in %s%s%s\n", options.folder, error ? ": " : "",
                error ? strerror(error) : "");
        return 1;
    }
    memset(&work, 0, sizeof work);
    work.options = &options;
    work.count = pictures.count;
    work.jobs = (struct job *)grown(NULL, work.count * sizeof *work.jobs);
    memset(work.jobs, 0, work.count * sizeof *work.jobs);
    for (i = 0; i < work.count; i++)
        work.jobs[i].path = pictures.items[i];
    append_string(&work.chat, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}, "
                              "{\"type\": \"text\", \"text\": ");
    append_json(&work.chat, options.question, strlen(options.question));
    append_string(&work.chat, "}]}], \"enable_thinking\": false}");

    work.model = load(&options);
    if (work.model != NULL)
        lane_count = make_lanes(&work, lanes);
    if (lane_count > 0)
        result = run(&work, lanes, lane_count);
    for (i = 0; i < lane_count; i++) {
        lfm3_stream_free(lanes[i].stream);
        free(lanes[i].answer.bytes);
    }
    lfm3_model_free(work.model);
    for (i = 0; i < work.count; i++)
        free(work.jobs[i].line.bytes);
    free(work.jobs);
    free(work.chat.bytes);
    free_paths(&pictures);
    return result == 0 && !work.failed ? 0 : 1;
}
