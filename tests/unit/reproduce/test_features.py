"""Features of local models: what the numbers say, and which models are looked at."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.cli.main import main
from coterie.core.errors import ConfigError
from coterie.experiment.config import load
from coterie.experiment.prepare import prepare
from coterie.reproduce.features import (
    Panel,
    describe_agreement,
    embed,
    list_pairs,
    load_models,
    measure_agreement,
)

SMALL = {
    "run": {"rounds": 2},
    "local": {"epochs": 1},
    "executor": {"kind": "serial"},
    "evaluate": {"with": ["accuracy"]},
}


def panel(row: str, client: int, turn: float) -> Panel:
    """Two classes at right angles, turned by an angle, and a little longer for every sample."""
    generator = np.random.default_rng(client + 1)
    y = np.arange(20) % 2
    angles = turn + y * np.pi / 2
    lengths = 1 + generator.random(20)
    z = np.stack([np.cos(angles), np.sin(angles)], 1) * lengths[:, None]
    return Panel(row, np.full(20, client), z, y)


def test_alike_clients_agree() -> None:
    cosines = measure_agreement([panel("a", 0, 0.0), panel("a", 1, 0.0), panel("a", -1, 2.0)])
    assert cosines["same class"] == pytest.approx(1.0)
    assert cosines["other class"] == pytest.approx(0.0, abs=1e-9)


def test_turned_clients_do_not() -> None:
    cosines = measure_agreement([panel("a", 0, 0.0), panel("a", 1, np.pi / 2)])
    assert cosines["same class"] == pytest.approx(0.0, abs=1e-9)
    assert cosines["other class"] == pytest.approx(
        0.0, abs=1e-9
    )  # 1 for one pair, -1 for the other


def test_the_last_row_is_compared_with_each_of_the_others() -> None:
    good, bad = {"same class": 0.9, "other class": 0.1}, {"same class": 0.2, "other class": 0.1}
    text = describe_agreement({"SOLO": bad, "FedAvg": good | {"same class": 0.95}, "FedProc": good})
    assert "better than SOLO: holds (one seed); than FedAvg: does not hold (one seed)" in text
    assert "better than SOLO: does not hold" in describe_agreement({"SOLO": good, "FedProc": bad})
    assert "hold" not in describe_agreement({"SOLO": {"other class": 0.1}, "FedProc": good})


def test_points_are_seeded_and_one_for_every_sample() -> None:
    panels = [panel("a", 0, 0.0), panel("a", 1, 1.0)]
    first, again = embed(panels), embed(panels)
    assert [len(scatter.points) for scatter in first] == [20, 20]
    assert all(np.array_equal(a.points, b.points) for a, b in zip(first, again, strict=True))


def test_a_method_without_personal_models_trains_the_global_one_on(tmp_path: Path) -> None:
    result = coterie.run("digits/fedproc", out=tmp_path / "run", **SMALL)
    chosen = prepare(load("digits/fedproc", SMALL), tmp_path / "scratch")
    first = load_models(chosen, result.folder, (0, 1))
    again = load_models(chosen, result.folder, (1,))
    name = "classifier.weight"
    assert torch.equal(first[1][name], again[1][name])
    assert not torch.equal(first[0][name], first[1][name])
    assert not torch.equal(first[0][name], dict(result.model().state_dict())[name])


def test_personal_models_are_taken_as_they_are_kept(tmp_path: Path) -> None:
    result = coterie.run("digits/solo", out=tmp_path / "run", **SMALL)
    chosen = prepare(load("digits/solo", SMALL), tmp_path / "scratch")
    models = load_models(chosen, result.folder, (0, 1))
    assert models.keys() == {0, 1}
    with pytest.raises(ConfigError, match=r"features\.clients = 99: there is no such client"):
        load_models(chosen, result.folder, (99,))


RECIPE = """# coterie reproduce hidden        A picture
paper = "Somebody, Figure 3"
about = "A picture."
reference = "FedAvg"
base = "digits/fedavg"

[features]
of = "both"
rows = ["all data", "SOLO", "FedAvg"]
clients = [1]

[scale.smoke]
set = { "run.rounds" = 1, "local.epochs" = 1, "executor.kind" = "serial" }

[[row]]
name = "all data"
config = "centralized"

[[row]]
name = "SOLO"
config = "solo"

[[row]]
name = "FedAvg"
config = "fedavg"
"""


def test_global_and_local_models_are_shown_on_the_same_test_images(tmp_path: Path) -> None:
    (tmp_path / "hidden.toml").write_text(RECIPE)
    with pytest.raises(SystemExit) as ended:
        command = ["reproduce", str(tmp_path / "hidden.toml"), "--scale", "smoke"]
        main([*command, "--out", str(tmp_path)])
    assert not ended.value.code
    names = ["all data", "SOLO, client 2", "FedAvg", "FedAvg, client 2"]
    numbers = json.loads((tmp_path / "hidden-smoke" / "features.json").read_text())
    assert list(numbers) == names
    with np.load(tmp_path / "hidden-smoke" / "features.npz") as arrays:
        assert arrays["names"].tolist() == names
        panels = [arrays["classes"][arrays["panels"] == number] for number in range(4)]
        assert all(np.array_equal(panels[0], other) for other in panels)
        places = [arrays["places"][arrays["panels"] == number] for number in range(4)]
        assert not any(np.array_equal(places[0], other) for other in places[1:])
    page = (tmp_path / "hidden-smoke" / "features.html").read_text()
    assert "Hidden vectors of global and local models" in page
    assert "FedAvg, client 2" in (tmp_path / "hidden-smoke" / "features.svg").read_text()


def test_all_data_is_compared_with_the_rest_and_a_global_model_with_its_local_one() -> None:
    names = ["all data", "SOLO, client 1", "FedAvg", "FedAvg, client 1"]
    pairs = list_pairs(["all data", "SOLO", "FedAvg"], names)
    assert pairs == [*(("all data", name) for name in names[1:]), ("FedAvg", "FedAvg, client 1")]
