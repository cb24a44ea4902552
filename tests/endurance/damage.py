"""Damage one file of a run directory, resume the run, compare the bits.

    python tests/endurance/damage.py --trials 2000

Every trial takes a copy of a run that was stopped or is finished, and changes one file of it: a bit
is flipped, the file is cut, emptied or deleted, or it gets the content of another file. Files are
taken in turn, so that all of them are hit. A trial is passed if the resumed run has the rounds and
models of the run that was left alone, or if it is refused with one line and no file has changed.
"""

import argparse
import random
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[0:0] = [str(TESTS), str(TESTS / "conformance")]

from cases import CASES  # noqa: E402

import coterie  # noqa: E402
import resuming  # noqa: E402
import toy  # noqa: E402
from coterie.core.errors import CoterieError  # noqa: E402

COMMITS = {"checkpoint": {"every": 1, "keep": 2}}
# SCAFFOLD and MOON with clients that take no part in some rounds, and big arrays of the server
METHODS: Mapping[str, dict[str, Any]] = {
    "scaffold": {"method": {"name": "scaffold"}, "cohort": {"fraction": 0.5}},
    "moon": {"method": {"name": "moon", "buffer": 2}, "cohort": {"fraction": 0.5}},
    "personal": {"method": {"name": "toy_methods:TwoModels"}},
    "arrays": {"method": {"name": "toy_methods:Staged"}, "run": {"rounds": 2, "seed": 5}},
    "mfcl": next(case.changes for case in CASES if case.name == "mfcl"),
}
QUICK = ("scaffold", "arrays")


@dataclass(frozen=True)
class Subject:
    """A run to be damaged, and what it must lead to."""

    name: str
    folder: Path
    expected: tuple[Any, ...]

    def files(self) -> list[Path]:
        """List its files, relative to its folder."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [path.relative_to(self.folder) for path in found]


def flip(path: Path, other: Path, chance: random.Random) -> None:
    """Flip a bit."""
    data = bytearray(path.read_bytes())
    if data:
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut(path: Path, other: Path, chance: random.Random) -> None:
    """Cut a file at a random place."""
    path.write_bytes(path.read_bytes()[: chance.randrange(max(1, path.stat().st_size))])


def swap(path: Path, other: Path, chance: random.Random) -> None:
    """Swap the contents of two files."""
    mine = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(mine)


def overwrite(path: Path, other: Path, chance: random.Random) -> None:
    """Put a copy of another file in its place."""
    path.write_bytes(other.read_bytes())


def empty(path: Path, other: Path, chance: random.Random) -> None:
    """Leave nothing in it."""
    path.write_bytes(b"")


def delete(path: Path, other: Path, chance: random.Random) -> None:
    """Remove it."""
    path.unlink()


DAMAGE: Sequence[Callable[[Path, Path, random.Random], None]] = (
    *(flip, cut, flip, swap, flip, delete, flip, overwrite, flip, empty),
)


def make_subjects(folder: Path, names: Sequence[str]) -> list[Subject]:
    """Make for each method a run that was stopped in its last round, and a finished one."""
    data, subjects = toy.write_data(folder / "toy.npz"), list[Subject]()
    for name in names:
        tables = toy.tables(data)
        for table, change in {**METHODS[name], **COMMITS}.items():
            tables[table] = {**tables.get(table, {}), **change}
        coterie.run(tables, out=folder / name / "finished", progress=False)
        stop = toy.StopAfter(len(toy.trace(folder / name / "finished")) - 1, toy.Killed)
        with suppress(toy.Killed):
            coterie.run(tables, out=folder / name / "stopped", progress=False, recorders=[stop])
        expected = resuming.results(folder / name / "finished")
        subjects += [
            Subject(f"{name}, {state}", folder / name / state, expected)
            for state in ("stopped", "finished")
        ]
    return subjects


def damaged(subjects: Sequence[Subject], trials: int, seed: int) -> Iterator[tuple[Any, ...]]:
    """Choose a subject, a file and a damage for each trial."""
    chance = random.Random(seed)
    pending: dict[str, list[Path]] = {}  # files of a subject that were not hit yet
    for number in range(trials):
        subject = subjects[number % len(subjects)]
        if not pending.get(subject.name):
            pending[subject.name] = chance.sample(subject.files(), len(subject.files()))
        file = pending[subject.name].pop()
        yield subject, file, chance.choice(DAMAGE), chance.choice(subject.files()), chance


def try_one(
    folder: Path,
    subject: Subject,
    file: Path,
    damage: Callable[[Path, Path, random.Random], None],
    other: Path,
    chance: random.Random,
) -> str:
    """Damage a copy of a run and resume it: `equal`, `refused`, or what went wrong."""
    shutil.copytree(subject.folder, folder)
    damage(folder / file, folder / other, chance)
    before = resuming.files(folder)
    try:
        coterie.run(out=folder, resume=True, progress=False)
    except CoterieError as error:
        if "\n" in str(error):
            return f"REFUSED IN MORE THAN ONE LINE: {error}"
        return "refused" if resuming.files(folder) == before else f"REFUSED AND CHANGED: {error}"
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {error}"
    try:
        return "equal" if resuming.results(folder) == subject.expected else "ANOTHER RESULT"
    except Exception as error:
        return f"UNREADABLE RESULT: {type(error).__name__}: {error}"


def run_trials(
    folder: Path, names: Sequence[str], trials: int, seed: int = 0
) -> Iterator[tuple[str, str]]:
    """Run the trials; yield what was done in each, and how it ended."""
    subjects = make_subjects(folder, names)
    for number, chosen in enumerate(damaged(subjects, trials, seed)):
        subject, file, damage, other, _ = chosen
        ended = try_one(folder / f"trial-{number}", *chosen)
        shutil.rmtree(folder / f"trial-{number}")
        beside = f" with {other}" if damage in (swap, overwrite) else ""
        yield f"{subject.name}: {damage.__name__} {file}{beside}", ended


def main() -> None:
    """Run the trials and print how many were noticed or equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    counts = Counter[str]()
    with TemporaryDirectory() as name:
        trials = run_trials(Path(name), list(METHODS), options.trials, options.seed)
        for number, (what, ended) in enumerate(trials, start=1):
            passed = ended in ("equal", "refused")
            counts[ended if passed else "wrong"] += 1
            if not passed:
                print(f"trial {number}: {what}: {ended}")
            elif number % 20 == 0:
                print(f"trial {number}: {dict(counts)}", flush=True)
    good = counts["equal"] + counts["refused"]
    print(f"{good} of {options.trials} noticed or equal")
    sys.exit(good != options.trials)


if __name__ == "__main__":
    main()
