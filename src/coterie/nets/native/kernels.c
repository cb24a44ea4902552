/* The convolution kernels in both precisions, compiled once for every vector length. */
#include "lanes.h"

#define REAL float
#define WHOLE int32_t
#define TYPE f32
#include "convolution.h"
#include "gradients.h"
#undef REAL
#undef WHOLE
#undef TYPE

#define REAL double
#define WHOLE int64_t
#define TYPE f64
#include "convolution.h"
#include "gradients.h"
