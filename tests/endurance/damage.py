"""Damage one file of a run directory, resume the run, compare the bits.

    python tests/endurance/damage.py --trials 2400

Every trial takes a copy of a run that was stopped or is finished, and changes one file of it: a bit
is flipped, the file is cut, emptied or deleted, or it gets the content of another file. Of twelve
trials five flip and five cut; the number of a trial says what is done to which run. Files are taken
in turn, so that all of them are hit. The resumed run must have the rounds and models of the run
that was left alone, go back one checkpoint at most, and leave no damage, without a word, in what a
later start would rely on. Only if the damage is outside of what checkpoints consist of, or hits two
of them at once, may it be refused instead, with one line and no file changed.

It counts as noticed if the run says something, or the file is whole again or gone; as not read if
it stayed in what only an older checkpoint relies on, or a second copy was not made again.
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
from coterie.engine.checkpoints import CheckpointStore  # noqa: E402
from coterie.engine.copies import SUFFIX  # noqa: E402

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
class Resumed:
    """What a resumed run left and said, and its first round; the number of all if it had none."""

    files: Mapping[str, bytes]
    notes: frozenset[str]
    first: int
    relied: tuple[str, ...]  # the files that it relies on from here on


@dataclass(frozen=True)
class Subject:
    """A run to be damaged, and what it must lead to."""

    name: str
    folder: Path
    expected: tuple[Any, ...]
    resumed: "Resumed | None" = None  # undamaged

    def files(self) -> list[Path]:
        """List its files that are not empty, relative to its folder."""
        found = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return [path.relative_to(self.folder) for path in found if path.stat().st_size]

    def others(self, file: Path) -> list[Path]:
        """List the files with another content than a file's."""
        content = (self.folder / file).read_bytes()
        return [path for path in self.files() if (self.folder / path).read_bytes() != content]


def flip(path: Path, other: Path, chance: random.Random) -> None:
    """Flip a bit."""
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def cut(path: Path, other: Path, chance: random.Random) -> None:
    """Cut a file at a random place."""
    path.write_bytes(path.read_bytes()[: chance.randrange(path.stat().st_size)])


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


Damage = Callable[[Path, Path, random.Random], None]
REST: Sequence[Damage] = (delete, overwrite, empty)
# what twelve trials do, the last of them one of the rest in turn
ORDER: Sequence[Damage | None] = (flip, cut, flip, cut, flip, swap, cut, flip, cut, flip, cut, None)
# folders of which every file has a copy, or belongs to a checkpoint with another one before it
COVERED = ("checkpoints", "clients", "blobs")
GOOD = ("noticed", "not read", "refused")  # how a trial may end


@dataclass(frozen=True)
class Plan:
    """What one trial does: damage a file of a run, some kinds with the help of another file."""

    subject: Subject
    damage: Damage
    file: Path
    other: Path
    chance: random.Random

    def describe(self) -> str:
        """Say it in a line."""
        beside = f" with {self.other}" if self.damage in (swap, overwrite) else ""
        return f"{self.subject.name}: {self.damage.__name__} {self.file}{beside}"

    def hit(self) -> tuple[Path, ...]:
        """List the files that it changes."""
        return (self.file, self.other) if self.damage is swap else (self.file,)

    def allowed(self) -> tuple[str, ...]:
        """How a resumed run may end."""
        hit = self.hit()
        covered = all(path.parts[0] in COVERED for path in hit)
        # a swap between two checkpoints may leave no checkpoint whole
        together = len({_find_owner(path) for path in hit}) == 1
        return ("equal",) if covered and together else ("equal", "refused")


def _find_owner(file: Path) -> Path:
    """The checkpoint that a file belongs to; the file itself if several may rely on it."""
    return file.parent if file.parent.name.startswith("round_") else file


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
        for state in ("stopped", "finished"):
            undamaged = folder / name / f"{state}-resumed"
            shutil.copytree(folder / name / state, undamaged)
            resumed = resume(undamaged, len(expected[0]))
            committed = len(expected[0]) - (state == "stopped")  # its last round was not
            assert resumed.first == committed, f"{name}, {state} began at {resumed.first + 1}"
            subjects.append(Subject(f"{name}, {state}", folder / name / state, expected, resumed))
    return subjects


def make_plan(subjects: Sequence[Subject], number: int) -> Plan:
    """Choose run, damage and file of a trial by its number; a kind takes a run's files in turn."""
    block, position = divmod(number, len(ORDER))
    subject, turn = subjects[(block + position) % len(subjects)], block // len(subjects)
    damage = ORDER[position] or REST[block % len(REST)]
    if ORDER[position]:  # so many of its kind are in each block, and this is one of them
        turn = turn * ORDER.count(damage) + ORDER[:position].count(damage)
    files = subject.files()
    random.Random(f"{subject.name}, {damage.__name__}").shuffle(files)
    file, chance = files[turn % len(files)], random.Random(number)
    return Plan(subject, damage, file, chance.choice(subject.others(file)), chance)


