/*
 * Chat with a model on the terminal.
 *
 *     chat [options]                  turn after turn, until end of input or Ctrl-C at the prompt
 *     chat [options] "a question"     one answer; it is the last line of the output
 *
 * Ctrl-C during a reply stops the reply and not the program. Reasoning is shown, dimmed, on a terminal only.
 */

#define _POSIX_C_SOURCE 200809L
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE /* sysconf's number of processors */
#endif

#include "lfm3.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define STEP_US 20000          /* between looks at Ctrl-C */
#define QUIET_LOAD_SECONDS 1.0 /* loads longer than this show how far they are */

static const char usage[] =
    "usage: chat [options] [question]\n"
    "  --model DIR      checkpoint folder (examples/demo-model)\n"
    "  --system TEXT    what the model is told before the first turn\n"
    "  --think          let the model reason first (the default)\n"
    "  --no-think       answer at once\n"
    "  --temp X         temperature; 0 is greedy (the checkpoint's own)\n"
    "  --seed N         the same seed gives the same replies\n"
    "  --max-tokens N   most tokens of a reply (up to the context limit)\n"
    "  --threads N      threads that compute (as many as processors, at most 8)\n"
    "  --stats          counts and times of each reply on stderr\n";

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* ---- a text that grows ---- */

struct text {
    char *bytes;
    size_t len, room;
};

static void append(struct text *text, const char *bytes, size_t len)
{
    if (text->len + len + 1 > text->room) {
        text->room = 2 * (text->len + len + 1);
        text->bytes = (char *)realloc(text->bytes, text->room);
        if (text->bytes == NULL) {
            fputs("chat: out of memory\n", stderr);
            exit(1);
        }
    }
    memcpy(text->bytes + text->len, bytes, len);
    text->len += len;
    text->bytes[text->len] = 0;
}

static void append_string(struct text *text, const char *string)
{
    append(text, string, strlen(string));
}

static void append_json(struct text *text, const char *bytes, size_t len)
{
    size_t i;
    append_string(text, "\"");
    for (i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)bytes[i];
        char escaped[8];
        if (byte == '"' || byte == '\\')
            append(text, "\\", 1);
        if (byte < 0x20) {
            snprintf(escaped, sizeof escaped, "\\u%04x", byte);
            append_string(text, escaped);
        } else {
            append(text, &bytes[i], 1);
        }
    }
    append_string(text, "\"");
}

static void append_message(struct text *messages, const char *role, const char *content, size_t len)
{
    append_string(messages, messages->len > 0 ? ", {\"role\": \"" : "{\"role\": \"");
    append_string(messages, role);
    append_string(messages, "\", \"content\": ");
    append_json(messages, content, len);
    append_string(messages, "}");
}

/* ---- options ---- */

struct options {
    const char *model, *system, *question;
    int think, stats, threads;
    lfm3_generate_params generate;
};

static long long number(const char *name, const char *value)
{
    char *end;
    long long parsed;
    errno = 0;
    parsed = strtoll(value, &end, 10);
    if (*value == 0 || *end != 0 || errno != 0 || parsed < 0) {
        fprintf(stderr, "chat: %s takes a number, not \"%s\"\n", name, value);
        exit(2);
    }
    return parsed;
}

static float real(const char *name, const char *value)
{
    char *end;
    double parsed = strtod(value, &end);
    if (*value == 0 || *end != 0 || !isfinite(parsed)) {
        fprintf(stderr, "chat: %s takes a number, not \"%s\"\n", name, value);
        exit(2);
    }
    return (float)parsed;
}

static int processors(void)
{
    long count = 1;
#ifdef _SC_NPROCESSORS_ONLN
    count = sysconf(_SC_NPROCESSORS_ONLN);
#endif
    return count < 1 ? 1 : count > 8 ? 8 : (int)count;
}

/* Options that stand alone; 1 if `name` was one. */
static int parse_switch(const char *name, struct options *options)
{
    if (strcmp(name, "--think") == 0) {
        options->think = 1;
    } else if (strcmp(name, "--no-think") == 0) {
        options->think = 0;
    } else if (strcmp(name, "--stats") == 0) {
        options->stats = 1;
    } else if (strcmp(name, "--help") == 0) {
        fputs(usage, stdout);
        exit(0);
    } else {
        return 0;
    }
    return 1;
}

/* Options with a value; 1 if `name` was one. */
static int parse_value(const char *name, const char *value, struct options *options)
{
    if (strcmp(name, "--model") == 0)
        options->model = value;
    else if (strcmp(name, "--system") == 0)
        options->system = value;
    else if (strcmp(name, "--temp") == 0)
        options->generate.temperature = real(name, value);
    else if (strcmp(name, "--seed") == 0)
        options->generate.seed = number(name, value);
    else if (strcmp(name, "--max-tokens") == 0)
        options->generate.max_tokens = (uint64_t)number(name, value);
    else if (strcmp(name, "--threads") == 0)
        options->threads = (int)number(name, value);
    else
        return 0;
    return 1;
}

