"""Runs the cells of a plan, seed by seed, and keeps what came of them up to date."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from coterie.core.errors import CheckpointError, ConfigError, CoterieError, Interrupted, RunFailed
from coterie.core.formatting import counted
from coterie.engine import rundir
from coterie.engine.record import MetricsFile, Recorder, RoundEvent
from coterie.experiment.config import Config
from coterie.experiment.run import REPORT, execute
from coterie.reproduce.figures import Figures, read
from coterie.reproduce.plan import Cell, Plan, Point, run_folder

GO_ON = "the same command with --resume goes on"


@dataclass(frozen=True)
class Trial:
    """One run of a cell: a point of its grid on one seed."""

    cell: Cell
    point: Point
    number: int  # of the seed
    config: Config
    folder: Path

    @property
    def name(self) -> str:
        """In words."""
        return ", ".join(filter(None, (self.cell.name, self.point.name, f"seed {self.number}")))

    @property
    def kept(self) -> bool:
        """Whether it was finished before, by this recipe or another."""
        return (self.folder / REPORT).is_file()


Watch = Callable[[Trial], AbstractContextManager[Sequence[Recorder]]]


@dataclass
class Found:
    """What the runs of a plan said so far."""

    plan: Plan
    figures: dict[tuple[str, str, str], dict[int, Figures]] = field(default_factory=dict)
    errors: list[tuple[str, CoterieError]] = field(default_factory=list)
    broken: dict[Path, CoterieError] = field(default_factory=dict)  # runs that columns may share

    def add(self, trial: Trial, figures: Figures) -> None:
        """Keep the figures of a run."""
        cell = trial.cell
        key = (cell.row.name, cell.column.name, trial.point.name)
        self.figures.setdefault(key, {})[trial.number] = figures

    def of(self, cell: Cell, point: Point) -> dict[int, Figures]:
        """The figures of a point by the number of the seed."""
        return self.figures.get((cell.row.name, cell.column.name, point.name), {})

    def chosen(self, cell: Cell) -> Point | None:
        """The point that stands for a cell: the best on its first seed; None where all failed."""
        if len(cell.points) == 1:
            return cell.points[0]
        best: tuple[float, Point] | None = None
        for point in cell.points:
            first = self.of(cell, point).get(0)
            if first is None or first.value is None or first.chosen_by is None:
                continue
            if best is None or first.chosen_by > best[0]:
                best = first.chosen_by, point
        return best[1] if best else None

    def count(self) -> int:
        """How many runs were finished."""
        found = (one for seeds in self.figures.values() for one in seeds.values())
        return sum(not one.failure for one in found)


def wanted(plan: Plan, out: Path, found: Found) -> Iterator[Trial]:
    """The runs of a plan in order: every cell on the first seed, then on the second, ...

    On the first seed all points of a grid are run, on the others the chosen one. What was found is
    looked at when a run is asked for, so a choice may depend on the runs before.
    """
    for number in range(max((cell.seeds for cell in plan.cells), default=0)):
        for cell in plan.cells:
            if number >= cell.seeds:
                continue
            chosen = found.chosen(cell)
            points = cell.points if number == 0 else [chosen] if chosen else []
            for point in points:
                config = plan.config(cell, point, number)
                trial = Trial(cell, point, number, config, run_folder(out, config))
                if cell.asked or trial.kept:
                    yield trial


def total(plan: Plan) -> int:
    """How many runs a plan takes."""
    return sum(len(cell.points) + cell.seeds - 1 for cell in plan.cells)


def reproduce(
    plan: Plan,
    out: Path,
    resume: bool = False,
    renew: Callable[[Found], None] = lambda found: None,
    say: Callable[[str], None] = lambda text: None,
    watch: Watch = lambda trial: nullcontext(()),
) -> Found:
    """Run what has not been run. A run that fails leaves its reason, and the next one starts.

    `renew` is called after every run with what was found so far, `say` with a line about the run;
    `watch` gives the recorders that see a run while it goes on.
    """
    found, seen, many = Found(plan), set[Path](), total(plan)
    if not resume:
        for trial in wanted(plan, out, found):
            _refuse_unfinished(trial)
    try:
        for place, trial in enumerate(wanted(plan, out, found), start=1):
            if not resume and trial.folder not in seen:  # a choice may have led to it only now
                _refuse_unfinished(trial)
            seen.add(trial.folder)
            kept = " (kept)" if trial.kept else ""
            found.add(trial, figures := _figures(trial, found, watch))
            renew(found)
            say(f"[{place}/{many}] {trial.name}: {_words(trial.cell, figures)}{kept}")
    except (KeyboardInterrupt, Interrupted):
        raise Interrupted(f"interrupted; {GO_ON}") from None
    return found


def finish(found: Found) -> None:
    """An error if some run failed."""
    if not found.errors:
        return
    name, reason = found.errors[0]
    alike = not found.count() and len({type(error) for _, error in found.errors}) == 1
    kind = type(reason) if alike else RunFailed
    many = sum(len(seeds) for seeds in found.figures.values())
    raise kind(f"{len(found.errors)} of {many} runs failed; {name}: {reason}")


def _figures(trial: Trial, found: Found, watch: Watch) -> Figures:
    cell, folder = trial.cell, str(trial.folder)
    try:
        if trial.folder in found.broken:
            raise found.broken[trial.folder]
        history = _history(trial, watch)
    except Interrupted:
        raise
    except CoterieError as error:
        found.broken[trial.folder] = error
        found.errors.append((trial.name, error))
        return Figures(trial.number, folder, failure=str(error))
    figures = read(history, trial.number, folder, cell.metric, cell.chosen_by, cell.column.at)
    if figures.failure:
        found.errors.append((trial.name, RunFailed(figures.failure)))
    return figures


def _history(trial: Trial, watch: Watch) -> Sequence[RoundEvent]:
    if trial.kept:
        return _kept(trial.folder)
    with watch(trial) as recorders:
        result = execute(trial.config, trial.folder, resume=True, recorders=recorders)
    return result.history


def _kept(folder: Path) -> Sequence[RoundEvent]:
    """The rounds of a run that was finished before."""
    remedy = f"{folder} is damaged; delete it, and it is run again"
    try:
        history = MetricsFile(folder / "metrics.jsonl").read()
    except CheckpointError as error:
        raise CheckpointError(f"{remedy}: {error}") from error
    if not history:
        raise CheckpointError(f"{remedy}: it has no rounds")
    return history


def _refuse_unfinished(trial: Trial) -> None:
    if rundir.is_used(trial.folder) and not trial.kept:
        raise ConfigError(f"{trial.folder} holds an unfinished run; add --resume to go on")


def _words(cell: Cell, figures: Figures) -> str:
    if figures.failure:
        return f"failed: {figures.failure}"
    rounds = counted(figures.rounds, "round")
    return f"{cell.metric} {figures.value:.4f}, {rounds}, {figures.seconds:.2f} s a round"