def resume(folder: Path, total: int) -> Resumed:
    """Resume a run of so many rounds, and see what it does."""
    starts = toy.Starts()
    coterie.run(out=folder, resume=True, progress=False, recorders=[starts])
    notes = frozenset(note.replace(str(folder), "") for note in starts.notes)
    first, relied = min(starts.rounds, default=total), tuple(list_relied(folder))
    return Resumed(resuming.files(folder), notes, first, relied)


def try_one(folder: Path, plan: Plan) -> str:
    """Damage a copy of a run and resume it: one of `GOOD`, or what went wrong."""
    shutil.copytree(plan.subject.folder, folder)
    plan.damage(folder / plan.file, folder / plan.other, plan.chance)
    before = resuming.files(folder)
    try:
        resumed = resume(folder, len(plan.subject.expected[0]))
    except CoterieError as error:
        if "\n" in str(error):
            return f"REFUSED IN MORE THAN ONE LINE: {error}"
        if resuming.files(folder) != before:
            return f"REFUSED AND CHANGED: {error}"
        return "refused" if "refused" in plan.allowed() else f"REFUSED: {error}"
    except Exception as error:
        return f"FAILED: {type(error).__name__}: {error}"
    try:
        equal = resuming.results(folder) == plan.subject.expected
    except Exception as error:
        return f"UNREADABLE RESULT: {type(error).__name__}: {error}"
    return judge(plan, before, resumed) if equal else "ANOTHER RESULT"


def judge(plan: Plan, before: Mapping[str, bytes], resumed: Resumed) -> str:
    """Judge a run that ended with the right result: what it began with, and what it saw."""
    undamaged = plan.subject.resumed
    assert undamaged is not None
    if resumed.first < undamaged.first - 1:  # a checkpoint is of each round
        return f"BEGAN AT ROUND {resumed.first + 1} INSTEAD OF {undamaged.first + 1}"
    if resumed.notes - undamaged.notes:
        return "noticed"
    hit = [str(file) for file in plan.hit()]
    left = [n for n in hit if undamaged.files.get(n) != before.get(n) == resumed.files.get(n)]
    # a second copy that is gone is not made again while the first one is whole
    lost = [name for name in left if name not in before and name.endswith(SUFFIX)]
    if relied := [n for n in left if n.startswith(resumed.relied) and n not in lost]:
        return f"UNNOTICED: {relied}"
    return "not read" if left else "noticed"


def list_relied(folder: Path) -> Iterator[str]:
    """Name the files that resuming or using a run needs, or how their names begin.

    Not among them are what only checkpoints before the newest rely on, and `baseline.json`, which
    is read before the first round alone.
    """
    newest = CheckpointStore(folder).load_newest()
    assert newest is not None and not newest[2], "the newest checkpoint does not load"
    server, position, _ = newest
    yield from ("metrics.jsonl", "config.toml", "partition.json", "report.html")
    yield from ("model.json", "model.safetensors", "best.safetensors", "personal/")
    yield f"checkpoints/round_{position.round:06d}/"
    if position.best is not None:
        yield f"checkpoints/best/round_{position.best.round:06d}."
    yield from (f"blobs/{blob.sha256}" for blob in server.blobs.values())
    yield from (f"clients/{client}/{at:06d}." for client, (at, _) in position.states.items())


def run_trials(
    folder: Path, names: Sequence[str], trials: int, first: int = 0
) -> Iterator[tuple[Plan, str]]:
    """Run the trials from a number on; yield what was done in each, and how it ended."""
    subjects = make_subjects(folder, names)
    for number in range(first, first + trials):
        plan = make_plan(subjects, number)
        ended = try_one(folder / f"trial-{number}", plan)
        shutil.rmtree(folder / f"trial-{number}")
        yield plan, ended


def main() -> None:
    """Run the trials and print how many were noticed or equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="the number of the first trial")
    options = parser.parse_args()
    counts, done = Counter[str](), Counter[str]()
    with TemporaryDirectory() as name:
        trials = run_trials(Path(name), list(METHODS), options.trials, options.seed)
        for number, (plan, ended) in enumerate(trials, start=options.seed):
            passed = ended in GOOD
            counts[ended if passed else "wrong"] += 1
            done[plan.damage.__name__] += 1
            if not passed:
                print(f"trial {number}: {plan.describe()}: {ended}", flush=True)
            elif number % 20 == 19:
                print(f"trial {number}: {dict(counts)}", flush=True)
    good = sum(counts[ended] for ended in GOOD)
    print(", ".join(f"{name}: {count}" for name, count in sorted(done.items())))
    print(", ".join(f"{ended}: {counts[ended]}" for ended in (*GOOD, "wrong")))
    print(f"{good} of {options.trials} noticed or equal")
    sys.exit(good != options.trials)


if __name__ == "__main__":
    main()
