"""FedSimCLR and FedSwAV as the MFCL paper and its authors' file have them."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn
from two_views import count, layers, paper_network

import coterie
from coterie.experiment.config import load
from coterie.methods.fedprox import FedProx
from coterie.nets.norm import PeerNorm
from coterie.objectives.simclr import SimCLR
from coterie.objectives.swav import SwAV

HEAD = FedProx(mu=0.01, part="head")


def test_the_projector_of_table_6() -> None:
    """Dense 512 BN ReLU, Dense 512 BN ReLU, Dense 128 BN, none with a bias."""
    net = paper_network("fedsimclr")
    hidden = [("fc", 512, 512), ("bn", 512), ("relu",)]
    assert layers(net.projector) == [*hidden, *hidden, ("fc", 512, 128), ("bn", 128)]
    assert isinstance(net.projector, nn.Sequential)
    assert all(m.bias is None for m in net.projector if isinstance(m, nn.Linear))
    assert count(net) == 11_168_832 + 2 * (512 * 512 + 2 * 512) + 512 * 128 + 2 * 128


@pytest.mark.parametrize("data", ["digits", "fashion-mnist", "cifar10"])
def test_both_hold_their_heads(data: str) -> None:
    simclr, swav = (load(f"{data}/{name}", {}) for name in ("fedsimclr", "fedswav"))
    assert simclr.method == swav.method == HEAD
    assert isinstance(simclr.objective, SimCLR) and simclr.objective.layers == 3
    assert isinstance(swav.objective, SwAV)
    assert simclr.local == swav.local and simclr.net == swav.net
    assert simclr.evaluate.last == swav.evaluate.last == ("linear_probe", "ccvr")


def test_the_settings_of_the_authors_file() -> None:
    config = load("cifar10/fedsimclr", {})
    assert config.local.optimizer == "lars"
    assert config.local.lr == pytest.approx(0.3 * config.local.batch_size / 256)
    assert (config.local.weight_decay, config.tables["objective"]["tau"]) == (1e-6, 0.1)
    assert (config.run.rounds, config.net.backbone) == (800, "resnet18")


def test_the_first_two_norms_are_batch_norm_group_norm_or_peer_norm(tmp_path: Path) -> None:
    found = {}
    for norm, kind in (("", nn.BatchNorm2d), ("gn", nn.GroupNorm), ("pn", PeerNorm)):
        changes: dict[str, Any] = {
            "run": {"rounds": 1, "device": "cpu"},
            "data": {"limit": 200},
            "partition": {"kind": "windows", "scenario": 2},
            "net": {"backbone": "resnet8", "norm_first": norm},
            "local": {"epochs": 1},
            "executor": {"kind": "serial"},
            "evaluate": {"with": ["knn"]},
        }
        result = coterie.run("digits/fedsimclr", out=tmp_path / (norm or "bn"), **changes)
        modules = dict(result.model().backbone.named_modules())
        assert {type(modules[n]) for n in ("stem.0.1", "stages.0.0.body.0.1")} == {kind}
        assert type(modules["stages.0.0.body.2.1"]) is nn.BatchNorm2d
        assert result.metrics["ccvr_labels"] == result.metrics["probe_labels"] == 200
        assert 0.1 < result.metrics["ccvr"] <= 1.0
        found[norm] = result.metrics["train_loss"]
    assert len(set(found.values())) == 3
