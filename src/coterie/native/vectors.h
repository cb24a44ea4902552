/* Vectors of samples, and how many of them a kernel may keep in registers.
 *
 * Needs what names.h needs, VECTOR_BYTES, and MOST_SUMS: how many vector sums fit into registers.
 */
#pragma once
#include "names.h"

#if !defined(VECTOR_BYTES) || !defined(MOST_SUMS)
#error "vectors.h needs VECTOR_BYTES and MOST_SUMS"
#endif

#if PRECISION == 32
#define WHOLE int32_t
#else
#define WHOLE int64_t
#endif

typedef REAL NAME(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL NAME(loose) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));
typedef WHOLE NAME(whole) __attribute__((vector_size(VECTOR_BYTES)));

#define VECTOR NAME(vector)
#define MASK NAME(whole)
#define WIDTH (VECTOR_BYTES / (int)sizeof(REAL)) /* samples in a vector */
#define LOAD(place) (*(const NAME(loose) *)(place))
#define STORE(place, value) (*(NAME(loose) *)(place) = (value))
#define SPLAT(number) ((number) - (VECTOR){0})
#define CHOOSE(mask, yes, no) (((mask) & (yes)) | (~(mask) & (no)))
#define SELECT(mask, yes, no) ((VECTOR)CHOOSE(mask, (MASK)(yes), (MASK)(no)))

/* The larger of two, the first where they are equal, and any that is not a number. */
#define KEEPS(first, second) (((second) <= (first)) | ((first) != (first)))
#define LARGER(one, other) SELECT(KEEPS(one, other), one, other)
#define POSITIVE(value) SELECT((value) <= (VECTOR){0}, (VECTOR){0}, value)

/* Do F(0) .. F(n - 1). */
#define EACH_1(F) F(0)
#define EACH_2(F) EACH_1(F) F(1)
#define EACH_3(F) EACH_2(F) F(2)
#define EACH_4(F) EACH_3(F) F(3)
#define EACH_5(F) EACH_4(F) F(4)
#define EACH_6(F) EACH_5(F) F(5)

/* What four neighbours x00 .. x11 add to the four sums of a channel. */
#define ADD(o)                       \
    {                                \
        VECTOR w = SPLAT(weight[o]); \
        a##o += w * x00;             \
        b##o += w * x01;             \
        c##o += w * x10;             \
        d##o += w * x11;             \
    }

/* Kernels of whole networks keep sums for several outputs and GROUP vectors. */
#if MOST_SUMS >= 24
#define GROUP 4
#define EACH_VECTOR(F, o) F(o, 0) F(o, 1) F(o, 2) F(o, 3)
#else
#define GROUP 2
#define EACH_VECTOR(F, o) F(o, 0) F(o, 1)
#endif
#define GROUP_SIZE (GROUP * WIDTH)

#define NEAR_BYTES 20480 /* what a kernel may expect to keep in the nearest cache beside its input */

/* The largest block of channels (6, 4, 2, 1) for which `each` sums a channel stay in registers. */
static inline ptrdiff_t NAME(block)(ptrdiff_t left, ptrdiff_t each)
{
    static const ptrdiff_t sizes[] = {6, 4, 2, 1};
    for (int s = 0; s < 3; s++)
        if (sizes[s] <= left && sizes[s] * each <= MOST_SUMS)
            return sizes[s];
    return 1;
}

/* The sum over the lanes of a vector, in their order. */
static inline __attribute__((always_inline)) REAL NAME(total)(VECTOR lanes)
{
    REAL sum = 0;
    for (int n = 0; n < WIDTH; n++)
        sum += lanes[n];
    return sum;
}

/* Codes of a vector of samples from and to bytes: loops that compilers know how to widen. */
static inline __attribute__((always_inline)) MASK NAME(widened)(const uint8_t *from)
{
    union { WHOLE each[WIDTH]; MASK all; } codes;
    for (int n = 0; n < WIDTH; n++)
        codes.each[n] = from[n];
    return codes.all;
}

static inline __attribute__((always_inline)) void NAME(narrowed)(MASK from, uint8_t *to)
{
    union { WHOLE each[WIDTH]; MASK all; } codes = {.all = from};
    for (int n = 0; n < WIDTH; n++)
        to[n] = (uint8_t)codes.each[n];
}
