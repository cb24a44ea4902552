"""A disk that fails while a killed run reads its files again; `make endurance` tries every read."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "endurance"))

import reads


@pytest.mark.slow
@pytest.mark.parametrize("method", reads.METHODS)
def test_a_read_that_fails_loses_nothing(method: str, toy_data: Path, tmp_path: Path) -> None:
    """Checkpoints, states, metrics, best weights, configuration and data cache, one at a time."""
    killed = reads.Killed(toy_data, tmp_path, method)
    count = killed.count(tmp_path / "counted")
    assert count > 60
    for victim in range(1, count, 3):
        said = killed.fail(tmp_path / str(victim), victim)
        assert said in ("", reads.disk.ENDED), f"read {victim}: {said}"
