/* Linear layers, and whole frozen networks in one call, for one type of number.
 *
 *     y[o, n] = bias[o] + sum_i weight[o, i] x[i, n],   or the larger of that and zero
 *
 * with the samples n innermost, as the convolutions leave them: (channel, row, column) is i.
 */

#define LINEAR_SUM(o, v) VECTOR s##o##v = SPLAT(bias[o]);
#define LINEAR_SUMS(o) EACH_VECTOR(LINEAR_SUM, o)
#define LINEAR_X(o, v) const VECTOR x##v = LOAD(from + (v) * WIDTH);
#define LINEAR_ADD(o, v) s##o##v += w * x##v;
#define LINEAR_ADDS(o)                                    \
    {                                                     \
        const VECTOR w = SPLAT(weight[(o) * inputs + i]); \
        EACH_VECTOR(LINEAR_ADD, o)                        \
    }
#define LINEAR_CUT(o, v)                           \
    STORE(y + (o) * lanes + n + (v) * WIDTH,       \
          relu ? POSITIVE(s##o##v) : s##o##v);
#define LINEAR_CUTS(o) EACH_VECTOR(LINEAR_CUT, o)
#define LINEAR_ONE(o)                                                         \
    {                                                                         \
        VECTOR sum = SPLAT(bias[o]);                                          \
        for (ptrdiff_t i = 0; i < inputs; i++)                                \
            sum += SPLAT(weight[(o) * inputs + i]) * LOAD(x + i * lanes + n); \
        STORE(y + (o) * lanes + n, relu ? POSITIVE(sum) : sum);               \
    }

/* BLOCK outputs for all samples: groups of vectors, then the vectors that fill no group. */
#define LINEAR(BLOCK)                                                                          \
    static void NAME(linear_##BLOCK)(const REAL *x, const REAL *weight, const REAL *bias,      \
                                     REAL *y, ptrdiff_t inputs, ptrdiff_t lanes, int relu)     \
    {                                                                                          \
        ptrdiff_t n = 0;                                                                       \
        for (; n + GROUP_SIZE <= lanes; n += GROUP_SIZE) {                                     \
            EACH_##BLOCK(LINEAR_SUMS)                                                          \
            const REAL *from = x + n;                                                          \
            for (ptrdiff_t i = 0; i < inputs; i++, from += lanes) {                            \
                EACH_VECTOR(LINEAR_X, 0)                                                       \
                EACH_##BLOCK(LINEAR_ADDS)                                                      \
            }                                                                                  \
            EACH_##BLOCK(LINEAR_CUTS)                                                          \
        }                                                                                      \
        for (; n < lanes; n += WIDTH) {                                                        \
            EACH_##BLOCK(LINEAR_ONE)                                                           \
        }                                                                                      \
    }

LINEAR(1)
LINEAR(2)
LINEAR(4)
LINEAR(6)

static void NAME(linear)(const REAL *x, const REAL *weight, const REAL *bias, REAL *y,
                         ptrdiff_t inputs, ptrdiff_t outputs, ptrdiff_t lanes, int relu)
{
    for (ptrdiff_t first = 0, size; first < outputs; first += size) {
        size = NAME(block)(outputs - first, GROUP);
        const REAL *w = weight + first * inputs, *b = bias + first;
        REAL *to = y + first * lanes;
        switch (size) {
        case 6: NAME(linear_6)(x, w, b, to, inputs, lanes, relu); break;
        case 4: NAME(linear_4)(x, w, b, to, inputs, lanes, relu); break;
        case 2: NAME(linear_2)(x, w, b, to, inputs, lanes, relu); break;
        default: NAME(linear_1)(x, w, b, to, inputs, lanes, relu);
        }
    }
}

/* ---- a chain of layers ---- */

struct NAME(link) { /* every member as long as a pointer: the caller gives an array of numbers */
    const REAL *weight, *bias;
    REAL *out;                 /* (samples, outputs), or NULL: nobody asks for this layer */
    ptrdiff_t inputs, outputs; /* channels of a convolution */
    ptrdiff_t k;               /* side of a convolution's weights; 0: a linear layer */
    ptrdiff_t padding;         /* of a convolution */
    ptrdiff_t relu;            /* of a linear layer */
    ptrdiff_t first;           /* it takes x: another network begins */
};

/* x inside a border of zeros. */
static void NAME(border)(const REAL *x, ptrdiff_t x_lanes, REAL *to, ptrdiff_t channels,
                         ptrdiff_t height, ptrdiff_t width, ptrdiff_t lanes, ptrdiff_t edge)
{
    const ptrdiff_t wide = width + 2 * edge, high = height + 2 * edge;
    memset(to, 0, (size_t)(channels * high * wide * lanes) * sizeof(REAL));
    for (ptrdiff_t c = 0; c < channels; c++)
        for (ptrdiff_t i = 0; i < height; i++)
            for (ptrdiff_t j = 0; j < width; j++)
                memcpy(to + ((c * high + i + edge) * wide + j + edge) * lanes,
                       x + ((c * height + i) * width + j) * x_lanes, (size_t)lanes * sizeof(REAL));
}

/* (outputs, lanes) -> (samples, outputs) */
static void NAME(hand_out)(const REAL *y, REAL *out, ptrdiff_t outputs, ptrdiff_t samples,
                           ptrdiff_t lanes)
{
    for (ptrdiff_t n = 0; n < samples; n += WIDTH)
        for (ptrdiff_t o = 0; o < outputs; o++)
            for (ptrdiff_t m = n; m < n + WIDTH && m < samples; m++)
                out[m * outputs + o] = y[o * lanes + m];
}

/* Of one or more networks the convolutions with ReLU and pooling, then the linear layers. `most` is
 * the number of entries of the largest outputs, `bordered` that of the largest inputs with a border,
 * where there is one. */
EXPORT int NAME(chain)(const REAL *x, ptrdiff_t x_lanes, ptrdiff_t samples, ptrdiff_t lanes,
                       ptrdiff_t height, ptrdiff_t width, ptrdiff_t most, ptrdiff_t bordered,
                       const struct NAME(link) *links, ptrdiff_t count)
{
    REAL *memory = malloc((size_t)(2 * most + bordered) * sizeof(REAL));
    if (!memory)
        return NO_MEMORY;
    REAL *framed = memory + 2 * most;
    const REAL *given = x;
    const ptrdiff_t given_lanes = x_lanes, given_height = height, given_width = width;
    int failed = OK;
    for (ptrdiff_t l = 0; l < count && !failed; l++) {
        const struct NAME(link) *link = links + l;
        REAL *y = memory + l % 2 * most;
        if (link->first)
            x = given, x_lanes = given_lanes, height = given_height, width = given_width;
        if (link->k == 0) {
            NAME(linear)(x, link->weight, link->bias, y, link->inputs, link->outputs, lanes,
                         link->relu != 0);
            if (link->out)
                NAME(hand_out)(y, link->out, link->outputs, samples, lanes);
        } else {
            if (link->padding) {
                NAME(border)(x, x_lanes, framed, link->inputs, height, width, lanes, link->padding);
                x = framed, x_lanes = lanes;
                height += 2 * link->padding, width += 2 * link->padding;
            }
            failed = NAME(frozen)(x, x_lanes, link->weight, link->bias, y, lanes, link->inputs,
                                  height, width, link->outputs, link->k);
            height = (height - link->k + 1) / 2, width = (width - link->k + 1) / 2;
        }
        x = y, x_lanes = lanes;
    }
    free(memory);
    return failed;
}
