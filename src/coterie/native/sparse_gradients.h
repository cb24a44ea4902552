/* Gradients that use that only one place in four has any, for processors with mask registers.
 *
 * Each sample of a vector has its gradient at its own place (a, b) of a pooled window. Instead of
 * multiplying three zeros, the neighbour that belongs to the place is chosen by two blends, which
 * cost half of what a multiply-add does: first by row, then by column,
 *
 *     weight'[o, c, u, v] = sum over windows of g x[c, 2 i + a + u, 2 j + b + v]
 *     x'[c, 2 i + r, 2 j + s] += g weight[o, c, r - a, s - b]
 *
 * Square weights of three or five; K1 is K + 1. What they compute is said in gradients.h. Needs what
 * vectors.h needs; empty on processors without mask registers.
 */
#pragma once
#include "stretch.h"
#include <stdlib.h>
#include <string.h>

#if defined(__AVX512F__) && VECTOR_BYTES == 64
#define HAS_SPARSE_GRADIENTS
#include <immintrin.h>

#if PRECISION == 32
#define BITS __mmask16
#define BLEND(bits, no, yes) ((VECTOR)_mm512_mask_blend_ps(bits, (__m512)(no), (__m512)(yes)))
#define WITH_BIT(codes, bit) _mm512_test_epi32_mask((__m512i)(codes), _mm512_set1_epi32(bit))
#else
#define BITS __mmask8
#define BLEND(bits, no, yes) ((VECTOR)_mm512_mask_blend_pd(bits, (__m512d)(no), (__m512d)(yes)))
#define WITH_BIT(codes, bit) _mm512_test_epi64_mask((__m512i)(codes), _mm512_set1_epi64(bit))
#endif

/* ---- what is remembered of a window: its gradient, and the rows and columns of the places ---- */

struct NAME(places) {
    REAL *g;                /* (window, output, lane), zero where ReLU was */
    BITS *low, *right; /* (window, output, vector): a = 1, b = 1 */
};

static void NAME(free_places)(struct NAME(places) *places)
{
    free(places->g);
    free(places->low);
    free(places->right);
}

static int NAME(make_places)(struct NAME(places) *places, ptrdiff_t vectors)
{
    places->g = malloc((size_t)(vectors * WIDTH) * sizeof(REAL));
    places->low = malloc((size_t)vectors * sizeof(BITS));
    places->right = malloc((size_t)vectors * sizeof(BITS));
    if (places->g && places->low && places->right)
        return 1;
    NAME(free_places)(places);
    return 0;
}

static void NAME(note_places)(const REAL *gradient, const uint8_t *chosen,
                              const struct convolution *shape, const struct NAME(stretch) *part,
                              struct NAME(places) *to, REAL *bias_sums)
{
    const ptrdiff_t lanes = shape->lanes, vectors = lanes / WIDTH;
    const ptrdiff_t rows = pooled(shape->height, shape->k), columns = pooled(shape->width, shape->k);
    for (ptrdiff_t o = 0; o < part->outputs; o++) {
        REAL *total = bias_sums + (part->output + o) * WIDTH;
        VECTOR sum = LOAD(total);
        for (ptrdiff_t j = 0; j < part->columns; j++)
            for (ptrdiff_t n = 0; n < vectors; n++) {
                const ptrdiff_t window = (part->output + o) * rows + part->row;
                const ptrdiff_t place = (window * columns + part->column + j) * lanes + n * WIDTH;
                const MASK code = NAME(widened)(chosen + place);
                const VECTOR here = SELECT(code < (MASK){0} + 4, LOAD(gradient + place), (VECTOR){0});
                const ptrdiff_t noted = (j * part->outputs + o) * vectors + n;
                sum += here;
                STORE(to->g + noted * WIDTH, here);
                to->low[noted] = WITH_BIT(code, 2);
                to->right[noted] = WITH_BIT(code, 1);
            }
        STORE(total, sum);
    }
}

/* ---- weights ---- */

/* Sums for one row of the weights of BLOCK outputs, over a stretch of windows. Two rows of x are
 * loaded once for all outputs, which compilers would otherwise load again for each. */
