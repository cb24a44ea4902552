"""SimCLR with FedAvg against local training written out by hand, from the paper's loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from two_views import (
    TwoViews,
    assert_no_label_is_used,
    assert_trained_as,
    cosine,
    count,
    layers,
    paper_network,
)

from coterie.core.batch import Batch
from coterie.experiment.config import load
from coterie.nets.heads import Network

TAU = 0.5


def contrast(net: Network, batch: Batch, tau: float = TAU) -> Tensor:
    """-log e^{cos(z_i, z_j)/tau} / sum_{k != i} e^{cos(z_i, z_k)/tau} over 2B views."""
    one, two = (net(view.double()).z for view in batch.views)
    views, size = [*one, *two], len(one)
    total = torch.zeros((), dtype=torch.float64)
    for i, z in enumerate(views):
        powers = [(cosine(z, other) / tau).exp() for k, other in enumerate(views) if k != i]
        partner = (cosine(z, views[(i + size) % (2 * size)]) / tau).exp()
        total = total - (partner / torch.stack(powers).sum()).log()
    return total / (2 * size)


def test_the_head_and_parameters_of_the_specification() -> None:
    """512-512-128 with norms after both; about 11.5 M parameters."""
    net = paper_network("simclr")
    assert layers(net.projector) == [
        ("fc", 512, 512),
        ("bn", 512),
        ("relu",),
        ("fc", 512, 128),
        ("bn", 128),
    ]
    assert isinstance(net.projector, nn.Sequential)
    assert all(layer.affine for layer in net.projector if isinstance(layer, nn.BatchNorm1d))
    assert net.predictor is None and net.classifier is None and net.prototypes is None
    assert round(count(net) / 1e6, 1) == 11.5


def test_the_shipped_setting() -> None:
    config = load("cifar10/simclr", {"evaluate.with": [], "evaluate.metric": "accuracy"})
    assert config.tables["objective"]["tau"] == TAU
    assert (config.local.batch_size, config.local.accumulate) == (32, 8)


@pytest.mark.parametrize(
    ("tables", "tau"),
    [
        ({}, 0.5),
        ({"objective": {"tau": 0.2}}, 0.2),
        ({"local": {"batch_size": 4, "accumulate": 3}}, 0.5),  # each batch has its own negatives
    ],
)
def test_local_training_follows_the_loss(
    tables: dict[str, Any], tau: float, tmp_path: Path
) -> None:
    fed = TwoViews(tmp_path, objective="simclr", tables=tables)
    assert_trained_as(fed, lambda net, batch: contrast(net, batch, tau))


def test_accumulated_batches_do_not_add_negatives(tmp_path: Path) -> None:
    """The loss of views that are all alike tells how many others there are: 2B - 1."""
    for batch_size, accumulate, negatives in ((4, 1, 7), (4, 5, 7), (20, 1, 39)):
        local = {"batch_size": batch_size, "accumulate": accumulate, "drop_last": True}
        tables = {"local": {**local, "lr": 1e-12}, "net": {"norm": "none"}}
        fed = TwoViews(tmp_path, objective="simclr", tables=tables)
        model = fed.start()["model"]
        model = {n: torch.zeros_like(t) if "projector.4" in n else t for n, t in model.items()}
        model["projector.4.bias"] = torch.ones_like(model["projector.4.bias"])
        found = fed.train(0, fed.place(0), model).metrics["loss"]
        assert found == pytest.approx(torch.tensor(float(negatives)).log().item(), rel=1e-4)


def test_everything_is_sent_and_nothing_kept(tmp_path: Path) -> None:
    fed = TwoViews(tmp_path, objective="simclr")
    done = fed.train(0, fed.place(0), fed.start()["model"])
    assert set(done.up["model"]) == set(fed.nets["model"].state_dict())
    assert done.state is None and not done.keeps


def test_no_label_is_used(tmp_path: Path) -> None:
    assert_no_label_is_used(tmp_path, "fedavg", "simclr")
