/* Gradients sample by sample, for vectors of eight numbers and weights of 5 x 5.
 *
 * Only one place in four of the convolution's output has a gradient, another one for every sample.
 * With the samples innermost that cannot be used without mask registers: three quarters of what is
 * multiplied are zeros. So eight samples at a time are transposed. With the columns innermost a row of
 * five weights is one vector, and each window of a sample takes one multiply-add for a row:
 *
 *     weight'[o, c, u, :] = sum over windows of g x[c, 2 i + a + u, 2 j + b : 2 j + b + 5]
 *     x'[c, 2 i + r, 2 j : 2 j + 6] += g weight[o, c, r - a, :] moved by b
 *
 * (a, b) being the place that the window's largest came from. The last three entries of a vector
 * belong to other places; they are multiplied too, and left out at the end. Sums are over the windows
 * of a sample, then over the samples. What they compute is said in gradients.h. Needs what vectors.h
 * needs; empty for other vectors.
 */
#pragma once
#include "vectors.h"
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__) && VECTOR_BYTES == 32 && PRECISION == 32
#define HAS_SAMPLE_GRADIENTS
#include <immintrin.h>

#define SAMPLE_K 5     /* the side of the weights */
#define PATCH_SIDE 6   /* of what the weights reach from the four places of a window */
#define OVERHANG 8     /* numbers behind the last row that a vector may reach */

/* ---- transposing ---- */

