/* The kernels on numbers, compiled once for every variant and precision. Needs what vectors.h needs. */
#include "contrast.h"
#include "convolution.h"
#include "gradients.h"
#include "networks.h"
#include "normalise.h"
#include "tiles.h"
#include "trained.h"
#include "winograd.h"
