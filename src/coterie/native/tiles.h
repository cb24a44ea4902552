/* The forward pass for 5 x 5 weights, with 0.4 of the multiplications.
 *
 * Four neighbouring places of a row of results need eight places of a row of x and five weights.
 * As polynomials, x times weights is found from its values at eight points (Winograd's minimal
 * filtering F(4, 5) at 0, 1, -1, 2, -2, 1/2, -1/2 and infinity):
 *
 *     y = A^T [ sum over rows u and channels c of (G w_cu) * (B^T x_cu) ]     (* by entries)
 *
 * so that eight multiplications do the work of twenty. B^T x is found once for a row of x and kept
 * in a ring for the rows of results that need it. Results differ from the plain form's by a few
 * roundings more; what is not finite in x makes its whole tile so. Needs what vectors.h needs.
 */
#pragma once
#include "convolution.h"
#include "vectors.h"
#include <stdlib.h>
#include <string.h>

#if defined(PLAIN)

static int NAME(fast_forward)(const REAL *x, const REAL *weight, const REAL *bias, REAL *y,
                              uint8_t *chosen, const struct convolution *shape)
{
    return NAME(forward)(x, weight, bias, y, chosen, shape);
}

#else

#define POINTS 8
#define TILE 4 /* places of a row of results that are found together */
#define ROWS_OF_WEIGHTS 5
#define RING 6 /* rows of x that two rows of results, pooled together, need */

#define MOST_OUTPUTS 6
#define ABOVE 4 /* vectors that are kept of an upper row */

struct NAME(tiled) {
    const REAL *x, *bias;
    REAL *y;
    uint8_t *chosen; /* as in convolution.h, or NULL */
    REAL *ring;     /* B^T x: (group of vectors, point, row of the ring, channel, vector) */
    REAL *products; /* (point, output, vector) for one row of one group */
    REAL *above;    /* (output, vector, left, right and the columns of both): the upper row of results,
                       half pooled */
    ptrdiff_t channels, height, width, lanes;
    ptrdiff_t rows, columns, tiles; /* of y; tiles in one of its rows */
};

/* G w: the five weights of a row at the eight points, scaled as B^T wants them. */
static void NAME(tile_weights)(const REAL *w, REAL *to, ptrdiff_t step)
{
    const REAL at_0 = w[0], at_infinity = w[4];
    const REAL even_1 = w[0] + w[2] + w[4], odd_1 = w[1] + w[3];
    const REAL even_2 = w[0] + 4 * w[2] + 16 * w[4], odd_2 = 2 * w[1] + 8 * w[3];
    const REAL even_half = w[0] + w[2] / 4 + w[4] / 16, odd_half = w[1] / 2 + w[3] / 8;
    to[0] = at_0;
    to[1 * step] = (even_1 + odd_1) * (REAL)(-2. / 9);
    to[2 * step] = (even_1 - odd_1) * (REAL)(-2. / 9);
    to[3 * step] = (even_2 + odd_2) * (REAL)(1. / 90);
    to[4 * step] = (even_2 - odd_2) * (REAL)(1. / 90);
    to[5 * step] = (even_half + odd_half) * (REAL)(32. / 45);
    to[6 * step] = (even_half - odd_half) * (REAL)(32. / 45);
    to[7 * step] = at_infinity;
}

