/* Batch normalisation with what follows it, over rows of channels: (sample, row, column) is a row.
 *
 *     y = (x - mean) * inverse * gamma + beta [+ shortcut], and the larger of that and zero if `relu`
 *
 * and its gradients. With g = dy where y > 0 (dy itself without `relu`), n rows, and sums over them:
 *
 *     dgamma = inverse sum g (x - mean),      dbeta = sum g,      dshortcut = g
 *     dx = gamma inverse (g - dbeta / n - (x - mean) inverse dgamma / n)
 *
 * x, y and their gradients are of the type STORED; FETCH makes a vector of them, PUT stores one, and OF(name)
 * is the name of a kernel. Needs these four, which normalise.h defines once for each way of storing, and what
 * vectors.h needs. Channels are a multiple of sixteen.
 */
#if !defined(STORED)
#include "normalise.h"
#else

/* The mean of each channel, and the sum of squared distances to it: those of NEAR_ROWS rows, merged one
 * after the other (Chan, Golub and LeVeque 1979), so that large means cost no digits. */
int OF(moments)(const STORED *x, double *mean, double *squares, ptrdiff_t rows, ptrdiff_t channels)
{
    memset(mean, 0, channels * sizeof *mean);
    memset(squares, 0, channels * sizeof *squares);
    for (ptrdiff_t first = 0; first < rows; first += NEAR_ROWS) {
        const ptrdiff_t count = rows - first < NEAR_ROWS ? rows - first : NEAR_ROWS;
        const STORED *near = x + first * channels;
        for (ptrdiff_t c = 0; c < channels; c += WIDTH) {
            VECTOR sum = {0}, square = {0};
            for (ptrdiff_t r = 0; r < count; r++)
                sum += FETCH(near + r * channels + c);
            const VECTOR middle = sum / SPLAT((REAL)count);
            for (ptrdiff_t r = 0; r < count; r++) {
                const VECTOR apart = FETCH(near + r * channels + c) - middle;
                square += apart * apart;
            }
            for (int l = 0; l < WIDTH; l++) {
                const double apart = middle[l] - mean[c + l];
                const double share = (double)count / (double)(first + count);
                mean[c + l] += apart * share;
                squares[c + l] += square[l] + apart * apart * share * (double)first;
            }
        }
    }
    return OK;
}

/* y = x * scale + shift [+ shortcut], cut at zero if `relu`. */
int OF(normalise)(const STORED *x, const REAL *scale, const REAL *shift, const STORED *shortcut, STORED *y,
                  ptrdiff_t rows, ptrdiff_t channels, int relu)
{
    for (ptrdiff_t r = 0; r < rows; r++)
        for (ptrdiff_t c = 0; c < channels; c += WIDTH) {
            const ptrdiff_t at = r * channels + c;
            VECTOR value = FETCH(x + at) * LOAD(scale + c) + LOAD(shift + c);
            if (shortcut)
                value += FETCH(shortcut + at);
            PUT(y + at, relu ? POSITIVE(value) : value);
        }
    return OK;
}

/* sum g and sum g (x - mean), and g itself where `kept` is given; y is given where it was cut. */
int OF(normalise_sums)(const STORED *gradient, const STORED *y, const STORED *x, const REAL *mean,
                       STORED *kept, double *sums, ptrdiff_t rows, ptrdiff_t channels)
{
    memset(sums, 0, 2 * channels * sizeof *sums);
    for (ptrdiff_t first = 0; first < rows; first += NEAR_ROWS) {
        const ptrdiff_t last = rows - first < NEAR_ROWS ? rows : first + NEAR_ROWS;
        for (ptrdiff_t c = 0; c < channels; c += WIDTH) {
            const VECTOR middle = LOAD(mean + c);
            VECTOR sum = {0}, along = {0};
            for (ptrdiff_t r = first; r < last; r++) {
                const ptrdiff_t at = r * channels + c;
                VECTOR g = FETCH(gradient + at);
                if (y)
                    g = SELECT(FETCH(y + at) > (VECTOR){0}, g, (VECTOR){0});
                if (kept)
                    PUT(kept + at, g);
                sum += g;
                along += g * (FETCH(x + at) - middle);
            }
            for (int l = 0; l < WIDTH; l++) {
                sums[c + l] += sum[l];
                sums[channels + c + l] += along[l];
            }
        }
    }
    return OK;
}

/* dx = slopes[0] g + slopes[1] x + slopes[2], three rows of channels. */
int OF(normalise_gradient)(const STORED *gradient, const STORED *y, const STORED *x, const REAL *slopes,
                           STORED *dx, ptrdiff_t rows, ptrdiff_t channels)
{
    for (ptrdiff_t r = 0; r < rows; r++)
        for (ptrdiff_t c = 0; c < channels; c += WIDTH) {
            const ptrdiff_t at = r * channels + c;
            VECTOR g = FETCH(gradient + at);
            if (y)
                g = SELECT(FETCH(y + at) > (VECTOR){0}, g, (VECTOR){0});
            PUT(dx + at, g * LOAD(slopes + c) + FETCH(x + at) * LOAD(slopes + channels + c) +
                               LOAD(slopes + 2 * channels + c));
        }
    return OK;
}

#endif
