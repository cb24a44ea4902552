"""The losses between two views against loops over samples and prototypes, in float64."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.kit.losses import (
    negative_cosine,
    normalised_regression,
    nt_xent,
    sinkhorn,
    swapped_prediction,
    symmetric_distance,
)

ENTRIES = 5
every_batch = pytest.mark.parametrize("samples", [2, 3, 7])


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def unit(seed: int, *shape: int) -> Tensor:
    rows = normal(seed, *shape)
    return rows / rows.norm(dim=1, keepdim=True)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)))


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    """The gradient; zero where the loss does not depend on it at all."""
    if not loss.requires_grad:
        return torch.zeros_like(of)
    (found,) = torch.autograd.grad(loss, of, allow_unused=True, retain_graph=True)
    return torch.zeros_like(of) if found is None else found


def numeric(loss: Callable[[np.ndarray], float], at: Tensor, step: float = 1e-6) -> np.ndarray:
    """Central differences of a function of an array."""
    point, found = at.detach().numpy().copy(), np.zeros(at.shape)
    for place in np.ndindex(*at.shape):
        kept = point[place]
        point[place] = kept + step
        above = loss(point)
        point[place] = kept - step
        found[place] = (above - loss(point)) / (2 * step)
        point[place] = kept
    return found


# -- SimSiam and BYOL


def naive_distance(p: np.ndarray, z: np.ndarray) -> float:
    """-cos, a mean over samples."""
    return sum(-cosine(p[i], z[i]) for i in range(len(p))) / len(p)


@every_batch
def test_the_distance_is_the_mean_negative_cosine(samples: int) -> None:
    p, z = normal(0, samples, ENTRIES).requires_grad_(True), normal(1, samples, ENTRIES)
    found = negative_cosine(p, z)
    assert found.item() == pytest.approx(naive_distance(p.detach().numpy(), z.numpy()), rel=1e-12)
    slope = numeric(lambda x: naive_distance(x, z.numpy()), p)
    np.testing.assert_allclose(gradient(found, p), slope, atol=1e-8)


def test_the_distance_lies_between_minus_one_and_one() -> None:
    p = normal(0, 4, ENTRIES)
    assert negative_cosine(p, 3 * p).item() == pytest.approx(-1.0, rel=1e-12)
    assert negative_cosine(p, -0.1 * p).item() == pytest.approx(1.0, rel=1e-12)


@every_batch
def test_the_symmetric_distance_crosses_the_views(samples: int) -> None:
    """D(p1, z2) / 2 + D(p2, z1) / 2: no prediction meets the projection of its own view."""
    p1, p2, z1, z2 = (normal(seed, samples, ENTRIES) for seed in range(4))
    found = symmetric_distance(p1, p2, z1, z2)
    arrays = [x.numpy() for x in (p1, p2, z1, z2)]
    expected = 0.5 * naive_distance(arrays[0], arrays[3]) + 0.5 * naive_distance(*arrays[1:3])
    assert found.item() == pytest.approx(expected, rel=1e-12)
    swapped = symmetric_distance(p2, p1, z2, z1)
    assert swapped.item() == pytest.approx(found.item(), rel=1e-12)


def test_byols_loss_is_the_same_up_to_scale_and_shift() -> None:
    """|p/|p| - z/|z||^2 = 2 - 2 cos."""
    p, z = normal(0, 6, ENTRIES), normal(1, 6, ENTRIES)
    u, v = p / p.norm(dim=1, keepdim=True), z / z.norm(dim=1, keepdim=True)
    squares = (u - v).square().sum(dim=1).mean().item()
    assert 2 + 2 * negative_cosine(p, z).item() == pytest.approx(squares, rel=1e-12)
    assert normalised_regression(p, z).item() == pytest.approx(squares, rel=1e-12)


def test_the_regression_moves_the_prediction_alone() -> None:
    p, z = (normal(seed, 4, ENTRIES).requires_grad_() for seed in (0, 1))
    regression, distance = normalised_regression(p, z), negative_cosine(p, z)
    assert torch.allclose(gradient(regression, p), 2 * gradient(distance, p))
    assert gradient(regression, z).abs().sum() == 0


def test_no_gradient_flows_into_projections_and_targets() -> None:
    p1, p2, z1, z2 = (normal(seed, 6, ENTRIES).requires_grad_(True) for seed in range(4))
    loss = symmetric_distance(p1, p2, z1, z2)
    for constant in (z1, z2):
        assert gradient(loss, constant).abs().sum() == 0
    for prediction in (p1, p2):
        assert gradient(loss, prediction).abs().sum() > 0
    assert gradient(negative_cosine(p1, z1), z1).abs().sum() == 0
    # where p is a function of z, as in a network, only the way through p is left
    z = normal(5, 6, ENTRIES).requires_grad_(True)
    weight = normal(6, ENTRIES, ENTRIES)
    whole = gradient(negative_cosine(z @ weight, z), z)
    through_p = gradient(negative_cosine(z @ weight, z.detach().clone()), z)
    np.testing.assert_array_equal(whole, through_p)


def test_a_representation_of_zeros_stays_finite() -> None:
    p = torch.zeros(3, ENTRIES, requires_grad=True)
    for z in (torch.zeros(3, ENTRIES), torch.ones(3, ENTRIES)):
        loss = negative_cosine(p, z)
        assert loss.item() == 0.0
        assert gradient(loss, p).isfinite().all()


# -- SimCLR


def naive_nt_xent(z1: np.ndarray, z2: np.ndarray, tau: float) -> float:
    """-log e^{cos(z_i, z_j)/tau} / sum_{k != i} e^{cos(z_i, z_k)/tau}, a mean over 2B views."""
    views = [*z1, *z2]
    size, total = len(z1), 0.0
    for i in range(2 * size):
        j = i + size if i < size else i - size
        below = sum(math.exp(cosine(views[i], v) / tau) for k, v in enumerate(views) if k != i)
        total -= math.log(math.exp(cosine(views[i], views[j]) / tau) / below)
    return total / (2 * size)


@every_batch
@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
def test_nt_xent_is_the_naive_sum(samples: int, tau: float) -> None:
    z1, z2 = (normal(seed, samples, ENTRIES).requires_grad_(True) for seed in (0, 1))
    one, two = z1.detach().numpy(), z2.detach().numpy()
    found = nt_xent(z1, z2, tau)
    assert found.item() == pytest.approx(naive_nt_xent(one, two, tau), rel=1e-12)
    # positives and negatives alike: nothing is a constant
    slope = numeric(lambda x: naive_nt_xent(x, two, tau), z1)
    np.testing.assert_allclose(gradient(found, z1), slope, atol=1e-7)
    slope = numeric(lambda x: naive_nt_xent(one, x, tau), z2)
    np.testing.assert_allclose(gradient(found, z2), slope, atol=1e-7)


def test_a_batch_of_two_has_two_negatives() -> None:
    """Orthogonal samples whose views agree: -log e^{1/tau} / (e^{1/tau} + 2)."""
    z = torch.eye(2, dtype=torch.float64)
    expected = -math.log(math.exp(2.0) / (math.exp(2.0) + 2))
    assert nt_xent(z, z.clone(), 0.5).item() == pytest.approx(expected, rel=1e-12)


@every_batch
def test_views_that_are_all_alike_give_the_logarithm_of_their_number(samples: int) -> None:
    z = torch.ones(samples, ENTRIES, dtype=torch.float64)
    assert nt_xent(z, z, 0.5).item() == pytest.approx(math.log(2 * samples - 1), rel=1e-12)


def test_nt_xent_sees_neither_lengths_nor_the_order_of_views_and_samples() -> None:
    z1, z2 = normal(0, 7, ENTRIES), normal(1, 7, ENTRIES)
    plain = nt_xent(z1, z2, 0.5).item()
    order = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    for other in (
        nt_xent(30 * z1, 0.01 * z2, 0.5),
        nt_xent(z2, z1, 0.5),
        nt_xent(z1[order], z2[order], 0.5),
    ):
        assert other.item() == pytest.approx(plain, rel=1e-12)
    assert abs(nt_xent(z1[order], z2, 0.5).item() - plain) > 1e-2


def test_nt_xent_stays_finite_at_a_low_temperature() -> None:
    z1, z2 = (1e4 * normal(seed, 7, ENTRIES).float().requires_grad_(True) for seed in (0, 1))
    loss = nt_xent(z1, z2, 1e-3)
    assert loss.isfinite()
    assert gradient(loss, z1).isfinite().all()


# -- SwAV


def naive_sinkhorn(scores: np.ndarray, epsilon: float, iterations: int) -> np.ndarray:
    """Columns to a sum of B / K, then rows to a sum of 1, in turns."""
    size, prototypes = scores.shape
    codes = np.array([[math.exp(s / epsilon) for s in row] for row in scores])
    for _ in range(iterations):
        for k in range(prototypes):
            codes[:, k] *= size / prototypes / sum(codes[i, k] for i in range(size))
        for i in range(size):
            codes[i] /= sum(codes[i, k] for k in range(prototypes))
    return codes


def cosines(seed: int, samples: int, prototypes: int) -> Tensor:
    """Scores as they are there: between -1 and 1."""
    return unit(seed, samples, ENTRIES) @ unit(seed + 50, prototypes, ENTRIES).T


@every_batch
@pytest.mark.parametrize("prototypes", [2, 4, 9])
@pytest.mark.parametrize("iterations", [1, 3, 20])
def test_sinkhorn_is_the_naive_scaling(samples: int, prototypes: int, iterations: int) -> None:
    scores = cosines(0, samples, prototypes)
    found = sinkhorn(scores, 0.05, iterations)
    expected = naive_sinkhorn(scores.numpy(), 0.05, iterations)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("samples", "prototypes"), [(2, 3), (7, 4), (32, 12), (6, 20)])
def test_codes_are_distributions_that_use_all_prototypes_alike(
    samples: int, prototypes: int
) -> None:
    """Rows sum to 1, columns to B / K."""
    scores = cosines(3, samples, prototypes)
    few, many = sinkhorn(scores, 0.05, 3), sinkhorn(scores, 0.05, 2000)
    for codes in (few, many):
        np.testing.assert_allclose(codes.sum(dim=1), np.ones(samples), rtol=1e-12)
        assert (codes >= 0).all()
    share = np.full(prototypes, samples / prototypes)
    np.testing.assert_allclose(many.sum(dim=0), share, rtol=1e-4)
    before = torch.softmax(scores / 0.05, dim=1).sum(dim=0)
    wide, narrow = (np.abs(sums.numpy() - share).max() for sums in (before, few.sum(dim=0)))
    assert narrow < wide


def test_scores_that_are_all_alike_give_uniform_codes() -> None:
    np.testing.assert_allclose(sinkhorn(torch.full((6, 4), 0.3), 0.05, 3), np.full((6, 4), 0.25))


@pytest.mark.parametrize("far", [1.0, 50.0, 199.0, 201.0, 400.0])
def test_near_and_far_scores_are_scaled_alike(far: float) -> None:
    """By vectors up to a distance of 200 in logarithms, in logarithms beyond; both to the end."""
    scores = 0.05 * far * torch.linspace(-0.5, 0.5, 30, dtype=torch.float64)
    scores = scores[torch.randperm(30, generator=torch.Generator().manual_seed(0))].reshape(6, 5)
    for iterations in (1, 3, 20):
        found = sinkhorn(scores, 0.05, iterations)
        expected = naive_sinkhorn(scores.numpy(), 0.05, iterations)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-300)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e4, -1e4])
def test_no_score_is_too_large_for_sinkhorn(size: float, dtype: torch.dtype) -> None:
    scores = (size * normal(0, 8, 5)).to(dtype)
    codes = sinkhorn(scores, 0.05, 3)
    assert codes.dtype == dtype
    assert codes.isfinite().all()
    np.testing.assert_allclose(codes.sum(dim=1), np.ones(8), rtol=1e-6)


def naive_swapped(
    scores1: np.ndarray, scores2: np.ndarray, temperature: float, codes: list[np.ndarray]
) -> float:
    """-1/2 (<q2, log softmax(scores1 / T)> + <q1, log softmax(scores2 / T)>)."""
    total = 0.0
    for scores, code in ((scores1, codes[1]), (scores2, codes[0])):
        for i in range(len(scores)):
            below = sum(math.exp(s / temperature) for s in scores[i])
            for k in range(len(scores[i])):
                share = math.exp(scores[i][k] / temperature) / below
                total -= 0.5 * code[i][k] * math.log(share) / len(scores)
    return total


@every_batch
@pytest.mark.parametrize("prototypes", [2, 6])
def test_swapped_prediction_is_the_naive_sum(samples: int, prototypes: int) -> None:
    """Each view predicts the other's code, and no gradient flows through a code."""
    one, two = (cosines(seed, samples, prototypes) for seed in (0, 1))
    codes = [naive_sinkhorn(scores.numpy(), 0.05, 3) for scores in (one, two)]
    scores1, scores2 = one.clone().requires_grad_(True), two.clone().requires_grad_(True)
    found = swapped_prediction(scores1, scores2, 0.1, 0.05, 3)
    expected = naive_swapped(one.numpy(), two.numpy(), 0.1, codes)
    assert found.item() == pytest.approx(expected, rel=1e-10)
    slope = numeric(lambda x: naive_swapped(x, two.numpy(), 0.1, codes), one)
    np.testing.assert_allclose(gradient(found, scores1), slope, atol=1e-7)
    slope = numeric(lambda x: naive_swapped(one.numpy(), x, 0.1, codes), two)
    np.testing.assert_allclose(gradient(found, scores2), slope, atol=1e-7)


def test_codes_carry_no_gradient() -> None:
    scores = cosines(0, 6, 4).requires_grad_(True)
    assert not sinkhorn(scores, 0.05, 3).requires_grad


def test_swapped_prediction_stays_finite() -> None:
    scores1, scores2 = ((1e4 * normal(s, 6, 4)).float().requires_grad_(True) for s in (0, 1))
    loss = swapped_prediction(scores1, scores2, 0.1, 0.05, 3)
    assert loss.isfinite()
    assert gradient(loss, scores1).isfinite().all()
