"""LARS against a naive loop over its formula (You, Gitman, Ginsburg 2017).

g' = g + wd w,   r = trust |w| / |g'|,   v = momentum v + r g',   w = w - lr v
"""

import math

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.settings import Local
from coterie.kit.optimizers import LARS, make_optimizer

SHAPES = {"conv": (3, 2, 2, 2), "matrix": (4, 3), "bias": (4,), "scale": ()}


def draws(seed: int) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(seed)
    return {name: np.asarray(generator.normal(size=shape)) for name, shape in SHAPES.items()}


def naive(
    w: np.ndarray, gradients: list[np.ndarray], lr: float, momentum: float, wd: float, trust: float
) -> np.ndarray:
    scaled = w.ndim > 1
    v = np.zeros_like(w)
    for g in gradients:
        if scaled:
            g = g + wd * w
            size = math.sqrt(sum(x * x for x in w.flatten()))
            slope = math.sqrt(sum(x * x for x in g.flatten()))
            g = trust * size / slope * g
        v = momentum * v + g
        w = w - lr * v
    return w


@pytest.mark.parametrize(
    ("lr", "momentum", "decay", "trust"),
    [(0.5, 0.9, 1e-2, 1e-3), (2.0, 0.0, 0.0, 0.1), (0.1, 0.5, 1.0, 1.0)],
)
def test_several_steps(lr: float, momentum: float, decay: float, trust: float) -> None:
    start, gradients = draws(0), [draws(seed) for seed in range(1, 6)]
    parameters = {name: nn.Parameter(torch.from_numpy(w.copy())) for name, w in start.items()}
    optimizer = LARS(parameters.values(), lr, momentum, decay, trust)
    for gradient in gradients:
        for name, parameter in parameters.items():
            parameter.grad = torch.from_numpy(gradient[name].copy())
        optimizer.step()
    for name, parameter in parameters.items():
        path = [gradient[name] for gradient in gradients]
        expected = naive(start[name], path, lr, momentum, decay, trust)
        assert np.allclose(parameter.detach().numpy(), expected, rtol=1e-10, atol=1e-14), name


def one_step(weight: torch.Tensor, gradient: torch.Tensor, **settings: float) -> torch.Tensor:
    parameter = nn.Parameter(weight.clone())
    parameter.grad = gradient.clone()
    LARS([parameter], lr=1.0, **settings).step()
    return weight - parameter.detach()


def test_the_length_of_a_matrix_step_does_not_depend_on_the_gradients_length() -> None:
    weight, gradient = torch.eye(3, dtype=torch.float64), torch.ones(3, 3, dtype=torch.float64)
    steps = [one_step(weight, scale * gradient, trust=0.1) for scale in (1e-6, 1.0, 1e6)]
    for step in steps:
        assert step.norm().item() == pytest.approx(0.1 * math.sqrt(3), rel=1e-12)


def test_vectors_take_a_plain_step_without_decay() -> None:
    weight, gradient = torch.full((3,), 5.0), torch.tensor([1.0, -2.0, 0.5])
    assert torch.equal(one_step(weight, gradient, weight_decay=0.5, trust=1e-3), gradient)


def test_zero_weights_and_zero_gradients_take_a_plain_step() -> None:
    zeros, ones = torch.zeros(2, 2), torch.ones(2, 2)
    assert torch.equal(one_step(zeros, ones), ones)
    assert torch.equal(one_step(ones, zeros), zeros)
    assert torch.equal(one_step(zeros, zeros), zeros)


def test_parameters_without_a_gradient_stay() -> None:
    moved, still = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    moved.grad = torch.ones(2, 2)
    optimizer = LARS([moved, still], lr=1.0, weight_decay=0.1)
    optimizer.step()
    assert torch.equal(still, torch.ones(2, 2))
    assert not torch.equal(moved, torch.ones(2, 2))
    assert still not in optimizer.state


def test_it_is_what_the_local_settings_name() -> None:
    local = Local(optimizer="lars", momentum=0.7, weight_decay=0.25)
    found = make_optimizer(local, [nn.Parameter(torch.ones(1))], 0.125)
    assert isinstance(found, LARS)
    assert found.defaults == {"lr": 0.125, "momentum": 0.7, "weight_decay": 0.25, "trust": 1e-3}
