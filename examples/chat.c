/*
 * Chat with a model on the terminal.
 *
 *     chat [options]                  turn after turn, until end of input or Ctrl-C at the prompt
 *     chat [options] "a question"     one answer; it is the last line of the output
 *
 * Pictures and videos given as options belong to the first question. Between turns, lines that begin with a slash are
 * commands:
 *
 *     /image FILE          a picture for the next question
 *     /video FOLDER FPS    a video for the next question: the folder's pictures in the order of their names
 *     /tool TEXT           what a tool answered, in place of a question
 *
 * Ctrl-C during a reply stops the reply and not the program. Reasoning is shown, dimmed, on a terminal only.
 */

#define _POSIX_C_SOURCE 200809L
#if defined(__APPLE__)
#define _DARWIN_C_SOURCE /* sysconf's number of processors */
#endif

#include "lfm3.h"

#include "files.h"
#include "text.h"

#include <math.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define STEP_US 20000          /* between looks at Ctrl-C */
#define QUIET_LOAD_SECONDS 1.0 /* loads longer than this show how far they are */

static const char usage[] =
    "usage: chat [options] [question]\n"
    "  --model DIR      checkpoint folder (examples/demo-model)\n"
    "  --system TEXT    what the model is told before the first turn\n"
    "  --image FILE     a picture for the first question; may be given several times\n"
    "  --video FOLDER   a video for the first question: the folder's pictures in the order of their names\n"
    "  --fps X          frames a second of the video before it\n"
    "  --tools FILE     a JSON list of the tools that the model may call\n"
    "  --think          let the model reason first (the default)\n"
    "  --no-think       answer at once\n"
    "  --temp X         temperature; 0 is greedy (the checkpoint's own)\n"
    "  --seed N         the same seed gives the same replies\n"
    "  --max-tokens N   most tokens of a reply (up to the context limit)\n"
    "  --threads N      threads that compute (as many as processors, at most 8)\n"
    "  --stats          counts and times of each reply on stderr\n"
    "between turns: /image FILE, /video FOLDER FPS, /tool TEXT (what a tool answered)\n";

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

/* ---- pictures and videos ---- */

#define DEFAULT_FPS 1.0

/* What was given so far, in order: the library wants all of it at each turn. */
struct album {
    lfm3_media *media;
    char **names;
    size_t count;
};

static lfm3_media *add(struct album *album, const char *name)
{
    struct text copy = {NULL, 0, 0};
    lfm3_media *media;
    append_string(&copy, name);
    album->media = (lfm3_media *)grown(album->media, (album->count + 1) * sizeof *album->media);
    album->names = (char **)grown(album->names, (album->count + 1) * sizeof *album->names);
    album->names[album->count] = copy.bytes;
    media = &album->media[album->count++];
    lfm3_media_init(media, sizeof *media);
    return media;
}

static void forget_from(struct album *album, size_t first)
{
    while (album->count > first) {
        album->count--;
        free((void *)album->media[album->count].data);
        free((void *)album->media[album->count].frame_sizes);
        free(album->names[album->count]);
    }
}

/* Appends a file to `data`; 0, or -1 with the reason on stderr. */
static int read_into(struct text *data, const char *path)
{
    int error = read_file(path, data);
    if (error != 0)
        fprintf(stderr, "chat: cannot read %s: %s\n", path, strerror(error));
    return error == 0 ? 0 : -1;
}

static int add_picture(struct album *album, const char *path)
{
    struct text data = {NULL, 0, 0};
    lfm3_media *media;
    if (read_into(&data, path) != 0) {
        free(data.bytes);
        return -1;
    }
    media = add(album, path);
    media->data = (const uint8_t *)data.bytes;
    media->data_len = data.len;
    return 0;
}

static int add_video(struct album *album, const char *folder, double fps)
{
    struct paths frames = {NULL, 0};
    struct text data = {NULL, 0, 0};
    size_t *sizes = NULL, i;
    int error = list_pictures(folder, &frames), result = -1;
    if (error != 0 || frames.count == 0) {
        fprintf(stderr, "chat: no frames in %s: %s\n", folder, error != 0 ? strerror(error) : "it has no pictures");
    } else {
        result = 0;
        sizes = (size_t *)grown(NULL, frames.count * sizeof *sizes);
        for (i = 0; i < frames.count && result == 0; i++) {
            size_t before = data.len;
            result = read_into(&data, frames.items[i]);
            sizes[i] = data.len - before;
        }
    }
    if (result == 0) {
        lfm3_media *media = add(album, folder);
        media->kind = LFM3_MEDIA_VIDEO;
        media->data = (const uint8_t *)data.bytes;
        media->data_len = data.len;
        media->frame_count = frames.count;
        media->frame_sizes = sizes;
        media->fps = fps;
    } else {
        free(data.bytes);
        free(sizes);
    }
    free_paths(&frames);
    return result;
}

/* ---- options ---- */

