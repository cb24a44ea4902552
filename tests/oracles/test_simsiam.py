"""SimSiam with FedAvg against local training written out by hand, from the paper's loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from two_views import (
    ROUGH,
    SIZES,
    TwoViews,
    assert_no_label_is_used,
    assert_trained_as,
    count,
    layers,
    paper_network,
    simsiam,
)

from coterie.core.errors import ConfigError
from coterie.experiment.config import load


def test_the_heads_and_parameters_of_the_paper() -> None:
    """512-2048-2048 with norms, the last without scale and shift; 2048-512-2048; 18.52 M."""
    net = paper_network("simsiam")
    assert layers(net.projector) == [
        ("fc", 512, 2048),
        ("bn", 2048),
        ("relu",),
        ("fc", 2048, 2048),
        ("bn", 2048),
    ]
    assert layers(net.predictor) == [
        ("fc", 2048, 512),
        ("bn", 512),
        ("relu",),
        ("fc", 512, 2048),
    ]
    assert isinstance(net.projector, nn.Sequential)
    assert [layer.affine for layer in net.projector if isinstance(layer, nn.BatchNorm1d)] == [
        True,
        False,
    ]
    assert net.classifier is None and net.prototypes is None
    assert round(count(net) / 1e6, 2) == 18.52


def test_z_is_what_the_projector_gives_and_p_what_the_predictor_makes_of_it(
    tmp_path: Path,
) -> None:
    net = TwoViews(tmp_path).nets["model"].eval()
    assert net.projector is not None and net.predictor is not None
    with torch.no_grad():
        out = net(torch.rand(2, 1, 9, 9))
        torch.testing.assert_close(out.z, net.projector(out.h))
        torch.testing.assert_close(out.p, net.predictor(out.z))


@pytest.mark.parametrize("name", ["simsiam", "la_ssfl", "maml_ssfl", "bilevel_ssfl", "per_ssfl"])
def test_the_shipped_setting_is_the_papers(name: str) -> None:
    """ResNet-18, alpha 0.1, 800 rounds, ten clients; 256 samples a step in batches of 32."""
    config = load(f"cifar10/{name}", {"evaluate.with": [], "evaluate.metric": "accuracy"})
    local, tables = config.local, config.tables
    assert (tables["run"]["rounds"], tables["cohort"]["fraction"]) == (800, 1.0)
    assert (tables["partition"]["clients"], tables["partition"]["beta"]) == (10, 0.1)
    assert (local.batch_size, local.accumulate, local.epochs, local.steps) == (32, 8, 1, 0)
    assert (local.optimizer, local.momentum, local.schedule) == ("sgd", 0.9, "cosine")
    assert local.weight_decay == 5e-4
    assert local.lr in (0.1, 0.3, 0.01, 0.03)
    assert tables["objective"] == {"name": "simsiam", "hidden": 2048, "bottleneck": 512}
    assert tables["data"]["augment"] == "simsiam"


@pytest.mark.parametrize(
    "tables",
    [
        {},
        {"net": {"norm": "none"}},
        {"local": {"batch_size": 4, "accumulate": 2, "schedule": "cosine"}},
        {"local": {"batch_size": 6, "steps": 2}},
    ],
)
def test_local_training_follows_the_loss(tables: dict[str, Any], tmp_path: Path) -> None:
    assert_trained_as(TwoViews(tmp_path, tables=tables), simsiam)


def test_the_two_views_are_augmented_apart(tmp_path: Path) -> None:
    fed = TwoViews(tmp_path)
    for batch in fed.batches(0, fed.place(0)):
        one, two = batch.views
        assert one.shape == two.shape
        assert not torch.equal(one, two)


def test_without_the_stop_nothing_of_the_projector_moves_through_z(tmp_path: Path) -> None:
    """The gradient is that of p alone: with a predictor that gives a constant there is none."""
    fed = TwoViews(tmp_path)
    net = fed.nets.net("model", "local", fed.moved(), {})
    assert isinstance(net.predictor, nn.Sequential)
    last = net.predictor[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.zero_()
    batch = next(iter(fed.batches(1, fed.place(1))))
    fed.parts.objective.loss(net, batch).total.backward()
    for part in (net.backbone, net.projector):
        assert part is not None
        assert all(p.grad is None or not p.grad.any() for p in part.parameters())
    assert last.weight.grad is not None and last.weight.grad.any()


def test_all_of_it_is_sent_and_averaged_by_samples(tmp_path: Path) -> None:
    fed = TwoViews(tmp_path)
    server, place = fed.start(), fed.place(0)
    done = {k: fed.train(k, place, server["model"]) for k in range(len(SIZES))}
    names = set(fed.nets["model"].state_dict())
    for one in done.values():
        assert set(one.up.tensors) == {"model"} and set(one.up["model"]) == names
        assert one.state is None and not one.keeps
    after = fed.collect(server, place, {k: (SIZES[k], one.up) for k, one in done.items()})
    assert {name.split(".")[0] for name in after["model"]} == {"backbone", "projector", "predictor"}
    for name, tensor in after["model"].items():
        if tensor.is_floating_point():
            parts = [SIZES[k] / sum(SIZES) * one.up["model"][name] for k, one in done.items()]
            torch.testing.assert_close(tensor, sum(parts), rtol=1e-5, atol=1e-6)


def test_no_label_is_used(tmp_path: Path) -> None:
    assert_no_label_is_used(tmp_path, "fedavg", "simsiam")


def test_the_record_tells_a_collapse(tmp_path: Path) -> None:
    metrics = TwoViews(tmp_path / "run", tables=ROUGH).run().metrics
    assert -1 <= metrics["train_loss"] <= 1
    assert 0 < metrics["train_feature_std"] <= 1.1
    assert 0 <= metrics["train_alignment"] <= 4
    assert metrics["train_uniformity"] < 0


def test_it_needs_a_projector(tmp_path: Path) -> None:
    for objective in ("simsiam", "simclr", "byol", "swav"):
        with pytest.raises(ConfigError, match=f"'{objective}' needs a projector"):
            TwoViews(tmp_path, objective=objective, tables={"net": {"projection": 0}})