/* Transpose an 8 x 8 block; the steps are those from one row to the next. */
static inline __attribute__((always_inline)) void NAME(turn_eight)(
    const REAL *from, ptrdiff_t from_step, REAL *to, ptrdiff_t to_step)
{
    __m256 r[8], s[8];
    for (int i = 0; i < 8; i++)
        r[i] = _mm256_loadu_ps(from + i * from_step);
    for (int i = 0; i < 8; i += 2) {
        s[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
        s[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int half = 0; half < 2; half++) {
            r[i + 2 * half] = _mm256_shuffle_ps(s[i + half], s[i + half + 2], 0x44);
            r[i + 2 * half + 1] = _mm256_shuffle_ps(s[i + half], s[i + half + 2], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        _mm256_storeu_ps(to + i * to_step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_step, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
    }
}

/* Eight lanes of (places, lanes) -> (sample, place), `step` numbers from one sample to the next. */
static void NAME(to_samples)(const REAL *from, ptrdiff_t places, ptrdiff_t lanes, REAL *to,
                             ptrdiff_t step)
{
    ptrdiff_t p = 0;
    for (; p + 8 <= places; p += 8)
        NAME(turn_eight)(from + p * lanes, lanes, to + p, step);
    for (; p < places; p++)
        for (ptrdiff_t n = 0; n < 8; n++)
            to[n * step + p] = from[p * lanes + n];
}

/* The other way: (sample, place) -> eight lanes of (places, lanes). */
static void NAME(to_lanes)(const REAL *from, ptrdiff_t step, ptrdiff_t places, REAL *to,
                           ptrdiff_t lanes)
{
    ptrdiff_t p = 0;
    for (; p + 8 <= places; p += 8)
        NAME(turn_eight)(from + p, step, to + p * lanes, lanes);
    for (; p < places; p++)
        for (ptrdiff_t n = 0; n < 8; n++)
            to[p * lanes + n] = from[n * step + p];
}

/* The pooled windows of eight samples: (sample, output, row, column). */
struct NAME(windows) {
    REAL *g;                       /* their gradients, zero where ReLU was */
    int32_t *at;                   /* where the largest value of each came from */
    REAL *work;                    /* both before they are transposed */
    ptrdiff_t rows, columns, outputs;
    ptrdiff_t step;                /* windows of a sample */
};

static int NAME(make_windows)(struct NAME(windows) *to, const struct convolution *shape)
{
    to->rows = pooled(shape->height, SAMPLE_K), to->columns = pooled(shape->width, SAMPLE_K);
    to->outputs = shape->outputs, to->step = to->rows * to->columns * to->outputs;
    to->g = malloc((size_t)(to->step * 8 * 4) * sizeof(REAL));
    to->at = (int32_t *)(to->g + to->step * 8);
    to->work = to->g + to->step * 16;
    return to->g != NULL;
}

/* Note the windows of the eight lanes from n on. `at` is an offset into a plane of the input, `down`
 * being the length of its rows; with `down` = 0 it is the place in the window, 0 .. 3. */
static void NAME(note_windows)(const REAL *gradient, const uint8_t *chosen, ptrdiff_t lanes,
                               ptrdiff_t n, ptrdiff_t down, struct NAME(windows) *to)
{
    REAL *g = to->work, *at = to->work + to->step * 8;
    const ptrdiff_t below = down ? down : 2;
    ptrdiff_t w = n;
    for (ptrdiff_t o = 0; o < to->outputs; o++)
        for (ptrdiff_t i = 0; i < to->rows; i++)
            for (ptrdiff_t j = 0; j < to->columns; j++, w += lanes, g += 8, at += 8) {
                const MASK code = NAME(widened)(chosen + w), there = code < (MASK){0} + 4;
                const WHOLE corner = (WHOLE)(down ? 2 * (i * down + j) : 0);
                STORE(g, SELECT(there, (VECTOR)LOAD(gradient + w), (VECTOR){0}));
                STORE(at, (VECTOR)(corner + ((code >> 1 & 1) * (WHOLE)below + (code & 1))));
            }
    NAME(to_samples)(to->work, to->step, 8, to->g, to->step);
    NAME(to_samples)(to->work + to->step * 8, to->step, 8, (REAL *)to->at, to->step);
}

/* ---- weights and bias ---- */

/* The gradients of one output's weights for CHANNELS channels, summed over the windows of a sample and
 * added to `sums` (channel, row, 8). */
#define ROW_SUMS(c, u) VECTOR s##c##u = {0};
#define ROW_ADD(c, u) s##c##u += v * LOAD(p##c + (u) * row);
#define ROW_PUT(c, u)                                        \
    {                                                        \
        REAL *to = sums + ((c) * SAMPLE_K + (u)) * 8;        \
        STORE(to, LOAD(to) + s##c##u);                       \
    }
#define EACH_ROW(F, c) F(c, 0) F(c, 1) F(c, 2) F(c, 3) F(c, 4)
#define ROWS_1(F) EACH_ROW(F, 0)
#define ROWS_2(F) ROWS_1(F) EACH_ROW(F, 1)
#define ROWS_3(F) ROWS_2(F) EACH_ROW(F, 2)
#define PLANE_OF(c) const REAL *p##c = x + at[w] + (c) * plane;
#define PLANES(CHANNELS)                                                                          \
    static void NAME(planes_##CHANNELS)(const REAL *x, ptrdiff_t row, ptrdiff_t plane,            \
                                        const REAL *g, const int32_t *at, ptrdiff_t windows,      \
                                        REAL *sums)                                               \
    {                                                                                             \
        ROWS_##CHANNELS(ROW_SUMS)                                                                 \
        for (ptrdiff_t w = 0; w < windows; w++) {                                                 \
            const VECTOR v = SPLAT(g[w]);                                                         \
            EACH_##CHANNELS(PLANE_OF)                                                             \
            ROWS_##CHANNELS(ROW_ADD)                                                              \
        }                                                                                         \
        ROWS_##CHANNELS(ROW_PUT)                                                                  \
    }
PLANES(1)
PLANES(2)
PLANES(3)

static int NAME(sample_weight_gradient)(const REAL *x, const REAL *gradient, const uint8_t *chosen,
                                        REAL *weight, REAL *bias, const struct convolution *shape)
{
    const ptrdiff_t lanes = shape->lanes, channels = shape->channels, outputs = shape->outputs;
    const ptrdiff_t plane = shape->height * shape->width, step = channels * plane + OVERHANG;
    const ptrdiff_t count = outputs * channels * SAMPLE_K * 8;
    struct NAME(windows) windows;
    REAL *image = malloc((size_t)(step * 8) * sizeof(REAL));
    REAL *sums = calloc((size_t)(count + outputs), sizeof(REAL)); /* (output, channel, row, 8) */
    const int failed = !NAME(make_windows)(&windows, shape) || !image || !sums;
    if (!failed)
        for (ptrdiff_t n = 0; n < 8; n++)
            memset(image + n * step + channels * plane, 0, OVERHANG * sizeof(REAL));
    const ptrdiff_t each = windows.rows * windows.columns;
    for (ptrdiff_t first = 0; first < lanes && !failed; first += 8) {
        NAME(to_samples)(x + first, channels * plane, lanes, image, step);
        NAME(note_windows)(gradient, chosen, lanes, first, shape->width, &windows);
        for (ptrdiff_t n = 0; n < 8; n++)
            for (ptrdiff_t o = 0; o < outputs; o++) {
                const REAL *g = windows.g + n * windows.step + o * each;
                const int32_t *at = windows.at + n * windows.step + o * each;
                REAL total = 0;
                for (ptrdiff_t w = 0; w < each; w++)
                    total += g[w];
                sums[count + o] += total;
                for (ptrdiff_t c = 0, size; c < channels; c += size) {
                    size = channels - c < 3 ? channels - c : 3;
                    (size == 3 ? NAME(planes_3) : size == 2 ? NAME(planes_2) : NAME(planes_1))(
                        image + n * step + c * plane, shape->width, plane, g, at, each,
                        sums + (o * channels + c) * SAMPLE_K * 8);
                }
            }
    }
    for (ptrdiff_t row = 0; row < outputs * channels * SAMPLE_K && !failed; row++)
        memcpy(weight + row * SAMPLE_K, sums + row * 8, SAMPLE_K * sizeof(REAL));
    if (!failed)
        memcpy(bias, sums + count, (size_t)outputs * sizeof(REAL));
    free(windows.g);
    free(image);
    free(sums);
    return failed ? NO_MEMORY : OK;
}

/* ---- input ---- */

/* Add to the 6 x 6 patch of x' below one window, in CHANNELS channels, what all outputs give to it. The
 * weights are packed (place, output, channel, row, 8): moved down and right by the place. */
#define PATCH_SUMS(c, r) VECTOR d##c##r = {0};
#define PATCH_ADD(c, r) d##c##r += v * LOAD(w + ((c) * PATCH_SIDE + (r)) * 8);
#define PATCH_PUT(c, r)                                               \
    {                                                                 \
        REAL *to = x + (c) * plane + (r) * row;                       \
        STORE(to, LOAD(to) + d##c##r);                                \
    }
#define EACH_PATCH_ROW(F, c) F(c, 0) F(c, 1) F(c, 2) F(c, 3) F(c, 4) F(c, 5)
#define PATCH_1(F) EACH_PATCH_ROW(F, 0)
#define PATCH_2(F) PATCH_1(F) EACH_PATCH_ROW(F, 1)
#define PATCHES(CHANNELS)                                                                          \
    static void NAME(patches_##CHANNELS)(const REAL *g, const int32_t *at, ptrdiff_t next,         \
                                         ptrdiff_t outputs, const REAL *packed, ptrdiff_t place,   \
                                         REAL *x, ptrdiff_t row, ptrdiff_t plane)                  \
    {                                                                                              \
        PATCH_##CHANNELS(PATCH_SUMS)                                                               \
        for (ptrdiff_t o = 0; o < outputs; o++, g += next, at += next) {                           \
            const VECTOR v = SPLAT(*g);                                                            \
            const REAL *w = packed + *at * place + o * CHANNELS * PATCH_SIDE * 8;                  \
            PATCH_##CHANNELS(PATCH_ADD)                                                            \
        }                                                                                          \
        PATCH_##CHANNELS(PATCH_PUT)                                                                \
    }
PATCHES(1)
PATCHES(2)

/* The weights of `size` channels from c on, packed for a patch. */
static void NAME(pack_patches)(const REAL *weight, const struct convolution *shape, ptrdiff_t c,
                               ptrdiff_t size, REAL *packed)
{
    const ptrdiff_t outputs = shape->outputs;
    memset(packed, 0, (size_t)(4 * outputs * size * PATCH_SIDE * 8) * sizeof(REAL));
    for (ptrdiff_t place = 0; place < 4; place++)
        for (ptrdiff_t o = 0; o < outputs; o++)
            for (ptrdiff_t b = 0; b < size; b++)
                for (ptrdiff_t u = 0; u < SAMPLE_K; u++) {
                    const ptrdiff_t plane = (place * outputs + o) * size + b;
                    memcpy(packed + (plane * PATCH_SIDE + u + place / 2) * 8 + place % 2,
                           weight + ((o * shape->channels + c + b) * SAMPLE_K + u) * SAMPLE_K,
                           SAMPLE_K * sizeof(REAL));
                }
}

static int NAME(sample_input)(const REAL *gradient, const uint8_t *chosen, const REAL *weight, REAL *x,
                              const struct convolution *shape)
{
    const ptrdiff_t lanes = shape->lanes, channels = shape->channels, outputs = shape->outputs;
    const ptrdiff_t width = shape->width, plane = shape->height * width;
    const ptrdiff_t step = channels * plane + OVERHANG;
    const ptrdiff_t packed_size = 4 * outputs * PATCH_SIDE * 8; /* of a channel */
    struct NAME(windows) windows;
    REAL *image = malloc((size_t)(step * 8 + packed_size * channels) * sizeof(REAL));
    const int failed = !NAME(make_windows)(&windows, shape) || !image;
    REAL *packed = image + step * 8;
    for (ptrdiff_t c = 0; c < channels && !failed; c += 2)
        NAME(pack_patches)(weight, shape, c, channels - c < 2 ? 1 : 2, packed + c * packed_size);
    const ptrdiff_t each = windows.rows * windows.columns;
    for (ptrdiff_t first = 0; first < lanes && !failed; first += 8) {
        NAME(note_windows)(gradient, chosen, lanes, first, 0, &windows);
        memset(image, 0, (size_t)(step * 8) * sizeof(REAL));
        for (ptrdiff_t c = 0; c < channels; c += 2) {
            const ptrdiff_t size = channels - c < 2 ? 1 : 2, place = outputs * size * PATCH_SIDE * 8;
            for (ptrdiff_t n = 0; n < 8; n++)
                for (ptrdiff_t w = 0; w < each; w++)
                    (size == 2 ? NAME(patches_2) : NAME(patches_1))(
                        windows.g + n * windows.step + w, windows.at + n * windows.step + w, each,
                        outputs, packed + c * packed_size, place,
                        image + n * step + c * plane +
                            2 * (w / windows.columns * width + w % windows.columns),
                        width, plane);
        }
        NAME(to_lanes)(image, step, channels * plane, x + first, lanes);
    }
    free(windows.g);
    free(image);
    return failed ? NO_MEMORY : OK;
}

#endif
