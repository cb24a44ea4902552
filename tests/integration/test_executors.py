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
def test_a_worker_that_cannot_start_says_why(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from coterie.executors import processes

    monkeypatch.setattr(processes.Spec, "to_json", lambda spec: '{"seed": 1}')
    with pytest.raises(RunFailed, match="a worker could not start"):
        toy.run(toy_data, tmp_path / "run", executor={"kind": "processes", "workers": 1})
