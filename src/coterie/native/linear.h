/* Linear layers.
 *
 *     y[o, n] = bias[o] + sum_i weight[o, i] x[i, n],   or the larger of that and zero
 *
 * with the samples n innermost, as the convolutions leave them: (channel, row, column) is i. Needs
 * what vectors.h needs.
 */
#pragma once
#include "vectors.h"

#if defined(PLAIN)

static void NAME(linear)(const REAL *x, const REAL *weight, const REAL *bias, REAL *y,
                         ptrdiff_t inputs, ptrdiff_t outputs, ptrdiff_t lanes, int relu)
{
    for (ptrdiff_t o = 0; o < outputs; o++)
        for (ptrdiff_t n = 0; n < lanes; n++) {
            REAL sum = bias[o];
            for (ptrdiff_t i = 0; i < inputs; i++)
                sum += weight[o * inputs + i] * x[i * lanes + n];
            *y++ = relu && sum <= 0 ? 0 : sum;
        }
}

#else

#define LINEAR_SUM(o, v) VECTOR s##o##v = SPLAT(bias[o]);
#define LINEAR_SUMS(o) EACH_VECTOR(LINEAR_SUM, o)
#define LINEAR_X(o, v) const VECTOR x##v = LOAD(from + (v) * WIDTH);
#define LINEAR_ADD(o, v) s##o##v += w * x##v;
#define LINEAR_ADDS(o)                                    \
    {                                                     \
        const VECTOR w = SPLAT(weight[(o) * inputs + i]); \
        EACH_VECTOR(LINEAR_ADD, o)                        \
    }
#define LINEAR_CUT(o, v)                           \
    STORE(y + (o) * lanes + n + (v) * WIDTH,       \
          relu ? POSITIVE(s##o##v) : s##o##v);
#define LINEAR_CUTS(o) EACH_VECTOR(LINEAR_CUT, o)
#define LINEAR_ONE(o)                                                         \
    {                                                                         \
        VECTOR sum = SPLAT(bias[o]);                                          \
        for (ptrdiff_t i = 0; i < inputs; i++)                                \
            sum += SPLAT(weight[(o) * inputs + i]) * LOAD(x + i * lanes + n); \
        STORE(y + (o) * lanes + n, relu ? POSITIVE(sum) : sum);               \
    }

/* BLOCK outputs for all samples: groups of vectors, then the vectors that fill no group. */
#define LINEAR(BLOCK)                                                                          \
    static void NAME(linear_##BLOCK)(const REAL *x, const REAL *weight, const REAL *bias,      \
                                     REAL *y, ptrdiff_t inputs, ptrdiff_t lanes, int relu)     \
    {                                                                                          \
        ptrdiff_t n = 0;                                                                       \
        for (; n + GROUP_SIZE <= lanes; n += GROUP_SIZE) {                                     \
            EACH_##BLOCK(LINEAR_SUMS)                                                          \
            const REAL *from = x + n;                                                          \
            for (ptrdiff_t i = 0; i < inputs; i++, from += lanes) {                            \
                EACH_VECTOR(LINEAR_X, 0)                                                       \
                EACH_##BLOCK(LINEAR_ADDS)                                                      \
            }                                                                                  \
            EACH_##BLOCK(LINEAR_CUTS)                                                          \
        }                                                                                      \
        for (; n < lanes; n += WIDTH) {                                                        \
            EACH_##BLOCK(LINEAR_ONE)                                                           \
        }                                                                                      \
    }

LINEAR(1)
LINEAR(2)
LINEAR(4)
LINEAR(6)

static void NAME(linear)(const REAL *x, const REAL *weight, const REAL *bias, REAL *y,
                         ptrdiff_t inputs, ptrdiff_t outputs, ptrdiff_t lanes, int relu)
{
    for (ptrdiff_t first = 0, size; first < outputs; first += size) {
        size = NAME(block)(outputs - first, GROUP);
        const REAL *w = weight + first * inputs, *b = bias + first;
        REAL *to = y + first * lanes;
        switch (size) {
        case 6: NAME(linear_6)(x, w, b, to, inputs, lanes, relu); break;
        case 4: NAME(linear_4)(x, w, b, to, inputs, lanes, relu); break;
        case 2: NAME(linear_2)(x, w, b, to, inputs, lanes, relu); break;
        default: NAME(linear_1)(x, w, b, to, inputs, lanes, relu);
        }
    }
}

#endif
