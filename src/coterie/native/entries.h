/* What is called, each by the form that suits. */

EXPORT int NAME(frozen)(const REAL *x, ptrdiff_t x_lanes, const REAL *weight, const REAL *bias,
                        REAL *y, ptrdiff_t lanes, ptrdiff_t channels, ptrdiff_t height,
                        ptrdiff_t width, ptrdiff_t outputs, ptrdiff_t k)
{
    if (k == ROWS_OF_WEIGHTS)
        return NAME(tiled_forward)(x, x_lanes, weight, bias, y, lanes, channels, height, width,
                                   outputs);
    return NAME(forward)(x, x_lanes, weight, bias, y, NULL, lanes, channels, height, width, outputs,
                         k);
}

#if defined(BLEND)
#define LEAN(k) ((k) == 3 || (k) == 5)
#else
#define LEAN(k) 0
#define lean_weight_gradient dense_weight_gradient
#define lean_input dense_input
#endif

EXPORT int NAME(weight_gradient)(const REAL *x, ptrdiff_t x_lanes, const REAL *gradient,
                                 const uint8_t *chosen, REAL *weight, REAL *bias, ptrdiff_t lanes,
                                 ptrdiff_t channels, ptrdiff_t height, ptrdiff_t width,
                                 ptrdiff_t outputs, ptrdiff_t k)
{
    const ptrdiff_t taps = channels * k * k, count = taps * outputs * WIDTH;
    REAL *sums = calloc((size_t)(count + outputs * WIDTH), sizeof(REAL)); /* (tap, output, lane) */
    if (!sums)
        return NO_MEMORY;
    const int failed = (LEAN(k) ? NAME(lean_weight_gradient) : NAME(dense_weight_gradient))(
        x, x_lanes, gradient, chosen, sums, sums + count, lanes, channels, height, width, outputs, k);
    for (ptrdiff_t o = 0; o < outputs && !failed; o++) {
        for (ptrdiff_t t = 0; t < taps; t++)
            weight[o * taps + t] = NAME(total)(LOAD(sums + (t * outputs + o) * WIDTH));
        bias[o] = NAME(total)(LOAD(sums + count + o * WIDTH));
    }
    free(sums);
    return failed;
}

EXPORT int NAME(input_gradient)(const REAL *gradient, const uint8_t *chosen, const REAL *weight,
                                REAL *x, ptrdiff_t lanes, ptrdiff_t channels, ptrdiff_t height,
                                ptrdiff_t width, ptrdiff_t outputs, ptrdiff_t k)
{
    return (LEAN(k) ? NAME(lean_input) : NAME(dense_input))(gradient, chosen, weight, x, lanes,
                                                            channels, height, width, outputs, k);
}
#undef LEAN
