"""Rotation: quarter turns, the heads, local training by hand, what it takes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import assert_near
from torch import nn
from two_views import (
    TwoViews,
    assert_no_label_is_used,
    assert_refused,
    layers,
    shift,
    slopes,
    windows,
)

from coterie.core import seeds
from coterie.core.batch import Batch
from coterie.core.errors import ConfigError
from coterie.experiment.config import load
from coterie.experiment.prepare import prepare
from coterie.nets.heads import Network
from coterie.objectives.rotation import turn


def naive_loss(net: Network, batch: Batch) -> torch.Tensor:
    """-log softmax(p)_a of the image turned by a quarters, sample by sample."""
    quarters = torch.randint(4, (len(batch),)).tolist()
    pictures = [np.rot90(x, a, axes=(1, 2)) for x, a in zip(batch.x.numpy(), quarters, strict=True)]
    p = net(torch.from_numpy(np.stack(pictures)).double()).p
    assert p is not None
    total = torch.zeros((), dtype=torch.float64)
    for row, a in zip(p, quarters, strict=True):
        total = total - (row[a].exp() / row.exp().sum()).log()
    return total / len(batch)


def test_every_image_is_turned_by_its_own_quarters() -> None:
    images = torch.rand(9, 3, 5, 5)
    quarters = torch.tensor([0, 1, 2, 3, 0, 3, 2, 1, 1])
    found = turn(images, quarters)
    for image, a, turned in zip(images, quarters.tolist(), found, strict=True):
        for row in range(5):
            for column in range(5):  # a quarter counter-clockwise: the right edge becomes the top
                there = {
                    0: (row, column),
                    1: (column, 4 - row),
                    2: (4 - row, 4 - column),
                    3: (4 - column, row),
                }[a]
                assert torch.equal(turned[:, row, column], image[:, there[0], there[1]])
    assert torch.equal(turn(images, torch.zeros(9, dtype=torch.int64)), images)


def test_the_heads(tmp_path: Path) -> None:
    net = TwoViews(tmp_path, objective="rotation").nets["model"]
    assert layers(net.projector) == [
        ("fc", 200, 16),
        ("bn", 16),
        ("relu",),
        ("fc", 16, 8),
        ("bn", 8),
    ]
    assert isinstance(net.projector, nn.Sequential)
    assert net.projector[0].bias is None and net.projector[3].bias is None
    assert net.projector[1].affine and not net.projector[4].affine
    assert isinstance(net.predictor, nn.Linear)
    assert net.predictor.weight.shape == (4, 8)
    assert net.classifier is None and net.prototypes is None


@pytest.mark.parametrize("local", [{}, {"accumulate": 2, "epochs": 2}, {"steps": 3}], ids=str)
def test_local_training_is_that_by_hand(local: dict[str, Any], tmp_path: Path) -> None:
    fed = TwoViews(tmp_path, objective="rotation", tables={"local": local})
    model, place = fed.moved(), fed.place(3)
    net, told = fed.double(model), list[float]()
    batches = fed.shard(2).batches(
        fed.parts.local, ("train",), lambda what: place.generator(f"train/{what}", 2)
    )
    with seeds.scoped(place.torch_seed(2)):
        for window in windows(batches, fed.parts.local.accumulate):
            shift(net, slopes(net, naive_loss, window, told), fed.parts.local.rate(place))
    done = fed.train(2, place, model)
    assert_near(done.up["model"], net.state_dict(), atol=1e-5)
    assert done.metrics["loss"] == pytest.approx(float(np.mean(told)), rel=1e-4)
    assert 0.0 <= done.metrics["turns_right"] <= 1.0
    moved = [
        (done.up["model"][name] - model[name]).abs().max() for name in model if "weight" in name
    ]
    assert float(max(moved)) > 1e-3


def test_no_label_is_used(tmp_path: Path) -> None:
    assert_no_label_is_used(tmp_path, "fedavg", "rotation")


@pytest.mark.parametrize("method", ["la_ssfl", "maml_ssfl", "bilevel_ssfl", "per_ssfl", "moon"])
def test_methods_that_do_not_know_it_refuse_it(method: str, tmp_path: Path) -> None:
    assert_refused(tmp_path, method, "rotation")


def test_it_takes_square_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes square images, .* of shape \(1, 9, 7\)"):
        Wide(tmp_path, objective="rotation")
    with pytest.raises(ConfigError, match=r"objective\.name = 'rotation' needs a projector"):
        prepare(
            load("digits/simclr", {"objective.name": "rotation", "net.projection": 0}), tmp_path
        )


class Wide(TwoViews):
    """Images that are higher than wide."""

    def _data(self, counts: Any, shape: tuple[int, ...]) -> Any:
        return super()._data(counts, (1, 9, 7))
