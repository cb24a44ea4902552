"""What is said of a row in a column, and of a whole recipe.

All accuracies are fractions here, whatever the paper prints.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coterie.reproduce.figures import Curve
from coterie.reproduce.recipe import Recipe
from coterie.reproduce.sheet import Sheet

NONE = "-"  # the verdict where there is nothing to compare


@dataclass(frozen=True)
class Tried:
    """A point of a grid on the first seed."""

    name: str
    value: float | None
    chosen_by: float | None
    chosen: bool


@dataclass(frozen=True)
class Entry:
    """A row in a column."""

    row: str
    column: str
    seeds: int = 0  # finished
    values: tuple[float, ...] = ()
    mean: float | None = None
    deviation: float | None = None  # sample standard deviation over seeds; None for one seed
    paper: float | None = None
    paper_spread: float | None = None
    rounds: tuple[int | None, ...] = ()  # to the target, by seed; None: never
    length: int = 0  # training rounds of a run
    paper_rounds: str = ""
    speedup: float | None = None
    seconds: tuple[float, ...] = ()  # of a round, the median, by seed
    ratios: tuple[float, ...] = ()  # of these to the reference's, by seed
    verdict: str = NONE
    numbers: tuple[int, ...] = ()  # of the seeds, in the order of the values; empty: from 0 on
    chosen: str = ""
    grid: tuple[Tried, ...] = ()
    failures: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    curve: Curve = ()

    def by_seed(self, values: Sequence[float]) -> dict[int, float]:
        """What was measured, by the number of the seed."""
        numbers = self.numbers or range(len(values))
        return dict(zip(numbers, values, strict=False))

    @property
    def ratio(self) -> float | None:
        """The mean ratio of time."""
        return statistics.fmean(self.ratios) if self.ratios else None

    @property
    def counted_rounds(self) -> tuple[float, ...]:
        """Rounds to the target; never is at least one more than there were."""
        return tuple(self.length + 1 if one is None else one for one in self.rounds)


@dataclass(frozen=True)
class Outcome:
    """A recipe at a scale, as far as it was run."""

    recipe: Recipe
    scale: str
    finished: int
    total: int
    entries: Mapping[tuple[str, str], Entry] = field(default_factory=dict)
    targets: Mapping[str, float] = field(default_factory=dict)  # column -> its target, if any
    sheets: tuple[Sheet, ...] = ()  # in the place of a table for every column

    def entry(self, row: str, column: str) -> Entry:
        """The entry of a row in a column, empty where it was not run."""
        return self.entries.get((row, column), Entry(row, column))
