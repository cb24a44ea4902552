"""The same bits everywhere, and what becomes of workers that die or take too long."""

from pathlib import Path
from typing import Any

import pytest

import toy
from coterie.core.errors import RunFailed


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_serial_and_one_two_three_workers_agree(seed: int, toy_data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "run": {"seed": seed, "rounds": 3},
        "method": {"name": "toy_methods:TwoModels"},
        "net": {"norm": "bn"},
    }
    toy.run(toy_data, tmp_path / "serial", **changes)
    for workers in (1, 2, 3):
        folder = tmp_path / str(workers)
        toy.run(toy_data, folder, **changes, executor={"kind": "processes", "workers": workers})
        assert toy.trace(folder) == toy.trace(tmp_path / "serial")
        assert toy.outputs(folder) == toy.outputs(tmp_path / "serial")


@pytest.mark.slow
def test_a_client_whose_workers_keep_dying_is_lost_and_the_run_goes_on(
    toy_data: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "run": {"rounds": 2},
        "method": {"name": "toy_methods:Faulty", "fault": "die", "clients": [2]},
        "executor": {"kind": "processes", "workers": 2},
    }
    toy.run(toy_data, tmp_path / "run", **changes)
    for line in toy.trace(tmp_path / "run"):
        assert line["lost"] == {"2": "lost: its worker died 3 times (last exit status 7)"}
        assert not line["skipped"]


@pytest.mark.slow
def test_a_client_that_takes_too_long_is_recorded_as_late(toy_data: Path, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "run": {"rounds": 1},
        "method": {"name": "toy_methods:Faulty", "fault": "sleep", "clients": [3]},
        "executor": {"kind": "processes", "workers": 2, "timeout": 2.0},
    }
    toy.run(toy_data, tmp_path / "run", **changes)
    (line,) = toy.trace(tmp_path / "run")  # on a busy machine others may be late as well
    assert line["lost"]["3"] == "late: no answer within executor.timeout = 2 s"


@pytest.mark.slow
def test_a_worker_that_cannot_start_says_why(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.executors import processes

    monkeypatch.setattr(processes.Spec, "to_json", lambda spec: '{"seed": 1}')
    with pytest.raises(RunFailed, match="a worker could not start"):
        toy.run(toy_data, tmp_path / "run", executor={"kind": "processes", "workers": 1})


@pytest.mark.parametrize(
    ("fault", "where", "reason"),
    [
        ("nan", "rejected", "diverged: its upload is not finite"),
        ("huge", "rejected", "holds 9.99"),
        ("shape", "rejected", "is float32 [1200], not float32 [200, 6]"),
        ("key", "rejected", "misses 'backbone"),
        ("raise", "rejected", "failed: ZeroDivisionError: a bug on one client"),
    ],
)
def test_a_client_that_misbehaves_is_named_and_the_others_are_averaged(
    fault: str, where: str, reason: str, toy_data: Path, tmp_path: Path
) -> None:
    method = {"name": "toy_methods:Faulty", "fault": fault, "clients": [1]}
    result = toy.run(toy_data, tmp_path / "run", run={"rounds": 2}, method=method)
    for line in toy.trace(tmp_path / "run"):
        assert list(line[where]) == ["1"]
        assert reason in line[where]["1"]
    assert all(parameter.isfinite().all() for parameter in result.model().parameters())


def test_a_rejected_client_counts_as_little_as_one_that_was_never_there(
    toy_data: Path, tmp_path: Path
) -> None:
    for fault in ("nan", "huge", "key"):
        method = {"name": "toy_methods:Faulty", "fault": fault, "clients": [0]}
        toy.run(toy_data, tmp_path / fault, run={"rounds": 1}, method=method)
    digests = {toy.trace(tmp_path / fault)[0]["digest"] for fault in ("nan", "huge", "key")}
    assert len(digests) == 1


def test_when_every_client_fails_the_run_ends_with_the_reason_and_can_be_resumed(
    toy_data: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "run": {"rounds": 9},
        "method": {"name": "toy_methods:Faulty", "fault": "raise", "clients": [0, 1, 2, 3, 4, 5]},
        "cohort": {"max_skipped": 2},
    }
    with pytest.raises(RunFailed, match=r"2 rounds in a row were skipped.*ZeroDivisionError"):
        toy.run(toy_data, tmp_path / "run", **changes)
    with pytest.raises(RunFailed, match="up to round 4"):
        toy.run(toy_data, tmp_path / "run", resume=True, **changes)
    assert len(toy.trace(tmp_path / "run")) == 4


def test_three_rounds_without_a_finite_client_end_the_run_with_a_hint(
    toy_data: Path, tmp_path: Path
) -> None:
    with pytest.raises(RunFailed, match=r"stayed finite in 3 rounds.*local\.lr \(now 1e\+30\)"):
        toy.run(toy_data, tmp_path / "run", run={"rounds": 9}, local={"lr": 1e30})