/* B^T x for the tiles of one row; places beyond the last column are zero. */
static void NAME(tile_row)(const struct NAME(tiled) *layer, ptrdiff_t row, ptrdiff_t n,
                           ptrdiff_t vectors)
{
    const ptrdiff_t step = layer->lanes, width = layer->width;
    const ptrdiff_t point = RING * layer->channels * GROUP_SIZE;
    for (ptrdiff_t c = 0; c < layer->channels; c++) {
        const REAL *x = layer->x + (c * layer->height + row) * width * step + n;
        for (ptrdiff_t j = 0; j < layer->tiles * vectors; j++) {
            const ptrdiff_t first = j / vectors * TILE;
            const REAL *from = x + first * step + j % vectors * WIDTH;
            VECTOR d[POINTS];
            for (int i = 0; i < POINTS; i++)
                d[i] = first + i < width ? (VECTOR)LOAD(from + i * step) : (VECTOR){0};
            REAL *to = layer->ring + j / GROUP * POINTS * point + j % GROUP * WIDTH +
                       (row % RING * layer->channels + c) * GROUP_SIZE;
            STORE(to, (d[0] - d[6]) + (REAL)5.25 * (d[4] - d[2]));
            VECTOR even = (d[2] + d[6]) - (REAL)4.25 * d[4];
            VECTOR odd = (d[1] + d[5]) - (REAL)4.25 * d[3];
            STORE(to + 1 * point, even + odd);
            STORE(to + 2 * point, even - odd);
            even = d[6] + (REAL)0.25 * d[2] - (REAL)1.25 * d[4];
            odd = (REAL)0.5 * d[1] - (REAL)2.5 * d[3] + (REAL)2 * d[5];
            STORE(to + 3 * point, even + odd);
            STORE(to + 4 * point, even - odd);
            even = d[6] + (REAL)4 * d[2] - (REAL)5 * d[4];
            odd = (REAL)2 * d[1] - (REAL)2.5 * d[3] + (REAL)0.5 * d[5];
            STORE(to + 5 * point, even + odd);
            STORE(to + 6 * point, even - odd);
            STORE(to + 7 * point, (d[7] - d[1]) + (REAL)5.25 * (d[3] - d[5]));
        }
    }
}

/* The products at every point, summed over rows of weights and channels, for one group. */
#define TILE_SUM(o, v) VECTOR s##o##v = {0};
#define TILE_SUMS(o) EACH_VECTOR(TILE_SUM, o)
#define TILE_X(o, v) const VECTOR x##v = LOAD(x + (v) * WIDTH);
#define TILE_ADD(o, v) s##o##v += w * x##v;
#define TILE_ADDS(o)                       \
    {                                      \
        const VECTOR w = SPLAT(weight[o]); \
        EACH_VECTOR(TILE_ADD, o)           \
    }
#define TILE_KEEP(o, v) STORE(to + ((o) * GROUP + (v)) * WIDTH, s##o##v);
#define TILE_KEEPS(o) EACH_VECTOR(TILE_KEEP, o)

#define TILED(BLOCK)                                                                              \
    static void NAME(tiled_##BLOCK)(const struct NAME(tiled) *layer, ptrdiff_t row,               \
                                    ptrdiff_t group, const REAL *weight)                          \
    {                                                                                             \
        const ptrdiff_t size = layer->channels * GROUP_SIZE;                                      \
        const REAL *at = layer->ring + group * POINTS * RING * size;                              \
        REAL *to = layer->products;                                                               \
        for (int p = 0; p < POINTS; p++, at += RING * size, to += BLOCK * GROUP_SIZE) {           \
            EACH_##BLOCK(TILE_SUMS)                                                               \
            for (int u = 0; u < ROWS_OF_WEIGHTS; u++) {                                           \
                const REAL *x = at + (row + u) % RING * size;                                     \
                for (ptrdiff_t c = 0; c < layer->channels; c++) {                                 \
                    EACH_VECTOR(TILE_X, 0)                                                        \
                    EACH_##BLOCK(TILE_ADDS)                                                       \
                    x += GROUP_SIZE, weight += BLOCK;                                             \
                }                                                                                 \
            }                                                                                     \
            EACH_##BLOCK(TILE_KEEPS)                                                              \
        }                                                                                         \
    }

TILED(1)
TILED(2)
TILED(4)
TILED(6)

/* The larger of two rows, with bias and ReLU; `above` is the upper one, and two vectors behind it lie
 * its codes. */
