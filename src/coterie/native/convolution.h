/* Convolution, bias, ReLU and 2 x 2 max-pooling in one pass.
 *
 *     y[o, i, j] = relu( max_{a, b in {0, 1}} ( bias[o] + sum_{c, u, v}
 *                        weight[o, c, u, v] x[c, 2 i + a + u, 2 j + b + v] ) )
 *
 * for every sample. `chosen` remembers for the gradients which of the four (0 .. 3) was the first
 * largest, or 4 where ReLU gave zero; it may be NULL. Needs what vectors.h needs.
 */
#pragma once
#include "vectors.h"
#include <stdlib.h>

#if defined(PLAIN)

int NAME(forward)(const REAL *x, const REAL *weight, const REAL *bias, REAL *y, uint8_t *chosen,
                  const struct convolution *shape)
{
    const struct convolution s = *shape;
    for (ptrdiff_t o = 0; o < s.outputs; o++)
        for (ptrdiff_t i = 0; i < pooled(s.height, s.k); i++)
            for (ptrdiff_t j = 0; j < pooled(s.width, s.k); j++)
                for (ptrdiff_t n = 0; n < s.lanes; n++) {
                    REAL most = 0;
                    uint8_t code = 0;
                    for (uint8_t place = 0; place < 4; place++) {
                        const ptrdiff_t row = 2 * i + place / 2, column = 2 * j + place % 2;
                        REAL sum = bias[o];
                        for (ptrdiff_t c = 0; c < s.channels; c++)
                            for (ptrdiff_t u = 0; u < s.k; u++)
                                for (ptrdiff_t v = 0; v < s.k; v++)
                                    sum += weight[((o * s.channels + c) * s.k + u) * s.k + v] *
                                           x[((c * s.height + row + u) * s.width + column + v) *
                                                 s.lanes + n];
                        if (place == 0 || !KEEPS(most, sum))
                            most = sum, code = place;
                    }
                    *y++ = most <= 0 ? 0 : most;
                    if (chosen)
                        *chosen++ = most <= 0 ? 4 : code;
                }
    return OK;
}

#else

struct NAME(pass) {
    const REAL *x, *bias;
    REAL *y;
    uint8_t *chosen;
    ptrdiff_t channels, height, width, k, lanes;
    ptrdiff_t rows, columns; /* of y */
};

static inline __attribute__((always_inline)) void NAME(finish)(
    const struct NAME(pass) *layer, ptrdiff_t place, VECTOR a, VECTOR b, VECTOR c, VECTOR d)
{
    MASK keep = KEEPS(a, b);
    VECTOR upper = SELECT(keep, a, b);
    MASK code = CHOOSE(keep, (MASK){0}, (MASK){0} + 1);
    keep = KEEPS(c, d);
    VECTOR lower = SELECT(keep, c, d);
    MASK below = CHOOSE(keep, (MASK){0} + 2, (MASK){0} + 3);
    keep = KEEPS(upper, lower);
    VECTOR most = SELECT(keep, upper, lower);
    code = CHOOSE(keep, code, below);
    MASK cut = most <= (VECTOR){0};
    STORE(layer->y + place, SELECT(cut, (VECTOR){0}, most));
    if (layer->chosen) {
        code = CHOOSE(cut, (MASK){0} + 4, code);
        NAME(narrowed)(code, layer->chosen + place);
    }
}

/* Four sums a channel, one for each place of the pooled window. */
#define SUMS(o) VECTOR a##o = SPLAT(layer->bias[first + (o)]), b##o = a##o, c##o = a##o, d##o = a##o;
#define FINISH(o) NAME(finish)(layer, place + (o) * plane, a##o, b##o, c##o, d##o);

#define FORWARD(BLOCK)                                                                            \
    static void NAME(forward_##BLOCK)(const struct NAME(pass) *layer, ptrdiff_t first,            \
                                      const REAL *packed)                                         \
    {                                                                                             \
        const ptrdiff_t k = layer->k, step = layer->lanes, row = layer->width * step;             \
        const ptrdiff_t plane = layer->rows * layer->columns * layer->lanes;                      \
        for (ptrdiff_t i = 0; i < layer->rows; i++)                                               \
            for (ptrdiff_t j = 0; j < layer->columns; j++)                                        \
                for (ptrdiff_t n = 0; n < layer->lanes; n += WIDTH) {                             \
                    const REAL *weight = packed;                                                  \
                    EACH_##BLOCK(SUMS)                                                            \
                    for (ptrdiff_t c = 0; c < layer->channels; c++)                               \
                        for (ptrdiff_t u = 0; u < k; u++) {                                       \
                            const REAL *x = layer->x + (c * layer->height + 2 * i + u) * row +    \
                                            2 * j * step + n;                                     \
                            VECTOR x01 = LOAD(x), x11 = LOAD(x + row), x00, x10;                  \
                            for (ptrdiff_t v = 0; v < k; v++, weight += BLOCK) {                  \
                                x += step;                                                        \
                                x00 = x01, x10 = x11;                                             \
                                x01 = LOAD(x), x11 = LOAD(x + row);                               \
                                EACH_##BLOCK(ADD)                                                 \
                            }                                                                     \
                        }                                                                         \
                    ptrdiff_t place =                                                             \
                        ((first * layer->rows + i) * layer->columns + j) * layer->lanes + n;      \
                    EACH_##BLOCK(FINISH)                                                          \
                }                                                                                 \
    }

FORWARD(1)
FORWARD(2)
FORWARD(4)
FORWARD(6)

int NAME(forward)(const REAL *x, const REAL *weight, const REAL *bias, REAL *y, uint8_t *chosen,
                  const struct convolution *shape)
{
    const struct convolution s = *shape;
    const ptrdiff_t taps = s.channels * s.k * s.k;
    REAL *packed = malloc((size_t)(taps * 6) * sizeof(REAL));
    if (!packed)
        return NO_MEMORY;
    const struct NAME(pass) layer = {x, bias, y, chosen, s.channels, s.height, s.width, s.k,
                                     s.lanes, pooled(s.height, s.k), pooled(s.width, s.k)};
    for (ptrdiff_t first = 0, size; first < s.outputs; first += size) {
        size = NAME(block)(s.outputs - first, 4);
        for (ptrdiff_t o = 0; o < size; o++)
            for (ptrdiff_t t = 0; t < taps; t++)
                packed[t * size + o] = weight[(first + o) * taps + t];
        switch (size) {
        case 6: NAME(forward_6)(&layer, first, packed); break;
        case 4: NAME(forward_4)(&layer, first, packed); break;
        case 2: NAME(forward_2)(&layer, first, packed); break;
        default: NAME(forward_1)(&layer, first, packed);
        }
    }
    free(packed);
    return OK;
}

#endif
