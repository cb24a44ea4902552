"""`coterie compare` and `coterie sweep`: several runs, one table."""

import hashlib
import itertools
import json
import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coterie.cli.options import Debug, check_folder, complete_config
from coterie.cli.terminal import find_width
from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.files import replace_durably
from coterie.core.formatting import counted

if TYPE_CHECKING:
    from coterie.experiment.config import Config
    from coterie.experiment.tables import Tables
    from coterie.reproduce.runs import Ended, Trial

_SHORT = 10
_DIGITS = 12  # of a rate: 0.05 * 3 is 0.15, not 0.15000000000000002
_STEM = 60  # letters of a folder's name before the hash
_FILE_WIDTH = 80  # columns of the table that is kept
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
_SEEDS = typer.Option(min=1, metavar="N", help="Runs per method, from run.seed on.")
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

    check_seeds(seeds)
    check_folder(out)
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
    words = ["compare", *arguments, "--config", config, "--seeds", str(seeds)]
    tabulate(trials, out, words)


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
    check_folder(out)
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
    tabulate(trials, out, ["sweep", *arguments])


def check_seeds(seeds: int, option: str = "--seeds") -> None:
    """Refuse more runs of one row than anybody can wait for."""
    if seeds > _MOST:
        raise ConfigError(f"{option} {seeds} must be {_MOST:,} or fewer")


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

    return Trial(name, config, out / f"{_make_stem(name)}-{config.hash()[:_SHORT]}", row)


def name_table(trials: Sequence["Trial"]) -> str:
    """Name the folder of a table by its rows and a hash of its runs, so that no other has it."""
    rows = _make_stem("-".join(dict.fromkeys(trial.row for trial in trials)))[:_STEM]
    runs = json.dumps([(trial.row, trial.config.hash()) for trial in trials])
    return f"{rows}-{hashlib.sha256(runs.encode()).hexdigest()[:_SHORT]}"


def _make_stem(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.=-]+", "-", text)[:_LONGEST]


def tabulate(trials: Sequence["Trial"], out: Path, words: Sequence[str]) -> None:
    """Run the trials, print their table and write it beside the runs; raise if one failed.

    `words` are the command and its arguments, for the page.
    """
    from coterie.cli.comparison import make_rows, make_table, summarise_runs, to_json
    from coterie.report.comparison_page import write_comparison
    from coterie.reproduce.runs import explain_interrupts, raise_failures, run_trials

    runs: list[Ended] = []
    with explain_interrupts("the same command resumes"):
        for ended in run_trials(trials, verify=True):
            runs.append(ended)
            typer.echo(ended.describe(len(trials), describe(ended)))
    failures = [(ended.trial.name, ended.error) for ended in runs if ended.error]
    if len(failures) < len(runs):
        summary, settings = summarise_runs(runs), trials[0].config.evaluate
        table = make_table(summary, settings)
        typer.echo(f"\n{table.to_text(find_width())}")
        folder = out / "tables" / name_table(trials)
        replace_durably(folder / "table.json", to_json(summary, settings, runs))
        replace_durably(folder / "table.txt", f"{table.to_text(_FILE_WIDTH)}\n".encode())
        command = shlex.join(["coterie", *words, "--out", str(out)])
        page = write_comparison(make_rows(runs), folder / "report.html", command)
        typer.echo(f"kept in {folder}\npage {page}")
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
