"""A run with parts of one's own, opened again: what has to be passed, and what is named."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
from torch import Tensor, nn

import coterie
import own_parts
import toy
from coterie.core.errors import ConfigError, DataError
from coterie.kit import Backbone, Batch, Loss, Method, Network, Objective, stock


@pytest.fixture(scope="module")
def x(toy_data: Path) -> np.ndarray:
    """The test samples."""
    samples: np.ndarray = np.load(toy_data)["x_test"]
    return samples


class Wide(nn.Module):
    """A backbone that only this file knows."""

    def __init__(self, shape: tuple[int, ...], width: int = 5) -> None:
        super().__init__()
        self.layer = nn.Linear(shape[0], width)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).relu()


def test_a_backbone_of_the_process_is_passed_again(
    toy_data: Path, tmp_path: Path, x: np.ndarray
) -> None:
    class Net(Wide):
        """A class that no other process can import."""

    tables = {k: v for k, v in toy.tables(toy_data).items() if k not in ("net", "executor")}
    result = coterie.run(tables, out=tmp_path / "run", net=Net)
    expected = result.predict(x)
    with pytest.raises(ConfigError, match=r"'object:Net' .*coterie\.load\(.*, net=Net\)"):
        coterie.load(tmp_path / "run").model()
    assert np.array_equal(coterie.load(tmp_path / "run", net=Net).predict(x), expected)
    with pytest.raises(DataError, match=r"'backbone\.layer\.weight' is \[5, 6\]"):
        coterie.load(tmp_path / "run", net=lambda shape: Wide(shape, 7)).model()


def test_a_backbone_is_refused_for_a_run_with_a_shipped_one(toy_data: Path, tmp_path: Path) -> None:
    toy.run(toy_data, tmp_path / "run", run={"rounds": 1})
    with pytest.raises(ConfigError, match=r"for runs with a backbone of one's own; .* is 'mlp'"):
        coterie.load(tmp_path / "run", net=Wide).model()


def test_a_backbone_that_can_be_imported_needs_not_be_passed(
    toy_data: Path, tmp_path: Path, x: np.ndarray
) -> None:
    net = {"backbone": "own_parts:Net", "options": {"hidden": 8}, "projection": 4}
    tables = {k: v for k, v in toy.tables(toy_data).items() if k != "net"}
    result = coterie.run(tables, out=tmp_path / "run", net=net)
    assert np.array_equal(
        result.predict(x), coterie.load(tmp_path / "run", net=own_parts.Net).predict(x)
    )
    path = tmp_path / "run" / "model.json"
    values = json.loads(path.read_text())
    del values["sha256"]
    path.write_text(json.dumps({**values, "net": {**values["net"], "backbone": "nowhere:Net"}}))
    with pytest.raises(ConfigError, match=r"cannot be imported: .*coterie\.load\(.*, net=Net\)"):
        result.model()


def test_a_method_of_the_process_is_not_needed_for_its_network(
    toy_data: Path, tmp_path: Path, x: np.ndarray
) -> None:
    @final
    @dataclass(frozen=True)
    class Mine(Method):
        init = stock.start_from_net
        broadcast = stock.send_model
        client_update = stock.train_objective
        server_update = stock.average
        model = stock.global_model

    @final
    @dataclass(frozen=True)
    class Builds(Method):
        init = stock.start_from_net
        broadcast = stock.send_model
        client_update = stock.train_objective
        server_update = stock.average
        model = stock.global_model

        def nets(self, build: Any) -> dict[str, Network]:
            return {"model": build(projection=5)}

    tables = {k: v for k, v in toy.tables(toy_data).items() if k not in ("method", "executor")}
    result = coterie.run(tables, out=tmp_path / "a", method=Mine())
    assert np.array_equal(result.predict(x), coterie.load(tmp_path / "a").predict(x))
    builds = coterie.run(tables, out=tmp_path / "b", method=Builds())
    assert builds.encode(x, layer="z").shape[1] == 5
    with pytest.raises(ConfigError, match=r"'object:Builds' .* put its class in a module"):
        coterie.load(tmp_path / "b").model()


def test_an_objective_of_the_process_is_named(
    toy_data: Path, tmp_path: Path, x: np.ndarray
) -> None:
    @final
    @dataclass(frozen=True)
    class Shrink(Objective):
        def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
            return Network(backbone)

        def loss(self, net: Network, batch: Batch) -> Loss:
            return Loss(net(batch.x).h.square().mean())

    tables = toy.tables(toy_data, evaluate={"with": ["knn"], "metric": "knn"})
    del tables["executor"]
    any_objective = {"name": "solo"}
    result = coterie.run(tables, out=tmp_path / "run", objective=Shrink(), method=any_objective)
    assert result.encode(x, client="0").shape[0] == len(x)
    with pytest.raises(ConfigError, match=r"'object:Shrink' .* put its class in a module"):
        coterie.load(tmp_path / "run").personal("0")
