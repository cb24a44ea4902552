/* All that Python calls. This file is the only list: C takes its prototypes from it (names.h), and
 * interface.py reads it for structures and types of arguments.
 *
 * Every array of numbers has its samples innermost: (channel, row, column, lane), the samples padded
 * to a multiple of sixteen ("lanes"), so that each multiply-add is a full vector however few
 * channels a layer has. Kernels trust what they are given, and return OK or NO_MEMORY.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))
#define OK 0
#define NO_MEMORY 1

/* A convolution with bias, ReLU and 2 x 2 max-pooling: k x k weights, stride 1, a last odd row or
 * column left out. x is (channels, height, width, lanes), with its border of zeros already; y is
 * (outputs, (height - k + 1) / 2, (width - k + 1) / 2, lanes), weights are (outputs, channels, k, k). */
struct convolution {
    ptrdiff_t lanes, channels, height, width, outputs, k;
};

/* A layer of a network without gradients: such a convolution, or a linear layer (k = 0). */
struct layer {
    const void *weight, *bias;
    void *out;                 /* (samples, outputs), or NULL: nobody asks for this layer */
    ptrdiff_t inputs, outputs; /* channels of a convolution */
    ptrdiff_t k, padding;      /* of a convolution */
    int relu, unit;            /* of a linear layer: ReLU; then vectors divided by their length */
    int first;                 /* it takes the batch: another network begins */
};

/* A layer of a network that is trained: such a convolution without a border, or a linear layer (k = 0).
 * What is remembered of a forward pass, and the gradients, are in one array each; `kept`, `places` and
 * `slopes` say where the layer's part begins. */
struct trained {
    const void *weight, *bias;
    void *out;                 /* (samples, outputs), or NULL: nobody asks for this layer */
    const void *out_gradient;  /* the same shape, or NULL: no loss depends on `out` */
    ptrdiff_t inputs, outputs; /* channels of a convolution */
    ptrdiff_t height, width;   /* of its input, 1 and 1 for a linear layer */
    ptrdiff_t k;
    int relu, unit;            /* of a linear layer */
    ptrdiff_t kept;            /* entries of a sample before its results and, if `unit`, their divisor */
    ptrdiff_t places;          /* entries of a sample before what a convolution chose */
    ptrdiff_t slopes;          /* numbers before the gradients of weights and, behind them, biases */
};

/* A batch (channels, height, width, lanes) for networks of `layers`. */
struct batch {
    ptrdiff_t samples, lanes, height, width, layers;
    ptrdiff_t most;     /* entries of a sample in the largest outputs of a layer */
    ptrdiff_t bordered; /* and in the largest inputs with a border, 0 without any */
};

/* A convolution of (samples, height, width, inputs), channels innermost, with 3 x 3 weights, stride 1
 * and a border of one zero. `chunk` tiles of 4 x 4 results are worked on at a time: a multiple of 42,
 * so that no variant has to treat a last row apart. Workspaces have room for 36 (inputs outputs +
 * chunk inputs + chunk outputs) numbers. Inputs and outputs are multiples of sixteen. */
struct tiles {
    ptrdiff_t samples, height, width, inputs, outputs, chunk;
};

/* Rows of z, (samples, width), against as many rows of `count` references. */
struct contrast {
    ptrdiff_t samples, width, count;
    double tau, shortest;
};

/* Images (stored, channels, height, width) of which `count` are chosen. */
struct images {
    ptrdiff_t stored, count, lanes, channels, height, width;
    ptrdiff_t padding; /* the border around an image that a window may reach into */
    int reflect;       /* the border mirrors the image; else it is black */
};

/* A step of SGD over so many tensors. */
struct descent {
    ptrdiff_t tensors;
    float rate, momentum, decay;
    int nesterov;
};

