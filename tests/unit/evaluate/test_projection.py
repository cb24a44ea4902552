"""Evaluators behind the projector: they read z, and say so where there is none."""

from pathlib import Path
from typing import Any

import pytest
import torch
from points import clusters, identity
from torch import nn

import toy
from coterie.core.errors import ConfigError
from coterie.evaluate.geometry import Geometry
from coterie.evaluate.knn import Knn
from coterie.evaluate.probe import Probe
from coterie.evaluate.shared.features import features
from coterie.kit.networks import Frozen
from coterie.nets.heads import Network


def projecting(width: int, kept: int) -> Frozen:
    """h are the samples; z their last entries, in which classes cannot be told apart."""
    projector = nn.Linear(width, kept, bias=False)
    with torch.no_grad():
        projector.weight.copy_(torch.eye(width)[-kept:])
    return Frozen(Network(nn.Identity(), projector=projector))


def test_z_is_read_instead_of_h() -> None:
    data, net = clusters(300, 3, seed=1), projecting(8, 4)
    assert Knn()(net, data, 0)["knn"] == Probe()(net, data, 0)["probe"] == 1.0
    assert Knn(layer="z")(net, data, 0)["knn"] < 0.6
    assert Probe(layer="z")(net, data, 0)["probe"] < 0.6
    ranks = [Geometry(layer=layer)(net, data, 0)["effective_rank"] for layer in ("h", "z")]
    assert ranks[1] <= 4.0 and ranks[0] != ranks[1]


def test_both_layers_are_computed_once_and_kept_apart() -> None:
    data, net = clusters(90, 3, seed=2), projecting(8, 4)
    for _ in range(2):
        assert features(net, data)[0].shape == (90, 8)
        assert features(net, data, layer="z")[0].shape == (90, 4)
    assert data.sweeps == 2


def test_without_a_projector_z_is_h() -> None:
    data = clusters(60, 3, seed=3, spread=0.4)
    assert Knn(layer="z")(identity(), data, 0) == Knn()(identity(), data, 0)


@pytest.mark.parametrize(
    ("evaluator", "key"),
    [
        ("projection_knn", "projection_knn"),
        ({"name": "probe", "layer": "z"}, "probe"),
        ({"name": "geometry", "layer": "z", "as": "spread"}, "spread"),
    ],
)
def test_a_run_without_a_projector_is_refused(
    evaluator: Any, key: str, toy_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=f"{key}' needs a projector"):
        toy.run(toy_data, tmp_path / "run", net={"projection": 0}, evaluate={"with": [evaluator]})
