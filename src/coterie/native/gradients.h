/* Gradients of the convolution of convolution.h, in the form that suits the weights.
 *
 * g[o, i, j] is the gradient of the convolution's output: that of the pooled output in the place
 * that `chosen` names, zero elsewhere. Then
 *
 *     bias'[o]            = sum_{i, j} g[o, i, j]
 *     weight'[o, c, u, v] = sum_{i, j} g[o, i, j] x[c, i + u, j + v]
 *     x'[c, i, j]         = sum_{o, u, v} g[o, i - u, j - v] weight[o, c, u, v]
 *
 * the first two also summed over the samples: lane by lane, then over the lanes in their order.
 * Needs what vectors.h needs.
 */
#pragma once
#include "vectors.h"
#include <stdlib.h>
#include <string.h>

#if defined(PLAIN)

/* Do this for every window that was not cut off by ReLU: g is its gradient, (row, column) the place
 * of the convolution's output that it belongs to. */
#define EACH_PLACE(DO)                                                                             \
    for (ptrdiff_t o = 0; o < s.outputs; o++)                                                      \
        for (ptrdiff_t i = 0; i < pooled(s.height, s.k); i++)                                      \
            for (ptrdiff_t j = 0; j < pooled(s.width, s.k); j++)                                   \
                for (ptrdiff_t n = 0; n < s.lanes; n++, chosen++, gradient++)                      \
                    if (*chosen < 4) {                                                             \
                        const REAL g = *gradient;                                                  \
                        const ptrdiff_t row = 2 * i + *chosen / 2, column = 2 * j + *chosen % 2;   \
                        DO                                                                         \
                    }
/* And this for every weight that takes part in it. */
#define EACH_TAP(DO)                                                                                  \
    for (ptrdiff_t c = 0; c < s.channels; c++)                                                        \
        for (ptrdiff_t u = 0; u < s.k; u++)                                                           \
            for (ptrdiff_t v = 0; v < s.k; v++) {                                                     \
                const ptrdiff_t tap = ((o * s.channels + c) * s.k + u) * s.k + v;                     \
                const ptrdiff_t at = ((c * s.height + row + u) * s.width + column + v) * s.lanes + n; \
                DO                                                                                    \
            }

int NAME(weight_gradient)(const REAL *x, const REAL *gradient, const uint8_t *chosen, REAL *weight,
                          REAL *bias, const struct convolution *shape)
{
    const struct convolution s = *shape;
    memset(weight, 0, (size_t)(s.outputs * s.channels * s.k * s.k) * sizeof(REAL));
    memset(bias, 0, (size_t)s.outputs * sizeof(REAL));
    EACH_PLACE(bias[o] += g; EACH_TAP(weight[tap] += g * x[at];))
    return OK;
}

int NAME(input_gradient)(const REAL *gradient, const uint8_t *chosen, const REAL *weight, REAL *x,
                         const struct convolution *shape)
{
    const struct convolution s = *shape;
    memset(x, 0, (size_t)(s.channels * s.height * s.width * s.lanes) * sizeof(REAL));
    EACH_PLACE(EACH_TAP(x[at] += g * weight[tap];))
    return OK;
}

#else

#include "dense_gradients.h"
#include "sample_gradients.h"
#include "sparse_gradients.h"

#if defined(HAS_SPARSE_GRADIENTS)
#define BY_FORM(k, sparse, dense) ((k) == 3 || (k) == 5 ? NAME(sparse) : NAME(dense))
#else
#define BY_FORM(k, sparse, dense) NAME(dense)
#endif

int NAME(weight_gradient)(const REAL *x, const REAL *gradient, const uint8_t *chosen, REAL *weight,
                          REAL *bias, const struct convolution *shape)
{
#if defined(HAS_SAMPLE_GRADIENTS)
    if (shape->k == SAMPLE_K)
        return NAME(sample_weight_gradient)(x, gradient, chosen, weight, bias, shape);
#endif
    const ptrdiff_t outputs = shape->outputs, taps = shape->channels * shape->k * shape->k;
    const ptrdiff_t count = taps * outputs * WIDTH;
    REAL *sums = calloc((size_t)(count + outputs * WIDTH), sizeof(REAL)); /* (tap, output, lane) */
    if (!sums)
        return NO_MEMORY;
    const int failed = BY_FORM(shape->k, sparse_weight_gradient, dense_weight_gradient)(
        x, gradient, chosen, sums, sums + count, shape);
    for (ptrdiff_t o = 0; o < outputs && !failed; o++) {
        for (ptrdiff_t t = 0; t < taps; t++)
            weight[o * taps + t] = NAME(total)(LOAD(AT(t, o)));
        bias[o] = NAME(total)(LOAD(sums + count + o * WIDTH));
    }
    free(sums);
    return failed;
}

int NAME(input_gradient)(const REAL *gradient, const uint8_t *chosen, const REAL *weight, REAL *x,
                         const struct convolution *shape)
{
#if defined(HAS_SAMPLE_GRADIENTS)
    if (shape->k == SAMPLE_K)
        return NAME(sample_input)(gradient, chosen, weight, x, shape);
#endif
    return BY_FORM(shape->k, sparse_input, dense_input)(gradient, chosen, weight, x, shape);
}

#endif
