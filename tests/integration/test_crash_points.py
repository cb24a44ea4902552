"""SIGKILL before each file operation of a run, one trial an operation: all resume to one result."""

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toy

CHANGES: dict[str, Any] = {
    "method": {"name": "toy_methods:TwoModels"},
    "run": {"rounds": 2},
    "checkpoint": {"every": 1, "keep": 1},
    "net": {"norm": "bn", "bn_buffers": "local"},
    "partition": {"clients": 2},
}
_OPERATIONS = (
    (os, "fsync"),
    (Path, "replace"),
    (Path, "mkdir"),
    (Path, "unlink"),
    (shutil, "rmtree"),
)


def in_child(work: Callable[[], None]) -> int:
    """Run something in a fork of this process; how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def count_operations(before: Callable[[int], None]) -> None:
    """From now on call `before(n)` ahead of the n-th file operation."""
    seen = 0

    def wrap(function: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            before(seen)
            seen += 1
            return function(*arguments, **options)

        return counted

    for owner, name in _OPERATIONS:
        setattr(owner, name, wrap(getattr(owner, name)))


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

        def die(seen: int, victim: int = operation) -> None:
            if seen == victim:
                os.kill(os.getpid(), signal.SIGKILL)

        def work(folder: Path = folder, die: Callable[[int], None] = die) -> None:
            count_operations(die)
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
