/* What the C tests share. Each is C99 and C++17, and ends with 0 or says what failed. */

#ifndef CHECK_H
#define CHECK_H

#include "lfm3.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                     \
    do {                                                                                     \
        if (!(condition)) {                                                                  \
            fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition);        \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

/* The status a call must give. */
#define GIVES(status, call)                                                                  \
    do {                                                                                     \
        int32_t given_ = (call);                                                             \
        if (given_ != (status)) {                                                            \
            fprintf(stderr, "%s:%d: %s gives %s, not %s\n", __FILE__, __LINE__, #call,       \
                    lfm3_status_name(given_), #status);                                      \
            exit(1);                                                                         \
        }                                                                                    \
    } while (0)

#define GIVES_OK(call) GIVES(LFM3_OK, call)

static inline lfm3_model *open_model(const char *dir, int32_t threads)
{
    char error[512] = "";
    lfm3_model *model = NULL;
    lfm3_model_params params;
    GIVES_OK(lfm3_model_params_init(&params, sizeof params));
    params.threads = threads;
    params.error = error;
    params.error_size = sizeof error;
    if (lfm3_model_open(dir, strlen(dir), &params, &model) != LFM3_OK) {
        fprintf(stderr, "cannot open %s: %s\n", dir, error);
        exit(1);
    }
    return model;
}

static inline lfm3_event empty_event(void)
{
    lfm3_event event;
    memset(&event, 0, sizeof event);
    event.struct_size = sizeof event;
    return event;
}

#endif
