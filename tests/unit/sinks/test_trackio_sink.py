"""Trackio takes no Pillow 13 so far, which the tests are run with. Where it is not installed, a
module of the same interface (`standin/trackio.py`) is tested instead."""

import importlib.util
import json
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from coterie.sinks.trackio import Trackio


@pytest.fixture
def trackio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("trackio") is None:
        monkeypatch.syspath_prepend(str(Path(__file__).parent / "standin"))
        monkeypatch.delitem(sys.modules, "trackio", raising=False)
    # the real one reads its folder when it is imported: the sink has a process of its own
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "my-run" / "trackio"))


@pytest.mark.filterwarnings("ignore")  # of Trackio's own
@pytest.mark.usefixtures("calls", "trackio")
def test_a_run_is_stored_once_in_its_directory_also_after_a_resume(
    tracker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACKIO_SPACE_ID", "someone/somewhere")
    tracker.run(Trackio(), 0, 2, "interrupted")
    tracker.run(Trackio(), 1, 3, "finished")  # only the first round was committed
    database = sqlite3.connect(tracker.folder / "trackio" / "coterie.db")
    stored = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY id")
    rounds = [(name, step, json.loads(text)["accuracy"]) for name, step, text in stored]
    assert rounds == [("my-run", number, number / 8) for number in range(4)]
    ((config,),) = database.execute("SELECT config FROM configs")
    assert json.loads(config)["method.mu"] == 1.5
    database.close()


def test_nothing_of_a_server_is_left_offline(tracker: Any) -> None:
    from coterie.engine.sink import TrackedRun

    run = TrackedRun(tracker.folder, {}, (), 0, 4, online=False)
    variables = Trackio().environment(run)
    assert variables["TRACKIO_SPACE_ID"] is None and variables["TRACKIO_SERVER_URL"] is None
    assert variables["HF_HUB_OFFLINE"] == "1"
