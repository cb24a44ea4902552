"""Unit projections in networks of every objective: reference copies, weights, programs, loading."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

import coterie
import made_model
import toy
from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.kit import Backbone, Batch, Builder, Loss, Network, Objective, TargetNetwork
from coterie.methods.mfcl import MFCL
from coterie.methods.orchestra import Orchestra
from coterie.objectives.byol import BYOL
from coterie.objectives.rotation import Rotation
from coterie.objectives.simclr import SimCLR
from coterie.objectives.simsiam import SimSiam
from coterie.objectives.supervised import Supervised
from coterie.objectives.swav import SwAV

SHAPE = (3, 16, 16)
OBJECTIVES: dict[str, Objective] = {
    "byol": BYOL(hidden=16),
    "rotation": Rotation(),
    "simclr": SimCLR(),
    "simsiam": SimSiam(hidden=16),
    "supervised": Supervised(),
    "swav": SwAV(),
}


def builder(objective: Objective, unit: bool = True, **changes: Any) -> Builder:
    given = {"backbone": "resnet8", "projection": 8, "unit_projection": unit, **changes}
    return Builder(objective, NetSettings(**given), SHAPE, 3)


def build(objective: Objective, unit: bool = True, **changes: Any) -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        return builder(objective, unit, **changes)().eval()


def images(count: int = 5) -> torch.Tensor:
    return torch.randn((count, *SHAPE), generator=torch.Generator().manual_seed(1))


def test_no_objective_is_left_out() -> None:
    assert set(OBJECTIVES) == set(registry.names("objectives"))


@torch.no_grad()
@pytest.mark.parametrize("name", OBJECTIVES)
def test_every_head_on_z_sees_it_at_unit_length(name: str) -> None:
    """The weights are those of the network without the switch, under the same names."""
    net, raw = build(OBJECTIVES[name]), build(OBJECTIVES[name], unit=False)
    found, plain = net(images()), raw(images())
    assert list(net.state_dict()) == list(raw.state_dict())
    assert all(
        torch.equal(net.state_dict()[key], raw.state_dict()[key]) for key in net.state_dict()
    )
    z = F.normalize(plain.z, dim=-1)
    assert torch.equal(found.h, plain.h) and torch.equal(found.z, z)
    assert torch.equal(net.projection()(images()), z)
    for head, output in (("predictor", found.p), ("classifier", found.logits)):
        layer = getattr(net, head)
        assert (output is None) == (layer is None)
        if output is not None:
            assert torch.equal(output, layer(z))


@torch.no_grad()
def test_a_target_network_gives_unit_z_too() -> None:
    net = build(BYOL(hidden=16))
    assert isinstance(net, TargetNetwork)
    (goal,) = net.goals([images()])
    assert torch.allclose(goal.norm(dim=1), torch.ones(5))


@torch.no_grad()
def test_methods_with_networks_of_their_own_have_it_in_all_of_them() -> None:
    for method, objective in (
        (MFCL(share_representations=True, sensor_width=8), SimCLR()),
        (Orchestra(), Rotation()),
    ):
        for key, net in method.nets(builder(objective)).items():
            if net.projector is not None and key != "discriminator":
                z = net.eval()(images()).z
                assert torch.allclose(z.norm(dim=1), torch.ones(5)), key


class Bare(Objective):
    """An own objective whose projector is a single layer, or which has none."""

    def __init__(self, layer: bool) -> None:
        self.layer = layer

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        return Network(backbone, projector=nn.Linear(backbone.width, 8) if self.layer else None)

    def loss(self, net: Network, batch: Batch) -> Loss:
        return Loss(net(batch.x).z.sum())


@torch.no_grad()
def test_an_own_objective_may_have_any_projector_but_needs_one() -> None:
    assert torch.allclose(build(Bare(True))(images()).z.norm(dim=1), torch.ones(5))
    with pytest.raises(ConfigError, match="needs a projector, and the objective builds none"):
        build(Bare(False))


def test_pretrained_weights_of_a_plain_network_fit(tmp_path: Path) -> None:
    plain, path = build(Supervised(), unit=False), tmp_path / "plain.safetensors"
    with torch.no_grad():
        for weight in plain.parameters():
            weight.add_(0.1)
    save_file({name: tensor.clone() for name, tensor in plain.state_dict().items()}, path)
    net = build(Supervised(), weights=str(path))
    assert all(torch.equal(net.state_dict()[key], t) for key, t in plain.state_dict().items())


def test_a_saved_run_is_loaded_and_encoded_with_it(toy_data: Path, tmp_path: Path) -> None:
    tables = toy.tables(toy_data)
    tables["net"] = {**tables["net"], "unit_projection": True}
    result = coterie.run(tables, out=tmp_path / "run", rounds=1)
    described = json.loads((result.folder / "model.json").read_text())
    assert described["net"]["unit_projection"] is True
    x = np.load(toy_data)["x_test"]
    z = result.encode(x, layer="z")
    np.testing.assert_allclose(np.linalg.norm(z, axis=1), 1.0, rtol=1e-5)
    net = result.model()
    assert net.classifier is not None
    with torch.no_grad():
        logits = net.classifier(torch.from_numpy(z)).softmax(dim=1).numpy()
    np.testing.assert_allclose(result.predict_proba(x), logits, rtol=1e-4, atol=1e-6)
    assert "unit_projection = true" in (result.folder / "config.toml").read_text()


def test_a_model_that_was_saved_before_the_key_existed_is_loaded(tmp_path: Path) -> None:
    folder = made_model.write(tmp_path / "run")
    path = folder / "model.json"
    described = json.loads(path.read_text())
    assert described["net"].pop("unit_projection") is False
    del described["sha256"]
    path.write_text(json.dumps(described))
    x = np.random.default_rng(1).integers(0, 256, (3, 1, 16, 16), np.uint8)
    assert np.abs(np.linalg.norm(coterie.load(folder).encode(x, layer="z"), axis=1) - 1).max() > 0.1
