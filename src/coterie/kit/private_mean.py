"""A mean of updates that hides any one client: clipped, of equal weights, with normal noise.

    new = start + (sum_k clip(w_k - start) + noise) / n        clip(u) = u min(1, C / |u|)

over all floating entries together, n the number of clients that are *expected*. Whoever is not
there counts as zero: nothing is divided by how many answered. So one client more or less moves the
mean by at most C / n, in the Euclidean norm. Integer entries stay as they were at the start.
"""

import math
import os
from collections.abc import Callable, Iterable

import numpy as np
import torch

from coterie.core.bundle import Tensors

Entropy = Callable[[int], bytes]  # so many bytes that nobody can predict

_CHUNK = 1 << 20  # numbers that are drawn together
_UNIT = 2.0**-53


def clip_update(start: Tensors, weights: Tensors, clip: float) -> Tensors:
    """Return the change of floating entries in float64, no longer than `clip` all together."""
    update = {
        name: weights[name].to(torch.float64) - tensor.to(torch.float64)
        for name, tensor in start.items()
        if tensor.is_floating_point()
    }
    norm = math.sqrt(sum(float(tensor.square().sum()) for tensor in update.values()))
    if norm > clip:
        for tensor in update.values():
            tensor.mul_(clip / norm)
    return update


def private_mean(
    start: Tensors,
    uploads: Iterable[Tensors],
    *,
    clip: float,
    noise: float,
    expected: float,
    entropy: Entropy = os.urandom,
) -> Tensors:
    """Average uploads around the weights that clients started from; see the formula above."""
    total = {
        name: torch.zeros_like(tensor, dtype=torch.float64)
        for name, tensor in start.items()
        if tensor.is_floating_point()
    }
    for weights in uploads:
        for name, update in clip_update(start, weights, clip).items():
            total[name].add_(update)
    mean = dict(start)
    for name, summed in total.items():
        drawn = torch.from_numpy(draw_normal(summed.numel(), entropy)).reshape(summed.shape)
        change = summed.add_(drawn, alpha=noise * clip).div_(expected)
        mean[name] = (start[name].to(torch.float64) + change).to(start[name].dtype)
    return mean


def draw_normal(count: int, entropy: Entropy = os.urandom) -> np.ndarray:
    """Draw standard normal numbers from entropy (Box and Muller), 53 bits for each uniform one."""
    drawn = np.empty(count)
    for begin in range(0, count, _CHUNK):
        size = min(_CHUNK, count - begin)
        half = (size + 1) // 2
        first, second = 1.0 - draw_uniform(half, entropy), draw_uniform(half, entropy)
        radius, angle = np.sqrt(-2.0 * np.log(first)), 2.0 * math.pi * second
        pairs = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        drawn[begin : begin + size] = pairs[:size]
    return drawn


def draw_uniform(count: int, entropy: Entropy = os.urandom) -> np.ndarray:
    """Draw numbers from 0 up to, and without, 1 from entropy."""
    return (np.frombuffer(entropy(8 * count), dtype="<u8") >> np.uint64(11)) * _UNIT
