/* Convolutions with 3 x 3 weights, stride 1 and a border of one zero, channels innermost.
 *
 *     y[n, i, j, o] = sum_{a, b, c} weight[o, c, a, b] x[n, i + a - 1, j + b - 1, c]
 *
 * by Winograd's minimal filtering F(4 x 4, 3 x 3) (Lavin and Gray, CVPR 2016): sixteen results of a
 * channel share a window of 6 x 6 places, and 36 multiplications do what 144 do in the plain form.
 *
 *     y = At [(G w Gt) * (Bt x B)] A            for every tile of 4 x 4 results
 *     dw = Gt [(A dy At) * (Bt x B)] G          summed over the tiles
 *
 * where * is the product at each of 36 points, summed over the channels: 36 products of matrices.
 * The gradient of x is the same convolution of dy, with the weights turned about. Needs what
 * vectors.h needs; inputs and outputs are multiples of PANEL.
 */
#pragma once
#include "vectors.h"
#include <string.h>

#if defined(PLAIN)

/* The weight that `turned` takes in the place of weight[o, c, a, b]. */
static inline REAL NAME(weight_at)(const REAL *weight, const struct tiles *t, int turned, ptrdiff_t o,
                                   ptrdiff_t c, ptrdiff_t a, ptrdiff_t b)
{
    return turned ? weight[((c * t->outputs + o) * 3 + 2 - a) * 3 + 2 - b]
                  : weight[((o * t->inputs + c) * 3 + a) * 3 + b];
}

static inline int NAME(inside)(const struct tiles *t, ptrdiff_t i, ptrdiff_t j)
{
    return i >= 0 && i < t->height && j >= 0 && j < t->width;
}

int NAME(convolve)(const REAL *x, const REAL *weight, REAL *y, REAL *work, const struct tiles *t,
                   int turned)
{
    (void)work;
    for (ptrdiff_t n = 0; n < t->samples; n++)
        for (ptrdiff_t i = 0; i < t->height; i++)
            for (ptrdiff_t j = 0; j < t->width; j++)
                for (ptrdiff_t o = 0; o < t->outputs; o++) {
                    REAL sum = 0;
                    for (ptrdiff_t a = 0; a < 3; a++)
                        for (ptrdiff_t b = 0; b < 3; b++)
                            for (ptrdiff_t c = 0; c < t->inputs; c++)
                                if (NAME(inside)(t, i + a - 1, j + b - 1))
                                    sum += NAME(weight_at)(weight, t, turned, o, c, a, b) *
                                           x[((n * t->height + i + a - 1) * t->width + j + b - 1) *
                                                 t->inputs + c];
                    *y++ = sum;
                }
    return OK;
}

int NAME(convolve_weights)(const REAL *x, const REAL *gradient, REAL *weight, REAL *work,
                           const struct tiles *t)
{
    (void)work;
    for (ptrdiff_t o = 0; o < t->outputs; o++)
        for (ptrdiff_t c = 0; c < t->inputs; c++)
            for (ptrdiff_t a = 0; a < 3; a++)
                for (ptrdiff_t b = 0; b < 3; b++) {
                    REAL sum = 0;
                    for (ptrdiff_t n = 0; n < t->samples; n++)
                        for (ptrdiff_t i = 0; i < t->height; i++)
                            for (ptrdiff_t j = 0; j < t->width; j++)
                                if (NAME(inside)(t, i + a - 1, j + b - 1))
                                    sum += gradient[((n * t->height + i) * t->width + j) * t->outputs + o] *
                                           x[((n * t->height + i + a - 1) * t->width + j + b - 1) *
                                                 t->inputs + c];
                    *weight++ = sum;
                }
    return OK;
}

#else

#define PANEL 16                /* channels that are multiplied together */
#define PARTS (PANEL / WIDTH)   /* vectors of a panel */
#define MOST_ROWS (MOST_SUMS / PARTS)
#define ROWS (MOST_ROWS > 14 ? 14 : MOST_ROWS) /* tiles whose sums stay in registers */
#define PAIRS (PARTS == 1 ? 8 : PARTS == 2 ? 4 : 2) /* inputs whose sums do; they divide PANEL */
#define SQUARE 36 /* points of a tile */
#define TILE_SIDE 4
#define INLINE static inline __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 36") /* arrays of vectors then stay in registers */

