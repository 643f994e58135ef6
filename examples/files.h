/* Files that the examples read: a file's bytes, and the pictures of a folder in the order of their names. */

#ifndef FILES_H
#define FILES_H

#include "text.h"

#include <dirent.h>
#include <errno.h>
#include <strings.h>

#define MAX_FILE_BYTES ((size_t)1 << 30)

/* Appends what a file holds; 0, or an errno. */
static inline int read_file(const char *path, struct text *out)
{
    char piece[65536];
    size_t len = 0, total = 0;
    int error = 0;
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return errno;
    while (error == 0 && (len = fread(piece, 1, sizeof piece, file)) > 0) {
        total += len;
        if (total > MAX_FILE_BYTES)
            error = EFBIG;
        else
            append(out, piece, len);
    }
    if (error == 0 && ferror(file))
        error = errno != 0 ? errno : EIO;
    fclose(file);
    return error;
}

/* Paths, each to be freed like the list itself. */
struct paths {
    char **items;
    size_t count;
};

static inline void free_paths(struct paths *paths)
{
    size_t i;
    for (i = 0; i < paths->count; i++)
        free(paths->items[i]);
    free(paths->items);
    memset(paths, 0, sizeof *paths);
}

static inline int by_name(const void *left, const void *right)
{
    return strcmp(*(char *const *)left, *(char *const *)right);
}

/* Whether a file's name says that it is a picture the library may read. */
static inline int is_picture(const char *name)
{
    static const char *const endings[] = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif"};
    size_t i, len = strlen(name);
    for (i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t end = strlen(endings[i]);
        if (name[0] != '.' && len > end && strcasecmp(name + len - end, endings[i]) == 0)
            return 1;
    }
    return 0;
}

/* The pictures of a folder, in the order of their names' bytes: number frames with leading zeros. 0, or an errno. */
static inline int list_pictures(const char *folder, struct paths *paths)
{
    DIR *open = opendir(folder);
    struct dirent *entry;
    if (open == NULL)
        return errno;
    while ((entry = readdir(open)) != NULL) {
        struct text path = {NULL, 0, 0};
        if (!is_picture(entry->d_name))
            continue;
        append_string(&path, folder);
        append_string(&path, path.len > 0 && path.bytes[path.len - 1] == '/' ? "" : "/");
        append_string(&path, entry->d_name);
        paths->items = (char **)grown(paths->items, (paths->count + 1) * sizeof *paths->items);
        paths->items[paths->count++] = path.bytes;
    }
    closedir(open);
    if (paths->count > 0)
        qsort(paths->items, paths->count, sizeof *paths->items, by_name);
    return 0;
}

#endif
