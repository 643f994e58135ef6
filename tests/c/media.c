/* Wrong media: each field, the array, and chats whose parts do not fit are refused with their status and leave the
 * stream as it was; what a call took may be gone afterwards.
 * Usage: media CHECKPOINT PICTURE ANSWER; the answer to "Describe the picture." */

#include "pictures.h"

#include <math.h>

#if defined(__clang__) /* the header tells clang what may not be NULL; here it is, on purpose */
#pragma clang diagnostic ignored "-Wnonnull"
#endif

#define WIDTH 96
#define HEIGHT 64
#define STRIDE (3 * WIDTH + 12)
#define FRAMES 3

#define USER(content) "{\"messages\": [{\"role\": \"user\", \"content\": [" content "]}], \"enable_thinking\": false}"
#define IMAGE "{\"type\": \"image\"}, "
#define VIDEO "{\"type\": \"video\"}, "
#define TEXT "{\"type\": \"text\", \"text\": \"Describe the picture.\"}"

static lfm3_stream *stream;
static uint8_t *file;
static size_t file_len;
static uint8_t rgb[FRAMES * STRIDE * HEIGHT];

static uint64_t length(void)
{
    uint64_t held = 0;
    GIVES_OK(lfm3_stream_length(stream, &held));
    return held;
}

static int32_t set(const char *json, const lfm3_media *media, size_t count)
{
    return lfm3_stream_set_chat(stream, json, strlen(json), media, count);
}

/* Neither call takes it, and the stream holds what it held. */
#define REFUSED(status, media)                                                               \
    do {                                                                                     \
        uint64_t before_ = length();                                                         \
        char error_[512] = "";                                                               \
        GIVES(status, lfm3_stream_append_media(stream, &(media)));                           \
        GIVES_OK(lfm3_stream_error(stream, error_, sizeof error_, NULL));                    \
        CHECK(strlen(error_) > 0);                                                           \
        GIVES(status, set((media).frame_count > 0 ? USER(VIDEO TEXT) : USER(IMAGE TEXT), &(media), 1)); \
        CHECK(length() == before_);                                                          \
    } while (0)

/* Takes it; the tokens it stands for. */
static uint64_t taken(const lfm3_media *media)
{
    uint64_t before = length(), tokens;
    GIVES_OK(lfm3_stream_append_media(stream, media));
    tokens = length() - before;
    GIVES_OK(lfm3_stream_rewind(stream, before));
    CHECK(tokens > 2);
    return tokens;
}

static void struct_sizes(void)
{
    static const uint32_t bad[] = {0, 4, 12, 4104, UINT32_MAX};
    size_t i;
    struct {
        lfm3_media media;
        uint64_t tail;
    } newer;
    lfm3_media media = media_of_kind(LFM3_MEDIA_PICTURE, file, file_len);
    GIVES(LFM3_ERR_INVALID_ARGUMENT, lfm3_stream_append_media(stream, NULL));
    for (i = 0; i < sizeof bad / sizeof *bad; i++) {
        media.struct_size = bad[i];
        REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    }
    media.struct_size = 8; /* ends before `data` */
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media.struct_size = 8 + sizeof media.data + sizeof media.data_len; /* an older header's: no fields of RGB */
    media.width = 1;
    CHECK(taken(&media) > 0);
    memset(&newer, 0, sizeof newer);
    newer.media = media_of_kind(LFM3_MEDIA_PICTURE, file, file_len);
    newer.media.struct_size = sizeof newer;
    CHECK(taken(&newer.media) > 0);
    newer.tail = 1;
    REFUSED(LFM3_ERR_UNSUPPORTED, newer.media);
}

