/* One step of SGD over a flat buffer of parameters.
 *
 *     d = g + decay w,   v = momentum v + d,   w = w - rate (v  or, with Nesterov, d + momentum v)
 *
 * The gradients stay where automatic differentiation put them: one array for each tensor, NULL for
 * one that got none, which keeps its weights and its velocity. Where the processor has fused
 * multiply-adds they stand where torch has them. It is its own specification: a plain loop, which
 * compilers turn into vectors. Needs what names.h needs.
 */
#include "names.h"

#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
#define FUSED(a, b, c) __builtin_fmaf(a, b, c)
#else
#define FUSED(a, b, c) ((a) * (b) + (c))
#endif

int NAME(sgd)(float *weights, float *velocities, const float *const *gradients,
              const int64_t *sizes, const struct descent *step)
{
    const float rate = step->rate, momentum = step->momentum, decay = step->decay;
    const int nesterov = step->nesterov;
    for (ptrdiff_t t = 0; t < step->tensors; weights += sizes[t], velocities += sizes[t], t++) {
        const float *restrict gradient = gradients[t];
        float *restrict weight = weights, *restrict velocity = velocities;
        if (!gradient)
            continue;
        for (int64_t e = 0; e < sizes[t]; e++) {
            const float descent = FUSED(weight[e], decay, gradient[e]);
            const float moved = velocity[e] * momentum + descent;
            velocity[e] = moved;
            weight[e] = FUSED(nesterov ? FUSED(moved, momentum, descent) : moved, -rate, weight[e]);
        }
    }
    return OK;
}
