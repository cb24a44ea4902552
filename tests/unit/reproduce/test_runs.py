"""Trials run one after another: what is kept, what fails, what is refused."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_recipe import paper_study

from coterie.core.errors import ConfigError, DataError, Interrupted, RunFailed
from coterie.engine.record import RoundEvent
from coterie.reproduce import runs
from coterie.reproduce.runs import Trial, raise_failures, run_study, run_trials

EVENT = RoundEvent(
    *(0, "train", [0], {}, {}, False, {"accuracy": 0.5, "train_loss": 1.0}, 0, 0, 0, 0, 1.0),
    *("", ""),
)


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The folders that were run, by an `execute` that trains nothing and may fail."""
    folders: list[str] = []

    def execute(config: Any, folder: Path, **_: Any) -> Any:
        folders.append(folder.name)
        if isinstance(config, BaseException):
            raise config
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "metrics.jsonl").write_text(EVENT.line())
        (folder / "report.html").touch()
        return SimpleNamespace(history=[EVENT])

    monkeypatch.setattr(runs, "execute", execute)
    monkeypatch.setattr(runs, "find_damage", lambda folder: None)
    return folders


def trial(folder: Path, config: Any = None) -> Trial:
    return Trial(folder.name, config, folder, "row")


def test_a_trial_that_fails_does_not_stop_the_others(tmp_path: Path, executed: list[str]) -> None:
    bad, good = trial(tmp_path / "bad", DataError("no data")), trial(tmp_path / "good")
    ended = list(run_trials([bad, good, bad]))
    assert executed == ["bad", "good"]  # a run that two cells share fails once
    assert [str(end.error or "") for end in ended] == ["no data", "", "no data"]
    assert ended[1].history == [EVENT]
    assert ended[1].describe(3, "fine") == "[2/3] good: fine"


def test_a_finished_run_is_read_and_not_run_again(tmp_path: Path, executed: list[str]) -> None:
    first, second = (next(run_trials([trial(tmp_path / "a")])) for _ in range(2))
    assert (first.kept, second.kept) == (False, True)
    assert second.history == [EVENT] and executed == ["a"]
    list(run_trials([trial(tmp_path / "a")], verify=True))
    assert executed == ["a", "a"]  # the runner looks at its data
    (tmp_path / "a" / "metrics.jsonl").write_text("")
    (damaged,) = run_trials([trial(tmp_path / "a")])
    assert "is damaged; delete it, and it is run again: it has no rounds" in str(damaged.error)


def test_a_finished_run_that_is_damaged_is_restored_and_not_only_read(
    tmp_path: Path, executed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    list(run_trials([trial(tmp_path / "a")]))
    monkeypatch.setattr(runs, "find_damage", lambda folder: f"{folder.name}/model is damaged")
    (ended,) = run_trials([trial(tmp_path / "a")])
    assert executed == ["a", "a"] and ended.history == [EVENT]
    assert ended.describe(1, "fine") == "[1/1] a: fine (restored: a/model is damaged)"
    (ended,) = run_trials([trial(tmp_path / "a", DataError("no data"))])
    assert str(ended.error) == "no data" and "restored" not in ended.describe(1, "failed")


def test_failures_of_one_kind_keep_their_exit_code() -> None:
    raise_failures([], 3)
    with pytest.raises(DataError, match="2 of 2 runs failed; a: no data"):
        raise_failures([("a", DataError("no data")), ("b", DataError("none"))], 2)
    with pytest.raises(RunFailed, match="1 of 2 runs failed; a: no data"):
        raise_failures([("a", DataError("no data"))], 2)


def test_an_interrupt_says_how_to_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "execute", stop)
    with pytest.raises(Interrupted, match="interrupted; to resume, repeat the command with --res"):
        run_study(paper_study(), tmp_path)


def test_a_study_refuses_unfinished_runs_unless_it_resumes(
    tmp_path: Path, executed: list[str]
) -> None:
    lines: list[str] = []
    scores, failures = run_study(paper_study(), tmp_path, say=lines.append)
    assert scores.finished == 8 and not failures
    assert lines[0] == "[1/8] FedAvg, one, seed 0: accuracy 0.5000, 1 round, 1.00 s a round"
    folder = tmp_path / "cells" / executed[-1]
    (folder / "report.html").unlink()
    (folder / "config.toml").touch()
    with pytest.raises(ConfigError, match="holds an unfinished run; add --resume to finish it"):
        run_study(paper_study(), tmp_path)
    assert run_study(paper_study(), tmp_path, resume=True)[0].finished == 8
    assert len(executed) == 9
