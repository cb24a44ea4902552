"""Shared memory (/dev/shm) that is full: workers talk over pipes and do not need it."""

import ctypes
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import toy
from coterie.engine.record import Event, RoundEvent
from faulty_disk import in_child

sys.path.insert(0, str(Path(__file__).parent.parent / "endurance"))

import kills

SHARED = Path("/dev/shm")
CHANGES: dict[str, Any] = {"method": {"name": "toy_methods:TwoModels"}, "run": {"rounds": 2}}
WORKERS = {"kind": "processes", "workers": 2}


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is not in shared memory, where those of tests are, with a data cache."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        monkeypatch.setenv("COTERIE_CACHE", str(Path(name) / "cache"))
        yield Path(name)


def find_files(pid: int) -> set[str]:
    """Find what a process has open or mapped in shared memory."""
    found: set[str] = set()
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
        found |= {line.split(maxsplit=5)[-1] for line in lines}
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(FileNotFoundError):
                found.add(str(link.readlink()))
    return {name for name in found if name.startswith(f"{SHARED}/")}


def cover_shared_memory() -> bool:
    """Put a full file system over it, for this process and those it starts; False if forbidden."""
    if ctypes.CDLL(None, use_errno=True).unshare(0x00020000):  # CLONE_NEWNS: as root only
        return False
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(SHARED)], check=True)
    (SHARED / "full").write_bytes(bytes(4096))
    with pytest.raises(OSError, match="No space left"):
        (SHARED / "more").write_bytes(b"1")
    return True


@pytest.mark.slow
def test_a_run_with_workers_ends_though_shared_memory_is_full(outside: Path) -> None:
    data = toy.write_data(outside / "toy.npz")
    toy.run(data, outside / "whole", **CHANGES)

    def work() -> None:
        assert cover_shared_memory() or os.getuid() != 0
        toy.run(data, outside / "run", executor=WORKERS, **CHANGES)

    assert in_child(work) == 0
    assert toy.trace(outside / "run") == toy.trace(outside / "whole")
    assert toy.outputs(outside / "run") == toy.outputs(outside / "whole")


@pytest.mark.slow
def test_no_process_of_a_run_has_files_in_shared_memory(outside: Path) -> None:
    before, found, seen = find_files(os.getpid()), set[str](), 0

    def look(event: Event) -> None:
        nonlocal seen
        if isinstance(event, RoundEvent):
            processes = kills.children(os.getpid())
            seen = max(seen, len(processes))
            for pid in (os.getpid(), *processes):
                found.update(find_files(pid) - before)

    data = toy.write_data(outside / "toy.npz")
    toy.run(data, outside / "run", executor=WORKERS, recorders=[look], **CHANGES)
    assert seen >= 3  # the fork server and two workers
    assert not found
