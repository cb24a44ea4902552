"""Many runs of one family: each in a directory named by its configuration, none done twice."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from coterie.core.errors import CoterieError, Interrupted

if TYPE_CHECKING:
    from coterie.engine.record import RoundEvent
    from coterie.experiment.config import Config

_SHORT = 10


@dataclass(frozen=True)
class Cell:
    """One run of a comparison: what row of the table it belongs to, and its configuration."""

    row: str
    label: str
    config: "Config"

    def folder(self, out: Path) -> Path:
        """Where it runs; another configuration is another directory."""
        stem = re.sub(r"[^A-Za-z0-9.=-]+", "-", self.label)
        return out / f"{stem}-{self.config.hash()[:_SHORT]}"


@dataclass(frozen=True)
class Outcome:
    """What came of a cell."""

    cell: Cell
    folder: Path
    history: Sequence["RoundEvent"]
    failure: CoterieError | None = None


def run_cells(cells: Sequence[Cell], out: Path) -> list[Outcome]:
    """Run what has not been run; a run that fails leaves its reason and the next one starts."""
    from coterie.experiment.run import execute

    outcomes = []
    for number, cell in enumerate(cells, start=1):
        folder = cell.folder(out)
        kept = (folder / "report.html").is_file()
        try:
            result = execute(cell.config, folder, resume=True)
            outcomes.append(Outcome(cell, folder, result.history))
            words = _words(cell.config, result.history) + (" (kept)" if kept else "")
        except Interrupted:
            raise Interrupted(f"interrupted; the same command goes on from {folder}") from None
        except CoterieError as error:
            outcomes.append(Outcome(cell, folder, (), error))
            words = f"failed: {error}"
        typer.echo(f"[{number}/{len(cells)}] {cell.label}: {words}")
    return outcomes


def _words(config: "Config", history: Sequence["RoundEvent"]) -> str:
    metric = config.evaluate.metric
    value = history[-1].metrics.get(metric)
    seconds = sum(event.seconds for event in history)
    shown = "" if value is None else f"{metric} {value:.4f}, "
    return f"{shown}{len(history)} rounds, {seconds:.1f} s"


def summarise(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """For every row the mean and spread over its finished runs of what users compare."""
    rows: dict[str, dict[str, list[float]]] = {}
    for outcome in outcomes:
        columns = rows.setdefault(outcome.cell.row, {})
        for name, value in figures(outcome).items():
            columns.setdefault(name, []).append(value)
    found: dict[str, dict[str, float]] = {}
    for row, columns in rows.items():
        found[row] = {"runs": float(max(map(len, columns.values()), default=0))}
        for name, values in columns.items():
            found[row][name] = statistics.fmean(values)
            found[row][f"{name}_std"] = statistics.stdev(values) if len(values) > 1 else 0.0
            found[row][f"{name}_runs"] = float(len(values))
    return found


def figures(outcome: Outcome) -> dict[str, float]:
    """The figures of one run; a target that was not reached has none."""
    from coterie.engine.record import bytes_until, reached

    history, settings = outcome.history, outcome.cell.config.evaluate
    measured = [e.metrics[settings.metric] for e in history if settings.metric in e.metrics]
    found: dict[str, float] = {}
    if measured:
        found |= {"final": measured[-1], "best": max(measured)}
    for name in ("client_accuracy_mean", "client_accuracy_worst_decile"):
        if history and name in history[-1].metrics:
            found[name] = history[-1].metrics[name]
    for target in settings.targets:
        if event := reached(history, settings.metric, target):
            found[f"rounds to {target:g}"] = float(event.round + 1)
            found[f"MB to {target:g}"] = bytes_until(history, event) / 1e6
    if history:
        found["seconds a round"] = statistics.median(e.seconds for e in history)
    return found


def render(summary: Mapping[str, Mapping[str, float]], targets: Sequence[float]) -> str:
    """The table: one line a row, mean and spread over seeds; times as ratios to the first row."""
    columns = ["final", "best", "client_accuracy_mean", "client_accuracy_worst_decile"]
    columns = [name for name in columns if any(name in row for row in summary.values())]
    columns += [f"{what} to {target:g}" for target in targets for what in ("rounds", "MB")]
    first = next((row for row in summary.values() if "seconds a round" in row), {})
    head = ["", "runs", *(name.replace("_", " ") for name in columns), "time ratio"]
    lines = [head]
    for name, row in summary.items():
        line = [name, f"{row['runs']:.0f}"]
        line += [_cell(row, column) for column in columns]
        own, base = row.get("seconds a round"), first.get("seconds a round")
        lines.append([*line, f"{own / base:.2f}" if own and base else "-"])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(row: Mapping[str, float], column: str) -> str:
    if column not in row:
        return "-"
    digits = 1 if column.startswith(("rounds", "MB")) else 4
    text = f"{row[column]:.{digits}f}"
    if row["runs"] > 1:
        text += f" ± {row[f'{column}_std']:.{digits}f}"
    missing = int(row["runs"] - row[f"{column}_runs"])
    return f"{text} ({missing} never)" if missing else text
