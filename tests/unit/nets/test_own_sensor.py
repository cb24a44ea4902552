"""A sensor of the user's own: what it must be, and that MFCL trains it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import coterie
from coterie.core.errors import ConfigError
from coterie.methods.mfcl import MFCL
from coterie.nets.norm import PeerNorm
from coterie.nets.own_sensor import build_own_sensor

SHAPE = (1, 8, 8)


class Sensor(nn.Module):
    """One convolution each way; halves the sides."""

    def __init__(self, shape: tuple[int, ...], width: int = 4) -> None:
        super().__init__()
        before = shape[0]
        self.encoder = nn.Sequential(
            nn.Conv2d(before, width, 3, stride=2, padding=1), PeerNorm(width, views=1), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(width, before, 4, stride=2, padding=1), nn.Sigmoid()
        )


class Parts(nn.Module):
    """Any two parts."""

    def __init__(self, encoder: Any, decoder: Any) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder


class Twice(nn.Module):
    """Gives two outputs."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x


def run(folder: Path, sensor: Any, **method: Any) -> coterie.Result:
    small = {"name": "mfcl", "share_representations": True, "sense_rounds": 2, "server_batch": 64}
    return coterie.run(
        {
            "run": {"rounds": 2},
            "data": {"name": "digits", "limit": 150, "augment": "resized-crop"},
            "partition": {"kind": "iid", "clients": 3},
            "net": {"backbone": "mlp", "projection": 8},
            "objective": {"name": "simclr", "hidden": 16},
            "method": {**small, "server_warmup": 0, "sensor": sensor, **method},
            "local": {"optimizer": "adam", "lr": 0.01, "batch_size": 32},
            "evaluate": {"every": 0, "with": ["knn"]},
        },
        out=folder,
    )


def test_a_class_is_trained_by_its_name_and_its_options_in_workers_too(tmp_path: Path) -> None:
    named = f"{__name__}:Sensor"
    result = run(tmp_path / "run", Sensor, sensor_options={"width": 6}, loss="mse")
    assert result.config["method"]["sensor"] == named
    assert result.config["executor"]["kind"] == "processes"
    first, second = (event.metrics["train_loss"] for event in result.history[:2])
    assert second < first
    loaded = coterie.load(tmp_path / "run")
    x = torch.rand(3, *SHAPE)
    with torch.no_grad():
        assert torch.equal(loaded.encoder()(x), result.encoder()(x))
    assert {n.split(".")[2] for n in loaded.model().state_dict() if ".sensor." in n} == {"layers"}


def test_a_module_starts_from_its_weights_and_stays_in_this_process(tmp_path: Path) -> None:
    torch.manual_seed(5)
    made = Sensor(SHAPE)
    before = {name: tensor.clone() for name, tensor in made.state_dict().items()}
    result = run(tmp_path / "run", made)
    assert result.config["executor"]["kind"] == "serial"
    assert result.config["method"]["sensor"] == "object:Sensor"
    assert all(torch.equal(before[name], tensor) for name, tensor in made.state_dict().items())
    built = build_own_sensor("object:Sensor", SHAPE, {}, made)
    assert torch.equal(built.backbone.layers[0].weight, before["encoder.0.weight"])  # type: ignore[union-attr, index]
    assert result.encoder()(torch.rand(2, *SHAPE)).shape == (2, 200)
    with pytest.raises(ConfigError, match="was an object of a Python program"):
        coterie.load(tmp_path / "run").encoder()


def test_the_loss_is_the_mean_cross_entropy_of_the_decoded_image() -> None:
    sensor = build_own_sensor("mine:Sensor", SHAPE, {}, Sensor)
    assert sensor.code == (4, 4, 4)
    x = torch.rand(3, *SHAPE)
    again = sensor.decoder(sensor.backbone(x))
    assert torch.equal(sensor.reconstruct(x), again)
    expected = -(x * again.log() + (1 - x) * (1 - again).log()).mean()
    assert torch.allclose(sensor.loss(x, "bce"), expected)
    assert torch.allclose(sensor.loss(x, "mse"), (again - x).square().mean())


@pytest.mark.parametrize(
    ("encoder", "decoder", "said"),
    [
        (nn.Identity(), None, "its decoder is a NoneType"),
        (abs, nn.Identity(), "its encoder is a builtin_function_or_method"),
        (nn.Linear(3, 3), nn.Identity(), r"cannot take samples of shape \(1, 8, 8\)"),
        (nn.Identity(), nn.MaxPool2d(2), r"shape that came in, \[2, 1, 8, 8\], not \[2, 1, 4, 4\]"),
        (nn.Identity(), nn.LayerNorm(8), r"numbers in \[0, 1\], e.g. end with nn.Sigmoid\(\)"),
        (nn.Flatten(0), nn.Unflatten(0, (2, *SHAPE)), r"for n = 2 it gave \[128\]"),
        (Twice(), nn.Identity(), "its encoder must give a float32 tensor, not a tuple"),
    ],
)
def test_what_cannot_be_a_sensor_is_refused(encoder: Any, decoder: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        build_own_sensor("object:Parts", SHAPE, {}, lambda: Parts(encoder, decoder))


def test_names_and_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="'tabel5' is not known; it is one of: code, table5"):
        MFCL(sensor="tabel5")
    with pytest.raises(ConfigError, match="for a sensor of your own; 'code' takes none"):
        MFCL(sensor_options={"width": 3})
    with pytest.raises(ConfigError, match=r"method=\{'name': 'mfcl', 'sensor': ...\}"):
        MFCL(sensor=Sensor)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"method.sensor = 'nowhere:Net' cannot be imported"):
        build_own_sensor("nowhere:Net", SHAPE, {})
    with pytest.raises(ConfigError, match="is made; give its class"):
        build_own_sensor("object:Sensor", SHAPE, {"width": 3}, Sensor(SHAPE))
    with pytest.raises(ConfigError, match=r"sensor_options = \{'depth': 3\}"):
        build_own_sensor("mine:Sensor", SHAPE, {"depth": 3}, Sensor)
