"""Server optimisers against naive loops over the formulas, several rounds long.

d = w - mean(w_k)
FedAvgM     v = rho v + (1 - dampening) d,          w = w - lr v
FedAdam     v = b2 v + (1 - b2) d^2,                w = w - lr m / (sqrt(v) + tau)
FedYogi     v = v - (1 - b2) d^2 sign(v - d^2),     m = b1 m + (1 - b1) d
FedAdagrad  v = v + d^2,                            v = tau^2 at the start
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.core.bundle import Bundle
from coterie.core.settings import ServerSettings
from coterie.experiment.config import load
from coterie.experiment.tables import shipped
from coterie.kit.server_optimizer import step_server

ROUNDS, ENTRIES = 12, 20
PARAMETERS = frozenset({"w", "b"})
SETTINGS = {"lr": 0.3, "beta1": 0.8, "beta2": 0.95, "tau": 1e-2}


def averages() -> list[dict[str, Tensor]]:
    """What the clients' models come to in each round; they pull towards a moving point."""
    generator = np.random.default_rng(4)
    return [
        {
            "w": torch.from_numpy(generator.normal(size=ENTRIES) / (1 + t)),
            "b": torch.from_numpy(generator.normal(size=()) * np.ones(1)),
            "running_var": torch.from_numpy(generator.uniform(size=3)),
            "num_batches_tracked": torch.tensor(10 * t),
        }
        for t in range(ROUNDS)
    ]


def run(optimizer: ServerSettings, dtype: torch.dtype = torch.float64) -> list[Bundle]:
    start = {name: torch.zeros_like(tensor) for name, tensor in averages()[0].items()}
    server = Bundle({"model": cast(start, dtype)})
    states = []
    for averaged in averages():
        server = step_server(optimizer, server, cast(averaged, dtype), PARAMETERS)
        states.append(server)
    return states


def cast(tensors: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in tensors.items()}


def naive(rule: Callable[[dict[str, float], float], float], lr: float) -> list[list[float]]:
    """Entry by entry with plain numbers: `rule` turns a gap into a move and keeps its memory."""
    path: list[list[float]] = [[] for _ in range(ROUNDS)]
    for entry in range(ENTRIES):
        w, memory = 0.0, {}
        for t, averaged in enumerate(averages()):
            gap = w - float(averaged["w"][entry])
            w = w - lr * rule(memory, gap)
            path[t].append(w)
    return path


def momentum(rho: float, dampening: float) -> Callable[[dict[str, float], float], float]:
    def rule(memory: dict[str, float], gap: float) -> float:
        memory["v"] = rho * memory.get("v", 0.0) + (1 - dampening) * gap
        return memory["v"]

    return rule


def adaptive(kind: str) -> Callable[[dict[str, float], float], float]:
    b1, b2, tau = SETTINGS["beta1"], SETTINGS["beta2"], SETTINGS["tau"]

    def rule(memory: dict[str, float], gap: float) -> float:
        m, v = memory.get("m", 0.0), memory.get("v", tau**2)
        m = b1 * m + (1 - b1) * gap
        if kind == "adam":
            v = b2 * v + (1 - b2) * gap**2
        elif kind == "yogi":
            sign = (v > gap**2) - (v < gap**2)
            v = v - (1 - b2) * gap**2 * sign
        else:
            v = v + gap**2
        memory["m"], memory["v"] = m, v
        return m / (math.sqrt(v) + tau)

    return rule


def agrees(states: list[Bundle], path: list[list[float]]) -> bool:
    found = [state["model"]["w"].tolist() for state in states]
    return np.allclose(found, path, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("rho", "dampening"), [(0.9, 0.0), (0.9, 0.9), (0.5, 0.25), (0.0, 0.0)])
def test_momentum(rho: float, dampening: float) -> None:
    optimizer = ServerSettings("momentum", lr=0.7, momentum=rho, dampening=dampening)
    assert agrees(run(optimizer), naive(momentum(rho, dampening), 0.7))


@pytest.mark.parametrize("kind", ["adam", "yogi", "adagrad"])
def test_adaptive(kind: str) -> None:
    states = run(ServerSettings(kind, **SETTINGS))
    assert agrees(states, naive(adaptive(kind), SETTINGS["lr"]))


def test_adagrad_as_published_has_no_first_moment() -> None:
    """Reddi et al., Algorithm 2: FedAdagrad sets beta1 = 0, so w = w - lr d / (sqrt(v) + tau)."""
    lr, tau = 0.3, 1e-2
    states = run(ServerSettings("adagrad", lr=lr, beta1=0.0, tau=tau))
    w, v = np.zeros(ENTRIES), np.full(ENTRIES, tau**2)
    for state, averaged in zip(states, averages(), strict=True):
        d = w - averaged["w"].numpy()
        v = v + d * d
        w = w - lr * d / (np.sqrt(v) + tau)
        np.testing.assert_allclose(state["model"]["w"], w, rtol=1e-12, atol=1e-14)


def test_shipped_configurations_of_adagrad_are_as_published() -> None:
    names = [name for name in shipped() if name.endswith("/fedadagrad")]
    assert len(names) == 4
    assert all(load(name, {}).server.beta1 == 0.0 for name in names)


def test_adam_has_no_bias_correction() -> None:
    """The first step by hand: d = -1, m = -0.1, v = 0.99e-6 + 0.01."""
    server = Bundle({"model": {"w": torch.zeros(1, dtype=torch.float64)}})
    averaged = {"w": torch.ones(1, dtype=torch.float64)}
    moved = step_server(ServerSettings("adam"), server, averaged, PARAMETERS)
    expected = 0.1 / (math.sqrt(0.99 * 1e-6 + 0.01) + 1e-3)
    assert moved["model"]["w"].item() == pytest.approx(expected, rel=1e-12)


def test_no_momentum_is_fedavg() -> None:
    plain = run(ServerSettings(), torch.float32)
    without = run(ServerSettings("momentum", momentum=0.0), torch.float32)
    for one, other in zip(plain, without, strict=True):
        assert torch.allclose(one["model"]["w"], other["model"]["w"], rtol=0, atol=1e-6)


def test_full_dampening_of_moon() -> None:
    """`dampening = rho` is v = rho v + (1 - rho) d: an exponential mean of the gaps."""
    settings = {"momentum": 0.9, "dampening": 0.9}
    first = run(ServerSettings("momentum", **settings))[0]["model"]["w"]
    assert np.allclose(first, 0.1 * averages()[0]["w"].numpy(), rtol=1e-12)


@pytest.mark.parametrize("kind", ["none", "momentum", "adam", "yogi", "adagrad"])
def test_buffers_take_the_plain_average(kind: str) -> None:
    states = run(ServerSettings(kind, lr=0.3), torch.float32)
    for state, averaged in zip(states, averages(), strict=True):
        model = state["model"]
        assert torch.equal(model["running_var"], averaged["running_var"].float())
        assert torch.equal(model["num_batches_tracked"], averaged["num_batches_tracked"])


@pytest.mark.parametrize("kind", ["momentum", "adam", "yogi", "adagrad"])
def test_float32_stays_near_float64(kind: str) -> None:
    """Moments are kept in the weights' own type; the arithmetic between is float64."""
    narrow = run(ServerSettings(kind, lr=0.1), torch.float32)[-1]["model"]["w"]
    wide = run(ServerSettings(kind, lr=0.1), torch.float64)[-1]["model"]["w"]
    assert narrow.dtype == torch.float32
    assert torch.allclose(narrow.double(), wide, rtol=1e-5, atol=1e-6)