struct options {
    const char *model, *system, *question;
    int think, stats, threads;
    struct text tools; /* JSON, empty without */
    struct album album;
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

static double real(const char *name, const char *value)
{
    char *end;
    double parsed = strtod(value, &end);
    if (*value == 0 || *end != 0 || !isfinite(parsed)) {
        fprintf(stderr, "chat: %s takes a number, not \"%s\"\n", name, value);
        exit(2);
    }
    return parsed;
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

/* Options about files, which are read at once; 1 if `name` was one. */
static int parse_file(const char *name, const char *value, struct options *options)
{
    struct album *album = &options->album;
    int failed = 0;
    if (strcmp(name, "--image") == 0)
        failed = add_picture(album, value);
    else if (strcmp(name, "--video") == 0)
        failed = add_video(album, value, DEFAULT_FPS);
    else if (strcmp(name, "--tools") == 0)
        failed = read_into(&options->tools, value);
    else if (strcmp(name, "--fps") == 0 && album->count > 0 && album->media[album->count - 1].frame_count > 0)
        album->media[album->count - 1].fps = real(name, value);
    else
        return 0;
    if (failed)
        exit(1);
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
        options->generate.temperature = (float)real(name, value);
    else if (strcmp(name, "--seed") == 0)
        options->generate.seed = number(name, value);
    else if (strcmp(name, "--max-tokens") == 0)
        options->generate.max_tokens = (uint64_t)number(name, value);
    else if (strcmp(name, "--threads") == 0)
        options->threads = (int)number(name, value);
    else
        return parse_file(name, value, options);
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
    struct album *album;
    size_t asked;         /* of the album, what belongs to earlier turns */
    struct text messages; /* JSON objects, comma between */
    struct text answer;   /* of the reply that runs */
    int dimmed;           /* reasoning is being shown */
    int newlines;         /* of it, held back */
    int midline;          /* the last line shown has no end yet */
};

/* Says what failed, and with which file where `file` is not NULL. */
static int fail_with(const struct chat *chat, const char *file, int32_t status)
{
    char error[1024] = "";
    lfm3_stream_error(chat->stream, error, sizeof error, NULL);
    if (error[0] == 0)
        lfm3_model_error(chat->model, error, sizeof error, NULL);
    fprintf(stderr, "chat: %s%s%s (%s)\n", file != NULL ? file : "", file != NULL ? ": " : "", error,
            lfm3_status_name(status));
    return -1;
}

static int fail(const struct chat *chat, int32_t status)
{
    return fail_with(chat, NULL, status);
}

static void dim(struct chat *chat, int on)
{
    if (chat->dimmed != on)
        fputs(on ? "\033[2m" : "\033[0m\n", stdout);
    chat->dimmed = on;
    chat->newlines = 0;
}

/* Line ends are held back until more follows: those at the end of the thinking are not shown. */
static void show_reasoning(struct chat *chat, const char *text, size_t len)
{
    size_t i;
    if (!chat->dimmed)
        dim(chat, 1);
    for (i = 0; i < len; i++) {
        if (text[i] == '\n') {
            chat->newlines++;
            continue;
        }
        for (; chat->newlines > 0; chat->newlines--)
            putchar('\n');
        putchar(text[i]);
    }
}

static void end_line(struct chat *chat)
{
    if (chat->midline)
        putchar('\n');
    chat->midline = 0;
}

static void show(struct chat *chat, const lfm3_event *event)
{
    if (event->kind == LFM3_EVENT_REASONING && isatty(STDOUT_FILENO)) {
        show_reasoning(chat, event->text, event->text_len);
    } else if (event->kind == LFM3_EVENT_TEXT && event->text_len > 0) {
        dim(chat, 0);
        append(&chat->answer, event->text, event->text_len);
        fwrite(event->text, 1, event->text_len, stdout);
        chat->midline = event->text[event->text_len - 1] != '\n';
    } else if (event->kind == LFM3_EVENT_TOOL_CALL) {
        dim(chat, 0);
        end_line(chat);
        append(&chat->answer, event->text, event->text_len); /* as written: it belongs to the turn's content */
        printf("%s %s\n", event->name, event->arguments);
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
            end_line(chat);
            fflush(stdout);
            if (event.done_reason == LFM3_DONE_ERROR)
                return fail(chat, LFM3_ERR_STATE);
            if (event.done_reason == LFM3_DONE_CONTEXT_FULL)
                fputs("chat: the context is full\n", stderr);
            if (chat->options->stats && event.usage != NULL)
                show_stats(event.usage);
            return 0;
        }
    }
}

/* ---- turns ---- */

/* Appends a message. Pictures and videos that were given since the last one are its first parts. */
static void append_message(struct chat *chat, const char *role, const char *content, size_t len)
{
    struct text *messages = &chat->messages;
    append_string(messages, messages->len > 0 ? ", {\"role\": \"" : "{\"role\": \"");
    append_string(messages, role);
    append_string(messages, "\", \"content\": ");
    if (strcmp(role, "user") == 0 && chat->asked < chat->album->count) {
        append_string(messages, "[");
        for (; chat->asked < chat->album->count; chat->asked++) {
            int video = chat->album->media[chat->asked].kind == LFM3_MEDIA_VIDEO;
            append_string(messages, video ? "{\"type\": \"video\"}, " : "{\"type\": \"image\"}, ");
        }
        append_string(messages, "{\"type\": \"text\", \"text\": ");
        append_json(messages, content, len);
        append_string(messages, "}]");
    } else {
        append_json(messages, content, len);
    }
    append_string(messages, "}");
}

/* All that was said goes to the library, which keeps what it has of it. */
static int32_t ask(struct chat *chat)
{
    const struct options *options = chat->options;
    struct text json = {NULL, 0, 0};
    int32_t status;
    append_string(&json, "{\"messages\": [");
    append(&json, chat->messages.bytes, chat->messages.len);
    append_string(&json, "], \"add_generation_prompt\": true, \"enable_thinking\": ");
    append_string(&json, options->think ? "true" : "false");
    if (options->tools.len > 0) {
        append_string(&json, ", \"tools\": ");
        append(&json, options->tools.bytes, options->tools.len);
    }
    append_string(&json, "}");
    status = lfm3_stream_set_chat(chat->stream, json.bytes, json.len, chat->album->media, chat->album->count);
    free(json.bytes);
    return status == LFM3_OK ? lfm3_stream_generate(chat->stream, &options->generate) : status;
}

/* Has the library look at each new picture and video by itself, so that an error names its file. */
static int check_media(struct chat *chat)
{
    uint64_t length = 0;
    size_t i;
    lfm3_stream_length(chat->stream, &length);
    for (i = chat->asked; i < chat->album->count; i++) {
        int32_t status = lfm3_stream_append_media(chat->stream, &chat->album->media[i]);
        if (status != LFM3_OK)
            return fail_with(chat, chat->album->names[i], status);
        lfm3_stream_rewind(chat->stream, length);
    }
    return 0;
}

/* One turn. Where it fails, it was not: the conversation can go on without it. */
static int turn(struct chat *chat, const char *role, const char *content, size_t len)
{
    size_t messages = chat->messages.len, asked = chat->asked, i;
    int32_t status;
    int result = check_media(chat);
    chat->answer.len = 0;
    interrupted = 0;
    if (result == 0) {
        append_message(chat, role, content, len);
        status = ask(chat);
        result = status == LFM3_OK ? receive(chat) : fail(chat, status);
        for (i = asked; result != 0 && i < chat->asked; i++)
            fprintf(stderr, "chat: the question came with %s\n", chat->album->names[i]);
    }
    if (result == 0) {
        append_message(chat, "assistant", chat->answer.len > 0 ? chat->answer.bytes : "", chat->answer.len);
    } else {
        chat->messages.len = messages;
        chat->asked = asked;
        forget_from(chat->album, asked);
    }
    return result;
}

/* What follows a command's name on its line, NULL if the line is another's. */
static char *argument(char *line, const char *command)
{
    size_t len = strlen(command);
    return strncmp(line, command, len) == 0 && line[len] == ' ' ? line + len + 1 : NULL;
}

/* A line of an interactive chat: a command or a question. */
static int take_line(struct chat *chat, char *line, size_t len)
{
    char *image = argument(line, "/image"), *video = argument(line, "/video"), *tool = argument(line, "/tool");
    if (image != NULL)
        return add_picture(chat->album, image);
    if (tool != NULL)
        return turn(chat, "tool", tool, strlen(tool));
    if (video != NULL) {
        char *gap = strrchr(video, ' '), *end = gap;
        double fps = gap != NULL ? strtod(gap + 1, &end) : 0;
        if (gap == NULL || end == gap + 1 || *end != 0) {
            fputs("chat: /video FOLDER FPS\n", stderr);
            return -1;
        }
        *gap = 0;
        return add_video(chat->album, video, fps);
    }
    return turn(chat, "user", line, len);
}

/* Turns until end of input or Ctrl-C at the prompt; -1 if one failed. */
static int interactive(struct chat *chat)
{
    char *line = NULL;
    size_t room = 0;
    int result = 0;
    for (;;) {
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
            line[--len] = 0;
        if (len > 0 && take_line(chat, line, (size_t)len) != 0)
            result = -1;
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
    chat.album = &options.album;
    chat.model = load(&options);
    if (chat.model == NULL)
        return 1;
    if (lfm3_stream_new(chat.model, NULL, &chat.stream) != LFM3_OK) {
        fail(&chat, LFM3_ERR_LIMIT);
    } else {
        if (options.system != NULL)
            append_message(&chat, "system", options.system, strlen(options.system));
        if (options.question != NULL)
            result = turn(&chat, "user", options.question, strlen(options.question));
        else
            result = interactive(&chat);
    }
    lfm3_stream_free(chat.stream);
    lfm3_model_free(chat.model);
    forget_from(&options.album, 0);
    free(options.album.media);
    free(options.album.names);
    free(options.tools.bytes);
    free(chat.messages.bytes);
    free(chat.answer.bytes);
    return result == 0 ? 0 : 1;
}
