/* Images from their bytes to what the first convolution takes, in one pass.
 *
 *     out[c, i, j, n] = (u / 255 - mean[c]) / std[c]
 *
 * u is a byte of the n-th chosen image: of the image as it is, or of a window cut out of the image
 * with a border around it and mirrored at will. Every operation is rounded by itself (this file is
 * compiled without contraction), so the numbers are those of the same steps in torch. `starts` (two
 * for each image of the store) and `mirrored` may be NULL: images as they are. Lanes beyond the
 * chosen images may hold anything. Needs what names.h needs.
 */
#include "names.h"
#include <stdlib.h>
#include <string.h>

/* Where a place of the bordered image lies in the image: mirrored at its edge, or -1 for black. */
static inline ptrdiff_t NAME(source)(ptrdiff_t place, ptrdiff_t side, int reflect)
{
    if (place >= 0 && place < side)
        return place;
    if (!reflect)
        return -1;
    return place < 0 ? -place : 2 * (side - 1) - place;
}

static inline float NAME(normalised)(uint8_t byte, float mean, float std)
{
    return ((float)byte * (1.0f / 255.0f) - mean) / std;
}

#if defined(PLAIN)

int NAME(gather)(const uint8_t *images, const int64_t *chosen, const int64_t *starts,
                 const uint8_t *mirrored, const float *mean, const float *std, float *out,
                 const struct images *shape)
{
    const struct images s = *shape;
    for (ptrdiff_t c = 0; c < s.channels; c++)
        for (ptrdiff_t i = 0; i < s.height; i++)
            for (ptrdiff_t j = 0; j < s.width; j++)
                for (ptrdiff_t n = 0; n < s.lanes; n++) {
                    const int64_t image = chosen[n < s.count ? n : 0];
                    ptrdiff_t row = i, column = j;
                    if (starts) {
                        column = mirrored[image] ? s.width - 1 - j : j;
                        row = NAME(source)(i + starts[2 * image] - s.padding, s.height, s.reflect);
                        column = NAME(source)(column + starts[2 * image + 1] - s.padding, s.width,
                                              s.reflect);
                    }
                    const ptrdiff_t at = ((image * s.channels + c) * s.height + row) * s.width + column;
                    const uint8_t byte = row < 0 || column < 0 ? 0 : images[at];
                    *out++ = NAME(normalised)(byte, mean[c], std[c]);
                }
    return OK;
}

#else

#define TILE 16 /* samples and columns that are turned at once */

typedef uint8_t NAME(tile) __attribute__((vector_size(TILE), aligned(1), may_alias));

#if defined(__clang__)
#define REVERSED(a) __builtin_shufflevector(a, a, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0)
#define INTERLEAVE(a, b, from)                                                                    \
    __builtin_shufflevector(a, b, from, from + 16, from + 1, from + 17, from + 2, from + 18,      \
                            from + 3, from + 19, from + 4, from + 20, from + 5, from + 21,        \
                            from + 6, from + 22, from + 7, from + 23)
#else
#define REVERSED(a) __builtin_shuffle(a, (NAME(tile)){15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0})
#define INTERLEAVE(a, b, from)                                                                      \
    __builtin_shuffle(a, b, (NAME(tile)){from, from + 16, from + 1, from + 17, from + 2, from + 18, \
                                         from + 3, from + 19, from + 4, from + 20, from + 5,        \
                                         from + 21, from + 6, from + 22, from + 7, from + 23})
#endif

/* Sixteen rows of sixteen bytes, `across` apart, as sixteen columns. */
static inline __attribute__((always_inline)) void NAME(turn_tile)(const uint8_t *from, ptrdiff_t across,
                                                             uint8_t *to)
{
    NAME(tile) columns[TILE], other[TILE];
    for (int n = 0; n < TILE; n++)
        columns[n] = *(const NAME(tile) *)(from + n * across);
    for (int pass = 0; pass < 2; pass++) {
        for (int n = 0; n < TILE / 2; n++) {
            other[2 * n] = INTERLEAVE(columns[n], columns[n + 8], 0);
            other[2 * n + 1] = INTERLEAVE(columns[n], columns[n + 8], 8);
        }
        for (int n = 0; n < TILE / 2; n++) {
            columns[2 * n] = INTERLEAVE(other[n], other[n + 8], 0);
            columns[2 * n + 1] = INTERLEAVE(other[n], other[n + 8], 8);
        }
    }
    for (int n = 0; n < TILE; n++)
        *(NAME(tile) *)(to + n * TILE) = columns[n];
}

