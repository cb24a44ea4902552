/* Gradients of the convolution for weights of any size: all four places of a window are multiplied,
 * three of them zeros. What they compute is said in gradients.h. Needs what vectors.h needs.
 */
#pragma once
#include "stretch.h"
#include <stdlib.h>

/* The gradient of one vector of samples at one of the four places of a pooled window. */
#define PLACED(gradient, code, place) SELECT((code) == (MASK){0} + (place), gradient, (VECTOR){0})

/* ---- weights and bias ---- */

/* Sums for TAPS neighbouring columns of the weights and BLOCK outputs, kept in registers over two
 * rows of g: (row, column, output, lane). They are loaded from and stored to (tap, output, lane). */
#define WEIGHTS(TAPS, BLOCK)                                                                       \
    static void NAME(weights_##TAPS##_##BLOCK)(const REAL *x, ptrdiff_t x_row, const REAL *g,      \
                                               ptrdiff_t lanes, ptrdiff_t columns, REAL *sums,     \
                                               ptrdiff_t outputs)                                  \
    {                                                                                              \
        EACH_##TAPS(LOAD_SUMS_##BLOCK) for (ptrdiff_t r = 0; r < 2; r++)                           \
        {                                                                                          \
            const REAL *here = x + r * x_row;                                                      \
            for (ptrdiff_t j = 0; j < columns; j++, here += lanes, g += BLOCK * lanes)             \
                for (ptrdiff_t n = 0; n < lanes; n += WIDTH) {                                     \
                    EACH_##BLOCK(LOAD_G) EACH_##TAPS(ADD_TAP_##BLOCK)                              \
                }                                                                                  \
        }                                                                                          \
        EACH_##TAPS(STORE_SUMS_##BLOCK)                                                            \
    }
#define LOAD_G(o) const VECTOR g##o = LOAD(g + (o) * lanes + n);

#define LOAD_SUMS_1(t) VECTOR s##t##0 = LOAD(AT(t, 0));
#define LOAD_SUMS_2(t) LOAD_SUMS_1(t) VECTOR s##t##1 = LOAD(AT(t, 1));
#define LOAD_SUMS_3(t) LOAD_SUMS_2(t) VECTOR s##t##2 = LOAD(AT(t, 2));
#define LOAD_SUMS_4(t) LOAD_SUMS_3(t) VECTOR s##t##3 = LOAD(AT(t, 3));
#define STORE_SUMS_1(t) STORE(AT(t, 0), s##t##0);
#define STORE_SUMS_2(t) STORE_SUMS_1(t) STORE(AT(t, 1), s##t##1);
#define STORE_SUMS_3(t) STORE_SUMS_2(t) STORE(AT(t, 2), s##t##2);
#define STORE_SUMS_4(t) STORE_SUMS_3(t) STORE(AT(t, 3), s##t##3);
#define TAP(t) const VECTOR p = LOAD(here + (t) * lanes + n);
#define ADD_TAP_1(t) { TAP(t) s##t##0 += g0 * p; }
#define ADD_TAP_2(t) { TAP(t) s##t##0 += g0 * p; s##t##1 += g1 * p; }
#define ADD_TAP_3(t) { TAP(t) s##t##0 += g0 * p; s##t##1 += g1 * p; s##t##2 += g2 * p; }
#define ADD_TAP_4(t) { TAP(t) s##t##0 += g0 * p; s##t##1 += g1 * p; s##t##2 += g2 * p; s##t##3 += g3 * p; }

#define WEIGHTS_OF(TAPS) WEIGHTS(TAPS, 1) WEIGHTS(TAPS, 2) WEIGHTS(TAPS, 3) WEIGHTS(TAPS, 4)
WEIGHTS_OF(1)
WEIGHTS_OF(3)
WEIGHTS_OF(5)

typedef void NAME(weights)(const REAL *, ptrdiff_t, const REAL *, ptrdiff_t, ptrdiff_t, REAL *,
                           ptrdiff_t);
