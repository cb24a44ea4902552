"""Linear probes: the recipe, the labels it took, whose encoders and whose data are used."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from points import clusters, identity
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F

import coterie
import toy
from coterie.cli.run import budgets
from coterie.core import seeds
from coterie.core.bundle import Bundle
from coterie.core.errors import ConfigError, Interrupted
from coterie.core.task import METHOD, Round, Task
from coterie.engine.client_states import StateStore
from coterie.engine.site import Site
from coterie.evaluate.probe import Probe
from coterie.evaluate.shared.features import features
from coterie.evaluate.shared.head import choose_balanced, count_right, fresh_head, train_head

SERVER = ["knn", "linear_probe", "probe_1", "probe_10", "geometry"]
CLIENT = ["personal_knn", "personal_probe", "own_probe"]
ALL = [*SERVER, *CLIENT, "federated_probe", "naive_probe"]
LAST = {"every": 0, "with": ALL}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.evaluate.shared.head.STEPS", 100)


def test_the_recipe_is_sgd_with_momentum_and_a_cosine(short: None) -> None:
    data = clusters(600, 3, seed=1, spread=0.6)
    h, y = features(identity(), data)
    h = h.double()  # a rate of 30 lets rounding grow
    order, again = np.random.default_rng(3), np.random.default_rng(3)
    found = train_head(fresh_head(3, h), h, y, order)
    layer = nn.Linear(h.shape[1], 3, dtype=h.dtype)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    optimizer = torch.optim.SGD(layer.parameters(), lr=30.0, momentum=0.9)
    for epoch in range(100):
        for step, rows in enumerate(torch.from_numpy(again.permutation(600)).split(256)):
            done = (epoch + step / 3) / 100
            optimizer.param_groups[0]["lr"] = 15.0 * (1 + math.cos(math.pi * done))
            loss = F.cross_entropy(layer(h[rows]), y[rows], reduction="sum") / 256
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert torch.allclose(found["weight"], layer.weight.detach())
    assert torch.allclose(found["bias"], layer.bias.detach())


def test_separable_features_are_told_apart_and_labels_counted() -> None:
    data = clusters(600, 3, seed=2)
    assert Probe()(identity(), data, 0) == {"probe": 1.0, "probe_labels": 600.0}
    few = Probe(labels=0.01, key="few")
    assert few(identity(), data, 0) == {"few": 1.0, "few_labels": 6.0}


@pytest.mark.parametrize("factor", [1e-3, 1.0, 1e3])
def test_the_scale_of_a_backbone_does_not_matter(factor: float, short: None) -> None:
    data = clusters(600, 3, seed=2, spread=0.5)
    plain = Probe()(identity(), data, 0)["probe"]
    for test, (x, y) in list(data._parts.items()):
        data._parts[test] = x * factor, y
    assert Probe()(identity(), data, 0)["probe"] == pytest.approx(plain, abs=0.02)


def test_equal_seeds_give_equal_bits_and_features_are_computed_once(short: None) -> None:
    data, net = clusters(300, 3, seed=4, spread=0.8), identity()
    assert Probe()(net, data, 5) == Probe()(net, data, 5)
    assert data.sweeps == 2  # one for training, one for testing
    h, y = features(net, data)
    heads = [train_head(fresh_head(3, h), h, y, np.random.default_rng(s)) for s in (1, 1, 2)]
    assert torch.equal(heads[0]["weight"], heads[1]["weight"])
    assert not torch.equal(heads[0]["weight"], heads[2]["weight"])


def test_few_labels_are_balanced_seeded_and_never_none() -> None:
    y = torch.tensor([0] * 500 + [1] * 490 + [2] * 10)
    rows = choose_balanced(y, 0.1, seed=1)
    assert torch.bincount(y[rows]).tolist() == [33, 33, 10]
    assert torch.equal(rows, choose_balanced(y, 0.1, seed=1))
    assert not torch.equal(rows, choose_balanced(y, 0.1, seed=2))
    assert torch.bincount(y[choose_balanced(y, 1e-6, seed=1)]).tolist() == [1, 1, 1]


def test_parts_of_the_schedule_come_near_the_whole() -> None:
    data = clusters(600, 3, seed=6, spread=0.6)
    (h, y), (h_test, y_test) = features(identity(), data), features(identity(), data, test=True)
    whole = train_head(fresh_head(3, h), h, y, np.random.default_rng(0))
    head, draw = fresh_head(3, h), np.random.default_rng(0)
    for place in range(20):
        head = train_head(head, h, y, draw, (place, 20))
    assert F.cosine_similarity(whole["weight"], head["weight"]).min() > 0.98
    difference = count_right(whole, h_test, y_test) - count_right(head, h_test, y_test)
    assert abs(difference) <= 0.02 * len(y_test)


def test_federated_probe_of_one_client_is_the_central_one(toy_data: Path, tmp_path: Path) -> None:
    chosen = {"every": 0, "with": ["linear_probe", "federated_probe", "naive_probe"]}
    result = toy.run(toy_data, tmp_path, method={"name": "centralized"}, evaluate=chosen)
    found = result.metrics
    assert found["federated_probe"] == pytest.approx(found["probe"], abs=0.05)
    assert found["federated_probe"] == found["naive_probe"] > 0.6
    labels = {found[f"{name}_labels"] for name in ("probe", "federated_probe", "naive_probe")}
    assert labels == {180.0}
    assert result.history[-1].evaluation_bytes_up > 0


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"method": {"name": "solo"}},
        {"method": {"name": "toy_methods:TwoModels"}},
        {"method": {"name": "solo"}, "net": {"norm": "bn", "bn_buffers": "local"}},
        {"net": {"norm": "bn", "bn_buffers": "local"}},
    ],
    ids=["fedavg", "solo", "two-models", "solo-local-buffers", "local-buffers"],
)
def test_every_evaluator_works_with_every_kind_of_method(
    changes: dict[str, Any], toy_data: Path, tmp_path: Path, short: None
) -> None:
    result = toy.run(toy_data, tmp_path, run={"rounds": 2}, evaluate=LAST, **changes)
    found = result.metrics
    over = ("mean", "std", "worst_decile")
    expected = {f"client_{name}_{one}" for name in ("knn", "probe", "own_probe") for one in over}
    expected |= {"knn", "probe", "probe_1", "probe_10", "federated_probe", "naive_probe"}
    assert all(0.0 <= found[name] <= 1.0 for name in expected)
    assert found["knn_bank"] == found["probe_labels"] == found["client_probe_labels"] == 180
    assert found["federated_probe_labels"] == found["naive_probe_labels"] == 180
    assert found["client_own_probe_labels"] == found["client_knn_bank"] == 30
    assert (found["probe_1_labels"], found["probe_10_labels"]) == (3, 18)
    assert found["probe"] > 0.6


def test_a_personal_probe_uses_the_clients_encoder_all_labels_and_its_own_tests(
    toy_data: Path, tmp_path: Path, short: None
) -> None:
    two = {"name": "toy_methods:TwoModels"}
    chosen = {"every": 0, "with": ["personal_probe", "naive_probe", "federated_probe"]}
    result = toy.run(toy_data, tmp_path, method=two, evaluate=chosen, local={"lr": 0.3})
    experiment = toy.prepared(toy_data, tmp_path, method=two, evaluate=chosen, local={"lr": 0.3})
    site = Site(experiment.spec, experiment.partition)
    nets = experiment.parts.nets(METHOD)
    seen, plain = [], result.model().state_dict()
    for client in experiment.partition.clients:
        own = load_file(tmp_path / "personal" / f"{client}.safetensors")
        assert any(not torch.equal(own[name], plain[name]) for name in own)
        data = site._everything(client)
        seed = seeds.derive(experiment.spec.seed, "evaluate", client=client)
        seen.append(Probe()(nets.frozen("model", own, {}), data, seed)["probe"])
        assert len(data) == 180 and data.tests == len(experiment.partition.test[client])
    assert result.metrics["client_probe_mean"] == pytest.approx(np.mean(seen), abs=1e-12)

    round, down = Round(3, 4, "train", 3, 4, 6, 5), Bundle({"model": plain, "evaluated": plain})
    for program, weights in (("naive_probe", own), ("federated_probe", plain)):
        assert site.run(Task("evaluate", client, round, down, program=program)).error is None
        state = StateStore(tmp_path / "evaluation" / program).load(client, 0)
        assert state is not None
        h, _ = features(nets.frozen("model", weights, {}), site._everything(client), test=True)
        assert torch.equal(state["test"]["h"], h)


def test_sites_are_not_asked_for_each_others_data(tmp_path: Path, short: None) -> None:
    draw = np.random.default_rng(0)
    sites = {
        name: (draw.normal(size=(30, 4)).astype(np.float32), np.arange(30) % 2) for name in "ab"
    }
    small = {"net": {"backbone": "mlp"}, "run": {"rounds": 1}, "executor": {"kind": "serial"}}
    with pytest.raises(ConfigError, match=r"personal_probe.*own_probe") as raised:
        coterie.fit(sites, out=tmp_path / "no", evaluate={"with": ["personal_probe"]}, **small)
    assert raised.value.exit_code == 2 and "\n" not in str(raised.value)
    kept = {"with": ["own_probe", "federated_probe"], "targets": []}
    result = coterie.fit(sites, out=tmp_path / "yes", evaluate=kept, **small)
    assert result.metrics["client_own_probe_labels"] == 24

    (tmp_path / "sites").mkdir()
    for name, (x, y) in sites.items():
        np.savez(tmp_path / "sites" / f"{name}.npz", x=x, y=y)
    data = {"name": "sites", "root": str(tmp_path / "sites")}
    tables = {"data": data, "partition": {"kind": "by-group"}}
    with pytest.raises(ConfigError, match="personal_probe"):
        coterie.run(tables, out=tmp_path / "no", evaluate={"with": ["personal_probe"]}, **small)


def test_the_end_of_a_run_shows_the_labels_beside_the_result() -> None:
    metrics = {
        **{"accuracy": 0.5, "knn": 0.91, "knn_bank": 1437.0, "probe_1": 0.4},
        **{"probe_1_labels": 10.0, "client_probe_mean": 0.7, "client_probe_labels": 1437.0},
    }
    assert budgets(metrics) == [
        ("knn", "0.9100 with 1,437 labels"),
        ("probe_1", "0.4000 with 10 labels"),
        ("client_probe_mean", "0.7000 with 1,437 labels a client"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "chosen"),
    [
        ("toy_methods:TwoModels", ["probe_10", "personal_probe", "naive_probe"]),
        ("solo", ["knn", "geometry", "probe_1", "personal_knn", "own_probe", "federated_probe"]),
    ],
)
def test_two_workers_and_a_resumed_run_give_the_bits_of_a_serial_one(
    method: str, chosen: list[str], toy_data: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "method": {"name": method},
        "run": {"rounds": 2},
        "checkpoint": {"every": 1},
        "evaluate": {"every": 0, "with": chosen},
    }
    toy.run(toy_data, tmp_path / "serial", **changes)
    changes["executor"] = {"kind": "processes", "workers": 2}
    with pytest.raises(Interrupted):
        stop = toy.StopAfter(0, KeyboardInterrupt)
        toy.run(toy_data, tmp_path / "two", **changes, recorders=[stop])
    toy.run(toy_data, tmp_path / "two", **changes, resume=True)
    assert toy.trace(tmp_path / "two") == toy.trace(tmp_path / "serial")