/* One dimension of Bt x B: six places of the image. */
INLINE void NAME(to_points)(const VECTOR *x, VECTOR *u)
{
    const VECTOR even = x[4] - 4 * x[2], odd = x[3] - 4 * x[1];
    const VECTOR wide = x[4] - x[2], tall = 2 * (x[3] - x[1]);
    u[0] = 4 * x[0] - 5 * x[2] + x[4];
    u[1] = even + odd;
    u[2] = even - odd;
    u[3] = wide + tall;
    u[4] = wide - tall;
    u[5] = 4 * x[1] - 5 * x[3] + x[5];
}

/* One dimension of At u A: six points to four results. */
INLINE void NAME(from_points)(const VECTOR *u, VECTOR *y)
{
    const VECTOR even = u[1] + u[2], odd = u[1] - u[2];
    const VECTOR wide = u[3] + u[4], tall = u[3] - u[4];
    y[0] = u[0] + even + wide;
    y[1] = odd + 2 * tall;
    y[2] = even + 4 * wide;
    y[3] = odd + 8 * tall + u[5];
}

/* One dimension of A dy At: four gradients to six points. */
INLINE void NAME(spread)(const VECTOR *y, VECTOR *u)
{
    const VECTOR even = y[0] + y[2], odd = y[1] + y[3];
    const VECTOR wide = y[0] + 4 * y[2], tall = 2 * y[1] + 8 * y[3];
    u[0] = y[0];
    u[1] = even + odd;
    u[2] = even - odd;
    u[3] = wide + tall;
    u[4] = wide - tall;
    u[5] = y[3];
}

/* One dimension of G w Gt: three weights to six points. */
INLINE void NAME(weigh)(const VECTOR *w, VECTOR *u)
{
    const REAL sixth = (REAL)(1.0 / 6), twelfth = (REAL)(1.0 / 12), small = (REAL)(1.0 / 24);
    const VECTOR even = -sixth * (w[0] + w[2]), odd = sixth * w[1];
    const VECTOR wide = small * w[0] + sixth * w[2], tall = twelfth * w[1];
    u[0] = (REAL)0.25 * w[0];
    u[1] = even - odd;
    u[2] = even + odd;
    u[3] = wide + tall;
    u[4] = wide - tall;
    u[5] = w[2];
}

/* One dimension of Gt u G: six points to the gradients of three weights. */
INLINE void NAME(unweigh)(const VECTOR *u, VECTOR *w)
{
    const REAL sixth = (REAL)(1.0 / 6), twelfth = (REAL)(1.0 / 12), small = (REAL)(1.0 / 24);
    const VECTOR even = u[1] + u[2], odd = u[2] - u[1];
    const VECTOR wide = u[3] + u[4], tall = u[3] - u[4];
    w[0] = (REAL)0.25 * u[0] - sixth * even + small * wide;
    w[1] = sixth * odd + twelfth * tall;
    w[2] = sixth * (wide - even) + u[5];
}

/* Apply F to the columns of a square from[MANY][MANY], then to the rows: to[FEW][FEW]. */
#define TWICE(F, from, MANY, to, FEW)                    \
    {                                                    \
        VECTOR half_[FEW][MANY];                         \
        UNROLLED for (int c_ = 0; c_ < MANY; c_++) {     \
            VECTOR column_[MANY], through_[FEW];         \
            UNROLLED for (int r_ = 0; r_ < MANY; r_++)   \
                column_[r_] = from[r_][c_];              \
            F(column_, through_);                        \
            UNROLLED for (int r_ = 0; r_ < FEW; r_++)    \
                half_[r_][c_] = through_[r_];            \
        }                                                \
        UNROLLED for (int r_ = 0; r_ < FEW; r_++)        \
            F(half_[r_], to[r_]);                        \
    }

/* Weights at the points are (point, outputs / PANEL, inputs, PANEL); INPUTS of them are made at a time,
 * so that what is written to each point is more than one line of the cache. */
#define INPUTS 8

