"""The contrastive losses against double loops over samples and classes, in float64."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.kit.losses import (
    class_pairs,
    class_sums,
    model_contrast,
    prototype_contrast,
    representation_gap,
)

CLASSES, ENTRIES, SAMPLES = 5, 7, 11


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def labels(seed: int, count: int = SAMPLES, classes: int = CLASSES) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).integers(classes, size=count))


def mask(*known: int) -> Tensor:
    return torch.tensor([k in known for k in range(CLASSES)])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b) / (math.sqrt(float(a @ a)) * math.sqrt(float(b @ b)))


def gradient(loss: Tensor, of: Tensor) -> Tensor:
    """The gradient; zero where the loss does not depend on it at all."""
    if not loss.requires_grad:
        return torch.zeros_like(of)
    (found,) = torch.autograd.grad(loss, of, allow_unused=True, retain_graph=True)
    return torch.zeros_like(of) if found is None else found


def numeric(loss: Any, at: Tensor, step: float = 1e-6) -> np.ndarray:
    """Central differences of a function of an array."""
    point, found = at.numpy().copy(), np.zeros(at.shape)
    for place in np.ndindex(*at.shape):
        kept = point[place]
        point[place] = kept + step
        above = loss(point)
        point[place] = kept - step
        found[place] = (above - loss(point)) / (2 * step)
        point[place] = kept
    return found


# -- MOON


def naive_model_contrast(
    z: np.ndarray, z_glob: np.ndarray, z_prevs: list[np.ndarray], tau: float
) -> float:
    """-log e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + sum_b e^{cos(z, z_b)/tau})."""
    total = 0.0
    for i in range(len(z)):
        near = math.exp(cosine(z[i], z_glob[i]) / tau)
        far = sum(math.exp(cosine(z[i], z_prev[i]) / tau) for z_prev in z_prevs)
        total -= math.log(near / (near + far))
    return total / len(z)


@pytest.mark.parametrize("tau", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_model_contrast_is_the_naive_sum(buffers: int, tau: float) -> None:
    z, z_glob = normal(0, SAMPLES, ENTRIES), normal(1, SAMPLES, ENTRIES)
    prevs = [normal(2 + b, SAMPLES, ENTRIES) for b in range(buffers)]
    arrays = z_glob.numpy(), [z_prev.numpy() for z_prev in prevs]
    z.requires_grad_(True)
    found = model_contrast(z, z_glob, prevs, tau)
    with torch.no_grad():
        expected = naive_model_contrast(z.numpy(), *arrays, tau)
    assert found.loss.item() == pytest.approx(expected, rel=1e-12)
    slope = numeric(lambda x: naive_model_contrast(x, *arrays, tau), z.detach())
    np.testing.assert_allclose(gradient(found.loss, z), slope, atol=1e-7)
    rows = range(SAMPLES)
    near = np.mean([cosine(z.detach().numpy()[i], arrays[0][i]) for i in rows])
    far = np.mean([cosine(z.detach().numpy()[i], p[i]) for i in rows for p in arrays[1]])
    assert float(found.cos_glob) == pytest.approx(near, rel=1e-9)
    assert float(found.cos_prev) == pytest.approx(far, rel=1e-9)


@pytest.mark.parametrize("buffers", [1, 2, 5])
def test_equal_references_give_a_constant(buffers: int) -> None:
    """z_glob = z_prev: -log 1/2 whatever z is, and MOON trains as FedAvg does."""
    z = normal(0, SAMPLES, ENTRIES).requires_grad_(True)
    same = normal(1, SAMPLES, ENTRIES)
    loss = model_contrast(z, same, [same.clone() for _ in range(buffers)], 0.5).loss
    assert loss.item() == pytest.approx(math.log(1 + buffers), rel=1e-12)
    np.testing.assert_allclose(gradient(loss, z), np.zeros((SAMPLES, ENTRIES)), atol=1e-15)


def test_without_a_previous_model_there_is_no_loss() -> None:
    z = normal(0, SAMPLES, ENTRIES).requires_grad_(True)
    loss = model_contrast(z, normal(1, SAMPLES, ENTRIES), [], 0.5).loss
    assert loss.item() == 0.0
    assert torch.equal(gradient(loss, z), torch.zeros_like(z))


def test_lengths_of_representations_do_not_matter_to_the_cosine() -> None:
    z, z_glob, z_prev = (normal(seed, SAMPLES, ENTRIES) for seed in range(3))
    plain = model_contrast(z, z_glob, [z_prev], 0.5).loss
    scaled = model_contrast(3 * z, 0.2 * z_glob, [40 * z_prev], 0.5).loss
    assert scaled.item() == pytest.approx(plain.item(), rel=1e-12)


def test_a_representation_of_zeros_stays_finite() -> None:
    z = torch.zeros(SAMPLES, ENTRIES, requires_grad=True)
    loss = model_contrast(z, torch.zeros(SAMPLES, ENTRIES), [torch.ones(SAMPLES, ENTRIES)], 0.5)
    assert loss.loss.item() == pytest.approx(math.log(2))
    assert gradient(loss.loss, z).isfinite().all()


def test_the_gap_is_the_mean_length_and_not_its_square() -> None:
    z, z_glob = normal(0, SAMPLES, ENTRIES), normal(1, SAMPLES, ENTRIES)
    squares = [sum(float(gap) ** 2 for gap in z[i] - z_glob[i]) for i in range(SAMPLES)]
    direction = (z - z_glob).numpy() / np.sqrt(squares)[:, None] / SAMPLES
    z.requires_grad_(True)
    found = representation_gap(z, z_glob)
    expected = sum(math.sqrt(square) for square in squares) / SAMPLES
    assert found.item() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(gradient(found, z), direction, rtol=1e-10)


def test_the_gap_has_a_zero_gradient_where_it_is_zero() -> None:
    """The first step of a round starts at z = z_glob: sqrt(sum of squares) would give NaN there."""
    z = normal(0, SAMPLES, ENTRIES).requires_grad_(True)
    z_glob = z.detach().clone()
    loss = representation_gap(z, z_glob)
    assert loss.item() == 0.0
    assert torch.equal(gradient(loss, z), torch.zeros_like(z))
    z_glob[3] += 1.0  # the others still meet
    found = gradient(representation_gap(z, z_glob), z)
    assert found.isfinite().all()
    assert found[3].abs().sum() > 0
    assert found[[i for i in range(SAMPLES) if i != 3]].abs().sum() == 0


# -- FedProc and FedSSC's global term


def naive_prototype_contrast(
    z: np.ndarray, y: list[int], c: np.ndarray, known: list[bool], tau: float, dot: bool
) -> float:
    """-log e^{s(z, c_y)/tau} / sum_k e^{s(z, c_k)/tau}, a mean over samples of known classes."""
    total, count = 0.0, 0
    for i in range(len(z)):
        if not known[y[i]]:
            continue
        powers = {}
        for k in range(len(c)):
            if known[k]:
                length = math.sqrt(float(c[k] @ c[k]))
                s = float(z[i] @ c[k]) / length if dot else cosine(z[i], c[k])
                powers[k] = math.exp(s / tau)
        total -= math.log(powers[y[i]] / sum(powers.values()))
        count += 1
    return total / count if count else 0.0


@pytest.mark.parametrize("known", [(0, 1, 2, 3, 4), (0, 2, 3), (4,)])
@pytest.mark.parametrize("tau", [0.5, 1.0])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_prototype_contrast_is_the_naive_sum(
    similarity: Any, tau: float, known: tuple[int, ...]
) -> None:
    z, c, y = normal(0, SAMPLES, ENTRIES), normal(1, CLASSES, ENTRIES), labels(2)
    rest = y.tolist(), c.numpy(), mask(*known).tolist(), tau, similarity == "dot"
    expected = naive_prototype_contrast(z.numpy(), *rest)
    slope = numeric(lambda x: naive_prototype_contrast(x, *rest), z)
    z.requires_grad_(True)
    found = prototype_contrast(z, y, c, mask(*known), tau, similarity)
    assert found.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(gradient(found, z), slope, atol=1e-7)


def test_cosine_at_temperature_one_is_the_default() -> None:
    z, c, y = normal(0, SAMPLES, ENTRIES), normal(1, CLASSES, ENTRIES), labels(2)
    every = mask(*range(CLASSES))
    expected = naive_prototype_contrast(
        z.numpy(), y.tolist(), c.numpy(), every.tolist(), 1.0, False
    )
    assert prototype_contrast(z, y, c, every).item() == pytest.approx(expected, rel=1e-12)


def test_only_the_dot_form_sees_the_length_of_z_and_none_that_of_prototypes() -> None:
    z, c, y = normal(0, SAMPLES, ENTRIES), normal(1, CLASSES, ENTRIES), labels(2)
    every = mask(*range(CLASSES))

    def loss(z: Tensor, c: Tensor, similarity: Any) -> float:
        return prototype_contrast(z, y, c, every, 1.0, similarity).item()

    for similarity in ("cosine", "dot"):
        assert loss(z, 9 * c, similarity) == pytest.approx(loss(z, c, similarity), rel=1e-12)
    assert loss(4 * z, c, "cosine") == pytest.approx(loss(z, c, "cosine"), rel=1e-12)
    assert abs(loss(4 * z, c, "dot") - loss(z, c, "dot")) > 0.1


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_an_absent_class_never_gets_probability(similarity: Any) -> None:
    """Whatever stands in its row; and its samples neither count nor get a gradient."""
    z, c, y = (
        normal(0, SAMPLES, ENTRIES).requires_grad_(True),
        normal(1, CLASSES, ENTRIES),
        labels(2),
    )
    y[:2] = 1
    known = mask(0, 2, 3, 4)
    found = []
    for row in (torch.zeros(ENTRIES), z[0].detach(), 1e6 * normal(9, ENTRIES)):
        rows = c.clone()
        rows[1] = row.double()
        loss = prototype_contrast(z, y, rows, known, 0.5, similarity)
        slope = gradient(loss, z)
        assert slope.isfinite().all()
        assert slope[y == 1].abs().sum() == 0
        assert (slope[y != 1].abs().sum(dim=1) > 0).all()
        found.append((loss.item(), slope.tolist()))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("known", [(), (3,)])
def test_without_a_sample_of_a_known_class_there_is_no_loss(
    known: tuple[int, ...], similarity: Any
) -> None:
    z = normal(0, SAMPLES, ENTRIES).requires_grad_(True)
    y = torch.full((SAMPLES,), 1)
    loss = prototype_contrast(z, y, normal(1, CLASSES, ENTRIES), mask(*known), 0.5, similarity)
    assert loss.item() == 0.0
    assert torch.equal(gradient(loss, z), torch.zeros_like(z))


def test_one_known_class_is_certain() -> None:
    z = normal(0, SAMPLES, ENTRIES).requires_grad_(True)
    y = torch.full((SAMPLES,), 3)
    loss = prototype_contrast(z, y, normal(1, CLASSES, ENTRIES), mask(3), 0.5)
    assert loss.item() == pytest.approx(0.0, abs=1e-12)
    np.testing.assert_allclose(gradient(loss, z), 0.0, atol=1e-12)


def test_orthonormal_prototypes() -> None:
    """K = 10, z on its own prototype: -log e / (e + 9)."""
    y, every = torch.arange(10), torch.ones(10, dtype=torch.bool)
    loss = prototype_contrast(torch.eye(10), y, torch.eye(10), every)
    assert loss.item() == pytest.approx(-math.log(math.e / (math.e + 9)), rel=1e-6)
    assert loss.item() == pytest.approx(1.4612, abs=5e-5)


@pytest.mark.parametrize(("classes", "floor"), [(10, 1.377), (100, 3.61), (200, 4.30)])
def test_the_cosine_form_has_a_floor(classes: int, floor: float) -> None:
    """With cosines at temperature 1 a simplex is best, and not even it gets the loss to zero."""
    y, every = torch.arange(classes), torch.ones(classes, dtype=torch.bool)
    simplex = torch.eye(classes, dtype=torch.float64) - 1 / classes
    best = prototype_contrast(simplex, y, simplex, every).item()
    assert best == pytest.approx(floor, abs=5e-3)
    for seed in range(5):
        near = simplex + 0.1 * normal(seed, classes, classes)
        assert prototype_contrast(near, y, near, every).item() > best
    longer = prototype_contrast(30 * simplex, y, simplex, every, 1.0, "dot").item()
    assert longer < 1e-3  # the length of z acts as an inverse temperature


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_extreme_inputs_stay_finite(similarity: Any) -> None:
    every, y = mask(*range(CLASSES)), labels(2)
    for z, c, tau in (
        (1e4 * normal(0, SAMPLES, ENTRIES), normal(1, CLASSES, ENTRIES), 1e-3),
        (torch.zeros(SAMPLES, ENTRIES).double(), normal(1, CLASSES, ENTRIES), 0.5),
        (normal(0, SAMPLES, ENTRIES), torch.zeros(CLASSES, ENTRIES).double(), 0.5),
    ):
        z = z.float().requires_grad_(True)
        loss = prototype_contrast(z, y, c.float(), every, tau, similarity)
        assert loss.isfinite()
        assert gradient(loss, z).isfinite().all()


# -- FedSSC's pairs of the local batch


def naive_class_pairs(
    z: np.ndarray, y: list[int], c: np.ndarray, known: list[bool], tau: float
) -> float:
    """-1/|P| sum_p log e^{cos(z_a, p)/tau} / sum_{q in A} e^{cos(z_a, q)/tau}, a mean over anchors.

    P(a): the other samples of its class and its class's vector; A(a): all others and all vectors.
    """
    total, anchors = 0.0, 0
    for a in range(len(z)):
        positives, below = [], 0.0
        for b in range(len(z)):
            if b != a:
                power = math.exp(cosine(z[a], z[b]) / tau)
                below += power
                if y[b] == y[a]:
                    positives.append(power)
        for k in range(len(c)):
            if known[k]:
                power = math.exp(cosine(z[a], c[k]) / tau)
                below += power
                if k == y[a]:
                    positives.append(power)
        if positives:
            total -= sum(math.log(power / below) for power in positives) / len(positives)
            anchors += 1
    return total / anchors if anchors else 0.0


@pytest.mark.parametrize("known", [(0, 1, 2, 3, 4), (0, 3), ()])
@pytest.mark.parametrize("tau", [0.2, 0.5])
@pytest.mark.parametrize("samples", [2, 6, 11])
def test_class_pairs_is_the_naive_sum(samples: int, tau: float, known: tuple[int, ...]) -> None:
    z, c, y = normal(0, samples, ENTRIES), normal(1, CLASSES, ENTRIES), labels(5, samples)
    rest = y.tolist(), c.numpy(), mask(*known).tolist(), tau
    expected = naive_class_pairs(z.numpy(), *rest)
    slope = numeric(lambda x: naive_class_pairs(x, *rest), z)
    z.requires_grad_(True)
    found = class_pairs(z, y, c, mask(*known), tau)
    assert found.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    np.testing.assert_allclose(gradient(found, z), slope, atol=1e-7)


def test_a_sample_alone_in_its_class_without_a_vector_is_no_anchor() -> None:
    z, c = normal(0, 4, ENTRIES).requires_grad_(True), normal(1, CLASSES, ENTRIES)
    y = torch.tensor([0, 0, 1, 2])
    found = class_pairs(z, y, c, mask(0), 0.5)
    expected = naive_class_pairs(z.detach().numpy(), y.tolist(), c.numpy(), mask(0).tolist(), 0.5)
    assert found.item() == pytest.approx(expected, rel=1e-12)
    slope = gradient(found, z)
    assert slope.isfinite().all()
    assert slope[2:].abs().sum() > 0  # it still pushes others away
    lonely = class_pairs(z, torch.arange(4), c, mask(), 0.5)
    assert lonely.item() == 0.0
    assert torch.equal(gradient(lonely, z), torch.zeros_like(z))


def test_unknown_vectors_are_no_candidates() -> None:
    z, c, y = normal(0, SAMPLES, ENTRIES), normal(1, CLASSES, ENTRIES), labels(2)
    other = c.clone()
    other[[1, 2, 4]] = 1e6 * normal(8, 3, ENTRIES)
    found = [class_pairs(z, y, rows, mask(0, 3), 0.5).item() for rows in (c, other)]
    assert found[0] == found[1]


def test_gradients_flow_through_the_local_representation_alone() -> None:
    """What comes from a reference network or from the server is a constant."""
    y, every = labels(2), mask(*range(CLASSES))
    one, other = (normal(seed, SAMPLES, ENTRIES).requires_grad_(True) for seed in (1, 2))
    c = normal(3, CLASSES, ENTRIES).requires_grad_(True)
    z = normal(0, SAMPLES, ENTRIES).requires_grad_(True)
    losses = [
        model_contrast(z, one, [other], 0.5).loss,
        representation_gap(z, one),
        prototype_contrast(z, y, c, every),
        prototype_contrast(z, y, c, every, 1.0, "dot"),
        class_pairs(z, y, c, every, 0.5),
    ]
    for loss in losses:
        for constant in (one, other, c):
            assert gradient(loss, constant).abs().sum() == 0
        assert gradient(loss, z).abs().sum() > 0


# -- what a client sends


@pytest.mark.parametrize("classes", [1, 3, CLASSES])
def test_class_sums_is_the_naive_sum(classes: int) -> None:
    z, y = normal(0, SAMPLES, ENTRIES), labels(3, classes=classes)
    sums, counts = np.zeros((CLASSES, ENTRIES)), [0] * CLASSES
    for i in range(SAMPLES):
        for entry in range(ENTRIES):
            sums[int(y[i]), entry] += float(z[i, entry])
        counts[int(y[i])] += 1
    found = class_sums(z, y, CLASSES)
    np.testing.assert_allclose(found[0], sums, rtol=1e-12, atol=1e-14)
    assert found[1].tolist() == counts
    assert found[1].dtype == torch.int64
    assert found[0].shape == (CLASSES, ENTRIES)
    assert found[0][classes:].abs().sum() == 0
