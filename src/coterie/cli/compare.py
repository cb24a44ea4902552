"""`coterie compare` and `coterie sweep`: several runs, one table."""

import itertools
import json
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import Debug, complete_config
from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.files import replace_durably
from coterie.core.formatting import MEGABYTE, align_columns, counted

if TYPE_CHECKING:
    from coterie.experiment.config import Config
    from coterie.experiment.tables import Tables
    from coterie.reproduce.runs import Ended, Trial

_SHORT = 10
_DIGITS = 12  # of a rate: 0.05 * 3 is 0.15, not 0.15000000000000002
_FINAL = ("client_accuracy_mean", "client_accuracy_worst_decile")  # metrics of the last round
_SECONDS = "seconds a round"
_SETTING = "digits/fedavg"
_MOST = 10_000  # runs of one table
_LONGEST = 150  # characters of a folder's name, before the hash


def complete_method(context: typer.Context, incomplete: str) -> list[str]:
    """List the methods, and the shipped configurations of the setting's data set, that begin so."""
    from coterie.experiment.tables import shipped

    folder = str(context.params.get("config") or _SETTING).partition("/")[0]
    beside = (name.removeprefix(f"{folder}/") for name in shipped() if name.startswith(folder))
    names = {*registry.names("methods"), *(name for name in beside if "/" not in name)}
    return sorted(name for name in names if name.startswith(incomplete))


_METHODS = typer.Argument(
    metavar="METHOD... [KEY=VALUE]...", help="Methods to compare.", autocompletion=complete_method
)
_SHARED = typer.Option(
    metavar="CONFIG", help="The setting they share.", autocompletion=complete_config
)
_SEEDS = typer.Option(min=1, max=_MOST, metavar="N", help="Runs per method, from run.seed on.")
_GRID = typer.Argument(
    metavar="CONFIG KEY=V1,V2...", help="A setting and its grid.", autocompletion=complete_config
)
_OUT = typer.Option(
    metavar="DIR", help="Where the runs are kept; what is finished there is not run again."
)


def compare(
    arguments: Annotated[list[str], _METHODS],
    config: Annotated[str, _SHARED] = _SETTING,
    seeds: Annotated[int, _SEEDS] = 1,
    out: Annotated[Path, _OUT] = Path("runs/compare"),
    debug: Debug = False,
) -> None:
    """Run several methods in one setting, over several seeds, and tabulate mean and spread.

    METHOD is a shipped configuration of the setting's data set (fedavg, fedavgm, ...), a method,
    or your own package.module:Class. Its method, objective and server tables are used, everything
    else comes from --config. If its shipped rate is another multiple of that of fedavg, as
    SCAFFOLD's is, so is its local.lr here; a local.lr that you give is used for all.
    """
    from coterie.experiment.tables import method_tables, parse_overrides, request

    methods = [text for text in arguments if "=" not in text]
    if not methods:
        raise ConfigError("no method was named; e.g. coterie compare fedavg fedprox --seeds 3")
    overrides = parse_overrides(text for text in arguments if "=" in text)
    for method in methods:
        request(method_tables(method, config, overrides), overrides)

    # from here on torch is imported, which takes seconds
    from coterie.experiment.config import method_config

    trials = []
    for method, number in itertools.product(methods, range(seeds)):
        chosen = method_config(method, config, scale_rate(method, config, overrides), number)
        trials.append(make_trial(method, f"{method}-seed={chosen.run.seed}", chosen, out))
    tabulate(trials, out)


def sweep(
    arguments: Annotated[list[str], _GRID],
    out: Annotated[Path, _OUT] = Path("runs/sweep"),
    debug: Debug = False,
) -> None:
    """Run a configuration over a grid of values, e.g. local.lr=0.01,0.1 run.seed=0,1."""
    from coterie.experiment.tables import parse_overrides, request

    if not arguments or "=" in arguments[0]:
        raise ConfigError("name a configuration first; e.g. coterie sweep digits/fedavg local.lr=…")
    axes = [parse_axis(argument) for argument in arguments[1:]]
    if not axes:
        raise ConfigError("no key to sweep was given; e.g. local.lr=0.01,0.1")
    if (points := math.prod(map(len, axes))) > _MOST:
        raise ConfigError(
            f"the grid has {points:,} runs, and a sweep at most {_MOST:,}: thin it out"
        )
    grid = [(changes, parse_overrides(changes)) for changes in itertools.product(*axes)]
    asked = [(changes, request(arguments[0], overrides)) for changes, overrides in grid]

    # from here on torch is imported, which takes seconds
    from coterie.experiment.config import resolve_request

    trials = []
    for changes, point in asked:
        chosen = resolve_request(point)
        shown = [change for change, axis in zip(changes, axes, strict=True) if len(axis) > 1]
        row = " ".join(change for change in shown if not change.startswith("run.seed=")) or "all"
        trials.append(make_trial(row, " ".join(shown) or "all", chosen, out))
    tabulate(trials, out)


def scale_rate(method: str, setting: str, overrides: "Tables") -> "Tables":
    """Multiply the setting's rate for a method whose shipped configuration does so, too."""
    from coterie.core.settings import Local
    from coterie.experiment.tables import shipped_rate, tables_of

    factor, local = shipped_rate(method, setting, overrides), overrides.get("local", {})
    if factor == 1.0 or "lr" in local:
        return overrides
    rate = tables_of(setting).get("local", {}).get("lr", Local.lr) * factor
    return {**overrides, "local": {**local, "lr": round(rate, _DIGITS)}}


