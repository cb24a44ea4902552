"""Drop-outs and deaths of workers: as a run that was told the survivors in advance."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "endurance"))

import survivors


@pytest.mark.parametrize("when", survivors.DROPS)
@pytest.mark.parametrize(("rate", "seed"), [(0.3, 0), (0.9, 1), (1.0, 0)])
def test_clients_that_drop_out_change_nothing_but_who_is_counted(
    rate: float, seed: int, when: str, toy_data: Path, tmp_path: Path
) -> None:
    assert survivors.drop(toy_data, tmp_path, rate, seed, when) == ""


@pytest.mark.slow
def test_workers_that_die_change_nothing_but_who_is_lost(toy_data: Path, tmp_path: Path) -> None:
    assert survivors.die(toy_data, tmp_path, 0.3, seed=1) == ""
