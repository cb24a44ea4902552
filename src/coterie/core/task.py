"""The interface between learning and execution: a `Task` goes out, a `Reply` comes back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np

from coterie.core import seeds
from coterie.core.bundle import Bundle, Payload
from coterie.core.schema import Schema

ClientId = int
Operation = Literal["update", "evaluate", "personal"]
Problem = Literal["diverged", "failed", "skipped", "lost", "late", "disk", "refused"]
MOST_METRICS, LONGEST_NAME = 10_000, 200  # of a reply: metrics, and characters of their names
METHOD = "method"  # the program of all tasks but those of federated evaluators


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
        """Whether this is the last round of the run."""
        return self.index + 1 == self.total

    def generator(self, purpose: str, client: ClientId | None = None) -> np.random.Generator:
        """Return the random generator of this round (and client) for one purpose."""
        owner = seeds.NOBODY if client is None else client
        return seeds.generator(self.seed, purpose, self.index, owner)

    def torch_seed(self, client: ClientId | None = None) -> int:
        """Return the seed of the global generators during a client's task, or the server's."""
        position = 0 if client is None else client + 1
        return seeds.torch_seed(self.seed, "task", self.index * (self.clients + 1) + position)


@dataclass(frozen=True, slots=True)
class Attempt:
    """One start of the run: its number, its first round, and the rounds with a kept checkpoint.

    A site drops client states that an earlier attempt wrote at or after `first`: they belong to
    rounds that were never committed. It keeps the states that resuming at one of `kept` needs.
    """

    number: int = 1
    first: int = 0
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Task:
    """A request to one client; `down` is the broadcast to the cohort, `own` is for it alone."""

    op: Operation
    client: ClientId
    round: Round
    down: Payload
    own: Payload | None = None
    program: str = METHOD
    attempt: Attempt = field(default_factory=Attempt)
    expected: Schema | None = None
    """What the upload must look like; an executor compares before it decodes. It is not sent."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a reply has no usable result.

    `diverged` and `failed` come from the client's own computation, `skipped` from a shard too small
    to train on, `lost` from a worker or connection that died, `late` from a deadline. `disk` ends
    the run, because a client's state could not be read or saved. `refused` is an upload that does
    not look as expected and was not decoded; only an executor says so, never a client.
    """

    kind: Problem
    reason: str
    trace: str = ""
    nbytes: int = 0  # of an upload that was refused


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of one client to a task."""

    client: ClientId
    up: Payload = field(default_factory=Bundle)
    examples: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: Failure | None = None
    seconds: float = 0.0
    state: str = ""  # digest of the client state that was saved, if one was


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """What is known about a client before any task: enough to plan a round."""

    id: ClientId
    name: str
    examples: int
    tests: int = 0  # number of test samples; a client without any is not evaluated


class Executor(Protocol):
    """Runs tasks, without knowing which method they belong to."""

    def clients(self) -> Sequence[ClientInfo]:
        """List the clients that tasks can be sent to."""

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        """Yield one reply per task, in the tasks' order; failures are replies with `error`."""

    def close(self) -> None:
        """Stop everything that was started; safe to call twice."""
