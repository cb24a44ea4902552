"""Charts a run round by round: what it measured, sent and lost."""

from collections.abc import Sequence
from itertools import accumulate

from coterie.core.formatting import MEGABYTE, shorten
from coterie.report import chart
from coterie.report.chart import Chart, History, Plotly, list_points, make_axis, make_series

_MEAN, _STD = "client_accuracy_mean", "client_accuracy_std"
_WORST = "client_accuracy_worst_decile"
_ACCURACIES = {"accuracy", _MEAN, _STD, _WORST}
_GLOBAL, _CLIENTS = "global test set", "clients' own test data, mean"
_LOSSES = {
    "train_loss": ("training (the objective's)", "@orange", "dash"),
    "loss": (_GLOBAL, "@blue", "solid"),
    "client_loss_mean": (_CLIENTS, "@green", "dot"),
}
_SOURCES = {"client": "clients", "server": "server", "train": "training"}


def chart_accuracy(history: History, metric: str, targets: Sequence[float]) -> Chart | None:
    """Chart accuracy by round: global, and the clients' mean, spread and worst decile."""
    data = _spread(history)
    data += make_series(list_points(history, "accuracy"), _GLOBAL, "@blue")
    data += make_series(list_points(history, _WORST), "clients' worst decile", "@orange", "dot")
    main = "accuracy" in metric  # else the main metric and its targets belong to no accuracy
    if main and metric not in _ACCURACIES:
        data += make_series(list_points(history, metric), metric, "@purple", "dash")
    if not data:
        return None
    # A skipped round is measured too, but its model is the one of the round before it.
    idle = list_points([event for event in history if event.skipped], "accuracy")
    cross = {"mode": "markers", "marker": {"color": "@ink", "symbol": "x", "size": 8}}
    data += [trace | cross for trace in make_series(idle, "skipped round", "@ink")]
    aims = targets if main else ()
    bars = [d["y"][0] + d["error_y"]["array"][0] for d in data if "error_y" in d]
    values = [*(v for d in data for v in d["y"]), *bars, *aims]
    look = _lay_out(history, chart.make_share_axis(values), stages=True)
    for target in aims:
        chart.mark_target(look, target)
    note = "Share of test samples that are classified correctly."
    if shape := "bar" if bars else "band" if any("fill" in d for d in data) else "":
        note += f" The {shape} is one standard deviation over the clients either side of the mean."
    return Chart("Accuracy by round", data, look, note)


def chart_losses(history: History) -> Chart | None:
    """Chart training and test loss by round."""
    lines = [make_series(list_points(history, key), *look) for key, look in _LOSSES.items()]
    data = [trace for line in lines for trace in line]
    if not data:
        return None
    look = _lay_out(history, make_axis("loss (mean per sample)"), stages=True)
    note = "The axis need not start at 0, and training may minimise another loss than is tested."
    return Chart("Loss by round", data, look, note)


def _title(metric: str) -> str:
    """Name the main metric as a heading does."""
    return metric[:1].upper() + metric[1:].replace("_", " ")


def chart_traffic(history: History, metric: str) -> Chart | None:
    """Chart accuracy against the bytes sent so far."""
    sent = list(accumulate(event.bytes_up + event.bytes_down for event in history))

    def points(key: str) -> list[tuple[float, float]]:
        pairs = zip(sent, history, strict=True)
        return [(x / MEGABYTE, e.metrics[key]) for x, e in pairs if key in e.metrics]

    name = {"accuracy": _GLOBAL, _MEAN: _CLIENTS}.get(metric, metric)
    data = make_series(points(metric), name, "@blue")
    if metric != _MEAN:
        data += make_series(points(_MEAN), _CLIENTS, "@green", "dash")
    if not data or not sent[-1]:
        return None
    x = make_axis("sent so far, up and down (MB)") | {"rangemode": "tozero"}
    values = [v for d in data for v in d["y"]]
    y = chart.make_share_axis(values) if "accuracy" in metric else make_axis(metric)
    note = "1 MB is 1,000,000 bytes; what evaluation sends is not counted."
    look = chart.make_layout(x, y) | {"hovermode": "closest"}
    return Chart(f"{_title(metric)} by data sent", data, look, note)


def chart_participation(history: History) -> Chart | None:
    """Chart how many answered, were lost and rejected; None where everybody always answered."""
    if not any(event.lost or event.rejected for event in history):
        return None
    counts = {
        "answered": ([len(e.cohort) - len(e.lost) - len(e.rejected) for e in history], "@blue"),
        "lost": ([len(e.lost) for e in history], "@orange"),
        "rejected": ([len(e.rejected) for e in history], "@purple"),
    }
    rounds = [event.round + 1 for event in history]
    data: list[Plotly] = [
        {"type": "bar", "name": name, "x": rounds, "y": y, "marker": {"color": colour}}
        for name, (y, colour) in counts.items()
    ]
    y = make_axis("clients") | {"rangemode": "tozero", "tickformat": "d"}
    look = _lay_out(history, y) | {"barmode": "stack", "bargap": 0.1}
    return Chart("Participation by round", data, look, "Clients that were invited to a round.")


def chart_others(history: History, metric: str) -> list[Chart]:
    """Chart every metric that no other chart shows, grouped by where it comes from."""
    shown = {*_ACCURACIES, *_LOSSES, *([metric] if "accuracy" in metric else [])}
    charts = []
    for name in sorted({name for event in history for name in event.metrics} - shown):
        points = list_points(history, name)
        y = [value for _, value in points]
        share = name.endswith("accuracy") and min(y) >= 0 and max(y) <= 1
        axis = chart.make_share_axis(y, name) if share else make_axis(shorten(name, 28))
        note = f"From: {_SOURCES.get(name.partition('_')[0], 'evaluation')}"
        data = make_series(points, name, "@blue")
        charts.append(Chart(name, data, _lay_out(history, axis), note, 220))
    return sorted(charts, key=lambda drawn: drawn.note)


def _lay_out(history: History, y: Plotly, stages: bool = False) -> Plotly:
    """Lay out a chart over the rounds of a run; `stages` marks where stages begin."""
    look = chart.make_layout(chart.make_round_axis(history[0].round + 1, history[-1].round + 1), y)
    if stages:
        chart.mark_stages(look, history)
    return look


def _spread(history: History) -> list[Plotly]:
    """Make the line of the clients' mean with a band around it, or a bar for a single point."""
    line = make_series(list_points(history, _MEAN), _CLIENTS, "@green", "dash")
    both = [event for event in history if _MEAN in event.metrics and _STD in event.metrics]
    if not both:
        return line
    if len(both) == 1:
        return [line[0] | {"error_y": {"array": [both[0].metrics[_STD]], "color": "@green"}}]
    x = [event.round + 1 for event in both]
    edge = {"type": "scatter", "x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    low = [max(0.0, event.metrics[_MEAN] - event.metrics[_STD]) for event in both]
    high = [min(1.0, event.metrics[_MEAN] + event.metrics[_STD]) for event in both]
    band = {"fill": "tonexty", "fillcolor": "@band", "name": "± standard deviation"}
    return [edge | {"y": low, "showlegend": False}, edge | {"y": high} | band, *line]
