"""Charts and tables of the last evaluation: how every client and every class fares."""

from collections.abc import Iterator, Mapping, Sequence

from coterie.engine.record import Confusion, RoundEvent
from coterie.report.chart import Chart, History, Spec, make_axis, make_share_axis
from coterie.report.document import format_details, format_figure, format_figures, format_note
from coterie.report.read import Run
from coterie.report.summary import ClientScore, rank_clients
from coterie.report.tables import format_table
from coterie.report.words import begin, get_stem, is_share, name_metric

_EXTREMES = 10  # clients shown at each end, where there are many
_SHOWN = 40  # clients that are all shown
_BESIDE = 20  # classes up to which their two charts are beside each other
_CELLS = 60_000  # of all tables of confusion in a page
_COLUMNS = 5  # metrics of a client in the table


def list_clients(run: Run, metric: str) -> Iterator[str]:
    """Show how every client fares, worst first; of many clients the worst and the best."""
    name, ranked = rank_clients(run.history, metric)
    if not ranked:
        return
    shown, left_out = _pick_extremes(ranked)
    if left_out:
        yield format_note(f"{left_out:,} clients between these are left out.")
    yield format_figure(_chart_clients(run, name, shown, ranked))
    yield format_details("Table of the clients", _format_clients(run, name, shown))


def _pick_extremes(ranked: Sequence[ClientScore]) -> tuple[list[ClientScore], int]:
    left_out = len(ranked) - 2 * _EXTREMES
    if len(ranked) <= _SHOWN:
        return list(ranked), 0
    return [*ranked[:_EXTREMES], *ranked[-_EXTREMES:]], left_out


def _chart_clients(
    run: Run, name: str, shown: Sequence[ClientScore], ranked: Sequence[ClientScore]
) -> Chart:
    held = {client.name: client for client in run.partition.clients}
    notes = []
    for score in shown:
        holder = held.get(score.name)
        sizes = (holder.train, holder.test) if holder else ("", "")
        lines = [["training samples", _count(sizes[0])], ["test samples", _count(sizes[1])]]
        notes.append([*lines, ["never trained", "yes" if score.unseen else "no"]])
    mean = sum(score.value for score in ranked) / len(ranked)
    word = name_metric(name)
    spec: Spec = {
        "kind": "rows",
        "row": "client",
        "labels": [score.name for score in shown],
        "values": [score.value for score in shown],
        "notes": notes,
        "levels": [{"value": mean, "text": f"mean {mean:.3f}"}],
        "x": make_share_axis(word) if is_share(name) else make_axis(word),
        "marked": [i for i, score in enumerate(shown) if score.unseen],
    }
    note = "The last evaluation, each client on its own test data, the worst first."
    if spec["marked"]:
        note += " Clients in orange never trained."
    return Chart(begin(f"{word} by client"), spec, note)


def _count(value: int | str) -> str:
    return f"{value:,}" if isinstance(value, int) else value


def _format_clients(run: Run, name: str, shown: Sequence[ClientScore]) -> str:
    """Format the table of clients: sizes, and what was measured on each."""
    event = next(event for event in reversed(run.history) if event.clients)
    held = {client.name: client for client in run.partition.clients}
    metrics = {m for values in event.clients.values() for m in values} - {name}
    columns = [name, *sorted(metrics)][:_COLUMNS]
    rows = []
    for score in shown:
        holder, values = held.get(score.name), event.clients[score.name]
        sizes = (_count(holder.train), _count(holder.test)) if holder else ("", "")
        cells = (f"{values[m]:.4f}" if m in values else "" for m in columns)
        rows.append((score.name, *sizes, *cells, "never trained" if score.unseen else ""))
    head = ("client", "training samples", "test samples", *columns, "")
    wide = len(head) if any(score.unseen for score in shown) else len(head) - 1
    return format_table([row[:wide] for row in rows], head[:wide], range(1, 3 + len(columns)))


def list_classes(history: History, classes: Sequence[str]) -> Iterator[str]:
    """Show which share of every class is recognised, and what it is taken for."""
    last = history[-1]
    if not last.recall:
        return
    stems = {get_stem(metric) for metric in last.metrics}
    by = "" if "accuracy" in stems else " by the class of their nearest training samples"
    charts = [_chart_recall(last.recall, by)]
    if last.confusion and len(last.confusion) == len(classes):
        charts.append(_chart_confusion(last, classes))
    # many classes need the whole width
    yield from [format_figures(charts)] if len(classes) <= _BESIDE else map(format_figure, charts)


def _chart_recall(recall: Mapping[str, float], by: str) -> Chart:
    note = f"Share of the test samples of each class that are recognised{by}, after the last round."
    shown = list(recall.items())
    if len(recall) > _SHOWN:
        ranked = sorted(recall.items(), key=lambda item: item[1])
        shown = [*ranked[:_EXTREMES], *ranked[-_EXTREMES:]]
        note += f" Only the {_EXTREMES} worst and the {_EXTREMES} best of {len(recall):,} classes."
    mean = sum(recall.values()) / len(recall)
    spec: Spec = {
        "kind": "rows",
        "row": "class",
        "labels": [name for name, _ in shown],
        "values": [value for _, value in shown],
        "levels": [{"value": mean, "text": f"mean {mean:.3f}"}],
        "x": make_share_axis("recall"),
    }
    return Chart("Recall by class", spec, note)


def _chart_confusion(last: RoundEvent, classes: Sequence[str]) -> Chart:
    """Chart the table of confusion of all test samples, or of a client that is chosen."""
    tables: dict[str, Confusion] = {"all": last.confusion}
    own = {f"client {n}": table for n, table in last.client_confusion.items() if len(table)}
    fitting = max(0, _CELLS // max(1, len(classes) ** 2) - 1)
    tables |= dict(list(own.items())[:fitting])
    note = "Test samples by true class (row) and predicted class (column), after the last round."
    if len(own) > fitting:
        note += f" Of the clients' tables only the first {fitting:,} are here."
    views = [
        {"name": name, "counts": [list(map(int, row)) for row in table]}
        for name, table in tables.items()
    ]
    spec: Spec = {
        "kind": "grid",
        "square": True,
        "choose": "test samples of",
        "row": "true class",
        "column": "predicted class",
        "rows": list(classes),
        "columns": list(classes),
        "views": views,
    }
    return Chart("Confusion", spec, note)
