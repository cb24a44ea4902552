"""A damaged file of a run directory never leads to another result; `make endurance` tries more."""

import random
import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "endurance"))

import damage

TRIALS = 40


def test_a_damaged_file_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    wrong = [
        f"{plan.describe()}: {ended}"
        for plan, ended in damage.run_trials(tmp_path, damage.QUICK, TRIALS)
        if ended not in damage.GOOD
    ]
    assert not wrong


def test_the_trials_have_their_quotas_and_hit_every_file_with_each_kind(tmp_path: Path) -> None:
    subjects = []
    for name in "abcdefghij":
        (tmp_path / name / "checkpoints" / "round_000001").mkdir(parents=True)
        for number in range(40):
            (tmp_path / name / "checkpoints" / "round_000001" / str(number)).write_text(str(number))
        (tmp_path / name / "empty").touch()  # nothing of it can be flipped or cut
        subjects.append(damage.Subject(name, tmp_path / name, ()))
    plans = [damage.make_plan(subjects, number) for number in range(2400)]
    kinds = Counter(plan.damage.__name__ for plan in plans)
    assert (kinds["flip"], kinds["cut"], kinds["swap"]) == (1000, 1000, 200)
    assert min(kinds["delete"], kinds["overwrite"], kinds["empty"]) >= 66
    for kind in (damage.flip, damage.cut):
        assert len({(p.subject.name, p.file) for p in plans if p.damage is kind}) == 10 * 40


def test_only_damage_outside_of_a_single_checkpoint_may_be_refused() -> None:
    def allowed(kind: damage.Damage, file: str, other: str = "config.toml") -> tuple[str, ...]:
        subject = damage.Subject("", Path(), ())
        return damage.Plan(subject, kind, Path(file), Path(other), random.Random()).allowed()

    first, second = "checkpoints/round_000001", "checkpoints/round_000002"
    only, both = ("equal",), ("equal", "refused")
    assert allowed(damage.cut, f"{second}/state.json") == only
    assert allowed(damage.flip, "blobs/abc.copy") == allowed(damage.delete, "clients/0/1.x") == only
    assert allowed(damage.swap, f"{second}/state.json", f"{second}/manifest.json") == only
    assert allowed(damage.swap, f"{second}/state.json", f"{first}/state.json") == both
    assert allowed(damage.overwrite, f"{second}/state.json") == only
    assert allowed(damage.swap, f"{second}/state.json") == both
    assert allowed(damage.flip, "config.toml") == both