#define IN_REGISTERS(first, second) __asm__("" : "+v"(first), "+v"(second))
#define UPPER(s)                                              \
    VECTOR p##s = LOAD(x), q##s = LOAD(x + x_row);            \
    IN_REGISTERS(p##s, q##s);                                 \
    x += lanes;
#define SPARSE_3(t) VECTOR s0##t = LOAD(AT(t, 0)), s1##t = LOAD(AT(t, 1)), s2##t = LOAD(AT(t, 2));
#define SPARSE_2(t) VECTOR s0##t = LOAD(AT(t, 0)), s1##t = LOAD(AT(t, 1));
#define SPARSE_1(t) VECTOR s0##t = LOAD(AT(t, 0));
#define KEEP_3(t) STORE(AT(t, 0), s0##t); STORE(AT(t, 1), s1##t); STORE(AT(t, 2), s2##t);
#define KEEP_2(t) STORE(AT(t, 0), s0##t); STORE(AT(t, 1), s1##t);
#define KEEP_1(t) STORE(AT(t, 0), s0##t);
#define CHOSEN(s) BLEND(a, p##s, q##s)
#define TAKE(o, t, after)                     \
    {                                         \
        const VECTOR next = CHOSEN(after);    \
        s##o##t += g * BLEND(b, here, next);  \
        here = next;                          \
    }
#define TAKE_3(o) TAKE(o, 0, 1) TAKE(o, 1, 2) TAKE(o, 2, 3)
#define TAKE_5(o) TAKE_3(o) TAKE(o, 3, 4) TAKE(o, 4, 5)
#define SPARSE_OUTPUT(o, K)                                     \
    {                                                           \
        const ptrdiff_t noted = ((o) * vectors + n);            \
        const BITS a = low[noted], b = right[noted];            \
        const VECTOR g = LOAD(gradient + noted * WIDTH);        \
        VECTOR here = CHOSEN(0);                                \
        TAKE_##K(o)                                             \
    }
#define OUTPUTS_1(K) SPARSE_OUTPUT(0, K)
#define OUTPUTS_2(K) OUTPUTS_1(K) SPARSE_OUTPUT(1, K)
#define OUTPUTS_3(K) OUTPUTS_2(K) SPARSE_OUTPUT(2, K)

#define SPARSE_WEIGHTS(K, K1, BLOCK)                                                               \
    static void NAME(sparse_weights_##K##_##BLOCK)(                                                \
        const REAL *from, ptrdiff_t x_row, const struct NAME(places) *places, ptrdiff_t lanes,     \
        ptrdiff_t columns, REAL *sums, ptrdiff_t outputs)                                          \
    {                                                                                              \
        const ptrdiff_t vectors = lanes / WIDTH, each = BLOCK * vectors;                           \
        const BITS *low = places->low, *right = places->right;                                     \
        const REAL *gradient = places->g;                                                          \
        EACH_##K(SPARSE_##BLOCK)                                                                   \
        for (ptrdiff_t j = 0; j < columns; j++) {                                                  \
            for (ptrdiff_t n = 0; n < vectors; n++) {                                              \
                const REAL *x = from + n * WIDTH;                                                  \
                EACH_##K1(UPPER) OUTPUTS_##BLOCK(K)                                                \
            }                                                                                      \
            from += 2 * lanes, low += each, right += each, gradient += each * WIDTH;               \
        }                                                                                          \
        EACH_##K(KEEP_##BLOCK)                                                                     \
    }
SPARSE_WEIGHTS(3, 4, 1)
SPARSE_WEIGHTS(3, 4, 2)
SPARSE_WEIGHTS(3, 4, 3)
SPARSE_WEIGHTS(5, 6, 1)
SPARSE_WEIGHTS(5, 6, 2)
SPARSE_WEIGHTS(5, 6, 3)

typedef void NAME(sparse_weights)(const REAL *, ptrdiff_t, const struct NAME(places) *, ptrdiff_t,
                                ptrdiff_t, REAL *, ptrdiff_t);
static NAME(sparse_weights) *const NAME(sparse_weights_by)[2][3] = {
    {NAME(sparse_weights_3_1), NAME(sparse_weights_3_2), NAME(sparse_weights_3_3)},
    {NAME(sparse_weights_5_1), NAME(sparse_weights_5_2), NAME(sparse_weights_5_3)},
};
#define SPARSE_BLOCK 3

static int NAME(sparse_weight_gradient)(const REAL *x, const REAL *gradient, const uint8_t *chosen,
                                      REAL *sums, REAL *bias_sums, const struct convolution *shape)
{
    const ptrdiff_t lanes = shape->lanes, outputs = shape->outputs, k = shape->k;
    const ptrdiff_t rows = pooled(shape->height, k), columns = pooled(shape->width, k);
    const ptrdiff_t row = shape->width * lanes;
    struct NAME(places) places = {NULL, NULL, NULL};
    struct NAME(stretch) part = {0, 0, 0, 0, columns};
    if (!NAME(make_places)(&places, columns * SPARSE_BLOCK * (lanes / WIDTH)))
        return NO_MEMORY;
    for (part.row = 0; part.row < rows; part.row++)
        for (part.output = 0; part.output < outputs; part.output += part.outputs) {
            const ptrdiff_t left = outputs - part.output, turns = (left + SPARSE_BLOCK - 1) / SPARSE_BLOCK;
            part.outputs = (left + turns - 1) / turns;
            NAME(note_places)(gradient, chosen, shape, &part, &places, bias_sums);
            for (ptrdiff_t c = 0; c < shape->channels; c++)
                for (ptrdiff_t u = 0; u < k; u++)
                    NAME(sparse_weights_by)[k == 5][part.outputs - 1](
                        x + (c * shape->height + 2 * part.row + u) * row, row, &places, lanes,
                        columns, sums + ((c * k + u) * k * outputs + part.output) * WIDTH, outputs);
        }
    NAME(free_places)(&places);
    return OK;
}

/* ---- input ---- */

/* Two columns of the patch of x' below a window, summed over all outputs. What meets a sample in
 * column s are the weights of column s or of s - 1 (by b), in row r those of row r or of r - 1 (by
 * a). The weights are packed (output, u, K + 2) with a zero at both ends. */
#define SIDE(u) const VECTOR e##u = BLEND(b, SPLAT(w[(u) * wide + 1]), SPLAT(w[(u) * wide]));
#define MEET(s, r, same, above) d##s##r += g * BLEND(a, same, above);
#define COLUMN_3(s)                                                                      \
    {                                                                                    \
        EACH_3(SIDE) MEET(s, 0, e0, none) MEET(s, 1, e1, e0) MEET(s, 2, e2, e1)          \
        MEET(s, 3, none, e2)                                                             \
    }
#define COLUMN_5(s)                                                                      \
    {                                                                                    \
        EACH_5(SIDE) MEET(s, 0, e0, none) MEET(s, 1, e1, e0) MEET(s, 2, e2, e1)          \
        MEET(s, 3, e3, e2) MEET(s, 4, e4, e3) MEET(s, 5, none, e4)                       \
    }
#define PATCH(r) VECTOR d0##r = {0}, d1##r = {0};
#define PUT(r)                                                      \
    {                                                               \
        REAL *to = x + (r) * x_row;                                 \
        STORE(to, LOAD(to) + d0##r);                                \
        STORE(to + lanes, LOAD(to + lanes) + d1##r);                \
    }
#define SPARSE_INPUT(K, K1)                                                                        \
    static void NAME(sparse_input_##K)(const struct NAME(places) *places, ptrdiff_t at,            \
                                     ptrdiff_t vectors, ptrdiff_t outputs, const REAL *w,          \
                                     REAL *x, ptrdiff_t x_row, ptrdiff_t lanes)                    \
    {                                                                                              \
        const ptrdiff_t wide = K + 2;                                                              \
        const VECTOR none = {0};                                                                   \
        EACH_##K1(PATCH)                                                                           \
        for (ptrdiff_t o = 0; o < outputs; o++, at += vectors, w += K * wide - 1) {                \
            const BITS a = places->low[at], b = places->right[at];                                 \
            const VECTOR g = LOAD(places->g + at * WIDTH);                                         \
            COLUMN_##K(0) w++;                                                                     \
            COLUMN_##K(1)                                                                          \
        }                                                                                          \
        EACH_##K1(PUT)                                                                             \
    }
SPARSE_INPUT(3, 4)
SPARSE_INPUT(5, 6)

static int NAME(sparse_input)(const REAL *gradient, const uint8_t *chosen, const REAL *weight, REAL *x,
                            const struct convolution *shape)
{
    const ptrdiff_t lanes = shape->lanes, channels = shape->channels, outputs = shape->outputs;
    const ptrdiff_t height = shape->height, width = shape->width, k = shape->k;
    const ptrdiff_t rows = pooled(height, k), columns = pooled(width, k);
    const ptrdiff_t vectors = lanes / WIDTH, plane = height * width * lanes, wide = k + 2;
    const ptrdiff_t of_channel = outputs * k * wide;
    REAL *packed = calloc((size_t)(channels * of_channel + outputs * WIDTH), sizeof(REAL));
    struct NAME(places) places = {NULL, NULL, NULL};
    if (!packed || !NAME(make_places)(&places, columns * outputs * vectors)) {
        free(packed);
        return NO_MEMORY;
    }
    for (ptrdiff_t c = 0; c < channels; c++)
        for (ptrdiff_t o = 0; o < outputs; o++)
            for (ptrdiff_t t = 0; t < k * k; t++)
                packed[c * of_channel + (o * k + t / k) * wide + t % k + 1] =
                    weight[(o * channels + c) * k * k + t];
    memset(x, 0, (size_t)(channels * plane) * sizeof(REAL));
    struct NAME(stretch) part = {0, outputs, 0, 0, columns};
    for (part.row = 0; part.row < rows; part.row++) {
        NAME(note_places)(gradient, chosen, shape, &part, &places, packed + channels * of_channel);
        for (ptrdiff_t j = 0; j < columns; j++)
            for (ptrdiff_t n = 0; n < vectors; n++)
                for (ptrdiff_t c = 0; c < channels; c++)
                    for (ptrdiff_t s = 0; s <= k; s += 2)
                        (k == 5 ? NAME(sparse_input_5) : NAME(sparse_input_3))(
                            &places, j * outputs * vectors + n, vectors, outputs,
                            packed + c * of_channel + s,
                            x + c * plane + (2 * part.row * width + 2 * j + s) * lanes + n * WIDTH,
                            width * lanes, lanes);
    }
    NAME(free_places)(&places);
    free(packed);
    return OK;
}

#endif