def parse_axis(argument: str) -> list[str]:
    """List the changes of `key=a,b`; commas inside brackets or quotes do not separate."""
    key, equals, text = argument.partition("=")
    values, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter in "\"'"
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quoted:
            values.append("")
        else:
            values[-1] += letter
    if not equals or not all(values):
        raise ConfigError(f"{argument!r} is not of the form table.key=value,value")
    return [f"{key}={value}" for value in values]


def make_trial(row: str, name: str, config: "Config", out: Path) -> "Trial":
    """Make a run of the table; another configuration has another folder."""
    from coterie.reproduce.runs import Trial

    stem = re.sub(r"[^A-Za-z0-9.=-]+", "-", name)[:_LONGEST]
    return Trial(name, config, out / f"{stem}-{config.hash()[:_SHORT]}", row)


def tabulate(trials: Sequence["Trial"], out: Path) -> None:
    """Run the trials, print their table and write it beside the runs; raise if one failed."""
    from coterie.reproduce.runs import explain_interrupts, raise_failures, run_trials

    runs: list[Ended] = []
    with explain_interrupts("the same command resumes"):
        for ended in run_trials(trials, verify=True):
            runs.append(ended)
            typer.echo(ended.describe(len(trials), describe(ended)))
    failures = [(ended.trial.name, ended.error) for ended in runs if ended.error]
    if len(failures) < len(runs):
        summary = summarise(runs)
        table = render(summary, trials[0].config.evaluate.targets)
        typer.echo(f"\n{table}")
        folders = [
            {"label": e.trial.name, "folder": str(e.trial.folder), "failure": str(e.error or "")}
            for e in runs
        ]
        document = json.dumps({"rows": summary, "runs": folders}, indent=1)
        replace_durably(out / "table.json", f"{document}\n".encode())
        replace_durably(out / "table.txt", f"{table}\n".encode())
        typer.echo(f"kept in {out}")
    raise_failures(failures, len(runs))


def describe(ended: "Ended") -> str:
    """Say what a run measured at its end, or why it failed."""
    if ended.error:
        return f"failed: {ended.error}"
    metric = ended.trial.config.evaluate.metric
    value = ended.history[-1].metrics.get(metric)
    seconds = sum(event.seconds for event in ended.history)
    shown = "" if value is None else f"{metric} {value:.4f}, "
    return f"{shown}{counted(len(ended.history), 'round')}, {seconds:.1f} s"


def summarise(runs: Iterable["Ended"]) -> dict[str, dict[str, float]]:
    """Take mean and spread over the finished runs of every row."""
    rows: dict[str, dict[str, list[float]]] = {}
    for ended in runs:
        columns = rows.setdefault(ended.trial.row, {})
        for name, value in measure(ended).items():
            columns.setdefault(name, []).append(value)
    summary: dict[str, dict[str, float]] = {}
    for row, columns in rows.items():
        line = summary[row] = {"runs": float(max(map(len, columns.values()), default=0))}
        for name, values in columns.items():
            std = statistics.stdev(values) if len(values) > 1 else 0.0
            line |= {name: statistics.fmean(values), f"{name}_std": std}
            line[f"{name}_runs"] = float(len(values))
    return summary


def measure(ended: "Ended") -> dict[str, float]:
    """Collect what is compared of a run; a target that it did not reach is absent."""
    from coterie.report.summary import make_headline

    if not ended.history:
        return {}
    settings, last = ended.trial.config.evaluate, ended.history[-1]
    head = make_headline(ended.history, settings.targets, settings.metric)
    values: dict[str, float] = {}
    if head.final and head.best:
        values |= {"final": head.final[0], "best": head.best[0]}
    values |= {name: last.metrics[name] for name in _FINAL if name in last.metrics}
    for target in head.targets:
        if target.rounds is not None and target.bytes is not None:
            values[f"rounds to {target.value:g}"] = float(target.rounds)
            values[f"MB to {target.value:g}"] = target.bytes / MEGABYTE
    values[_SECONDS] = statistics.median(event.seconds for event in ended.history)
    return values


def render(summary: Mapping[str, Mapping[str, float]], targets: Sequence[float]) -> str:
    """Format the table: mean and spread over seeds, times as ratios to the first row."""
    measured = set().union(*summary.values())
    columns = [name for name in ("final", "best", *_FINAL) if name in measured]
    columns += [f"{what} to {target:g}" for target in targets for what in ("rounds", "MB")]
    base = next((row[_SECONDS] for row in summary.values() if _SECONDS in row), None)
    lines = [["", "runs", *(name.replace("_", " ") for name in columns), "time ratio"]]
    for name, row in summary.items():
        own = row.get(_SECONDS)
        ratio = f"{own / base:.2f}" if own and base else "-"
        cells = (format_cell(row, column) for column in columns)
        lines.append([name, f"{row['runs']:.0f}", *cells, ratio])
    return align_columns(lines)


def format_cell(row: Mapping[str, float], column: str) -> str:
    """Format mean and spread, and how many runs never reached a target."""
    if column not in row:
        return "-"
    digits = 1 if column.startswith(("rounds", "MB")) else 4
    text = f"{row[column]:.{digits}f}"
    if row["runs"] > 1:
        text += f" ± {row[f'{column}_std']:.{digits}f}"
    missing = int(row["runs"] - row[f"{column}_runs"])
    return f"{text} ({missing} never)" if missing else text
