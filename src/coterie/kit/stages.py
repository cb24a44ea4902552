"""Stages: the stretches of a run, each with its own functions.

A stage says who takes part in its rounds and, where it differs from the method's own slots, what
is broadcast, what clients do, what the server does and which groups are sent. Only the name of a
stage travels to a client: a worker that rebuilt the method finds the same functions by it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.bundle import ClientState, Payload, ServerState
from coterie.core.errors import ConfigError
from coterie.core.task import ClientId, Reply, Round
from coterie.kit.rules import Arrays, Rules, check_arrays, check_rules

if TYPE_CHECKING:
    from coterie.kit.context import ClientContext, ServerContext
    from coterie.kit.method import Method

State = ClientState | None  # what a client remembers; None before its first round
Answer = tuple[Payload, State]  # what a client sends, and what it remembers
Replies = Iterator[Reply]  # what clients sent, one after another and only once
Broadcast = Callable[[ServerState, Round], Payload]
Address = Callable[[ServerState, Round, ClientId], Payload | None]
ClientPart = Callable[["ClientContext", Payload, State], Answer]
ServerPart = Callable[["ServerContext", ServerState, Replies], ServerState]


@dataclass(frozen=True)
class Stage:
    """Rounds of one kind; a function that is None is the method's slot of that purpose."""

    name: str
    rounds: int
    cohort: Literal["sample", "all", "none"] = "sample"  # "none": a round on the server alone
    drop: float = 0.0  # this share of the cohort, rounded down, is lost before the round starts
    quorum: int = 1  # fewer valid replies than this: the round is skipped
    steady: bool = False  # `drop` takes the same clients in all rounds of stages of this name
    required: bool = False  # a round that would be skipped ends the run, which cannot do without
    broadcast: Broadcast | None = None
    address: Address | None = None
    client: ClientPart | None = None
    server: ServerPart | None = None
    uploads: Rules | None = None  # the groups that clients send; {}: none
    arrays: Arrays = field(default_factory=dict)  # the blobs that clients send

    def __post_init__(self) -> None:
        if self.uploads is not None:
            check_rules(self.uploads, f"the stage {self.name!r}")
        check_arrays(self.arrays, f"the stage {self.name!r}")


_SLOTS = {
    "broadcast": "broadcast",
    "address": "address",
    "client": "client_update",
    "server": "server_update",
}


def resolve(method: "Method", rounds: int) -> tuple[Stage, ...]:
    """The stages of a run in order, every function filled in; `ConfigError` if one is missing."""
    kind = type(method).__name__
    stages = tuple(_fill(stage, method) for stage in method.stages(rounds))
    if not stages:
        raise ConfigError(f"{kind} has no stage for run.rounds = {rounds}")
    first: dict[str, Stage] = {}
    for stage in stages:
        known = first.setdefault(stage.name, stage)
        if _functions(stage) != _functions(known):
            raise ConfigError(
                f"{kind} has two stages {stage.name!r} with other functions or uploads: give one "
                "of them another name"
            )
    return stages


def _fill(stage: Stage, method: "Method") -> Stage:
    """A stage with the method's slots where it has no function of its own."""
    kind = type(method).__name__
    if stage.rounds < 1:
        raise ConfigError(f"the stage {stage.name!r} of {kind} has {stage.rounds} rounds")
    changes: dict[str, Any] = {}
    for purpose, slot in _SLOTS.items():
        if getattr(stage, purpose) is not None:
            continue
        if method.has(slot):
            changes[purpose] = getattr(method, slot)
        elif purpose == "server" or stage.cohort != "none":
            raise ConfigError(
                f"the stage {stage.name!r} of {kind} has no function for {purpose!r}, and {kind} "
                f"has no {slot}"
            )
    if stage.uploads is None:
        changes["uploads"] = method.reduce
    return replace(stage, **changes)


def _functions(stage: Stage) -> list[Any]:
    return [getattr(stage, name) for name in (*_SLOTS, "uploads", "arrays")]


def plan_rounds(
    stages: Sequence[Stage], clients: int, seed: int
) -> tuple[tuple[Stage, Round], ...]:
    """Every round of a run with its stage; `step` of `steps` counts all rounds of that name."""
    order = [stage for stage in stages for _ in range(stage.rounds)]
    steps, done = Counter(stage.name for stage in order), Counter[str]()
    planned: list[tuple[Stage, Round]] = []
    for index, stage in enumerate(order):
        name = stage.name
        place = Round(index, len(order), name, done[name], steps[name], clients, seed)
        planned.append((stage, place))
        done[name] += 1
    return tuple(planned)


def split(rounds: int, fraction: float) -> tuple[int, int]:
    """The rounds of two stages, of which the first gets a fraction; both have one, if two fit."""
    first = min(max(1, round(fraction * rounds)), max(1, rounds - 1))
    return first, rounds - first


def trim(*stages: Stage | None) -> tuple[Stage, ...]:
    """The stages without None and without those of no rounds."""
    return tuple(stage for stage in stages if stage is not None and stage.rounds > 0)
