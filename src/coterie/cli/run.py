"""`coterie run`: train, and print the results."""

import contextlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import Changes, Debug, check_port
from coterie.core.errors import ConfigError
from coterie.core.formatting import align_columns, counted, format_bytes

if TYPE_CHECKING:
    from coterie.experiment.config import Config
    from coterie.experiment.result import Result

_OUT = typer.Option(metavar="DIR", help="Run directory; default: runs/METHOD-DATA-TIME.")
_RESUME = typer.Option("--resume", help="Resume the run in --out.")
_WATCH = typer.Option("--watch", help="Serve the growing page to browsers of this machine.")
_WATCH_PORT = typer.Option(metavar="N", help="Do so on this port; default: a free one.")
_DRY_RUN = typer.Option("--dry-run", help="Check and describe the run, do not start it.")
_QUIET = typer.Option("--quiet", help="Print the run directory only.")
_INEXACT = typer.Option("--allow-inexact", help="Resume although results may differ.")


def run(
    arguments: Changes = None,
    out: Annotated[Path | None, _OUT] = None,
    resume: Annotated[bool, _RESUME] = False,
    watch: Annotated[bool, _WATCH] = False,
    watch_port: Annotated[int | None, _WATCH_PORT] = None,
    dry_run: Annotated[bool, _DRY_RUN] = False,
    quiet: Annotated[bool, _QUIET] = False,
    debug: Debug = False,
    allow_inexact: Annotated[bool, _INEXACT] = False,
) -> None:
    """Train a method on a data set divided among clients."""
    source, overrides = split_arguments(arguments or [])
    if resume and out is None:
        raise ConfigError("--resume needs --out, the directory of the run to resume")
    if watch_port is not None:
        check_port("--watch-port", watch_port)
    watch = watch or watch_port is not None
    if watch and quiet:
        raise ConfigError("--watch prints an address, --quiet would hide it: leave one of them out")

    from coterie.experiment.tables import parse_overrides, request

    saved = out / "config.toml" if resume and out else None
    asked = request(source, parse_overrides(overrides), saved)

    # from here on torch is imported, which takes seconds
    from coterie.engine.record import NoteEvent
    from coterie.experiment import run as runner
    from coterie.experiment.config import resolve_request
    from coterie.report.live import LivePage
    from coterie.report.progress import Display, LastingConsole

    config = resolve_request(asked)
    if dry_run:
        describe(config, out or Path("runs"))
        return
    if quiet:
        typer.echo(runner.execute(config, out, resume, allow_inexact).folder)
        return
    opening, folder = runner.describe_start(config), out or runner.default_folder(config)
    with contextlib.ExitStack() as stack:
        recorders: list[Any] = []
        if watch:
            page = LivePage(folder, watch_port or 0, lambda text: display(NoteEvent(text)))
            live = stack.enter_context(page)
            recorders.append(live)
            opening.append(f"watch it at {live.url}")
        display = stack.enter_context(Display(LastingConsole(soft_wrap=True), opening, debug=debug))
        result = runner.execute(config, folder, resume, allow_inexact, [display, *recorders])
        if watch:
            live.finish()
    closing(result)


def split_arguments(arguments: Sequence[str]) -> tuple[str | None, list[str]]:
    """Separate the configuration, if one is named, from the overrides after it."""
    named = bool(arguments) and "=" not in arguments[0]
    return (arguments[0] if named else None), list(arguments[named:])


def closing(result: "Result") -> None:
    """Print the table at the end of a run."""
    from coterie.report.summary import describe_unseen, make_headline, rank_clients

    history, settings = result.history, result.config["evaluate"]
    head = make_headline(history, settings["targets"], settings["metric"])
    rows = []
    if head.final and head.best:
        rows.append((f"final {head.metric}", f"{head.final[0]:.4f}"))
        rows.append((f"best {head.metric}", f"{head.best[0]:.4f} (round {head.best[1] + 1})"))
    name, clients = rank_clients(history, settings["metric"])
    if len(clients) > 1:
        rows.append((f"worst client's {name}", clients[0].describe()))
        rows.append((f"best client's {name}", clients[-1].describe()))
    labelled = budgets(history[-1].metrics if history else {})
    unseen = describe_unseen(history, settings["metric"])
    rows += [row for row in unseen if row[0] not in dict(labelled)] + labelled
    for target in head.targets:
        spent = f"{counted(target.rounds or 0, 'round')}, {format_bytes(target.bytes or 0)}"
        reached = spent if target.rounds else "not reached"
        rows.append((f"to {head.metric} {target.value:g}", reached))
    if head.epsilon is not None:
        delta = result.config["privacy"]["delta"]
        rows.append(("epsilon", f"{head.epsilon:.4g} at delta {delta:g}"))
    rows += [
        ("sent up", format_bytes(head.bytes_up)),
        ("sent down", format_bytes(head.bytes_down)),
        ("seconds", f"{head.seconds:.1f}"),
        ("results", str(result.folder)),
        ("report", str(result.folder / "report.html")),
    ]
    typer.echo(align_columns(rows))


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


def describe(config: "Config", folder: Path) -> None:
    """Print the resolved configuration, the clients and the cost of a round."""
    from coterie.core.bundle import Bundle
    from coterie.core.task import METHOD
    from coterie.experiment.prepare import prepare
    from coterie.kit.stages import plan_rounds

    experiment = prepare(config, folder)
    parts, nets = experiment.parts, experiment.parts.nets(METHOD)
    weights = Bundle({"model": nets.weights()})
    sizes = sorted(experiment.partition.sizes().values())
    entries = {key: sum(p.numel() for p in net.parameters()) for key, net in nets.items()}
    sys.stdout.write(experiment.config.to_toml(experiment.dataset.class_names))
    typer.echo(f"\n# {len(sizes)} clients with {sizes[0]} to {sizes[-1]} samples each")
    for line in (f"data: {experiment.dataset.describe()}", *experiment.notes):
        typer.echo(f"# {line}")
    if len(nets) == 1:
        typer.echo(f"# {entries['model']:,} parameters, {format_bytes(weights.nbytes())} one way")
        return
    first, round = plan_rounds(parts.stages(METHOD), len(sizes), config.run.seed)[0]
    assert first.broadcast  # every method has one
    down = first.broadcast(parts.start(), round)
    counts = ", ".join(f"{count:,} in {key!r}" for key, count in entries.items())
    typer.echo(f"# parameters: {counts}; {format_bytes(down.nbytes())} one way in {first.name!r}")
