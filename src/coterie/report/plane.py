"""Places a few hundred vectors in the plane by t-SNE, in well under a second.

Every page of a small run has such a picture, so it has to be quick: all pairs at once in float32,
which for so few points is several times as fast as a tree. It starts from the two main directions
of the vectors, so that the same vectors always give the same picture.
"""

import numpy as np
from threadpoolctl import threadpool_limits

_NEIGHBOURS = 30  # the perplexity, if there are enough points
_SEARCH = 30  # halvings on the way to every point's own width
_EARLY, _STEPS = 80, 250  # steps with exaggerated attraction, and all
_EXAGGERATION = 12.0
_TINY = 1e-12


def place_in_plane(vectors: np.ndarray) -> np.ndarray:
    """Place vectors in the plane by t-SNE with cosine distances."""
    exact = np.asarray(vectors, np.float64)  # squares of large float32 would overflow
    lengths = np.linalg.norm(exact, axis=1, keepdims=True)
    unit = (exact / np.maximum(lengths, _TINY)).astype(np.float32)
    with threadpool_limits(1):  # a few threads that wait for each other are slower than one
        return _descend(_find_affinities(unit), _find_start(unit))


def _find_affinities(unit: np.ndarray) -> np.ndarray:
    """Compute how strongly every two points attract each other; the sum is 1."""
    count = len(unit)
    apart = np.maximum(2 - 2 * (unit @ unit.T), 0)
    np.fill_diagonal(apart, np.inf)
    apart -= apart.min(axis=1, keepdims=True)  # exponentials cannot vanish all together
    wanted = np.log(min(_NEIGHBOURS, max(2, count // 4)))
    low, high = np.full(count, 1e-3, np.float32), np.full(count, 1e7, np.float32)
    finite = np.where(np.isfinite(apart), apart, 0)
    for _ in range(_SEARCH):
        narrow = np.sqrt(low * high)
        weights = np.exp(-apart * narrow[:, None])
        total = weights.sum(axis=1)
        entropy = np.log(total) + narrow * (weights * finite).sum(axis=1) / total
        low, high = (
            np.where(entropy > wanted, narrow, low),
            np.where(entropy > wanted, high, narrow),
        )
    shares = weights / total[:, None]
    return np.asarray(np.maximum((shares + shares.T) / (2 * count), _TINY))


def _find_start(unit: np.ndarray) -> np.ndarray:
    """Project on the two main directions, made tiny."""
    centred = unit - unit.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    start: np.ndarray = left[:, :2] * sizes[:2]
    start *= np.sign(start[np.abs(start).argmax(axis=0), [0, 1]] + _TINY)  # either sign is right
    return start / max(float(start[:, 0].std()), _TINY) * 1e-4


def _descend(affinities: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Move points from their start until those that attract each other are close."""
    count = len(points)
    rate = max(count / _EXAGGERATION, 10.0)
    points = points.astype(np.float32)
    one = np.ones((count, 1), np.float32)
    near, pull = np.empty((2, count, count), np.float32)  # made once: pages of memory cost time too
    move, gains = np.zeros_like(points), np.ones_like(points)
    for step in range(_STEPS):
        strength = _EXAGGERATION if step < _EARLY else 1.0
        squares = (points * points).sum(axis=1, keepdims=True)
        left = np.hstack([-2 * points, squares, one])
        np.matmul(left, np.hstack([points, one, squares + 1]).T, out=near)  # 1 + distance^2
        np.reciprocal(near, out=near)
        np.fill_diagonal(near, 0)
        total = near.sum()
        spread = np.hstack([points, one])
        attract = np.multiply(affinities, near, out=pull) @ spread
        repel = np.multiply(near, near, out=pull) @ spread
        force = strength * attract - repel / total
        slope = 4 * (force[:, 2:] * points - force[:, :2])
        turned = np.sign(slope) != np.sign(move)
        gains = np.where(turned, gains + 0.2, np.maximum(gains * 0.8, 0.01))
        move = (0.5 if step < _EARLY else 0.8) * move - rate * gains * slope
        points = points + move
        points -= points.mean(axis=0)
    return points
