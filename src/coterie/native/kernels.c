/* The convolution kernels in both precisions, compiled once for every vector length. */
#include "lanes.h"
#include <math.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#define REAL float
#define WHOLE int32_t
#define TYPE f32
#if defined(__AVX512F__)
#define BITS __mmask16
#define BLEND(bits, no, yes) ((VECTOR)_mm512_mask_blend_ps(bits, (__m512)(no), (__m512)(yes)))
#define WITH_BIT(codes, bit) _mm512_test_epi32_mask((__m512i)(codes), _mm512_set1_epi32(bit))
#endif
#include "convolution.h"
#include "tiles.h"
#include "gradients.h"
#if defined(BLEND)
#include "sparse.h"
#endif
#include "entries.h"
#include "linear.h"
#include "contrast.h"
#undef REAL
#undef WHOLE
#undef TYPE
#undef BITS
#undef BLEND
#undef WITH_BIT

#define REAL double
#define WHOLE int64_t
#define TYPE f64
#if defined(__AVX512F__)
#define BITS __mmask8
#define BLEND(bits, no, yes) ((VECTOR)_mm512_mask_blend_pd(bits, (__m512d)(no), (__m512d)(yes)))
#define WITH_BIT(codes, bit) _mm512_test_epi64_mask((__m512i)(codes), _mm512_set1_epi64(bit))
#endif
#include "convolution.h"
#include "tiles.h"
#include "gradients.h"
#if defined(BLEND)
#include "sparse.h"
#endif
#include "entries.h"
#include "linear.h"
#include "contrast.h"
