/* What both forms of the gradients share. Needs what vectors.h needs. */
#pragma once
#include "vectors.h"

/* A stretch of windows, few enough for what is kept of them to stay in the nearest cache. */
struct NAME(stretch) {
    ptrdiff_t output, outputs; /* the first and how many */
    ptrdiff_t row, column, columns;
};

/* The sums of a tap of the weights for an output: (tap, output, lane). */
#define AT(tap, output) (sums + ((tap) * outputs + (output)) * WIDTH)
