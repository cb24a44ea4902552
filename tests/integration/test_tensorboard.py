"""`record.tensorboard = true`."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import toy
from coterie.core.errors import ConfigError, Interrupted


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


def test_every_round_is_there_once_also_after_a_resume(toy_data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {"record": {"tensorboard": True}, "checkpoint": {"every": 0}}
    stop = toy.StopAfter(2, KeyboardInterrupt)
    with pytest.raises(Interrupted):
        toy.run(toy_data, tmp_path / "run", recorders=[stop], **changes)
    toy.run(toy_data, tmp_path / "run", resume=True, **changes)
    expected = [line["metrics"]["accuracy"] for line in toy.trace(tmp_path / "run")]
    found = scalars(tmp_path / "run", "accuracy")
    assert [step for step, _ in found] == [0, 1, 2, 3]
    assert [value for _, value in found] == pytest.approx(expected)
    assert len(scalars(tmp_path / "run", "bytes_up")) == 4


def test_without_the_package_it_is_refused_before_anything_is_written(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name)
    )
    with pytest.raises(ConfigError, match=r"record\.tensorboard = true needs the package"):
        toy.run(toy_data, tmp_path / "run", record={"tensorboard": True})
    assert not (tmp_path / "run").exists()
