"""How projections lie on the sphere, against loops over samples."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.kit.self_supervised import geometry

ENTRIES = 5


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@pytest.mark.parametrize("samples", [2, 3, 7])
def test_geometry_is_the_naive_sum(samples: int) -> None:
    z1, z2 = normal(0, samples, ENTRIES), normal(1, samples, ENTRIES)
    u, v = ([row / math.sqrt(float(row @ row)) for row in z.numpy()] for z in (z1, z2))
    deviations = []
    for entry in range(ENTRIES):
        values = [float(row[entry]) for row in u]
        mean = sum(values) / samples
        deviations.append(math.sqrt(sum((value - mean) ** 2 for value in values) / samples))
    pairs = [(i, j) for i in range(samples) for j in range(i)]
    powers = [math.exp(-2 * float((u[i] - u[j]) @ (u[i] - u[j]))) for i, j in pairs]
    expected = {
        "feature_std": math.sqrt(ENTRIES) * sum(deviations) / ENTRIES,
        "alignment": sum(float((a - b) @ (a - b)) for a, b in zip(u, v, strict=True)) / samples,
        "uniformity": math.log(sum(powers) / len(pairs)),
    }
    found = geometry(3 * z1, 0.5 * z2)
    assert {name: float(value) for name, value in found.items()} == pytest.approx(expected)


def test_geometry_of_a_collapse() -> None:
    z = torch.ones(8, ENTRIES)
    found = {name: float(value) for name, value in geometry(z, z).items()}
    assert found == pytest.approx({"feature_std": 0, "alignment": 0, "uniformity": 0}, abs=1e-6)


def test_geometry_of_directions_that_are_spread_out() -> None:
    """Uniform on the sphere of d entries: each has a deviation of 1 / sqrt(d)."""
    z1, z2 = normal(0, 4000, 64), normal(1, 4000, 64)
    found = geometry(z1, z2)
    assert float(found["feature_std"]) == pytest.approx(1.0, abs=0.02)
    assert float(found["alignment"]) == pytest.approx(2.0, abs=0.02)
    assert float(found["uniformity"]) == pytest.approx(-4.0, abs=0.2)


def test_geometry_is_only_looked_at() -> None:
    z = normal(0, 6, ENTRIES).requires_grad_(True)
    assert not any(value.requires_grad for value in geometry(z, z).values())
