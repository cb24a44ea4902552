"""SwAV with FedAvg against local training written out by hand, from the paper's loss."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from two_views import (
    ROUGH,
    SIZES,
    TwoViews,
    assert_no_label_is_used,
    assert_trained_as,
    count,
    layers,
    paper_network,
)

from coterie.core.batch import Batch
from coterie.core.bundle import Tensors
from coterie.experiment.config import load
from coterie.nets.heads import Network

WEIGHT = "prototypes.weight"
TEMPERATURE, EPSILON, ITERATIONS = 0.1, 0.05, 3


def codes_of(scores: np.ndarray, epsilon: float, iterations: int) -> np.ndarray:
    """Columns to a sum of B / K, rows to a sum of 1, in turns."""
    codes = np.exp(scores / epsilon)
    for _ in range(iterations):
        codes = codes / codes.sum(axis=0, keepdims=True) * codes.shape[0] / codes.shape[1]
        codes = codes / codes.sum(axis=1, keepdims=True)
    return codes


def swapped(
    net: Network,
    batch: Batch,
    temperature: float = TEMPERATURE,
    epsilon: float = EPSILON,
    iterations: int = ITERATIONS,
) -> Tensor:
    """-1/2 (<q2, log softmax(C z1 / T)> + <q1, log softmax(C z2 / T)>), all of length one."""
    assert isinstance(net.prototypes, nn.Linear)
    with torch.no_grad():
        for row in net.prototypes.weight:
            row /= (row @ row).sqrt()
    scores = []
    for view in batch.views:
        z = net(view.double()).z
        scores.append(z / z.square().sum(dim=1, keepdim=True).sqrt() @ net.prototypes.weight.T)
    total = torch.zeros((), dtype=torch.float64)
    for ours, theirs in ((0, 1), (1, 0)):
        codes = codes_of(scores[theirs].detach().numpy(), epsilon, iterations)
        shares = (scores[ours] / temperature).exp()
        shares = shares / shares.sum(dim=1, keepdim=True)
        total = total - 0.5 * (torch.from_numpy(codes) * shares.log()).sum() / len(batch)
    return total


def swav(folder: Path, **tables: dict[str, Any]) -> TwoViews:
    return TwoViews(folder, objective="swav", tables=tables)


def assert_unit(weights: Tensors) -> None:
    lengths = weights[WEIGHT].square().sum(dim=1).sqrt()
    torch.testing.assert_close(lengths, torch.ones_like(lengths), rtol=1e-6, atol=1e-6)


def test_the_head_and_parameters_of_the_specification() -> None:
    """512-512-128 with a norm inside; 512 prototypes of length one; about 11.6 M parameters."""
    net = paper_network("swav")
    assert layers(net.projector) == [("fc", 512, 512), ("bn", 512), ("relu",), ("fc", 512, 128)]
    assert isinstance(net.prototypes, nn.Linear)
    assert net.prototypes.bias is None
    assert net.prototypes.weight.shape == (512, 128)
    assert net.prototypes.weight.numel() == 65_536
    assert_unit(net.state_dict())
    assert net.predictor is None and net.classifier is None
    assert round(count(net) / 1e6, 1) == 11.6


def test_the_shipped_setting() -> None:
    config = load("cifar10/swav", {"evaluate.with": [], "evaluate.metric": "accuracy"})
    found = config.tables["objective"]
    assert (found["prototypes"], found["temperature"]) == (512, TEMPERATURE)
    assert (found["epsilon"], found["iterations"]) == (EPSILON, ITERATIONS)


@pytest.mark.parametrize(
    ("tables", "settings"),
    [
        ({}, ()),
        ({"objective": {"temperature": 0.3, "epsilon": 0.1, "iterations": 5}}, (0.3, 0.1, 5)),
        ({"local": {"batch_size": 5, "accumulate": 2}}, ()),  # codes of each batch of its own
    ],
)
def test_local_training_follows_the_loss(
    tables: dict[str, Any], settings: tuple[Any, ...], tmp_path: Path
) -> None:
    """Prototypes are of length one before every forward pass, whatever a step made of them."""
    fed = swav(tmp_path, **tables)
    assert_trained_as(fed, lambda net, batch: swapped(net, batch, *settings))


def test_the_lengths_of_prototypes_never_reach_the_loss(tmp_path: Path) -> None:
    fed = swav(tmp_path)
    batch, found = next(iter(fed.batches(1, fed.place(1)))), []
    for scale in (1.0, 7.0):
        model = fed.moved()
        model[WEIGHT] = scale * model[WEIGHT]
        net = fed.nets.net("model", "local", model, {})
        found.append(fed.parts.objective.loss(net, batch).total.item())
        assert_unit(net.state_dict())
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_prototypes_are_sent_and_normalised_after_averaging(tmp_path: Path) -> None:
    fed = swav(tmp_path)
    server, place = fed.start(), fed.place(0)
    assert_unit(server["model"])
    done = {k: fed.train(k, place, server["model"]) for k in range(len(SIZES))}
    after = fed.collect(server, place, {k: (SIZES[k], one.up) for k, one in done.items()})
    mean = sum(SIZES[k] / sum(SIZES) * one.up["model"][WEIGHT] for k, one in done.items())
    assert isinstance(mean, Tensor)
    assert float((mean.norm(dim=1) - 1).abs().max()) > 1e-6  # it is not of length one by itself
    torch.testing.assert_close(after["model"][WEIGHT], F.normalize(mean, dim=1))
    assert all(not one.keeps and one.state is None for one in done.values())


@pytest.mark.parametrize("server", ["none", "adam"])
def test_prototypes_of_the_server_have_length_one_after_every_round(
    server: str, tmp_path: Path
) -> None:
    fed = swav(tmp_path / "run", **ROUGH, server={"optimizer": server})
    fed.run()
    found = fed.servers()
    assert len(found) == 3
    for state in found:
        assert_unit(state["model"])


def test_no_label_is_used(tmp_path: Path) -> None:
    assert_no_label_is_used(tmp_path, "fedavg", "swav")
