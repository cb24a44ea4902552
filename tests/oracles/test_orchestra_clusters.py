"""The clusters of Orchestra: equal shares, those of a memory and of the federation, by hand."""

import numpy as np
import pytest
import torch
from federation import normal
from orchestra_by_hand import (
    ITERATIONS,
    LAMBDA,
    ON_SERVER,
    SERVER,
    SHARES,
    WIDTH,
    T,
    clouds,
    naive_cluster,
    naive_disagreement,
    naive_scaling,
    naive_shares,
    unit,
)
from torch.nn import functional as F

from coterie.kit.clustering import Descent, EqualShares, cluster, directed, disagreement

# ---- assignments, and the clusters of a memory


@pytest.mark.parametrize("most", [1, 2, ITERATIONS, ON_SERVER])
@pytest.mark.parametrize(("rows", "count"), [(24, 4), (48, 48), (20, 32), (80, 64)])
def test_assignments_are_the_naive_scaling_within_their_marginals(
    rows: int, count: int, most: int
) -> None:
    x, c = clouds(0, rows), clouds(7, count)
    found = EqualShares(LAMBDA, most)(x, c).numpy()
    expected = naive_shares(x.numpy(), c.numpy(), most)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(found.sum(axis=1), np.ones(rows), rtol=1e-5)
    plain = torch.softmax(LAMBDA * x @ c.T, dim=1).sum(dim=0).numpy()
    share = rows / count
    assert np.abs(found.sum(axis=0) - share).max() < np.abs(plain - share).max()


def test_scaling_starts_from_the_softmax_of_a_row() -> None:
    """Not from e^{lambda x . c}, whose first columns weigh rows by their largest entry."""
    x, c = clouds(0, 24), clouds(7, 4)
    p = torch.softmax(LAMBDA * x.double() @ c.double().T, dim=1)
    expected = p / p.sum(dim=0)
    expected = expected / expected.sum(dim=1, keepdim=True)
    found = EqualShares(LAMBDA, 1)(x, c).double()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    q = torch.exp(LAMBDA * x.double() @ c.double().T)
    other = q / q.sum(dim=0)
    other = other / other.sum(dim=1, keepdim=True)
    assert (found - other).abs().max() > 0.05


def test_scaling_stops_where_rows_hardly_move_as_seen_in_every_tenth_iteration() -> None:
    taken = set()
    for seed in range(0, 20, 2):
        x, c = clouds(seed, 24), clouds(seed + 7, 4)
        _, steps = naive_scaling(x.numpy(), c.numpy(), 1000)
        taken.add(steps)
        longer, until, before = (EqualShares(LAMBDA, n)(x, c) for n in (1000, steps, steps - 1))
        assert torch.equal(longer, until)
        assert not torch.equal(longer, before)
        np.testing.assert_allclose(longer.sum(dim=0), np.full(4, 6.0), rtol=1e-2)
    assert {steps % 10 for steps in taken} == {1} and len(taken) > 2


def test_ten_iterations_are_too_few_where_centroids_crowd() -> None:
    """Half of the centroids lie near a fifth of the rows, as on the server between rounds."""
    x = clouds(0, 96)
    crowded = x[::5].repeat(2, 1)[:28]
    c = F.normalize(torch.cat([crowded, x[:20]]) + 0.05 * normal(3, 48, WIDTH), dim=1)
    ten, hundred = (
        float((shares(x, c).sum(dim=0) / 2.0 - 1.0).abs().max()) for shares in (SHARES, SERVER)
    )
    assert ten > 1.0 and hundred < 1e-3  # of a share


def test_sharp_assignments_stay_finite_and_of_equal_shares() -> None:
    x, c = clouds(0, 24), clouds(7, 4)
    found = EqualShares(5000.0, 3000)(x, c)
    np.testing.assert_allclose(found.sum(dim=1), np.ones(24), rtol=1e-5)
    mild, far = (EqualShares(lam, 40)(x, c) for lam in (99.0, 101.0))  # on either side of the limit
    np.testing.assert_allclose(mild, far, atol=0.1)
    expected, _ = naive_scaling(x.numpy(), c.numpy(), 40, lam=150.0)
    np.testing.assert_allclose(EqualShares(150.0, 40)(x, c), expected, rtol=1e-3, atol=1e-5)


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
    goals = naive_shares(rows.numpy(), centroids.numpy(), ON_SERVER)
    found = disagreement(rows, centroids, SERVER, T)
    assert float(found) == pytest.approx(naive_disagreement(rows.numpy(), centroids.numpy(), goals))
    assert -1.0 <= float(found) <= 0.0


def test_the_centroids_descend_by_hand() -> None:
    """SGD with momentum and decay; goals are constants of their step; rows of length one after."""
    rows, start = clouds(2, 30).double().numpy(), clouds(9, 10).double().numpy()
    lr, momentum, decay, steps = 0.3, 0.9, 1e-2, 5
    c, velocity = start.copy(), np.zeros_like(start)
    for _ in range(steps):
        goals, slope = naive_shares(rows, c, ON_SERVER), np.zeros_like(c)
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
    found = fit(torch.from_numpy(rows), torch.from_numpy(start), SERVER, T)
    np.testing.assert_allclose(found, c, atol=1e-6)
    assert np.abs(c - start).max() > 0.05
    assert not found.requires_grad


def test_centroids_come_to_agree_with_equal_shares_and_have_length_one() -> None:
    rows, start = clouds(2, 48), F.normalize(normal(4, 20, WIDTH), dim=1)
    found = Descent(500, 0.01, 0.9, 1e-4)(rows, start, SERVER, T)
    np.testing.assert_allclose(found.norm(dim=1), np.ones(20), rtol=1e-6)
    before, after = (float(disagreement(rows, c, SERVER, T)) for c in (start, found))
    assert after < before - 0.02


def test_no_step_leaves_the_centroids_where_they_are() -> None:
    start = clouds(4, 6)
    assert torch.equal(Descent(0, 0.01, 0.9, 1e-4)(clouds(2, 12), start, SERVER, T), start)


def test_rows_without_a_direction_are_left_out() -> None:
    rows = torch.cat([clouds(0, 3), torch.zeros(2, WIDTH)])
    np.testing.assert_allclose(directed(rows), rows[:3], rtol=1e-6)