static void pictures(void)
{
    static const char text[] = "this is no picture at all, and no header of one";
    static const int32_t kinds[] = {0, -1, 5, INT32_MAX, INT32_MIN};
    size_t i;
    lfm3_media media = media_of_kind(LFM3_MEDIA_PICTURE, NULL, 5);
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = media_of_kind(LFM3_MEDIA_PICTURE, file, 0);
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = media_of_kind(LFM3_MEDIA_PICTURE, NULL, 0);
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = media_of_kind(LFM3_MEDIA_PICTURE, file, SIZE_MAX);
    REFUSED(LFM3_ERR_LIMIT, media);
    media = media_of_kind(LFM3_MEDIA_PICTURE, (const uint8_t *)text, sizeof text);
    REFUSED(LFM3_ERR_UNSUPPORTED, media);
    for (i = 1; i < 24; i++) { /* the file ends within its format's mark, or within its header */
        media = media_of_kind(LFM3_MEDIA_PICTURE, file, i);
        if (i < 8)
            REFUSED(LFM3_ERR_UNSUPPORTED, media);
        else
            REFUSED(LFM3_ERR_FORMAT, media);
    }
    for (i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        media = media_of_kind(kinds[i], file, file_len);
        REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    }
}

static void rows(void)
{
    const lfm3_media good = rgb_picture(rgb, WIDTH, HEIGHT, STRIDE);
    const uint64_t tokens = taken(&good);
    lfm3_media media = good;
    media.width = 0;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = good;
    media.height = 0;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = good;
    media.stride = 3 * WIDTH - 1;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media.stride = STRIDE + 1; /* the last row ends behind the data */
    media.data_len = STRIDE * HEIGHT;
    media.data = rgb;
    media.height = HEIGHT + 1;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = good;
    media.stride = SIZE_MAX;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = good;
    media.height = HEIGHT + 1;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = good;
    media.data_len = (HEIGHT - 1) * STRIDE + 3 * WIDTH - 1; /* one byte short */
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media.data_len++; /* nothing need follow the last row's pixels */
    CHECK(taken(&media) == tokens);
    media = good;
    media.stride = 0; /* rows without gaps */
    CHECK(taken(&media) == tokens);
    media = good;
    media.width = media.height = UINT32_MAX;
    media.stride = 0;
    REFUSED(LFM3_ERR_LIMIT, media);
    media = good;
    media.width = 1;
    media.height = 201; /* 1 : 200 is the most */
    media.stride = 3;
    REFUSED(LFM3_ERR_UNSUPPORTED, media);
    media.height = 200;
    CHECK(taken(&media) > 0);
}

static void video_frames(void)
{
    size_t sizes[FRAMES];
    uint8_t *frames, *small;
    size_t small_len, i;
    lfm3_media good, media;
    small = bmp_file(64, 48, 1, &small_len);
    frames = (uint8_t *)malloc(FRAMES * small_len);
    CHECK(frames != NULL);
    for (i = 0; i < FRAMES; i++) {
        memcpy(frames + i * small_len, small, small_len);
        sizes[i] = small_len;
    }
    good = media_of_kind(LFM3_MEDIA_VIDEO, frames, FRAMES * small_len);
    good.frame_count = FRAMES;
    good.frame_sizes = sizes;
    good.fps = 2;
    CHECK(taken(&good) > 0);
    media = good;
    media.frame_count = 0;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media.frame_count = SIZE_MAX;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media.frame_count = FRAMES - 1; /* bytes are left */
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = good;
    media.data_len--; /* bytes are missing */
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = good;
    media.frame_sizes = NULL;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media = good;
    sizes[1] = SIZE_MAX;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    sizes[1] = 0; /* no frame there, and the third has too many bytes, which files may */
    sizes[2] = 2 * small_len;
    REFUSED(LFM3_ERR_UNSUPPORTED, media);
    sizes[1] = sizes[2] = small_len;
    put_u32(frames + small_len + 18, 48); /* the second frame says 48 x 48 */
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    free(small);
    free(frames);
}