#define ROW_OF(TAPS) \
    {NAME(weights_##TAPS##_1), NAME(weights_##TAPS##_2), NAME(weights_##TAPS##_3), NAME(weights_##TAPS##_4)}
static NAME(weights) *const NAME(weights_by)[3][4] = {ROW_OF(1), ROW_OF(3), ROW_OF(5)};

/* How many of the outputs that are left to take at once: about the same number each time, and no
 * more than leave a register for each of their g and each of their sums. */
static ptrdiff_t NAME(outputs_of)(ptrdiff_t left, ptrdiff_t taps)
{
    const ptrdiff_t fitting = MOST_SUMS / (taps + 1), most = fitting < 4 ? fitting : 4;
    const ptrdiff_t turns = (left + most - 1) / most;
    return (left + turns - 1) / turns;
}

/* g below a stretch of one row of windows: (row, column, output, lane). */
static void NAME(spread_rows)(const REAL *gradient, const uint8_t *chosen,
                              const struct convolution *shape, const struct NAME(stretch) *part,
                              REAL *g, REAL *bias_sums)
{
    const ptrdiff_t lanes = shape->lanes, rows = pooled(shape->height, shape->k);
    const ptrdiff_t columns = pooled(shape->width, shape->k);
    const ptrdiff_t next = part->outputs * lanes, below = 2 * part->columns * next;
    for (ptrdiff_t o = 0; o < part->outputs; o++) {
        REAL *total = bias_sums + (part->output + o) * WIDTH;
        VECTOR sum = LOAD(total);
        for (ptrdiff_t j = 0; j < part->columns; j++)
            for (ptrdiff_t n = 0; n < lanes; n += WIDTH) {
                const ptrdiff_t window = (part->output + o) * rows + part->row;
                const ptrdiff_t place = (window * columns + part->column + j) * lanes + n;
                const MASK code = NAME(widened)(chosen + place);
                const VECTOR here = LOAD(gradient + place);
                REAL *to = g + 2 * j * next + o * lanes + n;
                sum += SELECT(code < (MASK){0} + 4, here, (VECTOR){0});
                STORE(to, PLACED(here, code, 0));
                STORE(to + next, PLACED(here, code, 1));
                STORE(to + below, PLACED(here, code, 2));
                STORE(to + below + next, PLACED(here, code, 3));
            }
        STORE(total, sum);
    }
}

static int NAME(dense_weight_gradient)(const REAL *x, const REAL *gradient, const uint8_t *chosen,
                                       REAL *sums, REAL *bias_sums, const struct convolution *shape)
{
    const ptrdiff_t lanes = shape->lanes, outputs = shape->outputs, k = shape->k;
    const ptrdiff_t rows = pooled(shape->height, k), columns = pooled(shape->width, k);
    const ptrdiff_t row = shape->width * lanes;
    const ptrdiff_t widest = k >= 5 ? 5 : k >= 3 ? 3 : 1, block = NAME(outputs_of)(outputs, widest);
    const ptrdiff_t fitting = NEAR_BYTES / (4 * block * lanes * (ptrdiff_t)sizeof(REAL));
    const ptrdiff_t stretch = fitting < 1 ? 1 : fitting > columns ? columns : fitting;
    REAL *g = malloc((size_t)(4 * stretch * block * lanes) * sizeof(REAL));
    if (!g)
        return NO_MEMORY;
    struct NAME(stretch) part;
    for (part.row = 0; part.row < rows; part.row++)
        for (part.column = 0; part.column < columns; part.column += part.columns) {
            part.columns = columns - part.column < stretch ? columns - part.column : stretch;
            for (part.output = 0; part.output < outputs; part.output += part.outputs) {
                part.outputs = NAME(outputs_of)(outputs - part.output, widest);
                NAME(spread_rows)(gradient, chosen, shape, &part, g, bias_sums);
                for (ptrdiff_t c = 0; c < shape->channels; c++)
                    for (ptrdiff_t u = 0; u < k; u++)
                        for (ptrdiff_t v = 0, across; v < k; v += across) {
                            across = k - v >= 5 ? 5 : k - v >= 3 ? 3 : 1;
                            const ptrdiff_t tap = (c * k + u) * k + v;
                            NAME(weights_by)[across / 2][part.outputs - 1](
                                x + (c * shape->height + 2 * part.row + u) * row +
                                    (2 * part.column + v) * lanes,
                                row, g, lanes, 2 * part.columns,
                                sums + (tap * outputs + part.output) * WIDTH, outputs);
                        }
            }
        }
    free(g);
    return OK;
}

/* ---- input ---- */

/* g of one vector of samples, with a border of zero columns: (output, row, column, lane). */
static void NAME(spread_lane)(const REAL *gradient, const uint8_t *chosen,
                              const struct convolution *shape, ptrdiff_t border, ptrdiff_t across,
                              ptrdiff_t n, REAL *g)
{
    const ptrdiff_t lanes = shape->lanes, rows = pooled(shape->height, shape->k);
    const ptrdiff_t columns = pooled(shape->width, shape->k);
    for (ptrdiff_t o = 0; o < shape->outputs; o++)
        for (ptrdiff_t i = 0; i < rows; i++) {
            REAL *to = g + ((o * 2 * rows + 2 * i) * across + border) * WIDTH, *below = to + across * WIDTH;
            for (ptrdiff_t j = 0; j < columns; j++, to += 2 * WIDTH, below += 2 * WIDTH) {
                const ptrdiff_t place = ((o * rows + i) * columns + j) * lanes + n;
                const MASK code = NAME(widened)(chosen + place);
                const VECTOR here = LOAD(gradient + place);
                STORE(to, PLACED(here, code, 0));
                STORE(to + WIDTH, PLACED(here, code, 1));
                STORE(below, PLACED(here, code, 2));
                STORE(below + WIDTH, PLACED(here, code, 3));
            }
        }
}

struct NAME(spread) {
    const REAL *g; /* (outputs, rows, across, WIDTH) */
    ptrdiff_t outputs, rows, columns, border, across;
};

/* Four neighbouring columns of x' and BLOCK channels, the weights packed (u, output, v, block). */
#define INPUT_SUMS(m) VECTOR a##m = {0}, b##m = {0}, c##m = {0}, d##m = {0};
#define INPUT_STORE(m)                                          \
    {                                                           \
        REAL *to = x + (m) * plane;                             \
        STORE(to, a##m);                                        \
        if (left > 1) STORE(to + lanes, b##m);                  \
        if (left > 2) STORE(to + 2 * lanes, c##m);              \
        if (left > 3) STORE(to + 3 * lanes, d##m);              \
    }
#define INPUT(BLOCK)                                                                               \
    static void NAME(input_##BLOCK)(const struct NAME(spread) *s, const REAL *packed, ptrdiff_t k, \
                                    ptrdiff_t i, ptrdiff_t j, ptrdiff_t left, REAL *x,             \
                                    ptrdiff_t plane, ptrdiff_t lanes)                              \
    {                                                                                              \
        const ptrdiff_t last = j + 3 < k - 1 ? j + 3 : k - 1;                                      \
        const ptrdiff_t begin = j - s->columns + 1 > 0 ? j - s->columns + 1 : 0;                   \
        EACH_##BLOCK(INPUT_SUMS) for (ptrdiff_t u = 0; u < k; u++)                                 \
        {                                                                                          \
            if (i - u < 0 || i - u >= s->rows)                                                     \
                continue;                                                                          \
            for (ptrdiff_t o = 0; o < s->outputs; o++) {                                           \
                const REAL *weight = packed + ((u * s->outputs + o) * k + begin) * BLOCK;          \
                const REAL *g =                                                                    \
                    s->g + ((o * s->rows + i - u) * s->across + s->border + j - begin) * WIDTH;    \
                VECTOR x00 = LOAD(g + WIDTH), x01 = LOAD(g + 2 * WIDTH);                           \
                VECTOR x10 = LOAD(g + 3 * WIDTH), x11;                                             \
                for (ptrdiff_t v = begin; v <= last; v++, g -= WIDTH, weight += BLOCK) {           \
                    x11 = x10, x10 = x01, x01 = x00, x00 = LOAD(g);                                \
                    EACH_##BLOCK(ADD)                                                              \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
        EACH_##BLOCK(INPUT_STORE)                                                                  \
    }
INPUT(1)
INPUT(2)
INPUT(4)
INPUT(6)

static int NAME(dense_input)(const REAL *gradient, const uint8_t *chosen, const REAL *weight, REAL *x,
                             const struct convolution *shape)
{
    const ptrdiff_t lanes = shape->lanes, channels = shape->channels, outputs = shape->outputs;
    const ptrdiff_t height = shape->height, width = shape->width, k = shape->k;
    const ptrdiff_t rows = pooled(height, k), columns = pooled(width, k);
    const ptrdiff_t border = 3, across = 2 * columns + 2 * border, plane = height * width * lanes;
    struct NAME(spread) s = {NULL, outputs, 2 * rows, 2 * columns, border, across};
    REAL *g = calloc((size_t)(outputs * s.rows * across * WIDTH), sizeof(REAL));
    REAL *packed = malloc((size_t)(channels * outputs * k * k) * sizeof(REAL));
    if (!g || !packed) {
        free(g);
        free(packed);
        return NO_MEMORY;
    }
    s.g = g;
    for (ptrdiff_t c = 0, size; c < channels; c += size) {
        size = NAME(block)(channels - c, 4);
        REAL *to = packed + c * outputs * k * k;
        for (ptrdiff_t u = 0; u < k; u++)
            for (ptrdiff_t o = 0; o < outputs; o++)
                for (ptrdiff_t v = 0; v < k; v++)
                    for (ptrdiff_t b = 0; b < size; b++)
                        *to++ = weight[((o * channels + c + b) * k + u) * k + v];
    }
    for (ptrdiff_t n = 0; n < lanes; n += WIDTH) {
        NAME(spread_lane)(gradient, chosen, shape, border, across, n, g);
        for (ptrdiff_t i = 0; i < height; i++)
            for (ptrdiff_t j = 0; j < width; j += 4)
                for (ptrdiff_t c = 0, size; c < channels; c += size) {
                    size = NAME(block)(channels - c, 4);
                    const REAL *part = packed + c * outputs * k * k;
                    REAL *to = x + c * plane + (i * width + j) * lanes + n;
                    switch (size) {
                    case 6: NAME(input_6)(&s, part, k, i, j, width - j, to, plane, lanes); break;
                    case 4: NAME(input_4)(&s, part, k, i, j, width - j, to, plane, lanes); break;
                    case 2: NAME(input_2)(&s, part, k, i, j, width - j, to, plane, lanes); break;
                    default: NAME(input_1)(&s, part, k, i, j, width - j, to, plane, lanes);
                    }
                }
    }
    free(g);
    free(packed);
    return OK;
}
