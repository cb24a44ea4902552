"""Whole runs with `[privacy]`: epsilon after a kill, the end of a budget, what the files say."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import coterie
import toy
from coterie.core.errors import CheckpointError
from coterie.experiment.config import resolve
from coterie.kit.accounting import epsilon
from resuming import Run, files

TERMS = {"clip": 0.5, "noise": 2.0, "delta": 1e-3}
PRIVATE: dict[str, Any] = {
    "privacy": TERMS,
    "cohort": {"fraction": 0.5},
    "evaluate": {"with": ["accuracy"]},
}
SPENT = [epsilon(2.0, 0.5, rounds, 1e-3) for rounds in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def whole(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A private run of four rounds."""
    folder = tmp_path_factory.mktemp("private") / "run"
    toy.run(toy_data, folder, **PRIVATE)
    return folder


def spent(folder: Path) -> list[float]:
    return [line["metrics"]["epsilon"] for line in toy.trace(folder)]


@pytest.mark.parametrize("round", [0, 1, 3])
def test_killed_and_resumed_a_run_reports_the_same_epsilon(
    round: int, whole: Path, toy_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(toy.Killed):
        stop = toy.StopAfter(round, toy.Killed)
        toy.run(toy_data, tmp_path / "run", recorders=[stop], **PRIVATE)
    toy.run(toy_data, tmp_path / "run", resume=True, **PRIVATE)
    assert spent(tmp_path / "run") == spent(whole) == SPENT


def test_two_runs_draw_other_noise(whole: Path, toy_data: Path, tmp_path: Path) -> None:
    toy.run(toy_data, tmp_path / "run", **PRIVATE)
    assert toy.outputs(tmp_path / "run") != toy.outputs(whole)


def test_the_lines_of_a_run_tell_of_no_client(whole: Path) -> None:
    for line in toy.trace(whole):
        assert (line["cohort"], line["lost"], line["rejected"], line["clients"]) == ([], {}, {}, {})
        assert not [name for name in line["metrics"] if name.startswith(("train_", "client_"))]
    assert not (whole / "embedding.npz").exists()


def test_the_page_shows_epsilon(whole: Path) -> None:
    page = (whole / "report.html").read_text()
    assert f"<dt>epsilon</dt><dd>{SPENT[-1]:.4g}<small>at delta 0.001</small>" in page
    assert "no two are alike" in page


def test_a_run_ends_at_its_budget_and_resuming_it_changes_nothing(
    toy_data: Path, tmp_path: Path, run: Run
) -> None:
    budget = (SPENT[1] + SPENT[2]) / 2
    tables = toy.tables(toy_data, **{**PRIVATE, "privacy": {**TERMS, "epsilon": budget}})
    (tmp_path / "mine.toml").write_text(resolve(tables).to_toml())
    out = tmp_path / "run"
    said = " ".join(run(tmp_path / "mine.toml", "--out", out).split())
    assert f"of 4, as many as privacy.epsilon = {budget:g} allows" in said
    assert "the run ends after round 2 of 4: one more would exceed privacy.epsilon" in said
    assert f"epsilon {SPENT[1]:.4g} at delta 0.001" in said
    assert spent(out) == SPENT[:2]
    assert toy.trace(out)[-1]["metrics"]["accuracy"] > 0.0
    result = coterie.load(out)
    assert result.metrics["epsilon"] == SPENT[1] and result.model() is not None
    before = files(out)
    run("--out", out, "--resume")
    assert files(out) == before


def test_a_private_run_goes_back_no_round(whole: Path, toy_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    shutil.copytree(whole, out)
    newest = max((out / "checkpoints").glob("round_*"))
    (newest / "server.safetensors").write_bytes(b"damaged")
    before = files(out)
    with pytest.raises(CheckpointError, match="a private run goes back no round"):
        toy.run(toy_data, out, resume=True, **PRIVATE)
    assert files(out) == before
    shutil.rmtree(newest)  # nobody was sent the model: the round is played again
    toy.run(toy_data, out, resume=True, **PRIVATE)
    assert spent(out) == SPENT


@pytest.mark.parametrize(
    ("key", "value"), [("noise", 3.0), ("clip", 0.4), ("delta", 1e-4), ("epsilon", 9.0)]
)
def test_a_run_is_resumed_under_its_own_terms_only(
    key: str, value: float, whole: Path, toy_data: Path
) -> None:
    changed = {**PRIVATE, "privacy": {**TERMS, key: value}}
    with pytest.raises(coterie.CoterieError, match=rf"privacy\.{key} is"):
        toy.run(toy_data, whole, resume=True, **changed)


def test_workers_and_server_optimisers_change_nothing_of_it(toy_data: Path, tmp_path: Path) -> None:
    where = {"executor": {"kind": "processes", "workers": 2}, "server": {"optimizer": "adam"}}
    toy.run(toy_data, tmp_path / "run", **PRIVATE, **where, run={"rounds": 2})
    assert spent(tmp_path / "run") == SPENT[:2]


def test_clients_that_keep_a_state_may_be_private(toy_data: Path, tmp_path: Path) -> None:
    toy.run(toy_data, tmp_path / "run", **PRIVATE, method={"name": "moon"})
    assert spent(tmp_path / "run") == SPENT


def test_batches_that_a_model_counted_stay_with_the_server(toy_data: Path, tmp_path: Path) -> None:
    net = {"norm": "bn", "bn_buffers": "local"}
    toy.run(toy_data, tmp_path / "run", **PRIVATE, net=net)
    weights = coterie.load(tmp_path / "run").model().state_dict()
    assert all(torch.isfinite(tensor.float()).all() for tensor in weights.values())
    kept = json.loads((tmp_path / "run" / "model.json").read_text())["kept"]
    assert any(name.endswith("running_var") for name in kept)
