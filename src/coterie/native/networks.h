/* Whole networks without gradients in one call: convolutions with ReLU and pooling, then linear layers.
 *
 * Every layer takes what the one before gives, the first of a network the batch. It is its own
 * specification: a loop over the layers. Needs what vectors.h needs.
 */
#pragma once
#include "linear.h"
#include "tiles.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* x inside a border of zeros. */
static void NAME(border)(const REAL *x, REAL *to, ptrdiff_t channels, ptrdiff_t height,
                         ptrdiff_t width, ptrdiff_t lanes, ptrdiff_t edge)
{
    const ptrdiff_t wide = width + 2 * edge, high = height + 2 * edge;
    memset(to, 0, (size_t)(channels * high * wide * lanes) * sizeof(REAL));
    for (ptrdiff_t c = 0; c < channels; c++)
        for (ptrdiff_t i = 0; i < height; i++)
            for (ptrdiff_t j = 0; j < width; j++)
                memcpy(to + ((c * high + i + edge) * wide + j + edge) * lanes,
                       x + ((c * height + i) * width + j) * lanes, (size_t)lanes * sizeof(REAL));
}

#define SHORTEST 1e-12 /* as torch's normalize has it */

/* y / max(|y|, SHORTEST), the length of a sample being that over all outputs; `divisors`, unless it
 * is NULL, gets what the samples were divided by. */
static void NAME(make_unit)(REAL *y, REAL *divisors, ptrdiff_t outputs, ptrdiff_t lanes)
{
    for (ptrdiff_t n = 0; n < lanes; n += WIDTH) {
        REAL lengths[WIDTH] = {0};
        for (ptrdiff_t o = 0; o < outputs; o++)
            for (ptrdiff_t m = 0; m < WIDTH; m++)
                lengths[m] += y[o * lanes + n + m] * y[o * lanes + n + m];
        for (ptrdiff_t m = 0; m < WIDTH; m++) {
            const double length = sqrt((double)lengths[m]);
            lengths[m] = (REAL)(length < SHORTEST ? SHORTEST : length); /* NaN stays NaN */
        }
        if (divisors)
            memcpy(divisors + n, lengths, sizeof lengths);
        for (ptrdiff_t o = 0; o < outputs; o++)
            for (ptrdiff_t m = 0; m < WIDTH; m++)
                y[o * lanes + n + m] /= lengths[m];
    }
}

/* (outputs, lanes) -> (samples, outputs) */
static void NAME(hand_out)(const REAL *y, REAL *out, ptrdiff_t outputs, ptrdiff_t samples,
                           ptrdiff_t lanes)
{
    for (ptrdiff_t n = 0; n < samples; n += WIDTH)
        for (ptrdiff_t o = 0; o < outputs; o++)
            for (ptrdiff_t m = n; m < n + WIDTH && m < samples; m++)
                out[m * outputs + o] = y[o * lanes + m];
}

int NAME(networks)(const REAL *x, const struct layer *layers, const struct batch *batch)
{
    const ptrdiff_t lanes = batch->lanes, most = batch->most * lanes;
    REAL *memory = malloc((size_t)(2 * most + batch->bordered * lanes) * sizeof(REAL));
    if (!memory)
        return NO_MEMORY;
    const REAL *from = x;
    ptrdiff_t height = batch->height, width = batch->width;
    int failed = OK;
    for (ptrdiff_t l = 0; l < batch->layers && !failed; l++) {
        const struct layer layer = layers[l];
        REAL *y = memory + l % 2 * most, *bordered = memory + 2 * most;
        if (layer.first)
            from = x, height = batch->height, width = batch->width;
        if (layer.k == 0) {
            const struct NAME(matrix) m = {layer.weight, layer.outputs, layer.inputs, layer.inputs, 1};
            NAME(linear)(from, &m, layer.bias, y, lanes, layer.relu);
            if (layer.unit)
                NAME(make_unit)(y, NULL, layer.outputs, lanes);
            if (layer.out)
                NAME(hand_out)(y, layer.out, layer.outputs, batch->samples, lanes);
        } else {
            if (layer.padding) {
                NAME(border)(from, bordered, layer.inputs, height, width, lanes, layer.padding);
                from = bordered, height += 2 * layer.padding, width += 2 * layer.padding;
            }
            const struct convolution shape = {lanes, layer.inputs, height, width, layer.outputs,
                                              layer.k};
            failed = NAME(frozen)(from, layer.weight, layer.bias, y, &shape);
            height = pooled(height, layer.k), width = pooled(width, layer.k);
        }
        from = y;
    }
    free(memory);
    return failed;
}
