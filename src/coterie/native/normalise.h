/* The kernels of normalise_rows.h for rows of REAL, and in single precision for rows of bfloat16, which are
 * half as much to read and write. Needs what vectors.h needs.
 */
#pragma once
#include "bfloat16.h"
#include <string.h>

#define NEAR_ROWS 64 /* rows whose sums are added up before they are merged with those before */

#define STORED REAL
#define FETCH(place) LOAD(place)
#define PUT(place, value) STORE(place, value)
#define OF(name) NAME(name)
#include "normalise_rows.h"
#undef STORED
#undef FETCH
#undef PUT
#undef OF

#if PRECISION == 32
#define STORED uint16_t
#define FETCH(place) NAME(load_halves)(place)
#define PUT(place, value) NAME(store_halves)(place, value)
#define OF(name) NAME(name##_bf16)
#include "normalise_rows.h"
#undef STORED
#undef FETCH
#undef PUT
#undef OF
#endif
