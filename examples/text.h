/* A text that grows, and texts as JSON strings: what the examples write chats and answers with. */

#ifndef TEXT_H
#define TEXT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* All zeros is the empty text. After the first append, a 0 stands behind its bytes. */
struct text {
    char *bytes;
    size_t len, room;
};

/* Memory that must be there. */
static inline void *grown(void *bytes, size_t size)
{
    bytes = realloc(bytes, size);
    if (bytes == NULL) {
        fputs("out of memory\n", stderr);
        exit(1);
    }
    return bytes;
}

static inline void append(struct text *text, const char *bytes, size_t len)
{
    if (text->len + len + 1 > text->room) {
        text->room = 2 * (text->len + len + 1);
        text->bytes = (char *)grown(text->bytes, text->room);
    }
    if (len > 0)
        memcpy(text->bytes + text->len, bytes, len);
    text->len += len;
    text->bytes[text->len] = 0;
}

static inline void append_string(struct text *text, const char *string)
{
    append(text, string, strlen(string));
}

/* Bytes of the UTF-8 character that `bytes` begins with, 0 where it is none. */
static inline size_t character(const char *bytes, size_t len)
{
    const unsigned char *b = (const unsigned char *)bytes;
    size_t size = b[0] < 0x80 ? 1 : b[0] < 0xC2 ? 0 : b[0] < 0xE0 ? 2 : b[0] < 0xF0 ? 3 : b[0] < 0xF5 ? 4 : 0;
    size_t i;
    if (size > len)
        return 0;
    for (i = 1; i < size; i++)
        if ((b[i] & 0xC0) != 0x80)
            return 0;
    if (size > 2) { /* neither written too long, nor half of a UTF-16 pair, nor past the last code point */
        unsigned first = (unsigned)b[0] << 8 | b[1];
        if (first < 0xE0A0 || (first >= 0xEDA0 && first < 0xEE80) || (first >= 0xF080 && first < 0xF090) ||
            first >= 0xF490)
            return 0;
    }
    return size;
}

/* As a JSON string. A byte that is no UTF-8, as file names may have, becomes U+FFFD. */
static inline void append_json(struct text *text, const char *bytes, size_t len)
{
    size_t i, size;
    append_string(text, "\"");
    for (i = 0; i < len; i += size > 0 ? size : 1) {
        unsigned char byte = (unsigned char)bytes[i];
        char escaped[8];
        size = character(bytes + i, len - i);
        if (byte == '"' || byte == '\\')
            append(text, "\\", 1);
        if (byte < 0x20) {
            snprintf(escaped, sizeof escaped, "\\u%04x", byte);
            append_string(text, escaped);
        } else if (size > 0) {
            append(text, bytes + i, size);
        } else {
            append_string(text, "\xEF\xBF\xBD");
        }
    }
    append_string(text, "\"");
}

#endif
