/* Vectors of samples: the batch is the innermost dimension of every array.
 *
 * An array of n samples is stored as (channel, row, column, sample), the samples padded to a
 * multiple of sixteen ("lanes"), so that each multiply-add is a full vector however few channels a
 * layer has. A file that includes this defines REAL (float or double); the compiler's command line
 * gives VARIANT (a suffix of every name), VECTOR_BYTES and MOST_SUMS (how many vector sums a
 * kernel may keep in registers).
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define JOIN_(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define NAME(function) JOIN(function, TYPE, VARIANT)
#define EXPORT __attribute__((visibility("default")))

/* Do F(0) .. F(n - 1). */
#define EACH_1(F) F(0)
#define EACH_2(F) EACH_1(F) F(1)
#define EACH_3(F) EACH_2(F) F(2)
#define EACH_4(F) EACH_3(F) F(3)
#define EACH_5(F) EACH_4(F) F(4)
#define EACH_6(F) EACH_5(F) F(5)

#define NEAR_BYTES 20480 /* what a kernel may expect to keep in the nearest cache beside its input */

#define OK 0
#define NO_MEMORY 1
