/* Linear layers, and the gradients of their inputs.
 *
 *     y[o, n] = bias[o] + sum_i weight[o, i] x[i, n],   or the larger of that and zero
 *
 * with the samples n innermost, as the convolutions leave them: (channel, row, column) is i. With the
 * steps exchanged it is the product with the transposed weights, which the gradients need. Needs what
 * vectors.h needs.
 */
#pragma once
#include "vectors.h"

/* Weights (outputs, inputs): `by_output` and `by_input` numbers lie between neighbours. */
struct NAME(matrix) {
    const REAL *weight;
    ptrdiff_t outputs, inputs, by_output, by_input;
};

#if defined(PLAIN)

static void NAME(linear)(const REAL *x, const struct NAME(matrix) *m, const REAL *bias, REAL *y,
                         ptrdiff_t lanes, int relu)
{
    for (ptrdiff_t o = 0; o < m->outputs; o++)
        for (ptrdiff_t n = 0; n < lanes; n++) {
            REAL sum = bias ? bias[o] : 0;
            for (ptrdiff_t i = 0; i < m->inputs; i++)
                sum += m->weight[o * m->by_output + i * m->by_input] * x[i * lanes + n];
            *y++ = relu && sum <= 0 ? 0 : sum;
        }
}

#else

#define LINEAR_BIAS(o) const REAL bias##o = bias ? bias[o] : 0;
#define LINEAR_SUM(o, v) VECTOR s##o##v = SPLAT(bias##o);
#define LINEAR_SUMS(o) EACH_VECTOR(LINEAR_SUM, o)
#define LINEAR_X(o, v) const VECTOR x##v = LOAD(from + (v) * WIDTH);
#define LINEAR_ADD(o, v) s##o##v += w * x##v;
#define LINEAR_ADDS(o)                                   \
    {                                                    \
        const VECTOR w = SPLAT(weight[(o) * by_output]); \
        EACH_VECTOR(LINEAR_ADD, o)                       \
    }
#define LINEAR_CUT(o, v)                           \
    STORE(y + (o) * lanes + n + (v) * WIDTH,       \
          relu ? POSITIVE(s##o##v) : s##o##v);
#define LINEAR_CUTS(o) EACH_VECTOR(LINEAR_CUT, o)
#define LINEAR_ONE(o)                                                                            \
    {                                                                                            \
        VECTOR sum = SPLAT(bias##o);                                                             \
        for (ptrdiff_t i = 0; i < m->inputs; i++)                                                \
            sum += SPLAT(first[(o) * by_output + i * m->by_input]) * LOAD(x + i * lanes + n);    \
        STORE(y + (o) * lanes + n, relu ? POSITIVE(sum) : sum);                                  \
    }

/* BLOCK outputs for all samples: groups of vectors, then the vectors that fill no group. */
#define LINEAR(BLOCK)                                                                             \
    static void NAME(linear_##BLOCK)(const REAL *x, const struct NAME(matrix) *m,                 \
                                     const REAL *first, const REAL *bias, REAL *y,                \
                                     ptrdiff_t lanes, int relu)                                   \
    {                                                                                             \
        const ptrdiff_t by_output = m->by_output;                                                 \
        ptrdiff_t n = 0;                                                                          \
        EACH_##BLOCK(LINEAR_BIAS)                                                                 \
        for (; n + GROUP_SIZE <= lanes; n += GROUP_SIZE) {                                        \
            EACH_##BLOCK(LINEAR_SUMS)                                                             \
            const REAL *from = x + n, *weight = first;                                            \
            for (ptrdiff_t i = 0; i < m->inputs; i++, from += lanes, weight += m->by_input) {     \
                EACH_VECTOR(LINEAR_X, 0)                                                          \
                EACH_##BLOCK(LINEAR_ADDS)                                                         \
            }                                                                                     \
            EACH_##BLOCK(LINEAR_CUTS)                                                             \
        }                                                                                         \
        for (; n < lanes; n += WIDTH) {                                                           \
            EACH_##BLOCK(LINEAR_ONE)                                                              \
        }                                                                                         \
    }

LINEAR(1)
LINEAR(2)
LINEAR(4)
LINEAR(6)

static void NAME(linear)(const REAL *x, const struct NAME(matrix) *m, const REAL *bias, REAL *y,
                         ptrdiff_t lanes, int relu)
{
    for (ptrdiff_t o = 0, size; o < m->outputs; o += size) {
        size = NAME(block)(m->outputs - o, GROUP);
        const REAL *first = m->weight + o * m->by_output, *b = bias ? bias + o : NULL;
        REAL *to = y + o * lanes;
        switch (size) {
        case 6: NAME(linear_6)(x, m, first, b, to, lanes, relu); break;
        case 4: NAME(linear_4)(x, m, first, b, to, lanes, relu); break;
        case 2: NAME(linear_2)(x, m, first, b, to, lanes, relu); break;
        default: NAME(linear_1)(x, m, first, b, to, lanes, relu);
        }
    }
}

#endif
