"""The figures of one run: its value, its curve, its time."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from coterie.engine.record import RoundEvent

Curve = tuple[tuple[int, float], ...]  # (training round, counted from 1; value)
_TRAINED = ("train_loss", "server_loss")  # a stage in which no round has one trains nothing


@dataclass(frozen=True)
class Figures:
    """What one run says in one column."""

    seed: int
    folder: str
    value: float | None = None  # None: the metric was never measured
    chosen_by: float | None = None  # the metric by which the cell of a grid is chosen
    curve: Curve = ()
    rounds: int = 0  # training rounds up to the value
    seconds: float = 0.0  # of a round, the median
    failure: str = ""

    def reached(self, target: float) -> int | None:
        """The first training round in which the curve came to a target."""
        return next((round for round, value in self.curve if value >= target), None)


def read(
    history: Sequence[RoundEvent], seed: int, folder: str, metric: str, by: str, at: int | None
) -> Figures:
    """The figures of a finished run, up to the training round `at` if that is given."""
    trained = [event for event in history if event.stage in _training(history)]
    trained = trained[:at]
    curve = tuple(
        (number, event.metrics[metric])
        for number, event in enumerate(trained, start=1)
        if metric in event.metrics
    )
    choices = [event.metrics[by] for event in trained if by in event.metrics]
    lacks = "" if curve else f"the run has no metric {metric!r}"
    if at is not None and len(trained) < at:
        lacks = f"the run has {len(trained)} training rounds, not {at}"
    return Figures(
        seed,
        folder,
        value=curve[-1][1] if curve and not lacks else None,
        chosen_by=choices[-1] if choices else None,
        curve=curve,
        rounds=len(trained),
        seconds=statistics.median(event.seconds for event in trained) if trained else 0.0,
        failure=lacks,
    )


def _training(history: Sequence[RoundEvent]) -> set[str]:
    """The stages that count as training; all of them where none says a loss."""
    found = {event.stage for event in history if any(name in event.metrics for name in _TRAINED)}
    return found or {event.stage for event in history}
