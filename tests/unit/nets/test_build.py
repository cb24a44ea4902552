"""Backbones of a user's own: every form, in whole runs, and what is refused in one line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coterie
import own_parts
import toy
from coterie.core import seeds
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.experiment.run import Result
from coterie.nets.build import make_backbone

IMAGE = (1, 8, 8)


class Dropping(nn.Module):
    """For vectors, with BatchNorm and dropout."""

    def __init__(self, hidden: int = 8) -> None:
        super().__init__()
        layers = (nn.Linear(6, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.3))
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.layers(x)
        return h


class Lazy(nn.Sequential):
    """Its layers take their shapes from the first batch."""

    def __init__(self, norm: bool = True) -> None:
        norms = [nn.LazyBatchNorm1d()] if norm else []
        super().__init__(nn.Flatten(), nn.LazyLinear(5), *norms, nn.ReLU())


class Sized(Lazy):
    """It says its width, and that is true."""

    width = 5


class Misled(Lazy):
    """It means something else by `width`."""

    width = 28


class Pair(nn.Module):
    """It returns a tuple."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x.flatten(1), x


def make(own: Any, options: dict[str, Any] | None = None) -> nn.Module:
    settings = NetSettings(backbone="object:Mine", options=options or {})
    with seeds.scoped(4):
        return make_backbone(settings, IMAGE, own)


def run(data: Path, out: Path, **changes: Any) -> Result:
    tables = {k: v for k, v in toy.tables(data).items() if k not in ("net", "executor")}
    return coterie.run(tables, out=out, rounds=2, **changes)


@pytest.mark.parametrize(
    "given",
    [
        lambda: Dropping,
        lambda: Dropping(64),
        lambda: {"backbone": Dropping, "projection": 0},
        lambda: {"backbone": Dropping, "options": {"hidden": 3}},
        lambda: {"backbone": Dropping, "bn_buffers": "local"},
        lambda: {"backbone": Dropping(4), "bn_buffers": "local"},
        lambda: lambda shape: nn.Linear(shape[0], 5),
        lambda: Lazy,
        lambda: Lazy(norm=False),
        lambda: nn.Flatten(),
    ],
    ids=["class", "module", "table", "options", "kept", "copied", "lambda", "lazy", "copy", "none"],
)
def test_every_form_of_a_backbone_trains(
    given: Callable[[], Any], toy_data: Path, tmp_path: Path
) -> None:
    with seeds.scoped(6):  # a module brings its weights
        net = given()
    result = run(toy_data, tmp_path / "run", net=net, **{"local.epochs": 5})
    first, last = (event.metrics["train_loss"] for event in result.history)
    assert last < first


def test_a_backbone_by_name_trains_in_workers_and_alone(toy_data: Path, tmp_path: Path) -> None:
    net = {"backbone": "own_parts:Net", "options": {"hidden": 8}, "projection": 4}
    for kind in ("serial", "processes"):
        run(toy_data, tmp_path / kind, net=net, executor=kind, method="solo")
    assert toy.trace(tmp_path / "serial") == toy.trace(tmp_path / "processes")


def test_a_module_is_where_the_run_starts_and_stays_as_it_was(
    toy_data: Path, tmp_path: Path
) -> None:
    net = Dropping()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    result = run(toy_data, tmp_path / "run", net=net, **{"local.lr": 1e-12})
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())
    trained = result.encoder().state_dict()
    assert torch.allclose(trained["layers.0.weight"], before["layers.0.weight"], atol=1e-6)


@pytest.mark.parametrize("own", [Lazy, Sized, Lazy(norm=False)])
def test_lazy_layers_get_their_shapes_and_weights_under_the_seed(own: Any) -> None:
    one, two = make(own), make(own)
    assert one.width == 5 and one.training
    weights, again = one.state_dict(), two.state_dict()
    assert weights["1.weight"].shape == (5, 64) and weights["1.weight"].requires_grad is False
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert all(parameter.requires_grad for parameter in one.parameters())


class Failing(nn.Module):
    """It cannot be made."""

    def __init__(self) -> None:
        raise ValueError("first line\nsecond line")


@pytest.mark.parametrize(
    ("own", "options", "message"),
    [
        (Pair, {}, r"must map \(n, 1, 8, 8\) to \(n, width\); for n = 2 it gave a tuple"),
        (nn.Identity, {}, r"for n = 2 it gave \[2, 1, 8, 8\]"),
        (Failing, {}, r"cannot be made: ValueError: first line$"),
        (Lazy, {"deep": 3}, r"cannot be made with net\.options = \{'deep': 3\}: TypeError"),
        (Lazy, {"shape": 3}, r"cannot be made with net\.options"),
        (Misled, {}, r"gives vectors of 5 entries, and its attribute width is 28"),
        (nn.Flatten(), {"start_dim": 1}, r"is made; give its class"),
        (Lazy(), {}, r"has a norm without a shape: call it once, or give its class"),
        (lambda: nn.Flatten().to, {}, r"must make an nn\.Module, not a method"),
        (nn.Sequential(nn.Flatten(), nn.Linear(64, 2)).double(), {}, r"cannot take samples of"),
    ],
)
def test_a_backbone_that_cannot_be_used_says_why_in_one_line(
    own: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        make(own, options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [nn.Flatten(), 3])
def test_a_name_stands_for_a_class_or_function(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_parts, "VALUE", value, raising=False)
    with pytest.raises(
        ConfigError, match=r"must name a class or function that makes an nn\.Module"
    ):
        make_backbone(NetSettings(backbone="own_parts:VALUE"), IMAGE)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"net": Dropping(), "method": "solo"}, "'solo' draws fresh weights for each client"),
        ({"net": lambda: nn.Flatten(), "executor": "processes"}, "put its class in a module"),
    ],
)
def test_what_needs_a_class_or_a_module_file_is_refused(
    changes: dict[str, Any], message: str, toy_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=message):
        run(toy_data, tmp_path / "run", **changes)


def test_a_class_of_this_process_may_be_drawn_for_each_client(
    toy_data: Path, tmp_path: Path
) -> None:
    def network(shape: tuple[int, ...]) -> nn.Module:
        return Dropping(hidden=shape[0])

    build: Callable[..., nn.Module] = network
    result = run(toy_data, tmp_path / "run", net=build, method="solo", **{"local.epochs": 5})
    assert result.metrics["client_accuracy_mean"] > 0.3
