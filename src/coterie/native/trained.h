/* Networks that are trained, in one call forward and one back: convolutions with ReLU and pooling, then
 * linear layers.
 *
 * Every layer takes what the one before gives. The forward pass keeps all results; the way back begins
 * at the last layer that a loss depends on. With y = v / |v| the gradient of v is (g - y (y g)) / |v|.
 * It is its own specification: a loop over the layers. Needs what vectors.h needs.
 */
#pragma once
#include "gradients.h"
#include "linear_gradients.h"
#include "networks.h"

/* The entries of a sample in the results of a layer. */
static ptrdiff_t NAME(entries)(const struct trained *layer)
{
    if (layer->k == 0)
        return layer->outputs;
    return layer->outputs * pooled(layer->height, layer->k) * pooled(layer->width, layer->k);
}

static struct convolution NAME(shape_of)(const struct trained *layer, ptrdiff_t lanes)
{
    return (struct convolution){lanes, layer->inputs, layer->height, layer->width, layer->outputs,
                                layer->k};
}

int NAME(trained_forward)(const REAL *x, const struct trained *layers, const struct batch *batch,
                          REAL *kept, uint8_t *chosen)
{
    const ptrdiff_t lanes = batch->lanes;
    int failed = OK;
    for (ptrdiff_t l = 0; l < batch->layers && !failed; l++) {
        const struct trained *layer = layers + l;
        REAL *y = kept + layer->kept * lanes;
        if (layer->k == 0) {
            const struct NAME(matrix) m = {layer->weight, layer->outputs, layer->inputs,
                                           layer->inputs, 1};
            NAME(linear)(x, &m, layer->bias, y, lanes, layer->relu);
            if (layer->unit)
                NAME(make_unit)(y, y + layer->outputs * lanes, layer->outputs, lanes);
            if (layer->out)
                NAME(hand_out)(y, layer->out, layer->outputs, batch->samples, lanes);
        } else {
            const struct convolution shape = NAME(shape_of)(layer, lanes);
            failed = NAME(fast_forward)(x, layer->weight, layer->bias, y,
                                        chosen + layer->places * lanes, &shape);
        }
        x = y;
    }
    return failed;
}

/* (samples, outputs) added to (outputs, lanes). */
static void NAME(take_in)(const REAL *from, REAL *g, ptrdiff_t outputs, ptrdiff_t samples,
                          ptrdiff_t lanes)
{
    for (ptrdiff_t n = 0; n < samples; n += WIDTH)
        for (ptrdiff_t o = 0; o < outputs; o++)
            for (ptrdiff_t m = n; m < n + WIDTH && m < samples; m++)
                g[o * lanes + m] += from[m * outputs + o];
}

/* g before the division of a sample by its length; y and the divisors are behind each other. */
static void NAME(leave_unit)(const REAL *y, REAL *g, ptrdiff_t outputs, ptrdiff_t lanes)
{
    for (ptrdiff_t n = 0; n < lanes; n++) {
        const REAL divisor = y[outputs * lanes + n];
        REAL along = 0;
        for (ptrdiff_t o = 0; o < outputs && divisor > (REAL)SHORTEST; o++)
            along += y[o * lanes + n] * g[o * lanes + n];
        for (ptrdiff_t o = 0; o < outputs; o++)
            g[o * lanes + n] = (g[o * lanes + n] - along * y[o * lanes + n]) / divisor;
    }
}

/* Where ReLU gave zero nothing goes back. */
static void NAME(leave_relu)(const REAL *y, REAL *g, ptrdiff_t count)
{
    for (ptrdiff_t i = 0; i < count; i += WIDTH)
        STORE(g + i, SELECT((VECTOR)LOAD(y + i) <= (VECTOR){0}, (VECTOR){0}, (VECTOR)LOAD(g + i)));
}

int NAME(trained_backward)(const REAL *x, const struct trained *layers, const struct batch *batch,
                           const REAL *kept, const uint8_t *chosen, REAL *gradients)
{
    const ptrdiff_t lanes = batch->lanes, most = batch->most * lanes;
    ptrdiff_t last = batch->layers - 1, room = 0;
    while (last > 0 && !layers[last].out_gradient)
        last--;
    for (ptrdiff_t l = 0; l <= last; l++) {
        const ptrdiff_t size = layers[l].k ? 0 : NAME(turned_size)(layers[l].inputs, lanes);
        room = size > room ? size : room;
    }
    REAL *memory = malloc((size_t)(2 * most + room) * sizeof(REAL));
    if (!memory)
        return NO_MEMORY;
    REAL *g = memory, *before = memory + most, *turned = memory + 2 * most;
    memset(g, 0, (size_t)(NAME(entries)(layers + last) * lanes) * sizeof(REAL));
    int failed = OK;
    for (ptrdiff_t l = last; l >= 0 && !failed; l--) {
        const struct trained *layer = layers + l;
        const REAL *y = kept + layer->kept * lanes, *from = l ? kept + layer[-1].kept * lanes : x;
        const ptrdiff_t taps = layer->k ? layer->k * layer->k : 1;
        REAL *weight = gradients + layer->slopes, *bias = weight + layer->outputs * layer->inputs * taps;
        if (layer->out_gradient)
            NAME(take_in)(layer->out_gradient, g, layer->outputs, batch->samples, lanes);
        if (layer->unit)
            NAME(leave_unit)(y, g, layer->outputs, lanes);
        if (layer->k == 0) {
            const struct NAME(matrix) m = {layer->weight, layer->inputs, layer->outputs, 1,
                                           layer->inputs};
            if (layer->relu)
                NAME(leave_relu)(y, g, layer->outputs * lanes);
            NAME(linear_weights)(from, g, layer->inputs, layer->outputs, lanes, turned, weight, bias);
            if (l)
                NAME(linear)(g, &m, NULL, before, lanes, 0);
        } else {
            const struct convolution shape = NAME(shape_of)(layer, lanes);
            const uint8_t *places = chosen + layer->places * lanes;
            failed = NAME(weight_gradient)(from, g, places, weight, bias, &shape);
            if (l && !failed)
                failed = NAME(input_gradient)(g, places, layer->weight, before, &shape);
        }
        REAL *done = g;
        g = before, before = done;
    }
    free(memory);
    return failed;
}
