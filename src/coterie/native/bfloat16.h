/* Vectors of numbers that are stored in bfloat16, the upper half of a float's bits, and computed with in
 * single precision. Needs what vectors.h needs.
 */
#pragma once
#include "vectors.h"

#if PRECISION == 32

typedef uint16_t NAME(halves) __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint16_t NAME(loose_halves) __attribute__((vector_size(VECTOR_BYTES / 2), aligned(2), may_alias));

/* WIDTH stored numbers as floats. */
static inline __attribute__((always_inline)) VECTOR NAME(load_halves)(const uint16_t *from)
{
    const NAME(halves) stored = *(const NAME(loose_halves) *)from;
    return (VECTOR)(__builtin_convertvector(stored, MASK) << 16);
}

/* Store floats, rounded to the nearest and of two as near ones to the even; what is no number stays so. */
static inline __attribute__((always_inline)) void NAME(store_halves)(uint16_t *to, VECTOR value)
{
    const MASK bits = (MASK)value, odd = (bits >> 16) & 1;
    const MASK rounded = CHOOSE(value == value, bits + 0x7fff + odd, bits | 0x400000);
    *(NAME(loose_halves) *)to = __builtin_convertvector(rounded >> 16, NAME(halves));
}

#endif
