"""Charts which client holds what: a heat map of clients by classes, with their sizes."""

import statistics
from collections.abc import Sequence
from html import escape

from coterie.core.formatting import counted
from coterie.report.chart import Chart, Spec
from coterie.report.read import Holder
from coterie.report.tables import format_table
from coterie.report.words import Measure, explain_measures

CLIENTS_SHOWN = 60  # rows of the heat map that are still readable


def chart_partition(clients: Sequence[Holder], classes: Sequence[str]) -> Chart | None:
    """Chart clients by classes as a heat map, with the clients' sizes beside it.

    `classes` are their names. Without labels the sizes stand alone.
    """
    if not clients:
        return None
    sizes = [client.train for client in clients]
    note = (
        f"{counted(len(clients), 'client')}, {sum(sizes):,} training samples: {min(sizes):,} to "
        f"{max(sizes):,} each, {statistics.median(sizes):,g} at the median."
    )
    shown = list(clients)
    if len(clients) > CLIENTS_SHOWN:
        # Evenly spaced by rank, so that the smallest, the largest and all between are there.
        ranked = sorted(clients, key=lambda client: client.train)
        last = CLIENTS_SHOWN - 1
        shown = [ranked[i * (len(ranked) - 1) // last] for i in range(CLIENTS_SHOWN)]
        note += (
            f" Only {CLIENTS_SHOWN} of the {len(clients):,} clients are shown: evenly spaced in "
            "order of their size, from the smallest (top) to the largest."
        )
    columns = [
        {"name": "training samples", "values": [client.train for client in shown]},
        {"name": "test samples", "values": [client.test for client in shown]},
    ]
    spec: Spec = {
        "kind": "grid",
        "row": "client",
        "column": "class",
        "rows": [client.name for client in shown],
        "columns": list(classes),
        "counts": [list(client.classes) for client in shown],
        "sizes": {"label": "training samples", "short": "samples", "columns": columns},
    }
    return Chart("Who holds what", spec, note)


def format_measures(values: dict[str, float], clients: int, classes: int) -> str:
    """Format the measures of how much clients differ, each with its range and a sentence."""
    known, unknown = explain_measures(values, clients, classes)
    items = "".join(map(_format_measure, known))
    text = f'<dl class="measures">{items}</dl>\n' if items else ""
    rows = [(name, f"{value:.4g}") for name, value in unknown.items()]
    return text + (format_table(rows, numbers={1}) if rows else "")


def _format_measure(measure: Measure) -> str:
    span = max(1e-9, measure.high - measure.low)
    part = 100 * min(1.0, max(0.0, (measure.value - measure.low) / span))
    return (
        f"<div><dt>{escape(measure.name)} <code>{escape(measure.key)}</code></dt>"
        f"<dd><b>{measure.value:.3g}</b>"
        f'<span class="meter"><i style="width:{part:.1f}%"></i></span>'
        f"<small><span>{measure.low:.3g}</span><span>{measure.high:.3g}</span></small>"
        f"<p>{escape(measure.meaning)}</p></dd></div>\n"
    )
