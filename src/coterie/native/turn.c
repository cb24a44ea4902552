/* An array (count, places) as (places, lanes); lanes beyond the count are zero.
 *
 * Needs what names.h needs.
 */
#include "names.h"

#if defined(PLAIN)

int NAME(turn)(const REAL *from, REAL *to, ptrdiff_t count, ptrdiff_t lanes, ptrdiff_t places)
{
    for (ptrdiff_t p = 0; p < places; p++)
        for (ptrdiff_t n = 0; n < lanes; n++)
            to[p * lanes + n] = n < count ? from[n * places + p] : 0;
    return OK;
}

#else

#define TILE 16 /* samples and places that are turned at once */

int NAME(turn)(const REAL *from, REAL *to, ptrdiff_t count, ptrdiff_t lanes, ptrdiff_t places)
{
    for (ptrdiff_t first = 0; first < lanes; first += TILE)
        for (ptrdiff_t p = 0; p < places; p += TILE) {
            const ptrdiff_t wide = places - p < TILE ? places - p : TILE;
            const ptrdiff_t tall = count - first < TILE ? count - first : TILE;
            if (wide == TILE && tall == TILE)
                for (ptrdiff_t q = 0; q < TILE; q++)
                    for (ptrdiff_t n = 0; n < TILE; n++)
                        to[(p + q) * lanes + first + n] = from[(first + n) * places + p + q];
            else
                for (ptrdiff_t q = 0; q < wide; q++)
                    for (ptrdiff_t n = 0; n < TILE; n++)
                        to[(p + q) * lanes + first + n] =
                            n < tall ? from[(first + n) * places + p + q] : 0;
        }
    return OK;
}

#endif