/* G w Gt for all pairs of channels. */
static void NAME(weights_at_points)(const REAL *weight, REAL *points, const struct tiles *t, int turned)
{
    const ptrdiff_t by_output = 9 * (turned ? 1 : t->inputs), by_input = 9 * (turned ? t->outputs : 1);
    for (ptrdiff_t o = 0; o < t->outputs; o += PANEL)
        for (ptrdiff_t c = 0; c < t->inputs; c += INPUTS) {
            REAL made[SQUARE][INPUTS][PANEL];
            for (int i = 0; i < INPUTS; i++) {
                REAL near[9][PANEL];
                for (int l = 0; l < PANEL; l++)
                    for (int k = 0; k < 9; k++)
                        near[k][l] = weight[(o + l) * by_output + (c + i) * by_input + (turned ? 8 - k : k)];
                for (int v = 0; v < PANEL; v += WIDTH) {
                    VECTOR w[3][3], u[6][6];
                    UNROLLED for (int k = 0; k < 9; k++)
                        w[k / 3][k % 3] = LOAD(near[k] + v);
                    TWICE(NAME(weigh), w, 3, u, 6)
                    UNROLLED for (int k = 0; k < SQUARE; k++)
                        STORE(made[k][i] + v, u[k / 6][k % 6]);
                }
            }
            for (int k = 0; k < SQUARE; k++)
                memcpy(points + (k * t->outputs + o) * t->inputs + c * PANEL, made[k], sizeof made[k]);
        }
}

/* Gt u G for all pairs of channels. */
static void NAME(weights_from_points)(const REAL *points, REAL *weight, const struct tiles *t)
{
    for (ptrdiff_t o = 0; o < t->outputs; o += PANEL)
        for (ptrdiff_t c = 0; c < t->inputs; c += INPUTS) {
            REAL made[SQUARE][INPUTS][PANEL];
            for (int k = 0; k < SQUARE; k++)
                memcpy(made[k], points + (k * t->outputs + o) * t->inputs + c * PANEL, sizeof made[k]);
            for (int i = 0; i < INPUTS; i++) {
                REAL near[9][PANEL];
                for (int v = 0; v < PANEL; v += WIDTH) {
                    VECTOR w[3][3], u[6][6];
                    UNROLLED for (int k = 0; k < SQUARE; k++)
                        u[k / 6][k % 6] = LOAD(made[k][i] + v);
                    TWICE(NAME(unweigh), u, 6, w, 3)
                    UNROLLED for (int k = 0; k < 9; k++)
                        STORE(near[k] + v, w[k / 3][k % 3]);
                }
                for (int l = 0; l < PANEL; l++)
                    for (int k = 0; k < 9; k++)
                        weight[((o + l) * t->inputs + c + i) * 9 + k] = near[k][l];
            }
        }
}

/* Where a tile begins: its sample, row and column. */
struct NAME(corner) {
    ptrdiff_t sample, row, column;
};

INLINE struct NAME(corner) NAME(find_tile)(const struct tiles *t, ptrdiff_t number)
{
    const ptrdiff_t down = (t->height + TILE_SIDE - 1) / TILE_SIDE;
    const ptrdiff_t across = (t->width + TILE_SIDE - 1) / TILE_SIDE;
    return (struct NAME(corner)){number / (down * across), number / across % down * TILE_SIDE,
                                 number % across * TILE_SIDE};
}

/* Tiles of `image` at the points: (point, chunk, channels). The plain square of a tile begins `edge`
 * places before its corner and has SIDE places; places outside the image are zero. */
