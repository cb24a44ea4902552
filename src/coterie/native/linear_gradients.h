/* Gradients of the weights of a linear layer: outer products, summed over the samples.
 *
 *     weight'[o, i] = sum_n g[o, n] x[i, n],     bias'[o] = sum_n g[o, n]
 *
 * g and x have the samples n innermost. For the sums of neighbouring weights to be a vector, x is
 * turned around first: (sample, input). Needs what vectors.h needs.
 */
#pragma once
#include "vectors.h"
#include <string.h>

#define VECTORS_AT_ONCE 3 /* of neighbouring weights */

/* The room that `linear_weights` needs for x turned around, in numbers. */
static inline ptrdiff_t NAME(turned_size)(ptrdiff_t inputs, ptrdiff_t lanes)
{
    return ((inputs + WIDTH - 1) / WIDTH * lanes + VECTORS_AT_ONCE) * WIDTH;
}

#if defined(PLAIN)

static void NAME(linear_weights)(const REAL *x, const REAL *g, ptrdiff_t inputs, ptrdiff_t outputs,
                                 ptrdiff_t lanes, REAL *turned, REAL *weight, REAL *bias)
{
    (void)turned;
    memset(weight, 0, (size_t)(outputs * inputs) * sizeof(REAL));
    memset(bias, 0, (size_t)outputs * sizeof(REAL));
    for (ptrdiff_t o = 0; o < outputs; o++)
        for (ptrdiff_t n = 0; n < lanes; n++) {
            bias[o] += g[o * lanes + n];
            for (ptrdiff_t i = 0; i < inputs; i++)
                weight[o * inputs + i] += g[o * lanes + n] * x[i * lanes + n];
        }
}

#else

#define SQUARE 16 /* samples and inputs that are turned at once */

static void NAME(turn_inputs)(const REAL *x, ptrdiff_t inputs, ptrdiff_t step, ptrdiff_t lanes,
                              REAL *to)
{
    for (ptrdiff_t i = 0; i < inputs; i += SQUARE)
        for (ptrdiff_t n = 0; n < lanes; n += SQUARE) {
            const ptrdiff_t high = inputs - i < SQUARE ? inputs - i : SQUARE;
            for (ptrdiff_t m = 0; m < SQUARE; m++)
                for (ptrdiff_t j = 0; j < high; j++)
                    to[(n + m) * step + i + j] = x[(i + j) * lanes + n + m];
        }
    for (ptrdiff_t n = 0; n < lanes && step > inputs; n++)
        memset(to + n * step + inputs, 0, (size_t)(step - inputs) * sizeof(REAL));
}

/* Sums for BLOCK outputs and three vectors of weights. */
#define OUTER_SUM(o, v) VECTOR s##o##v = {0};
#define OUTER_X(o, v) const VECTOR x##v = LOAD(x + (v) * WIDTH);
#define OUTER_ADD(o, v) s##o##v += w * x##v;
#define OUTER_PUT(o, v) STORE(sums + ((o) * VECTORS_AT_ONCE + (v)) * WIDTH, s##o##v);
#define FOR_VECTORS(F, o) F(o, 0) F(o, 1) F(o, 2)
#define OUTER_SUMS(o) FOR_VECTORS(OUTER_SUM, o)
#define OUTER_ADDS(o)                              \
    {                                              \
        const VECTOR w = SPLAT(g[(o) * lanes + n]); \
        FOR_VECTORS(OUTER_ADD, o)                  \
    }
#define OUTER_PUTS(o) FOR_VECTORS(OUTER_PUT, o)
#define OUTER(BLOCK)                                                                              \
    static void NAME(outer_##BLOCK)(const REAL *x, ptrdiff_t step, const REAL *g,                 \
                                    ptrdiff_t lanes, REAL *sums)                                  \
    {                                                                                             \
        EACH_##BLOCK(OUTER_SUMS)                                                                  \
        for (ptrdiff_t n = 0; n < lanes; n++, x += step) {                                        \
            FOR_VECTORS(OUTER_X, 0)                                                               \
            EACH_##BLOCK(OUTER_ADDS)                                                              \
        }                                                                                         \
        EACH_##BLOCK(OUTER_PUTS)                                                                  \
    }
OUTER(1)
OUTER(2)
OUTER(3)
OUTER(4)

static void NAME(linear_weights)(const REAL *x, const REAL *g, ptrdiff_t inputs, ptrdiff_t outputs,
                                 ptrdiff_t lanes, REAL *turned, REAL *weight, REAL *bias)
{
    const ptrdiff_t across = VECTORS_AT_ONCE * WIDTH;
    const ptrdiff_t step = (inputs + WIDTH - 1) / WIDTH * WIDTH;
    REAL sums[4 * VECTORS_AT_ONCE * WIDTH];
    NAME(turn_inputs)(x, inputs, step, lanes, turned);
    for (ptrdiff_t i = 0; i < inputs; i += across) {
        /* the last sums begin earlier, so that they end with the last vector */
        const ptrdiff_t first = i + across <= step || step < across ? i : step - across;
        for (ptrdiff_t o = 0, size; o < outputs; o += size) {
            size = outputs - o < 4 ? outputs - o : 4;
            const REAL *from = turned + first, *slope = g + o * lanes;
            switch (size) {
            case 4: NAME(outer_4)(from, step, slope, lanes, sums); break;
            case 3: NAME(outer_3)(from, step, slope, lanes, sums); break;
            case 2: NAME(outer_2)(from, step, slope, lanes, sums); break;
            default: NAME(outer_1)(from, step, slope, lanes, sums);
            }
            const ptrdiff_t count = inputs - first < across ? inputs - first : across;
            for (ptrdiff_t b = 0; b < size; b++)
                memcpy(weight + (o + b) * inputs + first, sums + b * across,
                       (size_t)count * sizeof(REAL));
        }
    }
    for (ptrdiff_t o = 0; o < outputs; o++) {
        VECTOR sum = {0};
        for (ptrdiff_t n = 0; n < lanes; n += WIDTH)
            sum += LOAD(g + o * lanes + n);
        bias[o] = NAME(total)(sum);
    }
}

#endif
