"""The clusters of Orchestra: equal shares, those of a memory and of the federation, by hand."""

import numpy as np
import pytest
import torch
from federation import normal
from orchestra_by_hand import (
    LAMBDA,
    SHARES,
    WIDTH,
    T,
    clouds,
    naive_cluster,
    naive_disagreement,
    naive_shares,
    unit,
)
from torch.nn import functional as F

from coterie.kit.clustering import Descent, EqualShares, cluster, directed, disagreement

# ---- assignments, and the clusters of a memory


@pytest.mark.parametrize(("rows", "count"), [(24, 4), (128, 16), (48, 48), (20, 32), (160, 128)])
def test_assignments_are_the_naive_scaling_within_their_marginals(rows: int, count: int) -> None:
    x, c = clouds(0, rows), clouds(7, count)
    found = SHARES(x, c).numpy()
    np.testing.assert_allclose(found, naive_shares(x.numpy(), c.numpy()), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), np.ones(rows), rtol=1e-5)
    many = EqualShares(LAMBDA, 2000)(x, c).numpy().sum(axis=0)
    np.testing.assert_allclose(many, np.full(count, rows / count), rtol=1e-3)
    plain = torch.softmax(LAMBDA * x @ c.T, dim=1).sum(dim=0).numpy()
    share = rows / count
    assert np.abs(found.sum(axis=0) - share).max() < np.abs(plain - share).max()


@pytest.mark.parametrize(("rows", "count", "iterations"), [(24, 4, 5), (128, 16, 5), (9, 9, 2)])
def test_the_clusters_of_a_memory_are_those_by_hand(rows: int, count: int, iterations: int) -> None:
    x = clouds(1, rows)
    found = cluster(x, count, SHARES, iterations, np.random.default_rng(4))
    expected = naive_cluster(x.numpy(), count, iterations, np.random.default_rng(4))
    np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_allclose(found.norm(dim=1), np.ones(count), rtol=1e-6)


def test_clusters_have_about_the_same_size_where_means_would_not() -> None:
    """Ninety rows of one cloud and ten of another, in ten clusters."""
    random = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(2, 16, generator=random), dim=1)
    whose = torch.tensor([0] * 90 + [1] * 10)
    x = F.normalize(centres[whose] + 0.2 * torch.randn(100, 16, generator=random), dim=1)
    found = cluster(x, 10, SHARES, 5, np.random.default_rng(0))
    sizes = torch.bincount(SHARES(x, found).argmax(dim=1), minlength=10)
    assert int(sizes.min()) >= 3 and int(sizes.max()) <= 20
    near = (found @ centres.T).argmax(dim=1)
    assert int((near == 1).sum()) in (1, 2)  # its fair share


def test_a_centroid_without_rows_becomes_a_row() -> None:
    """Two distinct rows cannot fill four clusters."""
    x = torch.eye(6)[torch.arange(12) % 2]
    found = cluster(x, 4, SHARES, 5, np.random.default_rng(0))
    assert all(any(torch.equal(c, row) for row in x) for c in found)
    expected = naive_cluster(x.numpy(), 4, 5, np.random.default_rng(0))
    np.testing.assert_allclose(found, expected, atol=1e-6)


# ---- the clusters of the federation


def test_the_loss_of_the_centroids_is_that_by_hand() -> None:
    rows, centroids = clouds(2, 30).double(), clouds(9, 10).double()
    goals = naive_shares(rows.numpy(), centroids.numpy())
    found = disagreement(rows, centroids, SHARES, T)
    assert float(found) == pytest.approx(naive_disagreement(rows.numpy(), centroids.numpy(), goals))
    assert -1.0 <= float(found) <= 0.0


def test_the_centroids_descend_by_hand() -> None:
    """SGD with momentum and decay; goals are constants of their step; rows of length one after."""
    rows, start = clouds(2, 30).double().numpy(), clouds(9, 10).double().numpy()
    lr, momentum, decay, steps = 0.3, 0.9, 1e-2, 5
    c, velocity = start.copy(), np.zeros_like(start)
    for _ in range(steps):
        goals, slope = naive_shares(rows, c), np.zeros_like(c)
        for place in np.ndindex(c.shape):  # by differences
            sides = []
            for sign in (1.0, -1.0):
                moved = c.copy()
                moved[place] += sign * 1e-5
                sides.append(naive_disagreement(rows, moved, goals))
            slope[place] = (sides[0] - sides[1]) / 2e-5
        velocity = momentum * velocity + slope + decay * c
        c = unit(c - lr * velocity)
    fit = Descent(steps, lr, momentum, decay)
    found = fit(torch.from_numpy(rows), torch.from_numpy(start), SHARES, T)
    np.testing.assert_allclose(found, c, atol=1e-6)
    assert np.abs(c - start).max() > 0.05
    assert not found.requires_grad


def test_centroids_come_to_agree_with_equal_shares_and_have_length_one() -> None:
    rows, start = clouds(2, 48), F.normalize(normal(4, 20, WIDTH), dim=1)
    found = Descent(500, 0.01, 0.9, 1e-4)(rows, start, SHARES, T)
    np.testing.assert_allclose(found.norm(dim=1), np.ones(20), rtol=1e-6)
    before, after = (float(disagreement(rows, c, SHARES, T)) for c in (start, found))
    assert after < before - 0.02


def test_no_step_leaves_the_centroids_where_they_are() -> None:
    start = clouds(4, 6)
    assert torch.equal(Descent(0, 0.01, 0.9, 1e-4)(clouds(2, 12), start, SHARES, T), start)


def test_rows_without_a_direction_are_left_out() -> None:
    rows = torch.cat([clouds(0, 3), torch.zeros(2, WIDTH)])
    np.testing.assert_allclose(directed(rows), rows[:3], rtol=1e-6)
