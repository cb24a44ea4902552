"""`data.holdout`: training samples that are set aside first, and measured apart."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import coterie
from coterie.core.errors import ConfigError
from coterie.data.subset import set_aside
from coterie.engine.evaluation import Evaluation
from coterie.experiment.config import load
from coterie.experiment.prepare import Experiment, prepare

SMALL: dict[str, Any] = {
    "run": {"rounds": 2},
    "local": {"epochs": 1},
    "partition": {"clients": 3},
    "executor": {"kind": "serial"},
    "evaluate": {"with": ["accuracy"]},
}


def prepared(**data: Any) -> Experiment:
    return prepare(load("digits/fedavg", {"data": data}), Path("nowhere"))


def test_a_share_of_every_class_is_set_aside() -> None:
    labels = np.repeat([0, 1, 2], [100, 50, 10])
    left, held = set_aside(labels, seed=1, share=0.1)
    assert np.bincount(labels[held]).tolist() == [10, 5, 1]
    assert sorted([*left, *held]) == list(range(160))
    again, other = (set_aside(labels, seed=seed, share=0.1)[1] for seed in (1, 2))
    assert again.tolist() == held.tolist() != other.tolist()


def test_nothing_is_set_aside_by_default() -> None:
    left, held = set_aside(np.zeros(5, np.int64), seed=0, share=0.0)
    assert left.tolist() == [0, 1, 2, 3, 4] and not len(held)


@pytest.mark.parametrize("more", [{}, {"limit": 500}, {"imbalance": 10.0}])
def test_nobody_trains_on_it(more: dict[str, Any]) -> None:
    experiment = prepared(holdout=0.2, **more)
    trained = np.concatenate(list(experiment.partition.train.values()))
    assert not np.intersect1d(trained, experiment.holdout).size
    assert len(experiment.holdout) == pytest.approx(0.2 * len(experiment.dataset.y_train), abs=5)
    assert len(np.unique(experiment.dataset.y_train[experiment.holdout])) == 10
    if not more:
        assert len(trained) + len(experiment.holdout) == len(experiment.dataset.y_train)


def test_the_limit_is_taken_of_what_is_left() -> None:
    total = len(prepared().dataset.y_train)
    with pytest.raises(ConfigError, match=r"data\.limit=\d+ is more than the \d+ training samples"):
        prepared(holdout=0.5, limit=total - 10)


@pytest.mark.parametrize(
    ("share", "reason"),
    [
        (1.0, "data.holdout=1.0 leaves 0 of 10 classes to train on; lower it"),
        (1e-6, "data.holdout=1e-06 sets none of the"),
        (1.5, "data.holdout = 1.5"),
        (-0.1, "data.holdout = -0.1"),
        (True, "data.holdout = True"),
    ],
)
def test_a_bad_share_is_refused(share: float, reason: str) -> None:
    with pytest.raises(ConfigError) as raised:
        prepared(holdout=share)
    assert reason in str(raised.value)


def test_the_global_model_is_measured_on_it(tmp_path: Path) -> None:
    result = coterie.run("digits/fedavg", out=tmp_path, **SMALL, data={"holdout": 0.2})
    for event in result.history:
        assert {"accuracy", "loss", "holdout_accuracy", "holdout_loss"} <= set(event.metrics)
    held = len(prepared(holdout=0.2).holdout)
    right = result.metrics["holdout_accuracy"] * held
    assert right == pytest.approx(round(right))  # a share of so many samples


def test_measuring_it_changes_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_it = coterie.run("digits/fedavg", out=tmp_path / "a", **SMALL, data={"holdout": 0.2})
    original = Evaluation.measure

    def without(self: Evaluation, *arguments: Any) -> Any:
        return original(Evaluation(self.settings, self.data), *arguments)

    monkeypatch.setattr(Evaluation, "measure", without)
    without_it = coterie.run("digits/fedavg", out=tmp_path / "b", **SMALL, data={"holdout": 0.2})
    assert with_it.history[-1].digest == without_it.history[-1].digest
    assert with_it.metrics["accuracy"] == without_it.metrics["accuracy"]
    assert "holdout_accuracy" not in without_it.metrics


def test_without_a_global_model_nothing_is_measured_on_it(tmp_path: Path) -> None:
    result = coterie.run("digits/solo", out=tmp_path, **SMALL, data={"holdout": 0.2})
    assert "accuracy" in result.metrics and "holdout_accuracy" not in result.metrics


def test_arrays_that_are_divided_already_have_none() -> None:
    site = (np.zeros((8, 4), np.float32), np.array([0, 1] * 4))
    with pytest.raises(ConfigError, match=r"data\.holdout = 0\.5 has no meaning for samples that"):
        coterie.fit({"a": site}, net={"backbone": "mlp"}, data={"holdout": 0.5})