static void parse(int argc, char **argv, struct options *options)
{
    int i;
    memset(options, 0, sizeof *options);
    options->model = "examples/demo-model";
    options->think = 1;
    options->threads = processors();
    lfm3_generate_params_init(&options->generate, sizeof options->generate);
    for (i = 1; i < argc; i++) {
        if (parse_switch(argv[i], options))
            continue;
        if (i + 1 < argc && parse_value(argv[i], argv[i + 1], options)) {
            i++;
        } else if (strncmp(argv[i], "--", 2) != 0 && options->question == NULL) {
            options->question = argv[i];
        } else {
            fprintf(stderr, "chat: what to do with \"%s\"?\n%s", argv[i], usage);
            exit(2);
        }
    }
}

/* ---- loading ---- */

struct loading {
    struct timespec start;
    int shown; /* the last percentage shown, -1 before the first */
};

static double seconds_since(const struct timespec *start)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - start->tv_sec) + 1e-9 * (double)(now.tv_nsec - start->tv_nsec);
}

static int32_t on_progress(void *user_data, uint64_t done, uint64_t total)
{
    struct loading *loading = (struct loading *)user_data;
    int percent = total > 0 ? (int)(100.0 * (double)done / (double)total) : 0;
    int terminal = isatty(STDERR_FILENO);
    int step = terminal ? 1 : 10;
    if (seconds_since(&loading->start) > QUIET_LOAD_SECONDS && percent / step != loading->shown / step) {
        fprintf(stderr, terminal ? "\rloading %d %%" : "loading %d %%\n", percent);
        loading->shown = percent;
    }
    return interrupted;
}

static lfm3_model *load(const struct options *options)
{
    char error[1024] = "";
    struct loading loading;
    lfm3_model_params params;
    lfm3_model *model = NULL;
    int32_t status;

    clock_gettime(CLOCK_MONOTONIC, &loading.start);
    loading.shown = -1;
    lfm3_model_params_init(&params, sizeof params);
    params.threads = options->threads;
    params.progress = on_progress;
    params.user_data = &loading;
    params.error = error;
    params.error_size = sizeof error;
    status = lfm3_model_open(options->model, strlen(options->model), &params, &model);
    if (loading.shown >= 0 && isatty(STDERR_FILENO))
        fputs("\r              \r", stderr);
    if (status != LFM3_OK)
        fprintf(stderr, "chat: cannot open %s: %s (%s)\n", options->model, error, lfm3_status_name(status));
    return model;
}

/* ---- replies ---- */

struct chat {
    lfm3_model *model;
    lfm3_stream *stream;
    const struct options *options;
    struct text messages; /* JSON objects, comma between */
    struct text answer;   /* of the reply that runs */
    int dimmed;
};

static int fail(const struct chat *chat, int32_t status)
{
    char error[1024] = "";
    lfm3_stream_error(chat->stream, error, sizeof error, NULL);
    if (error[0] == 0)
        lfm3_model_error(chat->model, error, sizeof error, NULL);
    fprintf(stderr, "chat: %s (%s)\n", error, lfm3_status_name(status));
    return -1;
}

static void dim(struct chat *chat, int on)
{
    if (chat->dimmed != on)
        fputs(on ? "\033[2m" : "\033[0m\n", stdout);
    chat->dimmed = on;
}

static void show(struct chat *chat, const lfm3_event *event)
{
    if (event->kind == LFM3_EVENT_REASONING && isatty(STDOUT_FILENO)) {
        dim(chat, 1);
        fwrite(event->text, 1, event->text_len, stdout);
    } else if (event->kind == LFM3_EVENT_TEXT) {
        const char *text = event->text;
        size_t len = event->text_len;
        while (chat->answer.len == 0 && len > 0 && (*text == '\n' || *text == ' ')) {
            text++; /* the gap between reasoning and answer */
            len--;
        }
        dim(chat, 0);
        append(&chat->answer, text, len);
        fwrite(text, 1, len, stdout);
    }
    fflush(stdout);
}