static inline __attribute__((always_inline)) void NAME(tile_end)(
    const struct NAME(tiled) *layer, ptrdiff_t at, VECTOR bias, const REAL *above, VECTOR below,
    MASK code)
{
    const VECTOR upper = LOAD(above), largest = LARGER(upper, below) + bias;
    STORE(layer->y + at, POSITIVE(largest));
    if (layer->chosen) {
        const MASK place = CHOOSE(KEEPS(upper, below), (MASK)LOAD(above + 2 * WIDTH), code + 2);
        NAME(narrowed)(CHOOSE(largest <= (VECTOR){0}, (MASK){0} + 4, place), layer->chosen + at);
    }
}

/* A^T of the products, pooled; the lower of two rows ends with bias and ReLU. */
#define AT_POINT(p) LOAD(product + (p) * outputs * GROUP_SIZE)

static void NAME(tile_finish)(const struct NAME(tiled) *layer, ptrdiff_t row, ptrdiff_t group,
                              ptrdiff_t n, ptrdiff_t vectors, ptrdiff_t first, ptrdiff_t outputs)
{
    for (ptrdiff_t v = 0; v < GROUP && group * GROUP + v < layer->tiles * vectors; v++) {
        const ptrdiff_t column = (group * GROUP + v) / vectors * (TILE / 2);
        const ptrdiff_t lane = n + (group * GROUP + v) % vectors * WIDTH;
        for (ptrdiff_t o = 0; o < outputs; o++) {
            const REAL *product = layer->products + (o * GROUP + v) * WIDTH;
            const VECTOR even_1 = AT_POINT(1) + AT_POINT(2), odd_1 = AT_POINT(1) - AT_POINT(2);
            const VECTOR even_2 = AT_POINT(3) + AT_POINT(4), odd_2 = AT_POINT(3) - AT_POINT(4);
            const VECTOR even_half = AT_POINT(5) + AT_POINT(6), odd_half = AT_POINT(5) - AT_POINT(6);
            const VECTOR y0 = (AT_POINT(0) + even_1) + (even_2 + even_half);
            const VECTOR y1 = odd_1 + (REAL)2 * odd_2 + (REAL)0.5 * odd_half;
            const VECTOR y2 = even_1 + (REAL)4 * even_2 + (REAL)0.25 * even_half;
            const VECTOR y3 = (AT_POINT(7) + odd_1) + (REAL)8 * odd_2 + (REAL)0.125 * odd_half;
            VECTOR left = LARGER(y0, y1), right = LARGER(y2, y3);
            MASK left_code = ~KEEPS(y0, y1) & 1, right_code = ~KEEPS(y2, y3) & 1;
            REAL *above = layer->above + (o * GROUP + v) * ABOVE * WIDTH;
            if (row % 2 == 0) {
                STORE(above, left);
                STORE(above + WIDTH, right);
                STORE(above + 2 * WIDTH, (VECTOR)left_code);
                STORE(above + 3 * WIDTH, (VECTOR)right_code);
                continue;
            }
            const ptrdiff_t line = (first + o) * layer->rows + row / 2;
            const ptrdiff_t at = (line * layer->columns + column) * layer->lanes + lane;
            const VECTOR bias = SPLAT(layer->bias[first + o]);
            NAME(tile_end)(layer, at, bias, above, left, left_code);
            if (column + 1 < layer->columns)
                NAME(tile_end)(layer, at + layer->lanes, bias, above + WIDTH, right, right_code);
        }
    }
}

/* Two rows of results, one row of y, of all outputs. */
static void NAME(tile_rows)(const struct NAME(tiled) *layer, ptrdiff_t i, ptrdiff_t n,
                            ptrdiff_t vectors, const REAL *weights, ptrdiff_t outputs)
{
    const ptrdiff_t groups = (layer->tiles * vectors + GROUP - 1) / GROUP;
    for (ptrdiff_t group = 0; group < groups; group++)
        for (ptrdiff_t first = 0, size; first < outputs; first += size) {
            size = NAME(block)(outputs - first, GROUP);
            const REAL *weight = weights + first * POINTS * ROWS_OF_WEIGHTS * layer->channels;
            for (ptrdiff_t row = 2 * i; row < 2 * i + 2; row++) {
                switch (size) {
                case 6: NAME(tiled_6)(layer, row, group, weight); break;
                case 4: NAME(tiled_4)(layer, row, group, weight); break;
                case 2: NAME(tiled_2)(layer, row, group, weight); break;
                default: NAME(tiled_1)(layer, row, group, weight);
                }
                NAME(tile_finish)(layer, row, group, n, vectors, first, size);
            }
        }
}

