/* The names and prototypes of the kernels for one variant and one precision.
 *
 * Needs VARIANT, a suffix of every name, and PRECISION, 32 or 64; the compiler's command line gives
 * them, and every kernel is compiled once for each. With PLAIN defined a kernel is the plain loop that
 * says what it computes, which the tests compare the others with.
 */
#pragma once
#include "interface.h"

#if !defined(VARIANT) || !defined(PRECISION)
#error "names.h needs VARIANT and PRECISION"
#endif

#if PRECISION == 32
#define REAL float
#elif PRECISION == 64
#define REAL double
#else
#error "PRECISION is 32 or 64"
#endif

#define JOIN_(name, bits, variant) name##_f##bits##_##variant
#define JOIN(name, bits, variant) JOIN_(name, bits, variant)
#define NAME(name) JOIN(name, PRECISION, VARIANT)

#define PROTOTYPE(name, ...) EXPORT int NAME(name)(__VA_ARGS__);
KERNELS(PROTOTYPE)
#if PRECISION == 32
SINGLE_KERNELS(PROTOTYPE)
#endif
#undef PROTOTYPE

/* A side of a convolution's result after pooling. */
static inline ptrdiff_t pooled(ptrdiff_t side, ptrdiff_t k) { return (side - k + 1) / 2; }
