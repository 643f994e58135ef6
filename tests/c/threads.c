/* One thread steps; others use streams of their own beside it, cancel, free streams during a step, and misuse `step`
 * and `next`, which answer BUSY. Usage: threads CHECKPOINT */

#define _POSIX_C_SOURCE 200809L

#include "pictures.h"

#include <pthread.h>

#define WORKERS 3
#define ROUNDS 12

static lfm3_model *model;
static lfm3_stream *shared;
static int stop; /* guarded by `lock` */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int stopped(void)
{
    int value;
    pthread_mutex_lock(&lock);
    value = stop;
    pthread_mutex_unlock(&lock);
    return value;
}

static void *step(void *unused)
{
    (void)unused;
    while (!stopped()) {
        int32_t status = lfm3_model_step(model, 1000, NULL);
        CHECK(status == LFM3_MORE || status == LFM3_IDLE || status == LFM3_ERR_BUSY);
    }
    return NULL;
}

/* A conversation of its own, freed at a random moment of the step. */
static void *talk(void *arg)
{
    unsigned number = (unsigned)(size_t)arg;
    uint8_t rgb[3 * 64 * 64];
    lfm3_media media = rgb_picture(rgb, 64, 64, 3 * 64);
    int round;
    for (round = 0; round < ROUNDS; round++) {
        lfm3_stream *stream = NULL;
        lfm3_event event = empty_event();
        lfm3_stats stats;
        unsigned events = 0, most = (number + (unsigned)round) % 4;
        int32_t status;
        memset(&stats, 0, sizeof stats);
        stats.struct_size = sizeof stats;
        GIVES_OK(lfm3_stream_new(model, NULL, &stream));
        GIVES_OK(lfm3_stream_append_text(stream, "Mia is in the attic.", 20, 0));
        if (round % 3 == 1) {
            stripes(rgb, 64, 64, 3 * 64, number + (unsigned)round);
            GIVES_OK(lfm3_stream_append_media(stream, &media));
            memset(rgb, 0, sizeof rgb);
        }
        GIVES_OK(lfm3_stream_generate(stream, NULL));
        while (events < most && (status = lfm3_stream_next(stream, &event)) != LFM3_DONE) {
            CHECK(status == LFM3_OK || status == LFM3_PENDING);
            events += status == LFM3_OK;
            GIVES_OK(lfm3_stream_stats(stream, &stats));
        }
        if (round % 2 == 0)
            GIVES_OK(lfm3_stream_cancel(stream));
        GIVES_OK(lfm3_stream_free(stream));
    }
    return NULL;
}

/* Two of these share one stream, against the rules: no crash, no wrong status. */
static void *misuse(void *unused)
{
    (void)unused;
    while (!stopped()) {
        lfm3_event event = empty_event();
        int32_t status = lfm3_stream_next(shared, &event);
        CHECK(status == LFM3_OK || status == LFM3_PENDING || status == LFM3_DONE || status == LFM3_ERR_BUSY);
        status = lfm3_model_step(model, 100, NULL);
        CHECK(status == LFM3_MORE || status == LFM3_IDLE || status == LFM3_ERR_BUSY);
        GIVES_OK(lfm3_stream_cancel(shared));
    }
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t stepper, talkers[WORKERS], misusers[2];
    size_t i;
    CHECK(argc == 2);
    model = open_model(argv[1], 1);
    GIVES_OK(lfm3_stream_new(model, NULL, &shared));
    GIVES_OK(lfm3_stream_append_text(shared, "Mia", 3, 0));
    CHECK(pthread_create(&stepper, NULL, step, NULL) == 0);
    for (i = 0; i < 2; i++)
        CHECK(pthread_create(&misusers[i], NULL, misuse, NULL) == 0);
    for (i = 0; i < WORKERS; i++)
        CHECK(pthread_create(&talkers[i], NULL, talk, (void *)i) == 0);
    for (i = 0; i < WORKERS; i++)
        CHECK(pthread_join(talkers[i], NULL) == 0);
    pthread_mutex_lock(&lock);
    stop = 1;
    pthread_mutex_unlock(&lock);
    CHECK(pthread_join(stepper, NULL) == 0);
    for (i = 0; i < 2; i++)
        CHECK(pthread_join(misusers[i], NULL) == 0);
    GIVES_OK(lfm3_model_free(model));
    GIVES(LFM3_ERR_CLOSED, lfm3_stream_cancel(shared));
    GIVES_OK(lfm3_stream_free(shared));
    return 0;
}
