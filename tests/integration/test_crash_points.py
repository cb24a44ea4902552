"""A run that is killed before any file operation: what lies there then resumes to one result.

A process that is killed leaves the files as the operation before left them, so one run is enough:
its folder is copied before each operation. `make endurance` kills for real.
"""

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest

import toy
from faulty_disk import Operation, wrapped

CHANGES: dict[str, Any] = {
    "method": {"name": "toy_methods:TwoModels"},
    "run": {"rounds": 2},
    "checkpoint": {"every": 1, "keep": 1},
    "net": {"norm": "bn", "bn_buffers": "local"},
    "partition": {"clients": 2},
}


def digest(folder: Path) -> str:
    """A digest of all that is in a folder."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        found.update(f"{path.relative_to(folder)} {len(content)}\n".encode() + content)
    return found.hexdigest()


class Copies:
    """A copy of a folder before each operation, where it differs from the copies before."""

    def __init__(self, folder: Path, copies: Path) -> None:
        self.folder, self._copies, self.operations = folder, copies, 0
        self.found: dict[str, Path] = {}

    def __call__(self, name: str, number: int, operation: Operation) -> Operation:
        self.operations = number + 1
        if self.folder.exists() and (key := digest(self.folder)) not in self.found:
            self.found[key] = self._copies / f"before-{number}-{name}"
            shutil.copytree(self.folder, self.found[key])
        return operation


@pytest.mark.slow
def test_killed_before_any_file_operation_a_run_resumes_to_the_same_bits(
    toy_data: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    copies = Copies(whole, tmp_path)
    with wrapped(copies):
        toy.run(toy_data, whole, **CHANGES)
    expected = toy.trace(whole), toy.outputs(whole)
    assert {"model.safetensors", "best.safetensors", "model.json"} < expected[1].keys()
    assert copies.operations > 100  # commits of two rounds, two clients' states, the outputs
    assert len(copies.found) > 50
    for folder in copies.found.values():
        toy.run(toy_data, folder, resume=True, **CHANGES)
        assert (toy.trace(folder), toy.outputs(folder)) == expected, folder.name
        assert not list(folder.rglob("*.tmp"))
        shutil.rmtree(folder)