#define AT_POINTS(FUNCTION, F, SIDE, edge)                                                            \
    static void NAME(FUNCTION)(const REAL *image, REAL *points, const struct tiles *t,                \
                               ptrdiff_t channels, ptrdiff_t first, ptrdiff_t count)                  \
    {                                                                                                 \
        static const REAL zeros[WIDTH];                                                               \
        const ptrdiff_t apart = t->chunk * channels;                                                  \
        for (ptrdiff_t p = 0; p < count; p++) {                                                       \
            const struct NAME(corner) at = NAME(find_tile)(t, first + p);                             \
            const REAL *place[SIDE][SIDE];                                                            \
            ptrdiff_t step[SIDE][SIDE]; /* 0 outside, where the same zeros serve all channels */      \
            for (int r = 0; r < SIDE; r++)                                                            \
                for (int c = 0; c < SIDE; c++) {                                                      \
                    const ptrdiff_t i = at.row + r - edge, j = at.column + c - edge;                  \
                    const int in = i >= 0 && i < t->height && j >= 0 && j < t->width;                 \
                    place[r][c] = in ? image + ((at.sample * t->height + i) * t->width + j) * channels \
                                     : zeros;                                                         \
                    step[r][c] = in;                                                                  \
                }                                                                                     \
            for (ptrdiff_t c = 0; c < channels; c += WIDTH) {                                         \
                VECTOR x[SIDE][SIDE], u[6][6];                                                        \
                UNROLLED for (int k = 0; k < SIDE * SIDE; k++)                                        \
                    x[k / SIDE][k % SIDE] =                                                           \
                        LOAD(place[k / SIDE][k % SIDE] + c * step[k / SIDE][k % SIDE]);               \
                TWICE(F, x, SIDE, u, 6)                                                               \
                UNROLLED for (int k = 0; k < SQUARE; k++)                                             \
                    STORE(points + k * apart + p * channels + c, u[k / 6][k % 6]);                    \
            }                                                                                         \
        }                                                                                             \
    }


AT_POINTS(image_at_points, NAME(to_points), 6, 1)
AT_POINTS(gradient_at_points, NAME(spread), 4, 0)

/* The results of tiles, from their sums at the points. */
static void NAME(image_from_points)(const REAL *points, REAL *image, const struct tiles *t,
                                    ptrdiff_t first, ptrdiff_t count)
{
    const ptrdiff_t channels = t->outputs, apart = t->chunk * channels;
    for (ptrdiff_t p = 0; p < count; p++) {
        const struct NAME(corner) at = NAME(find_tile)(t, first + p);
        const int whole = at.row + TILE_SIDE <= t->height && at.column + TILE_SIDE <= t->width;
        REAL *to = image + ((at.sample * t->height + at.row) * t->width + at.column) * channels;
        for (ptrdiff_t c = 0; c < channels; c += WIDTH) {
            VECTOR u[6][6], y[4][4];
            UNROLLED for (int k = 0; k < SQUARE; k++)
                u[k / 6][k % 6] = LOAD(points + k * apart + p * channels + c);
            TWICE(NAME(from_points), u, 6, y, 4)
            if (whole) {
                UNROLLED for (int k = 0; k < TILE_SIDE * TILE_SIDE; k++)
                    STORE(to + (k / 4 * t->width + k % 4) * channels + c, y[k / 4][k % 4]);
            } else {
                for (int k = 0; k < TILE_SIDE * TILE_SIDE; k++)
                    if (at.row + k / 4 < t->height && at.column + k % 4 < t->width)
                        STORE(to + (k / 4 * t->width + k % 4) * channels + c, y[k / 4][k % 4]);
            }
        }
    }
}

/* y (rows, outputs) = x (rows, inputs) times a matrix in panels; rows are a multiple of ROWS. */
static void NAME(multiply)(const REAL *x, const REAL *matrix, REAL *y, ptrdiff_t rows,
                           ptrdiff_t inputs, ptrdiff_t outputs)
{
    for (ptrdiff_t o = 0; o < outputs; o += PANEL, matrix += inputs * PANEL)
        for (ptrdiff_t p = 0; p < rows; p += ROWS) {
            VECTOR sum[ROWS][PARTS] = {0};
            const REAL *from = x + p * inputs, *panel = matrix;
            for (ptrdiff_t c = 0; c < inputs; c++, panel += PANEL) {
                VECTOR w[PARTS];
                UNROLLED for (int v = 0; v < PARTS; v++)
                    w[v] = LOAD(panel + v * WIDTH);
                UNROLLED for (int r = 0; r < ROWS; r++)
                    UNROLLED for (int v = 0; v < PARTS; v++)
                        sum[r][v] += SPLAT(from[r * inputs + c]) * w[v];
            }
            UNROLLED for (int r = 0; r < ROWS; r++)
                UNROLLED for (int v = 0; v < PARTS; v++)
                    STORE(y + (p + r) * outputs + o + v * WIDTH, sum[r][v]);
        }
}

