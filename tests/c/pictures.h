/* Pictures that the C tests make: coloured stripes, as RGB and as a BMP file. */

#ifndef PICTURES_H
#define PICTURES_H

#include "check.h"

#define BMP_HEADER 54

/* Rows of `stride` bytes; what lies behind a row's pixels is not of the picture. */
static inline void stripes(uint8_t *rgb, uint32_t width, uint32_t height, size_t stride, unsigned shade)
{
    uint32_t x, y;
    memset(rgb, (int)shade, stride * height);
    for (y = 0; y < height; y++)
        for (x = 0; x < 3 * width; x++)
            rgb[y * stride + x] = (uint8_t)(shade + 40 * (x / 24) + 90 * (y / 16));
}

static inline void put_u32(uint8_t *at, uint32_t value)
{
    at[0] = (uint8_t)value;
    at[1] = (uint8_t)(value >> 8);
    at[2] = (uint8_t)(value >> 16);
    at[3] = (uint8_t)(value >> 24);
}

/* A BMP file of 24 bits, to be freed; its bytes in `len`. */
static inline uint8_t *bmp_file(uint32_t width, uint32_t height, unsigned shade, size_t *len)
{
    size_t stride = (3 * (size_t)width + 3) / 4 * 4;
    uint8_t *file = (uint8_t *)calloc(1, BMP_HEADER + stride * height);
    CHECK(file != NULL);
    *len = BMP_HEADER + stride * height;
    file[0] = 'B';
    file[1] = 'M';
    put_u32(file + 2, (uint32_t)*len);
    put_u32(file + 10, BMP_HEADER);
    put_u32(file + 14, 40);
    put_u32(file + 18, width);
    put_u32(file + 22, height);
    file[26] = 1;
    file[28] = 24;
    stripes(file + BMP_HEADER, width, height, stride, shade);
    return file;
}

static inline lfm3_media media_of_kind(int32_t kind, const uint8_t *data, size_t len)
{
    lfm3_media media;
    GIVES_OK(lfm3_media_init(&media, sizeof media));
    media.kind = kind;
    media.data = data;
    media.data_len = len;
    return media;
}

static inline lfm3_media rgb_picture(const uint8_t *rgb, uint32_t width, uint32_t height, size_t stride)
{
    lfm3_media media = media_of_kind(LFM3_MEDIA_PICTURE_RGB, rgb, stride * height);
    media.width = width;
    media.height = height;
    media.stride = stride;
    return media;
}

#endif
