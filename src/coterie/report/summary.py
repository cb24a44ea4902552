"""The headline of a report: the results of a run in a few numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coterie.core.formatting import counted, list_first
from coterie.engine.record import RoundEvent, bytes_until, reached
from coterie.report.words import describe_base_lines, name_metric


@dataclass(frozen=True)
class Target:
    """What it took to reach a target; None where the run never did."""

    value: float
    rounds: int | None = None
    bytes: int | None = None  # both ways, evaluation apart


@dataclass(frozen=True)
class Headline:
    """The results of a run in a few numbers."""

    metric: str
    final: tuple[float, int] | None  # value and round (from 0) of the last evaluation
    best: tuple[float, int] | None  # the first round with the highest value
    targets: tuple[Target, ...]
    rounds: int
    skipped: int
    bytes_up: int
    bytes_down: int
    evaluation_bytes: int
    seconds: float
    epsilon: float | None = None  # of a private run
    finished: bool = True

    def count_rounds(self) -> str:
        """Write the number of rounds, and whether more are to come."""
        return f"{counted(self.rounds, 'round')}{'' if self.finished else ' so far'}"


def make_headline(
    history: Sequence[RoundEvent], targets: Sequence[float], metric: str = "accuracy"
) -> Headline:
    """Compute the numbers at the top of the page."""
    measured = [(e.metrics[metric], e.round) for e in history if metric in e.metrics]
    return Headline(
        metric=metric,
        final=measured[-1] if measured else None,
        best=max(measured, key=lambda pair: pair[0], default=None),
        targets=tuple(_target(history, metric, value) for value in targets),
        rounds=len(history),
        skipped=sum(event.skipped for event in history),
        bytes_up=sum(event.bytes_up for event in history),
        bytes_down=sum(event.bytes_down for event in history),
        evaluation_bytes=sum(e.evaluation_bytes_up + e.evaluation_bytes_down for e in history),
        seconds=sum(event.seconds for event in history),
        epsilon=history[-1].metrics.get("epsilon") if history else None,
    )


def describe_result(head: Headline, title: str, clients: int, baseline: Mapping[str, float]) -> str:
    """Say in a sentence what was run and how it came out, beside its base lines."""
    what = f"{title}, {counted(clients, 'client')}, {head.count_rounds()}"
    if head.final is None or head.best is None:
        return f"{what}: nothing was measured on test data."
    (final, last), (best, round) = head.final, head.best
    when = "at the end" if head.finished else f"after round {last + 1:,}"
    text = f"{what}: {name_metric(head.metric)} {final:.3f} {when}"
    text += f", {best:.3f} at best (round {round + 1:,})" if best > final else ", which is the best"
    text += f"; {described}" if (described := describe_base_lines(baseline)) else ""
    return f"{text}."


@dataclass(frozen=True)
class ClientScore:
    """The value of one client in the last evaluation of clients."""

    name: str
    value: float
    unseen: bool = False  # it never trained

    def describe(self) -> str:
        """Write value and name, and whether the client never trained."""
        name = f"client {self.name}" if self.name.isdecimal() else self.name
        return f"{self.value:.4f} ({name}{', unseen' if self.unseen else ''})"


def rank_clients(
    history: Sequence[RoundEvent], metric: str = "accuracy"
) -> tuple[str, list[ClientScore]]:
    """Rank the clients by a metric, worst first, and name the metric: the accuracy if they have it.

    `metric` is that of the run, of which clients have their own (`client_knn_mean`: `knn`).
    """
    event = next((event for event in reversed(history) if event.clients), None)
    if event is None:
        return "", []
    own = metric.removeprefix("client_").removesuffix("_mean")
    for name in (own, "accuracy", "knn"):
        values = {client: m[name] for client, m in event.clients.items() if name in m}
        if values:
            ranked = sorted(values.items(), key=lambda item: item[1])
            return name, [ClientScore(c, v, c in event.unseen) for c, v in ranked]
    return "", []


def describe_unseen(
    history: Sequence[RoundEvent], metric: str = "accuracy"
) -> list[tuple[str, str]]:
    """List the mean over the clients that never trained, and their names; empty without any."""
    event = next((event for event in reversed(history) if event.clients), None)
    if event is None or not event.unseen:
        return []
    mean = f"unseen_{rank_clients(history, metric)[0]}_mean"
    value = [(mean, f"{event.metrics[mean]:.4f}")] if mean in event.metrics else []
    return [*value, ("unseen clients", list_first(event.unseen))]


def _target(history: Sequence[RoundEvent], metric: str, value: float) -> Target:
    hit = reached(history, metric, value)
    return Target(value, hit.round + 1, bytes_until(history, hit)) if hit else Target(value)
