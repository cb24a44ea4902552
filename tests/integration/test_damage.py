"""A damaged file of a run directory never leads to another result; `make endurance` tries more."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "endurance"))

import damage

TRIALS = 40


def test_a_damaged_file_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    wrong = [
        f"{what}: {ended}"
        for what, ended in damage.run_trials(tmp_path, damage.QUICK, TRIALS, seed=1)
        if ended not in ("equal", "refused")
    ]
    assert not wrong
