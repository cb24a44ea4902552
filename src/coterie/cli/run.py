"""`coterie run`: train, and print the results."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from coterie.cli.options import Debug
from coterie.core.errors import ConfigError
from coterie.core.formatting import format_bytes

if TYPE_CHECKING:
    from coterie.experiment.config import Config
    from coterie.experiment.prepare import Experiment
    from coterie.experiment.run import Result

_HELP = "A configuration (a path or a name of `coterie list configs`), then table.key=value."


def run(
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[CONFIG] [KEY=VALUE]...", help=_HELP)
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run directory; default: runs/NAME-TIME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Resume the run in --out.")] = False,
    watch: Annotated[
        bool, typer.Option("--watch", help="Keep watch.html up to date while it runs.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check and describe the run, do not start it.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print the run directory only.")] = False,
    debug: Debug = False,
    allow_inexact: Annotated[
        bool, typer.Option("--allow-inexact", help="Resume although results may differ.")
    ] = False,
) -> None:
    """Train a method on a data set divided among clients."""
    source, overrides = split_arguments(arguments or [])
    if resume and out is None:
        raise ConfigError("--resume needs --out, the directory of the run to resume")

    from coterie.experiment.tables import parse_overrides, request

    saved = out / "config.toml" if resume and out is not None else None
    asked = request(source, parse_overrides(overrides), saved)

    # from here on torch is imported, which takes seconds
    from coterie.cli.progress import Display, Watcher
    from coterie.experiment import run as runner
    from coterie.experiment.config import resolve_request
    from coterie.report.page import write_report

    config = resolve_request(asked)
    if dry_run:
        describe(config)
        return
    console = Console(soft_wrap=True)
    if quiet:
        result = runner.execute(config, out, resume, allow_inexact)
        typer.echo(result.folder)
        return
    display = Display(console, opening(config), debug=debug)
    folder = out or runner.default_folder(config.name)
    recorders: list[Any] = [display, Watcher(folder)] if watch else [display]
    with display:
        result = runner.execute(config, folder, resume, allow_inexact, recorders)
    if watch:
        write_report(folder, folder / "watch.html")
    closing(result)


def split_arguments(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Separate the configuration, if one is named, from the overrides after it."""
    source = None
    if arguments and "=" not in arguments[0]:
        source, arguments = arguments[0], arguments[1:]
    return source, list(arguments)


def opening(config: "Config") -> list[str]:
    """Describe what is about to run, and which data leave a client."""
    title = f"{config.tables['method']['name']} on {config.data.name}, seed {config.run.seed}"
    return [title, f"leaves each client: {config.method.leaves}"]


def closing(result: "Result") -> None:
    """Print the table at the end of a run."""
    from coterie.engine.record import bytes_until, reached

    history, settings = result.history, result.experiment.config.evaluate
    metric, rows = settings.metric, []
    measured = [event for event in history if metric in event.metrics]
    if measured:
        best = max(measured, key=lambda event: event.metrics[metric])
        rows.append((f"final {metric}", f"{measured[-1].metrics[metric]:.4f}"))
        rows.append((f"best {metric}", f"{best.metrics[metric]:.4f} (round {best.round + 1})"))
    rows += budgets(history[-1].metrics if history else {})
    for target in settings.targets:
        event = reached(history, metric, target)
        reached_after = "not reached"
        if event is not None:
            reached_after = f"{event.round + 1} rounds, {format_bytes(bytes_until(history, event))}"
        rows.append((f"to {metric} {target:g}", reached_after))
    rows.append(("sent up", format_bytes(sum(event.bytes_up for event in history))))
    rows.append(("sent down", format_bytes(sum(event.bytes_down for event in history))))
    rows.append(("seconds", f"{sum(event.seconds for event in history):.1f}"))
    rows.append(("results", str(result.folder)))
    rows.append(("report", str(result.folder / "report.html")))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        typer.echo(f"{name:<{width}}  {value}")


def budgets(metrics: Mapping[str, float]) -> list[tuple[str, str]]:
    """List the results that needed labels, with the number of labels."""
    rows = []
    for name, labels in metrics.items():
        stem, _, budget = name.rpartition("_")
        result = stem if stem in metrics else f"{stem}_mean"
        if budget in ("labels", "bank") and result in metrics:
            each = " a client" if result.startswith("client_") else ""
            rows.append((result, f"{metrics[result]:.4f} with {labels:,.0f} labels{each}"))
    return rows


def describe(config: "Config") -> None:
    """Print the resolved configuration, the clients and the cost of a round."""
    from coterie.core.bundle import Bundle
    from coterie.core.task import METHOD
    from coterie.experiment.prepare import prepare
    from coterie.kit.stages import plan_rounds

    experiment: Experiment = prepare(config, Path("runs"))
    parts = experiment.parts
    nets = parts.nets(METHOD)
    weights = Bundle({"model": nets.weights()})
    sizes = sorted(experiment.partition.sizes().values())
    entries = {key: sum(p.numel() for p in net.parameters()) for key, net in nets.items()}
    sys.stdout.write(config.to_toml())
    typer.echo(f"\n# {len(sizes)} clients with {sizes[0]} to {sizes[-1]} samples each")
    if len(nets) == 1:
        typer.echo(f"# {entries['model']:,} parameters, {format_bytes(weights.nbytes())} one way")
        return
    first, round = plan_rounds(parts.stages(METHOD), len(sizes), config.run.seed)[0]
    assert first.broadcast  # every method has one
    down = first.broadcast(parts.start(), round)
    counts = ", ".join(f"{count:,} in {key!r}" for key, count in entries.items())
    typer.echo(f"# parameters: {counts}; {format_bytes(down.nbytes())} one way in {first.name!r}")