static void show_stats(const lfm3_stats *stats)
{
    double prefill = 1e-6 * (double)stats->prefill_us, decode = 1e-6 * (double)stats->decode_us;
    double fresh = (double)(stats->prompt_tokens - stats->cached_tokens);
    fprintf(stderr, "prompt %llu tokens, %llu of them kept, %.3f s (%.1f/s); reply %llu tokens, %.3f s (%.1f/s); "
                    "first token after %.3f s; stream %.1f MB\n",
            (unsigned long long)stats->prompt_tokens, (unsigned long long)stats->cached_tokens, prefill,
            prefill > 0 ? fresh / prefill : 0.0, (unsigned long long)stats->generated_tokens, decode,
            decode > 0 ? (double)stats->generated_tokens / decode : 0.0, 1e-6 * (double)stats->time_to_first_token_us,
            1e-6 * (double)stats->bytes);
}

/* Takes events and steps until the reply ends; 0 if it did, its answer in chat->answer. */
static int receive(struct chat *chat)
{
    lfm3_event event;
    int idle = 0;
    memset(&event, 0, sizeof event);
    event.struct_size = sizeof event;
    for (;;) {
        int32_t status = lfm3_stream_next(chat->stream, &event);
        if (status == LFM3_PENDING) {
            if (interrupted) {
                interrupted = 0;
                lfm3_stream_cancel(chat->stream);
            }
            status = lfm3_model_step(chat->model, STEP_US, NULL);
            idle = status == LFM3_IDLE ? idle + 1 : 0;
            if (status < 0 || idle > 1)
                return fail(chat, status);
        } else if (status != LFM3_OK) {
            return status == LFM3_DONE ? 0 : fail(chat, status);
        } else if (event.kind != LFM3_EVENT_DONE) {
            show(chat, &event);
        } else {
            dim(chat, 0);
            if (event.done_reason == LFM3_DONE_ERROR)
                return fail(chat, LFM3_ERR_STATE);
            putchar('\n');
            fflush(stdout);
            if (event.done_reason == LFM3_DONE_CONTEXT_FULL)
                fputs("chat: the context is full\n", stderr);
            if (chat->options->stats && event.usage != NULL)
                show_stats(event.usage);
            return 0;
        }
    }
}

/* One turn: all that was said goes to the library, which keeps what it has of it. */
static int turn(struct chat *chat, const char *question, size_t len)
{
    struct text json = {NULL, 0, 0};
    int32_t status;
    int result = -1;
    append_message(&chat->messages, "user", question, len);
    append_string(&json, "{\"messages\": [");
    append(&json, chat->messages.bytes, chat->messages.len);
    append_string(&json, "], \"add_generation_prompt\": true, \"enable_thinking\": ");
    append_string(&json, chat->options->think ? "true}" : "false}");
    chat->answer.len = 0;
    interrupted = 0;
    status = lfm3_stream_set_chat(chat->stream, json.bytes, json.len, NULL, 0);
    if (status == LFM3_OK)
        status = lfm3_stream_generate(chat->stream, &chat->options->generate);
    if (status == LFM3_OK)
        result = receive(chat);
    else
        fail(chat, status);
    append_message(&chat->messages, "assistant", chat->answer.len > 0 ? chat->answer.bytes : "", chat->answer.len);
    free(json.bytes);
    return result;
}

/* Turns until end of input or Ctrl-C at the prompt. */
static int interactive(struct chat *chat)
{
    char *line = NULL;
    size_t room = 0;
    int result = 0;
    while (result == 0) {
        ssize_t len;
        interrupted = 0;
        if (isatty(STDIN_FILENO)) {
            fputs("> ", stdout);
            fflush(stdout);
        }
        len = getline(&line, &room, stdin);
        if (len < 0)
            break;
        while (len > 0 && (line[len - 1] == '\n' || line[len - 1] == '\r'))
            len--;
        if (len > 0)
            result = turn(chat, line, (size_t)len);
    }
    free(line);
    if (isatty(STDIN_FILENO))
        putchar('\n');
    return result;
}

int main(int argc, char **argv)
{
    struct options options;
    struct sigaction action;
    struct chat chat;
    int result = -1;

    parse(argc, argv, &options);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt; /* without SA_RESTART: Ctrl-C ends the wait at the prompt */
    sigaction(SIGINT, &action, NULL);

    memset(&chat, 0, sizeof chat);
    chat.options = &options;
    chat.model = load(&options);
    if (chat.model == NULL)
        return 1;
    if (lfm3_stream_new(chat.model, NULL, &chat.stream) != LFM3_OK) {
        fail(&chat, LFM3_ERR_LIMIT);
    } else {
        if (options.system != NULL)
            append_message(&chat.messages, "system", options.system, strlen(options.system));
        if (options.question != NULL)
            result = turn(&chat, options.question, strlen(options.question));
        else
            result = interactive(&chat);
    }
    lfm3_stream_free(chat.stream);
    lfm3_model_free(chat.model);
    free(chat.messages.bytes);
    free(chat.answer.bytes);
    return result == 0 ? 0 : 1;
}
