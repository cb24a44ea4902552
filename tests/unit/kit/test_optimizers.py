"""Learning rates at exact rounds, and the step that each optimiser makes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.errors import ConfigError
from coterie.core.settings import Local
from coterie.core.task import Round
from coterie.kit.optimizers import make_optimizer

START = [[1.0, -2.0], [0.5, 3.0]]
GRADIENTS = [[[0.1, -0.2], [0.3, 0.4]], [[-0.5, 0.1], [0.2, 0.0]], [[0.7, 0.7], [-0.1, 0.3]]]


def rates(local: Local, steps: int) -> list[float]:
    """The rate of every round of a stage that starts late in the run."""
    return [local.rate(Round(50 + t, 99, "train", t, steps, 3, seed=0)) for t in range(steps)]


def test_constant() -> None:
    assert rates(Local(lr=0.3), 4) == [0.3] * 4


def test_cosine() -> None:
    expected = [0.5 * 0.2 * (1 + math.cos(math.pi * t / 8)) for t in range(8)]
    found = rates(Local(lr=0.2, schedule="cosine"), 8)
    assert found == pytest.approx(expected, rel=1e-15)
    assert found[0] == 0.2
    assert found[4] == pytest.approx(0.1, rel=1e-15)
    assert min(found) > 0


def test_step() -> None:
    local = Local(lr=1.0, schedule="step", milestones=(2, 5), gamma=0.1)
    assert rates(local, 7) == pytest.approx([1, 1, 0.1, 0.1, 0.1, 0.01, 0.01], rel=1e-15)
    at_once = Local(lr=1.0, schedule="step", milestones=(0,), gamma=0.5)
    assert rates(at_once, 2) == [0.5, 0.5]


def test_warm_up() -> None:
    assert rates(Local(lr=0.4, warmup=4), 6) == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4, 0.4])
    longer = rates(Local(lr=0.4, warmup=8), 4)
    assert longer == pytest.approx([0.05, 0.1, 0.15, 0.2])


def test_warm_up_then_cosine() -> None:
    found = rates(Local(lr=1.0, warmup=2, schedule="cosine"), 6)
    after = [0.5 * (1 + math.cos(math.pi * t / 4)) for t in range(4)]
    assert found == pytest.approx([0.5, 1.0, *after])


def test_warm_up_then_step() -> None:
    local = Local(lr=1.0, warmup=2, schedule="step", milestones=(3,), gamma=0.5)
    assert rates(local, 5) == [0.5, 1.0, 1.0, 0.5, 0.5]


def test_settings_that_make_no_sense_together() -> None:
    with pytest.raises(
        ConfigError, match=r"local\.nesterov = true needs .*local\.momentum above 0"
    ):
        Local(nesterov=True, momentum=0.0)
    with pytest.raises(ConfigError, match=r"needs local\.milestones"):
        Local(schedule="step")


def walk(local: Local, lr: float) -> np.ndarray:
    """Where three given gradients lead."""
    weight = nn.Parameter(torch.tensor(START, dtype=torch.float64))
    optimizer = make_optimizer(local, [weight], lr)
    for gradient in GRADIENTS:
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    return weight.detach().numpy()


def sgd(lr: float, momentum: float, decay: float, nesterov: bool) -> np.ndarray:
    w, v = np.array(START), None
    for g in map(np.array, GRADIENTS):
        g = g + decay * w
        v = g if v is None else momentum * v + g
        w = w - lr * (g + momentum * v if nesterov else v)
    return w


def adam(lr: float, decay: float, decoupled: bool) -> np.ndarray:
    w, m, v = np.array(START), 0.0, 0.0
    for t, g in enumerate(map(np.array, GRADIENTS), start=1):
        if decoupled:
            w = w - lr * decay * w
        else:
            g = g + decay * w
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        w = w - lr * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def lars(lr: float, momentum: float, decay: float) -> np.ndarray:
    w, v = np.array(START), 0.0
    for g in map(np.array, GRADIENTS):
        g = g + decay * w
        v = momentum * v + 1e-3 * np.linalg.norm(w) / np.linalg.norm(g) * g
        w = w - lr * v
    return w


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"momentum": 0.0, "weight_decay": 0.0}, sgd(0.3, 0.0, 0.0, False)),
        ({"momentum": 0.9, "weight_decay": 0.01}, sgd(0.3, 0.9, 0.01, False)),
        ({"momentum": 0.9, "nesterov": True, "weight_decay": 0.0}, sgd(0.3, 0.9, 0.0, True)),
        ({"optimizer": "adam", "weight_decay": 0.1}, adam(0.3, 0.1, decoupled=False)),
        ({"optimizer": "adamw", "weight_decay": 0.1}, adam(0.3, 0.1, decoupled=True)),
        ({"optimizer": "lars", "momentum": 0.5, "weight_decay": 0.1}, lars(0.3, 0.5, 0.1)),
    ],
)
def test_every_optimiser_follows_its_formula(
    settings: dict[str, Any], expected: np.ndarray
) -> None:
    found = walk(Local(lr=99.0, **settings), lr=0.3)  # the rate of the round, not `local.lr`
    assert np.allclose(found, expected, rtol=1e-12, atol=0)


def test_a_new_optimiser_has_no_momentum() -> None:
    local, weight = Local(momentum=0.9, weight_decay=0.0), nn.Parameter(torch.zeros(1))
    for _ in range(2):
        optimizer = make_optimizer(local, [weight], 1.0)
        weight.grad = torch.ones(1)
        optimizer.step()
    assert weight.item() == -2.0
