"""Random runs of the loop over canned replies, and a model that says what must have happened."""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, final

import torch
from canned import WEIGHT, Canned, build_scale, model, value
from test_loop import make_loop

import toy
from coterie.core.bundle import Bundle, ClientState, Payload, ServerState
from coterie.core.errors import RunFailed
from coterie.core.settings import Checkpoint, Cohort
from coterie.core.task import ClientInfo, Failure, Reply, Task
from coterie.engine.cohort import invite
from coterie.engine.loop import Plan, Standing
from coterie.engine.record import Event, Recorders, RoundEvent
from coterie.experiment.resume import repair
from coterie.kit import stock
from coterie.kit.context import ClientContext, ServerContext
from coterie.kit.method import Method
from coterie.kit.stages import Stage

SEED, DIVERGED_ROUNDS = 7, 3
REJECTED: dict[str, Any] = {
    "nan": torch.tensor([float("nan")]),
    "huge": torch.tensor([1e38]),
    "shape": torch.ones(2),
    "dtype": torch.ones(1, dtype=torch.float64),
}  # uploads that the screen must refuse
FAILURES = {"failed": "rejected", "diverged": "rejected", "lost": "lost", "late": "lost"}
ANSWERS = ("work", *REJECTED, *FAILURES)


@final
@dataclass(frozen=True)
class Scripted(Method):
    """Stages as words `rounds:cohort:quorum`; a round on the server alone adds one."""

    words: tuple[str, ...] = ("3:sample:1",)

    objectives = None
    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model
    nets = build_scale

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        raise AssertionError("replies are canned")

    def add_one(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        return model(value(server) + 1.0)

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        found = []
        for number, word in enumerate(self.words):
            length, cohort, quorum = word.split(":")
            alone: Any = self.add_one if cohort == "none" else None
            kind: Any = cohort
            stage = Stage(f"s{number}", int(length), kind, quorum=int(quorum), server=alone)
            found.append(stage)
        return tuple(found)


@dataclass(frozen=True)
class Run:
    """What a run is told to do, and what its clients and the world do to it."""

    words: tuple[str, ...]
    sizes: dict[int, int]
    cohort: Cohort
    every: int  # rounds between commits; 0: only after the last
    answers: dict[tuple[int, int], str] = field(default_factory=dict)  # round, client; else work
    kills: tuple[tuple[int, bool], ...] = ()  # a round, and whether what is finished is committed


class Line(NamedTuple):
    """What must be known of a round."""

    round: int
    lost: frozenset[str]
    rejected: frozenset[str]
    skipped: bool
    weight: float


def predict(run: Run) -> tuple[list[Line], int]:
    """Say what every round must have been, and how often the run gave up."""
    clients = [ClientInfo(client, str(client), size, 0) for client, size in run.sizes.items()]
    stages = [(s, stage) for stage in Scripted(run.words).stages(0) for s in range(stage.rounds)]
    weight, skips, diverged, lines, ends = torch.zeros(1), 0, 0, list[Line](), 0
    for index, (_, stage) in enumerate(stages):
        invited = invite(clients, stage, run.cohort, SEED, index)
        lost = {c for c, when in invited.lost.items() if when == "before"}
        answers = {c: run.answers.get((index, c), "work") for c in invited.clients if c not in lost}
        rejected = {c for c, a in answers.items() if FAILURES.get(a) == "rejected"}
        lost |= {c for c, a in answers.items() if FAILURES.get(a) == "lost"}
        lost |= {c for c in invited.lost if c not in rejected}  # the upload got lost, good or not
        rejected |= {c for c, a in answers.items() if a in REJECTED and c not in lost}
        good = [c for c in invited.clients if c not in lost | rejected]
        skipped = bool(invited.clients) and len(good) < max(stage.quorum, run.cohort.min_clients)
        if not invited.clients:
            weight = weight + 1.0
        elif not skipped:
            sums = sum((weight + float(c + 1)).double() * run.sizes[c] for c in good)
            weight = (sums / sum(run.sizes[c] for c in good)).float()
        names = [frozenset(map(str, some)) for some in (lost, rejected)]
        lines.append(Line(index, *names, skipped, weight.item()))
        skips = skips + 1 if skipped else 0
        diverged = diverged + 1 if not good and "diverged" in answers.values() else 0
        last = index + 1 == len(stages)
        if diverged >= DIVERGED_ROUNDS or (skips >= run.cohort.max_skipped and not last):
            skips, diverged, ends = 0, 0, ends + 1
    return lines, ends


class _Killer:
    """Stops the run when a round is recorded, each time once."""

    def __init__(self, kills: tuple[tuple[int, bool], ...]) -> None:
        self.left = dict(kills)

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundEvent) and event.round in self.left:
            raise KeyboardInterrupt if self.left.pop(event.round) else toy.Killed