struct NAME(window) {
    ptrdiff_t padding, top, left;
    int reflect, mirrored;
};

struct NAME(store) {
    const uint8_t *begin, *end;
    ptrdiff_t channels, height, width, across; /* across: the width rounded up to whole tiles */
};

/* Copy whole tiles of a row that begins at `from`, as it is or from its last byte to its first. */
static inline __attribute__((always_inline)) void NAME(copy)(const uint8_t *from, ptrdiff_t width,
                                                             ptrdiff_t across, int mirrored,
                                                             uint8_t *to)
{
    for (ptrdiff_t j = 0; j < across; j += TILE)
        if (mirrored)
            *(NAME(tile) *)(to + j) = REVERSED(*(const NAME(tile) *)(from + width - TILE - j));
        else
            *(NAME(tile) *)(to + j) = *(const NAME(tile) *)(from + j);
}

/* Row i of a window into one plane of an image; `to` has room for `across` bytes. */
static inline __attribute__((always_inline)) void NAME(cut)(const struct NAME(store) *store,
                                                            const uint8_t *plane, ptrdiff_t i,
                                                            const struct NAME(window) *window,
                                                            uint8_t *to)
{
    const ptrdiff_t width = store->width, shift = window->left - window->padding;
    const ptrdiff_t row = NAME(source)(window->top + i - window->padding, store->height, window->reflect);
    if (row < 0) {
        memset(to, 0, (size_t)width);
        return;
    }
    const uint8_t *from = plane + row * width;
    ptrdiff_t begin = 0, end = 0; /* columns of the window that are copied as they lie in memory */
    if (from + shift - TILE >= store->begin && from + shift + store->across + TILE <= store->end) {
        NAME(copy)(from + shift, width, store->across, window->mirrored, to);
        begin = shift < 0 ? -shift : 0, end = shift > 0 ? width - shift : width;
    }
    for (ptrdiff_t j = 0; j < begin; j++) {
        const ptrdiff_t column = NAME(source)(j + shift, width, window->reflect);
        to[window->mirrored ? width - 1 - j : j] = column < 0 ? 0 : from[column];
    }
    for (ptrdiff_t j = end; j < width; j++) {
        const ptrdiff_t column = NAME(source)(j + shift, width, window->reflect);
        to[window->mirrored ? width - 1 - j : j] = column < 0 ? 0 : from[column];
    }
}

int NAME(gather)(const uint8_t *images, const int64_t *chosen, const int64_t *starts,
                 const uint8_t *mirrored, const float *mean, const float *std, float *out,
                 const struct images *shape)
{
    const ptrdiff_t count = shape->count, lanes = shape->lanes, channels = shape->channels;
    const ptrdiff_t height = shape->height, width = shape->width, plane = height * width;
    const ptrdiff_t padding = shape->padding, across = (width + TILE - 1) / TILE * TILE;
    const struct NAME(store) store = {images, images + shape->stored * channels * plane, channels,
                                      height, width, across};
    uint8_t *rows = calloc((size_t)(TILE * across), 1);
    if (!rows)
        return NO_MEMORY;
    for (ptrdiff_t c = 0; c < channels; c++) {
        const float middle = mean[c], scale = std[c];
        for (ptrdiff_t i = 0; i < height; i++)
            for (ptrdiff_t first = 0; first < lanes; first += TILE) {
                for (ptrdiff_t n = 0; n < TILE && first + n < count; n++) {
                    const int64_t image = chosen[first + n];
                    struct NAME(window) window = {padding, padding, padding, shape->reflect, 0};
                    if (starts) {
                        window.top = starts[2 * image], window.left = starts[2 * image + 1];
                        window.mirrored = mirrored[image];
                    }
                    NAME(cut)(&store, images + (image * channels + c) * plane, i, &window,
                              rows + n * across);
                }
                for (ptrdiff_t j = 0; j < width; j += TILE) {
                    uint8_t turned[TILE * TILE];
                    NAME(turn_tile)(rows + j, across, turned);
                    const ptrdiff_t wide = width - j < TILE ? width - j : TILE;
                    for (ptrdiff_t b = 0; b < wide; b++) {
                        float *to = out + ((c * height + i) * width + j + b) * lanes + first;
                        for (int n = 0; n < TILE; n++)
                            to[n] = NAME(normalised)(turned[b * TILE + n], middle, scale);
                    }
                }
            }
    }
    free(rows);
    return OK;
}

#endif