/* ENTRY(name, parameters): in single and double precision, REAL being float or double. */
#define KERNELS(ENTRY)                                                                             \
    ENTRY(forward, const REAL *x, const REAL *weight, const REAL *bias, REAL *y, uint8_t *chosen,  \
          const struct convolution *shape)                                                         \
    ENTRY(frozen, const REAL *x, const REAL *weight, const REAL *bias, REAL *y,                    \
          const struct convolution *shape)                                                         \
    ENTRY(weight_gradient, const REAL *x, const REAL *gradient, const uint8_t *chosen,             \
          REAL *weight, REAL *bias, const struct convolution *shape)                               \
    ENTRY(input_gradient, const REAL *gradient, const uint8_t *chosen, const REAL *weight,         \
          REAL *x, const struct convolution *shape)                                                \
    ENTRY(networks, const REAL *x, const struct layer *layers, const struct batch *batch)          \
    ENTRY(trained_forward, const REAL *x, const struct trained *layers, const struct batch *batch, \
          REAL *kept, uint8_t *chosen)                                                             \
    ENTRY(trained_backward, const REAL *x, const struct trained *layers,                           \
          const struct batch *batch, const REAL *kept, const uint8_t *chosen, REAL *gradients)     \
    ENTRY(contrast, const REAL *z, const REAL *const *references, REAL *slope, REAL *means,        \
          const struct contrast *shape)                                                            \
    ENTRY(convolve, const REAL *x, const REAL *weight, REAL *y, REAL *work,                        \
          const struct tiles *shape, int turned)                                                   \
    ENTRY(convolve_weights, const REAL *x, const REAL *gradient, REAL *weight, REAL *work,         \
          const struct tiles *shape)                                                               \
    ENTRY(moments, const REAL *x, double *mean, double *squares, ptrdiff_t rows,                   \
          ptrdiff_t channels)                                                                      \
    ENTRY(normalise, const REAL *x, const REAL *scale, const REAL *shift, const REAL *shortcut,    \
          REAL *y, ptrdiff_t rows, ptrdiff_t channels, int relu)                                   \
    ENTRY(normalise_sums, const REAL *gradient, const REAL *y, const REAL *x, const REAL *mean,    \
          REAL *kept, double *sums, ptrdiff_t rows, ptrdiff_t channels)                            \
    ENTRY(normalise_gradient, const REAL *gradient, const REAL *y, const REAL *x,                  \
          const REAL *slopes, REAL *dx, ptrdiff_t rows, ptrdiff_t channels)                        \
    ENTRY(turn, const REAL *from, REAL *to, ptrdiff_t count, ptrdiff_t lanes, ptrdiff_t places)

/* In single precision alone. Arrays of uint16_t are numbers in bfloat16. */
#define SINGLE_KERNELS(ENTRY)                                                                      \
    ENTRY(gather, const uint8_t *images, const int64_t *chosen, const int64_t *starts,             \
          const uint8_t *mirrored, const float *mean, const float *std, float *out,                \
          const struct images *shape)                                                              \
    ENTRY(moments_bf16, const uint16_t *x, double *mean, double *squares, ptrdiff_t rows,          \
          ptrdiff_t channels)                                                                      \
    ENTRY(normalise_bf16, const uint16_t *x, const float *scale, const float *shift,               \
          const uint16_t *shortcut, uint16_t *y, ptrdiff_t rows, ptrdiff_t channels, int relu)     \
    ENTRY(normalise_sums_bf16, const uint16_t *gradient, const uint16_t *y, const uint16_t *x,     \
          const float *mean, uint16_t *kept, double *sums, ptrdiff_t rows, ptrdiff_t channels)     \
    ENTRY(normalise_gradient_bf16, const uint16_t *gradient, const uint16_t *y, const uint16_t *x, \
          const float *slopes, uint16_t *dx, ptrdiff_t rows, ptrdiff_t channels)                   \
    ENTRY(sgd, float *weights, float *velocities, const float *const *gradients,                   \
          const int64_t *sizes, const struct descent *step)

EXPORT const char *coterie_sources(void);  /* the fingerprint of the sources */
EXPORT const char *coterie_variants(void); /* those that this processor can run, the fastest first */
