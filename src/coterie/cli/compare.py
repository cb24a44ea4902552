"""`coterie compare` and `coterie sweep`: several runs, one table."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from coterie.cli.cells import Cell, Outcome, render, run_cells, summarise
from coterie.cli.options import Debug
from coterie.core.errors import ConfigError, RunFailed

_OUT = typer.Option(help="Where the runs are kept; what is finished there is not run again.")


def compare(
    arguments: Annotated[
        list[str], typer.Argument(metavar="METHOD... [KEY=VALUE]...", help="Methods to compare.")
    ],
    config: Annotated[str, typer.Option(help="The setting they share.")] = "digits/fedavg",
    seeds: Annotated[int, typer.Option(min=1, help="Runs per method, from run.seed on.")] = 1,
    out: Annotated[Path, _OUT] = Path("runs/compare"),
    debug: Debug = False,
) -> None:
    """Run several methods in one setting, over several seeds, and tabulate mean and spread.

    METHOD is a shipped configuration of the setting's data set (fedavg, fedavgm, ...), a method,
    or your own package.module:Class. Its method, objective and server tables are used, everything
    else comes from --config.
    """
    from coterie.experiment.config import method_config
    from coterie.experiment.tables import parse_overrides

    methods = [word for word in arguments if "=" not in word]
    if not methods:
        raise ConfigError("no method was named; e.g. coterie compare fedavg fedprox --seeds 3")
    overrides = parse_overrides(word for word in arguments if "=" in word)
    cells = []
    for method in methods:
        for number in range(seeds):
            chosen = method_config(method, config, overrides, number)
            cells.append(Cell(method, f"{method}-seed={chosen.run.seed}", chosen))
    finish(run_cells(cells, out), out)


def sweep(
    arguments: Annotated[
        list[str], typer.Argument(metavar="CONFIG KEY=V1,V2...", help="A setting and its grid.")
    ],
    out: Annotated[Path, _OUT] = Path("runs/sweep"),
    debug: Debug = False,
) -> None:
    """Run a configuration over a grid of values, e.g. local.lr=0.01,0.1 run.seed=0,1."""
    from coterie.experiment import config as configuration
    from coterie.experiment import tables

    if not arguments or "=" in arguments[0]:
        raise ConfigError("name a configuration first; e.g. coterie sweep digits/fedavg local.lr=…")
    axes = [axis(word) for word in arguments[1:]]
    if not axes:
        raise ConfigError("no key to sweep was given; e.g. local.lr=0.01,0.1")
    cells = []
    for values in itertools.product(*(options for _, options in axes)):
        words = [f"{key}={value}" for (key, _), value in zip(axes, values, strict=True)]
        chosen = configuration.load(arguments[0], tables.parse_overrides(words))
        shown = [w for w, (key, options) in zip(words, axes, strict=True) if len(options) > 1]
        row = " ".join(word for word in shown if not word.startswith("run.seed=")) or "all"
        cells.append(Cell(row, " ".join(shown) or "all", chosen))
    finish(run_cells(cells, out), out)


def axis(word: str) -> tuple[str, list[str]]:
    """A key and its values; commas inside brackets or quotes do not separate."""
    key, equals, text = word.partition("=")
    values, depth, quoted, start = [], 0, False, 0
    for place, letter in enumerate(text):
        quoted ^= letter in "\"'"
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quoted:
            values.append(text[start:place])
            start = place + 1
    values.append(text[start:])
    if not equals or not all(values):
        raise ConfigError(f"{word!r} is not of the form table.key=value,value")
    return key, values


def finish(outcomes: Sequence[Outcome], out: Path) -> None:
    """The table of what finished; an error if something did not."""
    failed = [(outcome.cell.label, outcome.failure) for outcome in outcomes if outcome.failure]
    if len(failed) < len(outcomes):
        keep(outcomes, out)
    if failed:
        label, reason = failed[0]
        alike = len(failed) == len(outcomes) and len({type(error) for _, error in failed}) == 1
        kind = type(reason) if alike and reason is not None else RunFailed
        raise kind(f"{len(failed)} of {len(outcomes)} runs failed; {label}: {reason}") from reason


def keep(outcomes: Sequence[Outcome], out: Path) -> None:
    """Print the table, and write it beside the runs."""
    summary = summarise(outcomes)
    table = render(summary, outcomes[0].cell.config.evaluate.targets)
    typer.echo(f"\n{table}")
    runs = [
        {"label": o.cell.label, "folder": str(o.folder), "failure": str(o.failure or "")}
        for o in outcomes
    ]
    (out / "table.json").write_text(json.dumps({"rows": summary, "runs": runs}, indent=1) + "\n")
    (out / "table.txt").write_text(table + "\n")
    typer.echo(f"kept in {out}")
