"""SIGKILL before each file operation of a run, one trial an operation: all resume to one result."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toy
from faulty_disk import Operation, in_child, wrap_operations

CHANGES: dict[str, Any] = {
    "method": {"name": "toy_methods:TwoModels"},
    "run": {"rounds": 2},
    "checkpoint": {"every": 1, "keep": 1},
    "net": {"norm": "bn", "bn_buffers": "local"},
    "partition": {"clients": 2},
}


@pytest.mark.slow
def test_killed_before_any_file_operation_a_run_resumes_to_the_same_bits(
    toy_data: Path, tmp_path: Path
) -> None:
    toy.run(toy_data, tmp_path / "whole", **CHANGES)
    expected = toy.trace(tmp_path / "whole"), toy.outputs(tmp_path / "whole")
    assert {"model.safetensors", "best.safetensors", "model.json"} < expected[1].keys()

    operation = 0
    while True:
        folder = tmp_path / f"run-{operation}"

        def die(name: str, seen: int, change: Operation, victim: int = operation) -> Operation:
            if seen == victim:
                os.kill(os.getpid(), signal.SIGKILL)
            return change

        def work(folder: Path = folder, die: Callable[..., Operation] = die) -> None:
            wrap_operations(die)
            toy.run(toy_data, folder, **CHANGES)

        status = in_child(work)
        assert status in (0, -signal.SIGKILL)
        toy.run(toy_data, folder, resume=True, **CHANGES)
        assert (toy.trace(folder), toy.outputs(folder)) == expected, f"operation {operation}"
        assert not list(folder.rglob("*.tmp"))
        shutil.rmtree(folder)
        if status == 0:
            break
        operation += 1
    assert operation > 40  # commits of two rounds, two clients' states, the outputs
