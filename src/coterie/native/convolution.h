/* Convolution, bias, ReLU and 2 x 2 max-pooling in one pass, for one type of number.
 *
 *     y[o, i, j] = relu( max_{a, b in {0, 1}} ( bias[o] + sum_{c, u, v}
 *                        weight[o, c, u, v] x[c, 2 i + a + u, 2 j + b + v] ) )
 *
 * for every sample; k x k weights, stride 1, a last odd row or column left out. `chosen` remembers
 * for the gradients which of the four (0 .. 3) was the first largest, or 4 where ReLU gave zero.
 * Padding is the caller's: x has its border of zeros already.
 */

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

/* ---- forward ---- */

struct NAME(layer) {
    const REAL *x;      /* (channels, height, width, lanes of stride x_lanes) */
    const REAL *bias;
    REAL *y;            /* (outputs, height', width', lanes) */
    uint8_t *chosen;    /* as y, or NULL: nothing is remembered */
    ptrdiff_t channels, height, width, k, x_lanes, lanes;
    ptrdiff_t rows, columns; /* of y */
};

static inline __attribute__((always_inline)) void NAME(finish)(
    const struct NAME(layer) *layer, ptrdiff_t place, VECTOR a, VECTOR b, VECTOR c, VECTOR d)
{
    MASK keep = KEEPS(a, b);
    VECTOR upper = SELECT(keep, a, b);
    MASK code = CHOOSE(keep, (MASK){0}, (MASK){0} + 1);
    keep = KEEPS(c, d);
    VECTOR lower = SELECT(keep, c, d);
    MASK below = CHOOSE(keep, (MASK){0} + 2, (MASK){0} + 3);
    keep = KEEPS(upper, lower);
    VECTOR most = SELECT(keep, upper, lower);
    code = CHOOSE(keep, code, below);
    MASK cut = most <= (VECTOR){0};
    STORE(layer->y + place, SELECT(cut, (VECTOR){0}, most));
    if (layer->chosen) {
        code = CHOOSE(cut, (MASK){0} + 4, code);
        NAME(narrowed)(code, layer->chosen + place);
    }
}

/* Four sums a channel, one for each place of the pooled window. */
#define SUMS(o) VECTOR a##o = SPLAT(layer->bias[first + (o)]), b##o = a##o, c##o = a##o, d##o = a##o;
#define ADD(o)                       \
    {                                \
        VECTOR w = SPLAT(weight[o]); \
        a##o += w * x00;             \
        b##o += w * x01;             \
        c##o += w * x10;             \
        d##o += w * x11;             \
    }
#define FINISH(o) NAME(finish)(layer, place + (o) * plane, a##o, b##o, c##o, d##o);

#define FORWARD(BLOCK)                                                                            \
    static void NAME(forward_##BLOCK)(const struct NAME(layer) *layer, ptrdiff_t first,           \
                                      const REAL *packed)                                        \
    {                                                                                             \
        const ptrdiff_t k = layer->k, step = layer->x_lanes, row = layer->width * step;           \
        const ptrdiff_t plane = layer->rows * layer->columns * layer->lanes;                      \
        for (ptrdiff_t i = 0; i < layer->rows; i++)                                               \
            for (ptrdiff_t j = 0; j < layer->columns; j++)                                        \
                for (ptrdiff_t n = 0; n < layer->lanes; n += WIDTH) {                             \
                    const REAL *weight = packed;                                                  \
                    EACH_##BLOCK(SUMS)                                                            \
                    for (ptrdiff_t c = 0; c < layer->channels; c++)                               \
                        for (ptrdiff_t u = 0; u < k; u++) {                                       \
                            const REAL *x = layer->x + (c * layer->height + 2 * i + u) * row +    \
                                            2 * j * step + n;                                     \
                            VECTOR x01 = LOAD(x), x11 = LOAD(x + row), x00, x10;                  \
                            for (ptrdiff_t v = 0; v < k; v++, weight += BLOCK) {                  \
                                x += step;                                                        \
                                x00 = x01, x10 = x11;                                             \
                                x01 = LOAD(x), x11 = LOAD(x + row);                               \
                                EACH_##BLOCK(ADD)                                                 \
                            }                                                                     \
                        }                                                                         \
                    ptrdiff_t place =                                                             \
                        ((first * layer->rows + i) * layer->columns + j) * layer->lanes + n;      \
                    EACH_##BLOCK(FINISH)                                                          \
                }                                                                                 \
    }

FORWARD(1)
FORWARD(2)
FORWARD(4)
FORWARD(6)

/* The largest block of channels (6, 4, 2, 1) for which `each` sums a channel stay in registers. */
static ptrdiff_t NAME(block)(ptrdiff_t left, ptrdiff_t each)
{
    static const ptrdiff_t sizes[] = {6, 4, 2, 1};
    for (int s = 0; s < 3; s++)
        if (sizes[s] <= left && sizes[s] * each <= MOST_SUMS)
            return sizes[s];
    return 1;
}

EXPORT int NAME(forward)(const REAL *x, ptrdiff_t x_lanes, const REAL *weight, const REAL *bias,
                         REAL *y, uint8_t *chosen, ptrdiff_t lanes, ptrdiff_t channels,
                         ptrdiff_t height, ptrdiff_t width, ptrdiff_t outputs, ptrdiff_t k)
{
    const ptrdiff_t taps = channels * k * k;
    REAL *packed = malloc((size_t)(taps * 6) * sizeof(REAL));
    if (!packed)
        return NO_MEMORY;
    struct NAME(layer) layer = {x, bias, y, chosen, channels, height, width, k, x_lanes, lanes,
                                (height - k + 1) / 2, (width - k + 1) / 2};
    for (ptrdiff_t first = 0, size; first < outputs; first += size) {
        size = NAME(block)(outputs - first, 4);
        for (ptrdiff_t o = 0; o < size; o++)
            for (ptrdiff_t t = 0; t < taps; t++)
                packed[t * size + o] = weight[(first + o) * taps + t];
        switch (size) {
        case 6: NAME(forward_6)(&layer, first, packed); break;
        case 4: NAME(forward_4)(&layer, first, packed); break;
        case 2: NAME(forward_2)(&layer, first, packed); break;
        default: NAME(forward_1)(&layer, first, packed);
        }
    }
    free(packed);
    return OK;
}
