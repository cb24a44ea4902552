/* MOON's term and its gradient for rows of representations.
 *
 *     cos_k = z . r_k / (|z| |r_k|),   p = softmax_k(cos_k / tau),   loss = -log p_0
 *     slope = d mean(loss) / d z
 *           = 1/(samples tau) sum_k (p_k - [k = 0]) (r_k / |r_k| - cos_k z / |z|) / |z|
 *
 * No length is taken to be below `shortest`. The means over the samples are left in `means`: the
 * loss, then cos_k for every k. Needs what vectors.h needs.
 */
#pragma once
#include "vectors.h"
#include <math.h>
#include <stdlib.h>

#if defined(PLAIN)

static REAL NAME(dot)(const REAL *a, const REAL *b, ptrdiff_t width)
{
    REAL sum = 0;
    for (ptrdiff_t e = 0; e < width; e++)
        sum += a[e] * b[e];
    return sum;
}

#else

static REAL NAME(dot)(const REAL *a, const REAL *b, ptrdiff_t width)
{
    VECTOR sums = {0};
    ptrdiff_t e = 0;
    for (; e + WIDTH <= width; e += WIDTH)
        sums += LOAD(a + e) * LOAD(b + e);
    REAL sum = NAME(total)(sums);
    for (; e < width; e++)
        sum += a[e] * b[e];
    return sum;
}

#endif

/* to = scale from, or that added to what is there */
static void NAME(scaled)(const REAL *from, REAL scale, REAL *to, ptrdiff_t width, int added)
{
    for (ptrdiff_t e = 0; e < width; e++)
        to[e] = (added ? to[e] : 0) + scale * from[e];
}

static double NAME(length)(const REAL *a, ptrdiff_t width, double shortest)
{
    const double length = sqrt((double)NAME(dot)(a, a, width));
    return length < shortest ? shortest : length; /* what is not a number stays so */
}

int NAME(contrast)(const REAL *z, const REAL *const *references, REAL *slope, REAL *means,
                   const struct contrast *shape)
{
    const ptrdiff_t samples = shape->samples, width = shape->width, count = shape->count;
    const double tau = shape->tau, shortest = shape->shortest;
    double *cosines = calloc((size_t)(4 * count + 1), sizeof(double));
    if (!cosines)
        return NO_MEMORY;
    double *lengths = cosines + count, *shares = lengths + count, *sums = shares + count;
    for (ptrdiff_t n = 0; n < samples; n++, z += width, slope += width) {
        const double length = NAME(length)(z, width, shortest);
        double most = -INFINITY, all = 0, along = 0;
        for (ptrdiff_t k = 0; k < count; k++) {
            const REAL *r = references[k] + n * width;
            lengths[k] = NAME(length)(r, width, shortest);
            cosines[k] = (double)NAME(dot)(z, r, width) / (length * lengths[k]);
            most = cosines[k] > most ? cosines[k] : most;
            sums[k + 1] += cosines[k];
        }
        for (ptrdiff_t k = 0; k < count; k++)
            all += shares[k] = exp((cosines[k] - most) / tau);
        sums[0] += log(all) - (cosines[0] - most) / tau;
        for (ptrdiff_t k = 0; k < count; k++) {
            const double pull = (shares[k] / all - (k == 0)) / (tau * length * (double)samples);
            along += pull * cosines[k];
            NAME(scaled)(references[k] + n * width, (REAL)(pull / lengths[k]), slope, width, k > 0);
        }
        NAME(scaled)(z, (REAL)(-along / length), slope, width, 1);
    }
    for (ptrdiff_t k = 0; k <= count; k++)
        means[k] = (REAL)(sums[k] / (double)samples);
    free(cosines);
    return OK;
}
