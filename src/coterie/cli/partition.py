"""`coterie partition`: show the partition as text and as a page, without training."""

import statistics
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coterie.cli.options import Changes, Debug
from coterie.cli.run import split_arguments
from coterie.cli.terminal import echo, echo_table, find_width
from coterie.core.files import replace_durably
from coterie.core.formatting import align_columns, counted, shorten

if TYPE_CHECKING:
    from coterie.experiment.prepare import Experiment

_OUT = typer.Option(metavar="FILE", help="Also write a page: FILE.html, which needs no network.")
_CLIENTS, _CLASSES = 20, 14  # rows and columns of the text table
_MEANINGS = {
    "beta_cib": "class imbalance in bits, 0: all classes are equally frequent everywhere",
    "beta_hetero_pairs": "mean KL divergence between clients in bits, over M (M - 1) pairs",
    "beta_hetero_tables": "the same divided by M^2, as in MFCL's printed tables",
    "jensen_shannon": "mean divergence of a client from the whole in bits, 0 to 1",
    "earth_mover": "mean sum of the differences from the whole's class shares, 0 to 2",
    "effective_classes": "mean of 2 to the entropy of a client's classes",
    "size_gini": "inequality of the clients' sizes, 0: equal",
}


def partition(
    arguments: Changes = None, out: Annotated[Path | None, _OUT] = None, debug: Debug = False
) -> None:
    """Show the samples of each client, and how much the clients differ, without training."""
    from coterie.experiment.tables import parse_overrides, request

    source, overrides = split_arguments(arguments or [])
    asked = request(source, parse_overrides(overrides))

    # from here on torch is imported, which takes seconds
    from coterie.experiment.config import resolve_request
    from coterie.experiment.prepare import prepare

    experiment = prepare(resolve_request(asked), Path())
    summary = experiment.summary()
    if out is not None:  # first, since a reader such as `head` may stop early
        replace_durably(out, page(experiment, summary).encode(), remedy="; choose another --out")
    for line in facts(experiment):
        echo(line)
    table, *hidden = rows(experiment, summary, find_width())
    typer.echo(f"\n{table}")
    for line in (*hidden, "", "how much the clients differ"):
        echo(line)
    echo_table(measures(summary, 8))
    if out is not None:
        typer.echo(f"\npage  {out}")


def facts(experiment: "Experiment") -> Iterator[str]:
    """Describe the partition, its sizes, and samples that no client has."""
    shares, dataset, tables = experiment.partition, experiment.dataset, experiment.config.tables
    sizes = list(shares.sizes().values())
    settings = {key: value for key, value in tables["partition"].items() if key != "kind"}
    common = {key: settings.pop(key) for key in ("skew", "strength", "label_swap")}
    settings |= common if shares.shifts else {}
    keys = ", ".join(f"{key} {value}" for key, value in settings.items())
    kind, seed = tables["partition"]["kind"], experiment.config.run.seed
    yield f"{kind} of {dataset.name}, seed {seed}" + (f" ({keys})" if keys else "")
    classes = f"of {dataset.classes} classes" if dataset.classes else "without labels"
    yield (
        f"{len(sizes)} clients, {sum(sizes):,} training samples {classes}: "
        f"{min(sizes):,} to {max(sizes):,} each, {statistics.median(sizes):,g} at the median"
    )
    tests = [len(test) for test in shares.test.values()]
    yield f"{sum(tests):,} test samples: {min(tests):,} to {max(tests):,} each"
    if over := len(dataset.y_train) - sum(sizes):
        yield f"{over:,} training samples are not assigned to any client"
    by_group = kind == "by-group" and not experiment.config.method.pooled
    if dataset.groups and by_group and (out := len(dataset.groups.names) - len(sizes)):
        least = experiment.config.partition.min_samples
        yield f"{out:,} groups with fewer than partition.min_samples={least} are left out"


def measures(summary: Mapping[str, Any], width: int = 0) -> list[tuple[str, str, str]]:
    """List the measures of heterogeneity: name, value and meaning."""
    values = summary["heterogeneity"].items()
    return [(name, f"{value:>{width}.4f}", _MEANINGS.get(name, "")) for name, value in values]


def rows(experiment: "Experiment", summary: Mapping[str, Any], width: int) -> Iterator[str]:
    """Tabulate samples by client and class, as far as it is readable and fits the width."""
    classes, clients = summary["classes"], len(summary["clients"])
    shown = min(classes, _CLASSES)
    table = tabulate(experiment, summary, shown)
    while shown and max(map(len, table.splitlines())) > width:
        shown -= 1
        table = tabulate(experiment, summary, shown)
    yield table
    hidden = {"more client": clients - _CLIENTS, "more class": classes - shown}
    if left := [counted(number, what) for what, number in hidden.items() if number > 0]:
        text = " and ".join(left).replace("classs", "classes")
        yield f"{text} not shown here; --out FILE.html draws all classes and up to 60 clients"


def tabulate(experiment: "Experiment", summary: Mapping[str, Any], shown: int) -> str:
    """Tabulate the first clients, with as many of the classes as are to be shown."""
    shares, clients = experiment.partition, summary["clients"]
    cut = ["..."] if summary["classes"] > shown else []
    notes = {client: shift.describe() for client, shift in shares.shifts.items()}
    named = [shorten(str(name), 12) for name in summary["class_names"][:shown]]
    head = ["client", "train", "test", *named, *cut]
    lines = [[*head, "shift"] if notes else head]
    for client, row in list(zip(shares.clients, clients, strict=True))[:_CLIENTS]:
        cells = [str(count) if count else "." for count in row["classes"][:shown]]
        sizes = [str(row["train"]), str(row["test"])]
        shift = [notes.get(client, "")] if notes else []
        lines.append([shorten(row["name"], 16), *sizes, *cells, *cut, *shift])
    return align_columns(lines, right=range(1, len(lines[0]) - bool(notes)))


def page(experiment: "Experiment", summary: Mapping[str, Any]) -> str:
    """Make one HTML file with the heat map, the sizes and the measures."""
    from coterie.report.document import format_body, format_figure, make_document
    from coterie.report.partition_chart import chart_partition, format_measures
    from coterie.report.read import make_holder
    from coterie.report.tables import format_table

    shares, classes = experiment.partition, [str(name) for name in summary["class_names"]]
    holders = [make_holder(row, at) for at, row in enumerate(summary["clients"])]
    chart = chart_partition(holders, classes)
    title = f"{experiment.dataset.name} among {counted(len(holders), 'client')}"
    shifts = [(shares.names[c], shift.describe()) for c, shift in shares.shifts.items()]
    lines = (f'<p class="soft">{escape(line)}</p>' for line in facts(experiment))
    measured = format_measures(summary["heterogeneity"], len(holders), len(classes))
    sections = [
        ("Partition", format_figure(chart) if chart else ""),
        ("How much the clients differ", measured),
        ("Shifts", format_table(shifts, ("client", "shift")) if shifts else ""),
    ]
    head = f'<p class="brand">Coterie</p>\n<h1>{escape(title)}</h1>\n{"".join(lines)}'
    return make_document(title, format_body(head, [part for part in sections if part[1]]))
