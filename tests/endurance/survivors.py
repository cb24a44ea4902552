"""Clients that drop out and workers that die: the same as a run told the survivors in advance."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import warm
from bench import Trial

import toy
from coterie.core.errors import RunFailed
from coterie.engine import loop
from coterie.engine.cohort import Invited
from rude_methods import Mortal

RATES = (0.0, 0.1, 0.3, 0.5, 0.9, 1.0)
ROUNDS = 8
TRIES = 3  # of a task: one, and twice again
# When clients drop out, with a method. A client whose upload is lost has trained: its state is not
# that of a client that was never asked, so that only a method without states can be compared.
DROPS = {"drop_before": "toy_methods:TwoModels", "drop_after": "fedavg"}
COMPARED = ("digest", "states", "metrics", "skipped")
Lost = Mapping[int, Sequence[int]]  # clients by round


@contextmanager
def told(lost: Lost) -> Iterator[None]:
    """Let the loop invite only those who will answer."""
    draw = loop.invite

    def invite(*arguments: Any) -> Invited:
        clients = draw(*arguments).clients
        return Invited(tuple(c for c in clients if c not in lost.get(arguments[-1], ())))

    loop.invite = invite
    try:
        yield
    finally:
        loop.invite = draw


def run_to_the_end(data: Path, out: Path, **changes: Any) -> list[int]:
    """Run, and resume what gave up; the rounds after which it did, and nothing else."""
    ends: list[int] = []
    for attempt in range(ROUNDS):
        try:
            toy.run(data, out, resume=attempt > 0, **changes)
            return ends
        except RunFailed as error:
            assert error.exit_code == 4 and "rounds in a row were skipped" in str(error), error
            ends.append(len(toy.trace(out)))
    raise AssertionError("it never ends")


def compare(found: Path, expected: Path) -> str:
    """What differs between the rounds of two runs, apart from who was invited."""
    for one, other in zip(toy.trace(found), toy.trace(expected), strict=True):
        for key in COMPARED:
            if one[key] != other[key]:
                return f"round {one['round']}: another {key}: {one[key]}, not {other[key]}"
    models = (
        {k: v for k, v in toy.outputs(f).items() if k != "model.json"} for f in (found, expected)
    )
    return "" if next(models) == next(models) else "other models"


def drop(data: Path, folder: Path, rate: float, seed: int, when: str = "drop_before") -> str:
    """A run whose clients drop out at a rate, beside one that is told who will not."""
    least = 1 + seed % 2
    cohort = {"min_clients": least, "max_skipped": 3}
    changes: dict[str, Any] = {
        "run": {"rounds": ROUNDS, "seed": seed},
        "method": {"name": DROPS[when]},
    }
    dropped, lucky = folder / "dropped", folder / "told"
    ends = run_to_the_end(data, dropped, cohort={**cohort, when: rate}, **changes)
    lines = toy.trace(dropped)
    lost = {line["round"]: [int(client) for client in line["lost"]] for line in lines}
    with told(lost):
        expected = run_to_the_end(data, lucky, cohort=cohort, **changes)
    if ends != expected:
        return f"gave up after rounds {ends}, not {expected}"
    initial = toy.prepared(data, folder / "prepared", **changes).parts.start().digest()
    digests = [initial, *(line["digest"] for line in lines)]
    for line, before in zip(lines, digests, strict=False):
        answered = len(line["cohort"]) - len(line["lost"])
        if line["skipped"] != (answered < least):
            return f"round {line['round']} with {answered} answers: skipped is {line['skipped']}"
        if line["skipped"] and line["digest"] != before:
            return f"round {line['round']} was skipped, and the weights are others"
    return compare(dropped, lucky)


def die(data: Path, folder: Path, share: float, seed: int) -> str:
    """A run whose workers are killed in a share of tasks, beside one told who will be lost."""
    (folder / "tries").mkdir(parents=True)
    method = {"name": "rude_methods:Mortal", "seed": seed, "folder": str(folder / "tries")}
    shared: dict[str, Any] = {"run": {"rounds": 4, "seed": 3}}
    workers = {"kind": "processes", "workers": 2}
    toy.run(data, folder / "dying", executor=workers, method={**method, "share": share}, **shared)
    plan = Mortal(share, seed)
    rounds = [(line["round"], line["cohort"]) for line in toy.trace(folder / "dying")]
    lost = {n: [c for c in cohort if plan.deaths(n, c) >= TRIES] for n, cohort in rounds}
    for line in toy.trace(folder / "dying"):
        if sorted(map(int, line["lost"])) != sorted(lost[line["round"]]):
            return f"round {line['round']}: lost are {line['lost']}, not {lost[line['round']]}"
    with told(lost):
        toy.run(data, folder / "told", method=method, **shared)
    return compare(folder / "dying", folder / "told")


def _each(folder: Path, work: Any) -> Iterator[Trial]:
    data = toy.write_data(folder / "toy.npz")

    def trial(number: int) -> str:
        place = folder / str(number)
        place.mkdir()
        said = warm.judge(lambda: work(data, place, number), folder)
        shutil.rmtree(place)
        return said

    warm.judge(lambda: work(data, folder / "first", 0), folder)
    warm.import_all(folder / "judged.log")
    yield trial


@contextmanager
def dropouts(folder: Path) -> Iterator[Trial]:
    """Trials by rate, then by seed; of four seeds two lose clients before they are asked."""

    def trial(data: Path, place: Path, number: int) -> str:
        seed, rate = divmod(number, len(RATES))
        return drop(data, place, RATES[rate], seed, list(DROPS)[seed // 2 % 2])

    yield from _each(folder, trial)


@contextmanager
def deaths(folder: Path) -> Iterator[Trial]:
    """Trials by seed."""
    yield from _each(folder, lambda data, place, n: die(data, place, 0.3, n))
