"""The environment that a checkpoint records, and memory that is kept or returned."""

import ctypes
import os
from pathlib import Path

import pytest

from coterie.core import exact


def test_a_limit_on_the_instructions_of_torch_is_another_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(exact.INSTRUCTIONS, raising=False)
    unlimited = exact.environment("cpu")
    monkeypatch.setenv(exact.INSTRUCTIONS, "AVX512_CORE_BF16")
    limited = exact.environment("cpu")
    assert unlimited | {"onednn": "AVX512_CORE_BF16"} == limited != unlimited


def test_freed_memory_is_returned() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    pieces = [bytes(8_000) for _ in range(20_000)]
    held, last = resident(), pieces[-1]
    pieces.clear()  # what is left of them is a gap below the last one
    exact.return_freed_memory()
    assert len(last) == 8_000 and held - resident() > 100_000_000


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    exact.keep_freed_memory()
    exact.return_freed_memory()
