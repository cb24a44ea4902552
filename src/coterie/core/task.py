"""The seam: `Task -> Reply`, and the words for where in a run a task stands."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from coterie.core import seeds
from coterie.core.bundle import Bundle, Payload

ClientId = int
METHOD = "method"  # the program that every task runs unless it belongs to a federated evaluator


@dataclass(frozen=True, slots=True)
class Round:
    """A position in the run; schedules use `step` of `steps`, which count within the stage."""

    index: int
    total: int
    stage: str
    step: int
    steps: int
    clients: int  # of the whole federation, not of the cohort
    seed: int

    @property
    def last(self) -> bool:
        """Whether it is the last one of the run."""
        return self.index + 1 == self.total

    def generator(self, purpose: str, client: ClientId | None = None) -> np.random.Generator:
        """The generator of this round (and client) for one purpose."""
        who = seeds.NOBODY if client is None else client
        return seeds.generator(self.seed, purpose, self.index, who)

    def torch_seed(self, client: ClientId | None = None) -> int:
        """What the global generators are seeded with while a task, or the server, runs."""
        position = 0 if client is None else client + 1
        return seeds.torch_seed(self.seed, "task", self.index * (self.clients + 1) + position)


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which start of the run this is, its first round, and the rounds it could be set back to.

    A site drops client states that an earlier attempt wrote at or after `first`: they belong to
    rounds that were never committed. It keeps what a return to one of `kept` would need.
    """

    number: int = 1
    first: int = 0
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """What one client is asked to do. `down` is the same for the whole cohort, `own` is not."""

    op: Literal["update", "evaluate", "personal"]
    client: ClientId
    round: Round
    down: Payload
    own: Payload | None = None
    program: str = METHOD
    attempt: Attempt = field(default_factory=Attempt)


@dataclass(frozen=True, slots=True)
class Failure:
    """Why there is no usable answer.

    `diverged` and `failed` come from the client's own work, `skipped` from a shard too small to
    train on, `lost` from a worker or connection that died, `late` from a deadline; `disk` ends the
    run, because a client's state could not be read or saved.
    """

    kind: Literal["diverged", "failed", "skipped", "lost", "late", "disk"]
    reason: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class Reply:
    """What one client answered."""

    client: ClientId
    up: Payload = field(default_factory=Bundle)
    examples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None
    seconds: float = 0.0
    state: str = ""  # digest of the client state that was saved, if one was


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """What an executor knows of a client before any task: enough to plan a round."""

    id: ClientId
    name: str
    examples: int
    tests: int = 0  # how many test samples it holds; without any it is not evaluated


class Executor(Protocol):
    """Where tasks run. It never knows which method it carries."""

    def clients(self) -> Sequence[ClientInfo]:
        """Everyone who can be asked."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """Answer every task, in the order of the tasks; a failure is a reply with `error`."""

    def close(self) -> None:
        """End everything that was started; safe to call twice."""