static void video_times(void)
{
    static const double bad_rates[] = {-1, NAN, INFINITY, -INFINITY};
    static const double bad_times[][FRAMES] = {{0, NAN, 1}, {NAN, 1, 2}, {0, 2, 1}, {-1, 0, 1}, {0, 1, INFINITY}};
    static const double times[FRAMES] = {0.5, 1, 1}, still[FRAMES] = {3, 3, 3};
    const size_t frame = STRIDE * HEIGHT;
    size_t i;
    lfm3_media media = rgb_picture(rgb, WIDTH, HEIGHT, STRIDE);
    media.kind = LFM3_MEDIA_VIDEO_RGB;
    media.data_len = sizeof rgb;
    media.frame_count = FRAMES;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media); /* neither a rate nor times */
    for (i = 0; i < sizeof bad_rates / sizeof *bad_rates; i++) {
        media.fps = bad_rates[i];
        REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    }
    media.fps = 0;
    for (i = 0; i < sizeof bad_times / sizeof *bad_times; i++) {
        media.frame_times = bad_times[i];
        REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    }
    media.frame_times = still;
    CHECK(taken(&media) > 0);
    media.frame_times = times;
    CHECK(taken(&media) > 0);
    media.fps = 30;
    CHECK(taken(&media) > 0);
    media.frame_stride = frame;
    CHECK(taken(&media) > 0);
    media.frame_stride = frame - STRIDE; /* frames that overlap */
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media.frame_stride = frame + STRIDE; /* the last ends behind the data */
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media.frame_stride = SIZE_MAX / 2;
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media.frame_stride = 0;
    media.data_len = 2 * frame; /* the third is missing */
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
    media.data_len = sizeof rgb;
    media.height = HEIGHT + 1; /* frames as given by stride and height do not fit */
    REFUSED(LFM3_ERR_INVALID_ARGUMENT, media);
}

static void chats(void)
{
    static lfm3_media many[5000];
    const lfm3_media picture = media_of_kind(LFM3_MEDIA_PICTURE, file, file_len);
    lfm3_media two[2];
    char error[512];
    uint64_t before;
    two[0] = two[1] = picture;
    GIVES_OK(set(USER(IMAGE TEXT), two, 1));
    before = length();
    GIVES(LFM3_ERR_INVALID_ARGUMENT, set(USER(IMAGE TEXT), NULL, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, set(USER(IMAGE TEXT), NULL, 0));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, set(USER(IMAGE TEXT), two, 0));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, set(USER(IMAGE IMAGE TEXT), two, 1)); /* more parts than media */
    GIVES(LFM3_ERR_INVALID_ARGUMENT, set(USER(IMAGE TEXT), two, 2));       /* more media than parts */
    GIVES(LFM3_ERR_INVALID_ARGUMENT, set(USER(TEXT), two, 1));
    GIVES(LFM3_ERR_INVALID_ARGUMENT, set(USER(VIDEO TEXT), two, 1)); /* a picture where a video should be */
    GIVES(LFM3_ERR_LIMIT, set(USER(IMAGE TEXT), many, sizeof many / sizeof *many));
    GIVES(LFM3_ERR_LIMIT, set(USER(IMAGE TEXT), two, SIZE_MAX));
    two[1].struct_size = 24; /* elements are as far apart as the first says, so all must agree */
    GIVES(LFM3_ERR_INVALID_ARGUMENT, set(USER(IMAGE IMAGE TEXT), two, 2));
    GIVES_OK(lfm3_stream_error(stream, error, sizeof error, NULL));
    CHECK(strstr(error, "media 1") != NULL);
    two[1] = picture;
    two[1].data_len = 20;
    GIVES(LFM3_ERR_FORMAT, set(USER(IMAGE IMAGE TEXT), two, 2));
    CHECK(length() == before);
    two[1].data_len = file_len;
    GIVES_OK(set(USER(IMAGE IMAGE TEXT), two, 2));
    CHECK(length() > before);
    GIVES_OK(lfm3_stream_rewind(stream, 0));
}

/* A copy of the picture's file in memory that only the next call may look at. */
static uint8_t *copied(void)
{
    uint8_t *copy = (uint8_t *)malloc(file_len);
    CHECK(copy != NULL);
    memcpy(copy, file, file_len);
    return copy;
}

static void spoil(uint8_t *copy)
{
    memset(copy, 0x55, file_len);
    free(copy);
}

