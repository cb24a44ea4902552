"""The trained model that a server hands out: kept if it is of the run's network."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save

import toy
from coterie.deploy.handshake import Declined
from coterie.deploy.site_model import keep_trained
from coterie.experiment.model_file import read_model_file
from coterie.experiment.prepare import Experiment
from coterie.experiment.restore import read_weights


@pytest.fixture
def experiment(tmp_path: Path) -> Experiment:
    return toy.prepared(toy.write_data(tmp_path / "toy.npz"), tmp_path)


def weights(experiment: Experiment) -> dict[str, torch.Tensor]:
    return {k: t.clone() for k, t in experiment.parts.nets("method").weights().items()}


def test_the_model_is_written_with_its_description(experiment: Experiment, tmp_path: Path) -> None:
    sent = weights(experiment)
    keep_trained(experiment, tmp_path, {"round": 3}, save(sent))
    last = read_model_file(tmp_path).weights.last
    assert last is not None and last.round == 3
    kept = read_weights(tmp_path / last.file, last.sha256)
    assert all(torch.equal(kept[name], tensor) for name, tensor in sent.items())


@pytest.mark.parametrize(
    ("round", "model", "reason"),
    [
        ("3", None, "of no round"),
        (3, b"rubbish", "cannot be read"),
        (3, save({"x": torch.ones(2)}), "of another network: it has 'x'"),
    ],
    ids=["round", "rubbish", "network"],
)
def test_what_is_no_model_of_this_run_is_refused(
    round: Any, model: bytes | None, reason: str, experiment: Experiment, tmp_path: Path
) -> None:
    with pytest.raises(Declined, match=reason):
        keep_trained(experiment, tmp_path, {"round": round}, model or save(weights(experiment)))
    assert not (tmp_path / "model.json").exists()