def _read_newest(plan: Plan) -> Standing | None:
    """Read the newest checkpoint of a run, whoever wrote it."""
    loaded = plan.checkpoints().load_newest()
    return Standing(loaded[0], loaded[1], ()) if loaded else None


def play(run: Run, folder: Path) -> tuple[list[Line], int]:
    """Play a run to its end, resuming it as often as needed; what is in its files."""

    def answer(task: Task) -> Reply:
        said = run.answers.get((task.round.index, task.client), "work")
        if said in FAILURES:
            kind: Any = said
            return Reply(task.client, error=Failure(kind, "scripted"))
        up = model(value(task.down) + task.client + 1)
        if said in REJECTED:
            up = Bundle({"model": {WEIGHT: REJECTED[said]}})
        return Reply(task.client, up, run.sizes[task.client])

    killer, ends = _Killer(run.kills), 0
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, 100):
        loop = make_loop(
            folder,
            Canned(answer, run.sizes, {}),
            killer,
            cohort=run.cohort,
            checkpoint=Checkpoint(every=run.every),
            attempt=attempt,
            method=Scripted(run.words),
        )
        standing = repair(loop.plan, _read_newest(loop.plan), Recorders())
        try:
            standing = loop.run(standing or loop.start())
        except RunFailed:
            ends += 1
        except (KeyboardInterrupt, toy.Killed):
            continue
        else:
            break
    committed = loop.store.load_newest()
    assert committed is not None and committed[0].digest() == standing.server.digest()
    assert not list(folder.rglob("*.tmp"))
    lines = []
    for event in loop.metrics.read():
        names = frozenset(event.lost), frozenset(event.rejected)
        lines.append(Line(event.round, *names, event.skipped, _weight(event.digest, run)))
    assert value(standing.server) == lines[-1].weight
    return lines, ends


def _weight(digest: str, run: Run) -> float:
    """The weight whose state has a digest, of those that the model expects."""
    found = {line.weight: model(line.weight).digest() for line in predict(run)[0]}
    found[0.0] = model(0.0).digest()
    return next((weight for weight, known in found.items() if known == digest), float("nan"))


def draw(generator: random.Random) -> Run:
    """Draw a run."""
    sizes = {client: generator.randint(2, 50) for client in range(generator.randint(1, 5))}
    words = []
    for _ in range(generator.randint(1, 3)):
        cohort = generator.choice(("sample", "sample", "all", "none"))
        words.append(f"{generator.randint(1, 4)}:{cohort}:{generator.randint(1, 2)}")
    rounds = sum(int(word[0]) for word in words)
    share = generator.choice((0.0, 0.2, 0.6))
    answers = {
        (round, client): generator.choice(ANSWERS[1:])
        for round in range(rounds)
        for client in sizes
        if generator.random() < share
    }
    cohort = Cohort(
        fraction=generator.choice((0.3, 0.6, 1.0)),
        min_clients=generator.randint(1, 2),
        max_skipped=generator.randint(1, 4),
        drop_before=generator.choice((0.0, 0.3)),
        drop_after=generator.choice((0.0, 0.3)),
    )
    chosen = generator.sample(range(rounds), min(rounds, generator.randint(0, 3)))
    kills = tuple((round, generator.random() < 0.5) for round in chosen)
    return Run(tuple(words), sizes, cohort, generator.randint(0, 3), answers, kills)


def check(run: Run, folder: Path) -> str:
    """What differs between a run and what the model says of it."""
    (found, ends), (expected, gave_up) = play(run, folder), predict(run)
    if [line.round for line in found] != [line.round for line in expected]:
        return f"the rounds {[line.round for line in found]} of {run}"
    for one, other in zip(found, expected, strict=True):
        if one != other:
            return f"{one}, not {other}, of {run}"
    return "" if ends == gave_up else f"gave up {ends} times, not {gave_up}, of {run}"
