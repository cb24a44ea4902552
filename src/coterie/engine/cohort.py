"""Which clients take part in a round and which drop out, as functions of seed and round."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from coterie.core import seeds
from coterie.core.settings import Cohort
from coterie.core.task import ClientId, ClientInfo, Task
from coterie.data.partition import Partition
from coterie.kit.stages import Stage

FEW_CLIENTS = 100  # with more, values of each client are recorded in the last round only
_FEW_ENTRIES = 100_000  # of all clients' confusion matrices together
When = Literal["before", "after"]
_TINY = 1e-9  # 100 * 0.29 is 28.999...


@dataclass(frozen=True)
class Invited:
    """The clients of a round in the order of start and of reduction, and who of them is lost."""

    clients: tuple[ClientId, ...] = ()
    lost: Mapping[ClientId, When] = field(default_factory=dict)

    @property
    def asked(self) -> list[ClientId]:
        """The clients that get a task: all but those that are lost before the round."""
        return [client for client in self.clients if self.lost.get(client) != "before"]


def list_clients(shares: Partition) -> list[ClientInfo]:
    """List what an executor knows of every client before any task."""
    return [
        ClientInfo(client, name, len(shares.train[client]), len(shares.test[client]))
        for client, name in zip(shares.clients, shares.names, strict=True)
    ]


def count_samples(shares: Partition, task: Task) -> int:
    """Estimate the work of a task by its number of samples."""
    share = shares.train if task.op == "update" else shares.test
    return len(share[task.client])


def split_unseen(
    clients: Iterable[ClientInfo], unseen: Collection[ClientId]
) -> tuple[list[ClientInfo], list[ClientInfo]]:
    """Separate the clients that train from those that are kept for evaluation."""
    listed = list(clients)
    trained = [info for info in listed if info.id not in unseen]
    return trained, [info for info in listed if info.id in unseen]


def draw_unseen(clients: Iterable[ClientInfo], count: int, seed: int) -> tuple[ClientId, ...]:
    """Draw the clients that are kept for evaluation, among those with test samples."""
    tested = sorted(info.id for info in clients if info.tests > 0)
    draw = seeds.generator(seed, "unseen")
    return tuple(sorted(tested[i] for i in draw.choice(len(tested), count, replace=False)))


def keeps_confusion(clients: int, classes: int) -> bool:
    """Whether every client's confusion matrix is small enough to be recorded."""
    return clients <= FEW_CLIENTS and clients * classes**2 <= _FEW_ENTRIES


def count_invited(clients: int, stage: Stage, fraction: float) -> int:
    """Count the clients that a round invites: `max(1, int(N * fraction))`, all, or none."""
    if stage.cohort == "none":
        return 0
    return clients if stage.cohort == "all" else max(1, int(clients * fraction + _TINY))


def count_asked(clients: int, stage: Stage, fraction: float) -> int:
    """Count the clients that a round asks: the invited ones less the stage's own `drop`."""
    invited = count_invited(clients, stage, fraction)
    return invited - int(invited * stage.drop + _TINY)


def largest_first(clients: Iterable[ClientInfo]) -> list[ClientId]:
    """Sort clients by number of training samples, ties by id."""
    return [info.id for info in sorted(clients, key=lambda info: (-info.examples, info.id))]


def invite(
    clients: Sequence[ClientInfo], stage: Stage, cohort: Cohort, seed: int, round: int
) -> Invited:
    """Draw the cohort of a round without replacement, largest client first, and its dropouts."""
    chosen = sorted(clients, key=lambda info: info.id)  # an executor lists them in any order
    size = count_invited(len(chosen), stage, cohort.fraction)
    if size < len(chosen):
        draw = seeds.generator(seed, "cohort", round)
        chosen = [chosen[i] for i in draw.choice(len(chosen), size, replace=False)] if size else []
    ids = largest_first(chosen)
    return Invited(tuple(ids), draw_dropouts(ids, stage, cohort, seed, round))


def draw_dropouts(
    ids: Sequence[ClientId], stage: Stage, cohort: Cohort, seed: int, round: int
) -> dict[ClientId, When]:
    """Draw who is lost, and when; each client's draw does not depend on who else is invited."""
    lost: dict[ClientId, When] = {}
    for client in ids if cohort.drop_before or cohort.drop_after else ():
        before, after = seeds.generator(seed, "dropouts", round, client).random(2)
        if before < cohort.drop_before:
            lost[client] = "before"
        elif after < cohort.drop_after:
            lost[client] = "after"
    count = int(len(ids) * stage.drop + _TINY)
    draw = seeds.generator(seed, "stage-drop", round)
    if stage.steady:
        draw = seeds.generator(seed, f"stage-drop/{stage.name}")
    for pick in draw.choice(len(ids), count, replace=False):
        lost[ids[pick]] = "before"
    return lost