static int NAME(tiled_forward)(const REAL *x, const REAL *weight, const REAL *bias, REAL *y,
                               uint8_t *chosen, const struct convolution *shape)
{
    const ptrdiff_t lanes = shape->lanes, channels = shape->channels, outputs = shape->outputs;
    const ptrdiff_t rows = pooled(shape->height, ROWS_OF_WEIGHTS);
    const ptrdiff_t columns = pooled(shape->width, ROWS_OF_WEIGHTS), tiles = (columns + 1) / 2;
    const ptrdiff_t ring = tiles * POINTS * RING * channels * GROUP_SIZE;
    const ptrdiff_t products = POINTS * MOST_OUTPUTS * GROUP_SIZE;
    const ptrdiff_t above = MOST_OUTPUTS * GROUP_SIZE * ABOVE;
    const ptrdiff_t taps = ROWS_OF_WEIGHTS * channels;
    const ptrdiff_t all = ring + products + above + POINTS * taps * outputs;
    REAL *memory = malloc((size_t)all * sizeof(REAL));
    if (!memory)
        return NO_MEMORY;
    if (tiles * (lanes / WIDTH) % GROUP) /* a last group has places that nothing is put into */
        memset(memory, 0, (size_t)ring * sizeof(REAL));
    REAL *weights = memory + ring + products + above; /* (block, point, row, channel, output) */
    for (ptrdiff_t first = 0, size; first < outputs; first += size) {
        size = NAME(block)(outputs - first, GROUP);
        for (ptrdiff_t o = 0; o < size; o++)
            for (ptrdiff_t c = 0; c < channels; c++)
                for (ptrdiff_t u = 0; u < ROWS_OF_WEIGHTS; u++)
                    NAME(tile_weights)(
                        weight + ((first + o) * taps + c * ROWS_OF_WEIGHTS + u) * ROWS_OF_WEIGHTS,
                        weights + first * POINTS * taps + (u * channels + c) * size + o, taps * size);
    }
    const struct NAME(tiled) layer = {x, bias, y, chosen, memory, memory + ring,
                                      memory + ring + products, channels, shape->height,
                                      shape->width, lanes, rows, columns, tiles};
    for (ptrdiff_t n = 0; n < lanes; n += GROUP_SIZE) {
        const ptrdiff_t left = (lanes - n) / WIDTH, vectors = left < GROUP ? left : GROUP;
        for (ptrdiff_t row = 0; row < RING - 2; row++)
            NAME(tile_row)(&layer, row, n, vectors);
        for (ptrdiff_t i = 0; i < rows; i++) {
            NAME(tile_row)(&layer, 2 * i + RING - 2, n, vectors);
            NAME(tile_row)(&layer, 2 * i + RING - 1, n, vectors);
            NAME(tile_rows)(&layer, i, n, vectors, weights, outputs);
        }
    }
    free(memory);
    return OK;
}

/* As `forward`, in tiles where there are any for the weights. */
static int NAME(fast_forward)(const REAL *x, const REAL *weight, const REAL *bias, REAL *y,
                              uint8_t *chosen, const struct convolution *shape)
{
    if (shape->k == ROWS_OF_WEIGHTS)
        return NAME(tiled_forward)(x, weight, bias, y, chosen, shape);
    return NAME(forward)(x, weight, bias, y, chosen, shape);
}

#endif

int NAME(frozen)(const REAL *x, const REAL *weight, const REAL *bias, REAL *y,
                 const struct convolution *shape)
{
    return NAME(fast_forward)(x, weight, bias, y, NULL, shape);
}
