"""Base lines: what they are by metric, that they are measured once, and change nothing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
import toy
from coterie.experiment.baseline import FILE, keep_baseline, measure_baseline

KNN: dict[str, Any] = {"with": ["knn"], "metric": "knn"}


def test_for_accuracy_they_are_the_untrained_network_and_the_largest_class(
    toy_data: Path, tmp_path: Path
) -> None:
    found = measure_baseline(toy.prepared(toy_data, tmp_path / "run"))
    assert found is not None and found.metric == "accuracy"
    assert set(found.values) == {"untrained", "largest_class"}
    assert found.values["largest_class"] == pytest.approx(1 / toy.CLASSES)
    assert (found.train, found.test) == (180, 60)
    assert found.describe().startswith("accuracy 0.") and "0.333 largest class" in found.describe()


def test_for_representations_they_are_the_untrained_encoder_and_the_raw_input(
    toy_data: Path, tmp_path: Path
) -> None:
    found = measure_baseline(toy.prepared(toy_data, tmp_path / "run", evaluate=KNN))
    assert found is not None and found.metric == "knn"
    assert set(found.values) == {"untrained", "raw_input"}
    assert found.values["raw_input"] > 0.6  # clouds that lie apart


def test_the_samples_are_bounded_and_the_draw_is_the_same(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = toy.prepared(toy_data, tmp_path / "run", evaluate=KNN)
    monkeypatch.setattr("coterie.experiment.baseline._TRAIN", 50)
    monkeypatch.setattr("coterie.experiment.baseline._TEST", 20)
    first, second = measure_baseline(experiment), measure_baseline(experiment)
    assert first == second and first is not None
    assert (first.train, first.test) == (50, 20)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "solo"}},  # no global model
        {"evaluate": {"with": ["personal"], "metric": "client_accuracy_mean"}},
        {"evaluate": {"with": ["geometry"], "metric": "feature_std"}},  # needs no labels
    ],
)
def test_where_they_would_mean_nothing_there_are_none(
    changes: dict[str, Any], toy_data: Path, tmp_path: Path
) -> None:
    experiment = toy.prepared(toy_data, tmp_path / "run", **changes)
    assert keep_baseline(experiment, tmp_path) is None
    assert not (tmp_path / FILE).exists()


def test_data_without_labels_have_none(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    sites = {"north": x[:20], "south": x[20:]}
    small: dict[str, Any] = {"rounds": 1, "executor": "serial", "net": {"projection": 8}}
    coterie.fit(sites, objective="simsiam", out=tmp_path / "run", progress=False, **small)
    assert not (tmp_path / "run" / FILE).exists()


@pytest.mark.parametrize("found", ["", "{", '{"values": {"untrained": 0.25}}'])
def test_they_are_kept_beside_the_metrics_whatever_an_earlier_start_left(
    found: str, toy_data: Path, tmp_path: Path
) -> None:
    experiment = toy.prepared(toy_data, tmp_path / "run")
    (tmp_path / FILE).write_text(found)
    first = keep_baseline(experiment, tmp_path)
    assert first is not None
    written = json.loads((tmp_path / FILE).read_text())
    assert written == {"metric": "accuracy", "values": first.values, "train": 180, "test": 60}


def test_a_run_has_the_same_bits_with_and_without_them(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy.run(toy_data, tmp_path / "with")
    monkeypatch.setattr("coterie.experiment.run.keep_baseline", lambda *arguments: None)
    toy.run(toy_data, tmp_path / "without")
    assert (tmp_path / "with" / FILE).exists() and not (tmp_path / "without" / FILE).exists()
    assert toy.trace(tmp_path / "with") == toy.trace(tmp_path / "without")
    assert toy.outputs(tmp_path / "with") == toy.outputs(tmp_path / "without")


def test_a_resumed_run_does_not_look_at_them(toy_data: Path, tmp_path: Path) -> None:
    with pytest.raises(toy.Killed):
        toy.run(toy_data, tmp_path / "run", recorders=[toy.StopAfter(2, toy.Killed)])
    (tmp_path / "run" / FILE).write_text("{")  # broken
    toy.run(toy_data, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / FILE).read_text() == "{"