/* Add x (rows, inputs) transposed times y (rows, outputs) to a matrix in panels. */
static void NAME(add_products)(const REAL *x, const REAL *y, REAL *matrix, ptrdiff_t rows,
                               ptrdiff_t inputs, ptrdiff_t outputs)
{
    for (ptrdiff_t o = 0; o < outputs; o += PANEL)
        for (ptrdiff_t c = 0; c < inputs; c += PAIRS, matrix += PAIRS * PANEL) {
            VECTOR sum[PAIRS][PARTS];
            UNROLLED for (int r = 0; r < PAIRS; r++)
                UNROLLED for (int v = 0; v < PARTS; v++)
                    sum[r][v] = LOAD(matrix + r * PANEL + v * WIDTH);
            const REAL *one = x + c, *other = y + o;
            for (ptrdiff_t p = 0; p < rows; p++, one += inputs, other += outputs) {
                VECTOR w[PARTS];
                UNROLLED for (int v = 0; v < PARTS; v++)
                    w[v] = LOAD(other + v * WIDTH);
                UNROLLED for (int r = 0; r < PAIRS; r++)
                    UNROLLED for (int v = 0; v < PARTS; v++)
                        sum[r][v] += SPLAT(one[r]) * w[v];
            }
            UNROLLED for (int r = 0; r < PAIRS; r++)
                UNROLLED for (int v = 0; v < PARTS; v++)
                    STORE(matrix + r * PANEL + v * WIDTH, sum[r][v]);
        }
}

static ptrdiff_t NAME(count_tiles)(const struct tiles *t)
{
    const ptrdiff_t down = (t->height + TILE_SIDE - 1) / TILE_SIDE;
    return t->samples * down * ((t->width + TILE_SIDE - 1) / TILE_SIDE);
}

int NAME(convolve)(const REAL *x, const REAL *weight, REAL *y, REAL *work, const struct tiles *t,
                   int turned)
{
    const ptrdiff_t tiles = NAME(count_tiles)(t), matrix = t->inputs * t->outputs;
    REAL *weights = work, *in = weights + SQUARE * matrix, *out = in + SQUARE * t->chunk * t->inputs;
    NAME(weights_at_points)(weight, weights, t, turned);
    for (ptrdiff_t first = 0; first < tiles; first += t->chunk) {
        const ptrdiff_t count = tiles - first < t->chunk ? tiles - first : t->chunk;
        const ptrdiff_t rows = (count + ROWS - 1) / ROWS * ROWS; /* those beyond are not read */
        NAME(image_at_points)(x, in, t, t->inputs, first, count);
        for (int k = 0; k < SQUARE; k++)
            NAME(multiply)(in + k * t->chunk * t->inputs, weights + k * matrix,
                           out + k * t->chunk * t->outputs, rows, t->inputs, t->outputs);
        NAME(image_from_points)(out, y, t, first, count);
    }
    return OK;
}

int NAME(convolve_weights)(const REAL *x, const REAL *gradient, REAL *weight, REAL *work,
                           const struct tiles *t)
{
    const ptrdiff_t tiles = NAME(count_tiles)(t), matrix = t->inputs * t->outputs;
    REAL *sums = work, *in = sums + SQUARE * matrix, *out = in + SQUARE * t->chunk * t->inputs;
    memset(sums, 0, SQUARE * matrix * sizeof(REAL));
    for (ptrdiff_t first = 0; first < tiles; first += t->chunk) {
        const ptrdiff_t count = tiles - first < t->chunk ? tiles - first : t->chunk;
        NAME(image_at_points)(x, in, t, t->inputs, first, count);
        NAME(gradient_at_points)(gradient, out, t, t->outputs, first, count);
        for (int k = 0; k < SQUARE; k++)
            NAME(add_products)(in + k * t->chunk * t->inputs, out + k * t->chunk * t->outputs,
                               sums + k * matrix, count, t->inputs, t->outputs);
    }
    NAME(weights_from_points)(sums, weight, t);
    return OK;
}

#endif