/* Generates to the end; why it ended. */
static int32_t reply(lfm3_model *model, char *text, size_t room)
{
    lfm3_event event = empty_event();
    lfm3_generate_params params;
    size_t len = 0;
    int32_t status;
    GIVES_OK(lfm3_generate_params_init(&params, sizeof params));
    params.temperature = 0;
    params.max_tokens = 64;
    GIVES_OK(lfm3_stream_generate(stream, &params));
    while ((status = lfm3_stream_next(stream, &event)) != LFM3_DONE) {
        CHECK(status >= 0);
        if (status == LFM3_PENDING) {
            CHECK(lfm3_model_step(model, 5000, NULL) >= 0);
        } else if (event.kind == LFM3_EVENT_TEXT && len + event.text_len < room) {
            memcpy(text + len, event.text, event.text_len);
            len += event.text_len;
        }
    }
    text[len] = 0;
    CHECK(event.kind == LFM3_EVENT_DONE);
    return event.done_reason;
}

static void data_is_the_callers_again_after_the_call(lfm3_model *model, const char *answer)
{
    static const char before[] = "<|startoftext|><|im_start|>user\n";
    static const char behind[] = "Describe the picture.<|im_end|>\n<|im_start|>assistant\n";
    char text[512];
    uint8_t *copy = copied();
    lfm3_media media = media_of_kind(LFM3_MEDIA_PICTURE, copy, file_len);
    GIVES_OK(set(USER(IMAGE TEXT), &media, 1));
    spoil(copy);
    CHECK(reply(model, text, sizeof text) == LFM3_DONE_STOP_TOKEN);
    if (strcmp(text, answer) != 0)
        fprintf(stderr, "set_chat: %s\n", text);

    GIVES_OK(lfm3_stream_rewind(stream, 0));
    copy = copied();
    media = media_of_kind(LFM3_MEDIA_PICTURE, copy, file_len);
    GIVES_OK(lfm3_stream_append_text(stream, before, strlen(before), LFM3_TEXT_CONTROL_TOKENS));
    GIVES_OK(lfm3_stream_append_media(stream, &media));
    spoil(copy);
    GIVES_OK(lfm3_stream_append_text(stream, behind, strlen(behind), LFM3_TEXT_CONTROL_TOKENS));
    CHECK(reply(model, text, sizeof text) == LFM3_DONE_STOP_TOKEN);
    if (strcmp(text, answer) != 0)
        fprintf(stderr, "append_media: %s\n", text);
}

/* A good header before broken pixels: the stream ends with an error, and is of use afterwards. */
static void broken_behind_the_header(lfm3_model *model, const char *answer)
{
    char text[512], error[512] = "";
    lfm3_media media = media_of_kind(LFM3_MEDIA_PICTURE, file, file_len / 2);
    GIVES_OK(set(USER(IMAGE TEXT), &media, 1));
    CHECK(reply(model, text, sizeof text) == LFM3_DONE_ERROR);
    GIVES_OK(lfm3_stream_error(stream, error, sizeof error, NULL));
    CHECK(strlen(error) > 0 && text[0] == 0);
    media.data_len = file_len;
    GIVES_OK(set(USER(IMAGE TEXT), &media, 1));
    CHECK(reply(model, text, sizeof text) == LFM3_DONE_STOP_TOKEN);
    if (strcmp(text, answer) != 0)
        fprintf(stderr, "after a broken picture: %s\n", text);
}

static void read_picture(const char *path)
{
    FILE *in = fopen(path, "rb");
    file = (uint8_t *)malloc(1 << 20);
    CHECK(in != NULL && file != NULL);
    file_len = fread(file, 1, 1 << 20, in);
    CHECK(file_len > 100 && file_len < 1 << 20);
    fclose(in);
}

int main(int argc, char **argv)
{
    lfm3_model *model;
    CHECK(argc == 4);
    model = open_model(argv[1], 1);
    GIVES_OK(lfm3_stream_new(model, NULL, &stream));
    read_picture(argv[2]);
    stripes(rgb, WIDTH, FRAMES * HEIGHT, STRIDE, 7);
    GIVES_OK(lfm3_stream_append_text(stream, "Before.", 7, 0));
    struct_sizes();
    pictures();
    rows();
    video_frames();
    video_times();
    chats();
    data_is_the_callers_again_after_the_call(model, argv[3]);
    broken_behind_the_header(model, argv[3]);
    GIVES_OK(lfm3_stream_free(stream));
    GIVES_OK(lfm3_model_free(model));
    free(file);
    return 0;
}
