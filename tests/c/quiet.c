/* A whole life of a model and a stream, during which the library reads no environment variable, opens no socket, and
 * after which no thread of it is left. Prints nothing; the caller checks. Usage: quiet CHECKPOINT THREADS */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* dladdr */
#endif

#include "pictures.h"

#include <dirent.h>
#include <dlfcn.h>
#include <unistd.h>

static int environment_reads, sockets;

/* The library's calls come here, since a program's own functions go before libc's. */
#ifdef __cplusplus
#define NOTHROW noexcept
extern "C" {
#else
#define NOTHROW
#endif
char *getenv(const char *name) NOTHROW;
char *secure_getenv(const char *name) NOTHROW;
int socket(int domain, int type, int protocol) NOTHROW;

static int from_library(void *caller)
{
    Dl_info info;
    return dladdr(caller, &info) != 0 && info.dli_fname != NULL && strstr(info.dli_fname, "liblfm3") != NULL;
}

static char *find(const char *name)
{
    extern char **environ;
    size_t len = strlen(name);
    char **entry;
    for (entry = environ; entry != NULL && *entry != NULL; entry++)
        if (strncmp(*entry, name, len) == 0 && (*entry)[len] == '=')
            return *entry + len + 1;
    return NULL;
}

char *getenv(const char *name) NOTHROW
{
    if (from_library(__builtin_return_address(0))) {
        fprintf(stderr, "the library reads %s from the environment\n", name);
        environment_reads++;
    }
    return find(name);
}

char *secure_getenv(const char *name) NOTHROW
{
    if (from_library(__builtin_return_address(0)))
        environment_reads++;
    return find(name);
}

int socket(int domain, int type, int protocol) NOTHROW
{
    (void)domain;
    (void)type;
    (void)protocol;
    sockets++;
    return -1;
}
#ifdef __cplusplus
}
#endif

static int threads(void)
{
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    struct dirent *task;
    CHECK(tasks != NULL);
    while ((task = readdir(tasks)) != NULL)
        count += task->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void reply(lfm3_model *model, lfm3_stream *stream)
{
    static const char chat[] = "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}, "
                               "{\"type\": \"text\", \"text\": \"Who is in the attic?\"}]}]}";
    size_t len;
    uint8_t *file = bmp_file(128, 96, 3, &len);
    lfm3_media media = media_of_kind(LFM3_MEDIA_PICTURE, file, len);
    lfm3_event event = empty_event();
    lfm3_generate_params params;
    int32_t status;
    GIVES_OK(lfm3_generate_params_init(&params, sizeof params));
    params.max_tokens = 8;
    GIVES_OK(lfm3_stream_set_chat(stream, chat, strlen(chat), &media, 1));
    free(file);
    GIVES_OK(lfm3_stream_generate(stream, &params));
    while ((status = lfm3_stream_next(stream, &event)) != LFM3_DONE) {
        CHECK(status >= 0);
        if (status == LFM3_PENDING)
            CHECK(lfm3_model_step(model, 5000, NULL) >= 0);
    }
    CHECK(event.kind == LFM3_EVENT_DONE);
}

int main(int argc, char **argv)
{
    lfm3_model *model;
    lfm3_stream *stream = NULL;
    int wanted;
    CHECK(argc == 3);
    CHECK(getenv("PATH") == find("PATH"));
    wanted = atoi(argv[2]);
    CHECK(threads() == 1);
    model = open_model(argv[1], wanted);
    CHECK(threads() == wanted); /* the stepping thread is one of them */
    GIVES_OK(lfm3_stream_new(model, NULL, &stream));
    reply(model, stream);
    CHECK(lfm3_stream_append_text(stream, "\x80", 1, 0) < 0); /* errors are quiet, too */
    GIVES_OK(lfm3_stream_free(stream));
    GIVES_OK(lfm3_model_free(model));
    CHECK(threads() == 1);
    CHECK(environment_reads == 0);
    CHECK(sockets == 0);
    return 0;
}
