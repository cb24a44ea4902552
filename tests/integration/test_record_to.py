"""`record.to`: whole runs with tracking tools."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import toy
from coterie.core.errors import ConfigError, Interrupted

OWN = """
from coterie import Sink

class Counting(Sink):
    def start(self, run):
        self.path = run.folder / "counted.txt"
        self.say(f"from {run.first}")

    def say(self, text):
        with self.path.open("a") as file:
            print(text, file=file)

    def round(self, event):
        self.say(event.round)

    def end(self, status):
        self.say(status)
"""


def scalars(folder: Path, name: str) -> list[tuple[int, float]]:
    found = EventAccumulator(str(folder / "tensorboard"))
    found.Reload()
    return [(event.step, event.value) for event in found.Scalars(name)]


def test_tools_see_every_round_once_also_after_a_resume_and_change_no_bit(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counting_tool.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    changes: dict[str, Any] = {
        "record": {"to": ["tensorboard", "counting_tool:Counting"], "embedding": 0},
        "checkpoint": {"every": 0},
    }
    folder, stop = tmp_path / "run", toy.StopAfter(2, KeyboardInterrupt)
    with pytest.raises(Interrupted):
        toy.run(toy_data, folder, recorders=[stop], **changes)
    toy.run(toy_data, folder, resume=True, **changes)
    expected = [line["metrics"]["accuracy"] for line in toy.trace(folder)]
    found = scalars(folder, "accuracy")
    assert [step for step, _ in found] == [0, 1, 2, 3]
    assert [value for _, value in found] == pytest.approx(expected)
    assert len(scalars(folder, "bytes_up")) == 4
    told = (folder / "counted.txt").read_text().split("\n")[:-1]
    again = told.index("from 2")  # the round that was interrupted was not committed
    assert told[0] == "from 0" and told[again - 1] == "interrupted"
    assert told[again:] == ["from 2", "2", "3", "finished"]

    alone = toy.run(toy_data, tmp_path / "alone", checkpoint={"every": 0}).folder
    assert toy.trace(alone) == toy.trace(folder) and toy.outputs(alone) == toy.outputs(folder)


def test_without_the_package_it_is_refused_before_anything_is_written(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tensorboard" else find(name)
    )
    with pytest.raises(ConfigError, match=r"record\.to = .*tensorboard.* needs the package"):
        toy.run(toy_data, tmp_path / "run", record={"to": "tensorboard"})
    assert not (tmp_path / "run").exists()
