/*
 * A host with a frame of its own: 60 times a second it does its own work, gives the model what is left of its share,
 * takes what two conversations have to say, and sleeps until the next frame. At the end it prints the replies and the
 * frame times it saw. Exits with 1 if a reply failed.
 *
 *     event_loop [--model DIR] [--budget MICROSECONDS] [--threads N] [--max-tokens N]
 */

#define _POSIX_C_SOURCE 200809L

#include "lfm3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAME_US 16667.0
#define OWN_WORK_US 2000.0 /* what this host would draw and simulate */
#define STREAMS 2
#define MAX_FRAMES 36000   /* ten minutes */
#define REPLY_BYTES 4096

#define USER(text) "{\"messages\": [{\"role\": \"user\", \"content\": \"" text "\"}]"

static const char *const questions[STREAMS] = {
    (USER("Eva finds a yellow basket in the cellar. Zoe buys a black boat at the farm. "
          "Eva gives the basket to Hugo. Zoe is now in the bakery.\\n\\nWho has the basket?") "}"),
    (USER("Extract name, age and city as JSON: Noah is 57 years old and lives in Nairobi.")
     ", \"enable_thinking\": false}"),
};

struct talk {
    lfm3_stream *stream;
    char reply[REPLY_BYTES];
    size_t len;
    int done; /* 0 running, 1 ended, -1 failed */
};

static double now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e6 * (double)now.tv_sec + 1e-3 * (double)now.tv_nsec;
}

static void own_work(double until_us)
{
    while (now_us() < until_us) {
    }
}

static void sleep_until(double us)
{
    double left = us - now_us();
    struct timespec pause;
    if (left <= 0)
        return;
    pause.tv_sec = (time_t)(left / 1e6);
    pause.tv_nsec = (long)(1e3 * (left - 1e6 * (double)pause.tv_sec));
    nanosleep(&pause, NULL);
}

static void report(const struct talk *talk, int32_t status)
{
    char error[512] = "";
    lfm3_stream_error(talk->stream, error, sizeof error, NULL);
    fprintf(stderr, "event_loop: %s (%s)\n", error, lfm3_status_name(status));
}

/* Makes a stream and asks its question; nothing is computed yet. */
static int begin(lfm3_model *model, struct talk *talk, const char *question, uint64_t max_tokens)
{
    lfm3_generate_params params;
    int32_t status;
    lfm3_generate_params_init(&params, sizeof params);
    params.temperature = 0;
    params.max_tokens = max_tokens;
    status = lfm3_stream_new(model, NULL, &talk->stream);
    if (status == LFM3_OK)
        status = lfm3_stream_set_chat(talk->stream, question, strlen(question), NULL, 0);
    if (status == LFM3_OK)
        status = lfm3_stream_generate(talk->stream, &params);
    if (status == LFM3_OK)
        return 0;
    report(talk, status);
    return -1;
}

/* Takes the events that are there, and waits for none. */
static void take(struct talk *talk)
{
    lfm3_event event;
    int32_t status;
    memset(&event, 0, sizeof event);
    event.struct_size = sizeof event;
    while ((status = lfm3_stream_next(talk->stream, &event)) == LFM3_OK) {
        if (event.kind == LFM3_EVENT_TEXT && event.text_len < REPLY_BYTES - talk->len) {
            memcpy(talk->reply + talk->len, event.text, event.text_len);
            talk->len += event.text_len;
        } else if (event.kind == LFM3_EVENT_DONE) {
            talk->done = event.done_reason == LFM3_DONE_ERROR ? -1 : 1;
            if (talk->done < 0)
                report(talk, LFM3_ERR_STATE);
            return;
        }
    }
    if (status < 0) {
        report(talk, status);
        talk->done = -1;
    }
}

static int by_size(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void print_times(const char *what, double *times, size_t count)
{
    if (count == 0)
        return;
    qsort(times, count, sizeof *times, by_size);
    printf("%s: median %.2f ms, p99 %.2f ms, worst %.2f ms\n", what, 1e-3 * times[count / 2],
           1e-3 * times[(count * 99 - 1) / 100], 1e-3 * times[count - 1]);
}

/* Runs frames until both replies ended; fills in the times each frame took, and each step within it. */
static size_t run(lfm3_model *model, struct talk *talks, uint64_t budget_us, double *frames, double *steps)
{
    size_t frame;
    double start = now_us();
    for (frame = 0; frame < MAX_FRAMES && (talks[0].done == 0 || talks[1].done == 0); frame++) {
        double step_start;
        int32_t status;
        int i;
        own_work(start + OWN_WORK_US);
        step_start = now_us();
        status = lfm3_model_step(model, budget_us, NULL);
        steps[frame] = now_us() - step_start;
        for (i = 0; i < STREAMS; i++) {
            if (talks[i].done == 0)
                take(&talks[i]);
            if (talks[i].done == 0 && status < 0) {
                report(&talks[i], status);
                talks[i].done = -1;
            }
        }
        sleep_until(start + FRAME_US);
        frames[frame] = now_us() - start;
        start += frames[frame];
    }
    return frame;
}

int main(int argc, char **argv)
{
    static struct talk talks[STREAMS];
    static double frames[MAX_FRAMES], steps[MAX_FRAMES];
    const char *dir = "examples/demo-model";
    uint64_t budget_us = 8000, max_tokens = 0;
    char error[512] = "";
    lfm3_model_params params;
    lfm3_model *model = NULL;
    size_t count;
    int i, failed = 0;

    lfm3_model_params_init(&params, sizeof params);
    params.error = error;
    params.error_size = sizeof error;
    for (i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--model") == 0)
            dir = argv[i + 1];
        else if (strcmp(argv[i], "--budget") == 0)
            budget_us = strtoull(argv[i + 1], NULL, 10);
        else if (strcmp(argv[i], "--threads") == 0)
            params.threads = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--max-tokens") == 0)
            max_tokens = strtoull(argv[i + 1], NULL, 10);
        else
            break;
    }
    if (i < argc || budget_us == 0) {
        fprintf(stderr, "usage: event_loop [--model DIR] [--budget MICROSECONDS] [--threads N] [--max-tokens N]\n");
        return 2;
    }
    if (lfm3_model_open(dir, strlen(dir), &params, &model) != LFM3_OK) {
        fprintf(stderr, "event_loop: cannot open %s: %s\n", dir, error);
        return 1;
    }
    for (i = 0; i < STREAMS; i++)
        failed |= begin(model, &talks[i], questions[i], max_tokens);
    count = failed ? 0 : run(model, talks, budget_us, frames, steps);
    for (i = 0; i < STREAMS; i++) {
        printf("stream %d: %.*s\n", i + 1, (int)talks[i].len, talks[i].reply);
        failed |= talks[i].done != 1;
        lfm3_stream_free(talks[i].stream);
    }
    lfm3_model_free(model);
    printf("%zu frames of %.1f ms, %llu us of each for the model\n", count, 1e-3 * FRAME_US,
           (unsigned long long)budget_us);
    print_times("frames", frames, count);
    print_times("steps", steps, count);
    return failed ? 1 : 0;
}
