"""The two-stage variants of FedProc and FedSSC: what is frozen stays as it is."""

from itertools import pairwise
from pathlib import Path

import pytest
import torch

import coterie
from coterie.engine.checkpoints import CheckpointStore


@pytest.mark.parametrize("method", ["fedproc", "fedssc"])
def test_a_server_optimiser_leaves_the_frozen_stage_alone(method: str, tmp_path: Path) -> None:
    """Stage 2 trains the output layer only, whatever momentum the server had before."""
    stages = {"schedule": "two-stage"} if method == "fedproc" else {"two_stage": True}
    changes = {
        "run": {"rounds": 4},
        "data": {"limit": 200},
        "net": {"backbone": "simple-cnn"},
        "partition": {"clients": 3},
        "method": {"name": method, "stage1_fraction": 0.5, **stages},
        "server": {"optimizer": "momentum", "lr": 1.0, "momentum": 0.9},
        "local": {"epochs": 1},
        "executor": {"kind": "serial"},
        "checkpoint": {"every": 1, "keep": 9},
    }
    result = coterie.run("digits/fedavg", out=tmp_path / "run", **changes)
    store = CheckpointStore(result.folder, 9)
    models = [store._read(place)[0]["model"] for place in sorted(store.rounds())]
    trained = [event.stage for event in result.history]
    for (before, after), stage in zip(pairwise(models), trained[1:], strict=True):
        moved = {name for name in after if not torch.equal(before[name], after[name])}
        if stage == "classifier":
            assert moved == {"classifier.weight", "classifier.bias"}
        elif stage == "features":
            assert "backbone.features.0.weight" in moved and "classifier.weight" not in moved
