"""The figures of a report: its headline numbers, and its charts as plain Plotly dictionaries.

A colour is written `@name` and means the variable `--name` of `style.css`: the page looks it up
when it draws, so that the charts follow the light and the dark theme and the printer. No module
here imports torch, for a report is made where a run is only looked at.
"""

import html
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.engine.record import RoundEvent

CLIENTS_SHOWN = 60  # rows of the heat map that can still be told apart
MEGABYTE = 1e6
_MARKED = 60  # a series of more points than this is a line without markers
_STAGES = 6  # more beginnings of stages than this would only clutter a chart
_HIGH = 0.9  # the word about a target above this stands below its line, clear of the legend
_ACCURACY = ("accuracy", "client_accuracy_mean", "client_accuracy_std")
_WORST = "client_accuracy_worst_decile"
_LOSSES = {
    "train_loss": ("training (the objective's)", "@orange", "dash"),
    "loss": ("global test set", "@blue", "solid"),
    "client_loss_mean": ("clients' own test data, mean", "@green", "dot"),
}
_AXIS: dict[str, Any] = {
    "automargin": True,
    "gridcolor": "@grid",
    "linecolor": "@line",
    "zerolinecolor": "@grid",
    "showline": True,
}


@dataclass(frozen=True)
class Row:
    """A line of `metrics.jsonl`: a `RoundEvent` without what would import torch."""

    round: int
    stage: str
    cohort: Sequence[int]
    lost: Mapping[str, str]
    rejected: Mapping[str, str]
    skipped: bool
    metrics: Mapping[str, float]
    bytes_up: int
    bytes_down: int
    evaluation_bytes_up: int
    evaluation_bytes_down: int
    seconds: float
    digest: str
    states: str


@dataclass(frozen=True)
class Holder:
    """What one client holds."""

    name: str
    train: int
    test: int
    classes: Sequence[int]


@dataclass(frozen=True)
class Target:
    """What it took to come to a target; None where the run never did."""

    value: float
    rounds: int | None
    bytes: int | None  # both ways, evaluation apart


@dataclass(frozen=True)
class Headline:
    """What a run came to, in a few numbers."""

    metric: str
    final: tuple[float, int] | None  # value and round (from 0) of the last evaluation
    best: tuple[float, int] | None  # the first round with the highest value
    targets: tuple[Target, ...]
    rounds: int
    skipped: int
    bytes_up: int
    bytes_down: int
    evaluation_bytes: int
    seconds: float


def headline(
    history: "Sequence[Row | RoundEvent]", targets: Sequence[float], metric: str = "accuracy"
) -> Headline:
    """The numbers at the top of the page; targets are counted as `engine.record` counts them."""
    never = float("-inf")
    found = [(row.metrics[metric], row.round) for row in history if metric in row.metrics]
    sent, total = [], 0
    for row in history:
        total += row.bytes_up + row.bytes_down
        sent.append(total)
    reached = []
    for target in targets:
        hit = next(
            (i for i, r in enumerate(history) if r.metrics.get(metric, never) >= target), None
        )
        reached.append(Target(target, *((None, None) if hit is None else (hit + 1, sent[hit]))))
    return Headline(
        metric=metric,
        final=found[-1] if found else None,
        best=max(found, key=lambda pair: pair[0]) if found else None,
        targets=tuple(reached),
        rounds=len(history),
        skipped=sum(row.skipped for row in history),
        bytes_up=sum(row.bytes_up for row in history),
        bytes_down=sum(row.bytes_down for row in history),
        evaluation_bytes=sum(r.evaluation_bytes_up + r.evaluation_bytes_down for r in history),
        seconds=sum(row.seconds for row in history),
    )


@dataclass(frozen=True)
class Chart:
    """A chart with the words around it (plain text, not yet escaped)."""

    title: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
    note: str = ""
    height: int = 360


def accuracy(history: Sequence[Row], metric: str, targets: Sequence[float]) -> Chart | None:
    """Accuracy by round: the global model's, and the clients' mean, spread and worst decile."""
    data = [*_spread(history)]
    names = {"accuracy": "global test set", _WORST: "clients' worst decile"}
    if "accuracy" in metric and metric not in (*_ACCURACY, _WORST):
        names[metric] = metric
    looks = (("@blue", "solid"), ("@orange", "dot"), ("@purple", "dash"))
    for (key, name), (colour, dash) in zip(names.items(), looks, strict=False):
        data += _series(*_points(history, key), name, colour, dash)
    if not data:
        return None
    # A skipped round is measured too, but its model is the one of the round before it.
    idle = [r for r in history if r.skipped and "accuracy" in r.metrics]
    if idle:
        marks = _series(*_points(idle, "accuracy"), "skipped round", "@ink", "solid")
        data += [mark | {"mode": "markers", "marker": _marker("@ink", "x")} for mark in marks]
    aims = targets if metric in (*names, *_ACCURACY) else ()
    bars = [d["y"][0] + d["error_y"]["array"][0] for d in data if "error_y" in d]
    values = [*(v for d in data for v in d["y"]), *bars, *aims]
    layout = _layout(_rounds(history), _share(values))
    for target in aims:
        _rule(layout, "y", target, f"target {target:g}")
    _stages(layout, history)
    note = "Share of test samples that are classified correctly."
    if shape := "bar" if bars else "band" if any(d.get("fill") for d in data) else "":
        note += f" The {shape} is one standard deviation over the clients either side of the mean."
    return Chart("Accuracy by round", data, layout, note)


def losses(history: Sequence[Row]) -> Chart | None:
    """Training and test loss by round."""
    data = [
        trace
        for key, (name, colour, dash) in _LOSSES.items()
        for trace in _series(*_points(history, key), name, colour, dash)
    ]
    if not data:
        return None
    layout = _layout(_rounds(history), {"title": {"text": "loss (mean per sample)"}})
    _stages(layout, history)
    note = "The axis need not start at 0, and training may minimise another loss than is tested."
    return Chart("Loss by round", data, layout, note)


def traffic(history: Sequence[Row], metric: str) -> Chart | None:
    """Accuracy against what was sent so far."""
    sent, total = [], 0
    for row in history:
        total += row.bytes_up + row.bytes_down
        sent.append(total / MEGABYTE)
    data = []
    named = {metric: "global test set" if metric == "accuracy" else metric}
    named |= {"client_accuracy_mean": "clients' own test data, mean"}
    looks = (("@blue", "solid"), ("@green", "dash"))
    for (key, name), (colour, dash) in zip(named.items(), looks, strict=False):
        pairs = [
            (x, r.metrics[key]) for x, r in zip(sent, history, strict=True) if key in r.metrics
        ]
        data += _series([x for x, _ in pairs], [y for _, y in pairs], name, colour, dash)
    if not data or not total:
        return None
    x = {"title": {"text": "sent so far, up and down (MB)"}, "rangemode": "tozero"}
    values = [v for d in data for v in d["y"]]
    y = _share(values) if "accuracy" in metric else {"title": {"text": _text(metric)}}
    note = "1 MB is 1,000,000 bytes; what evaluation sends is not counted."
    return Chart("Accuracy by data sent", data, _layout(x, y) | {"hovermode": "closest"}, note)


def participation(history: Sequence[Row]) -> Chart | None:
    """Who answered, was lost and was rejected; None where everybody always answered."""
    if not any(row.lost or row.rejected for row in history):
        return None
    counts = {
        "answered": ([len(r.cohort) - len(r.lost) - len(r.rejected) for r in history], "@blue"),
        "lost": ([len(r.lost) for r in history], "@orange"),
        "rejected": ([len(r.rejected) for r in history], "@purple"),
    }
    rounds = [row.round + 1 for row in history]
    data = [
        {"type": "bar", "name": name, "x": rounds, "y": y, "marker": {"color": colour, "line": {}}}
        for name, (y, colour) in counts.items()
    ]
    y = {"title": {"text": "clients"}, "rangemode": "tozero", "tickformat": "d"}
    layout = _layout(_rounds(history), y) | {"barmode": "stack", "bargap": 0.1}
    return Chart("Participation by round", data, layout, "Clients that were invited to a round.")


def others(history: Sequence[Row], metric: str) -> list[Chart]:
    """A small chart for every metric that no other chart shows, by where it comes from."""
    shown = {*_ACCURACY, _WORST, *_LOSSES, *([metric] if "accuracy" in metric else [])}
    groups = {"client": "clients", "server": "server", "train": "training"}
    found = []
    for name in sorted({name for row in history for name in row.metrics} - shown):
        x, y = _points(history, name)
        axis: dict[str, Any] = {"title": {"text": _text(_short(name, 28))}}
        if name.endswith("accuracy") and min(y) >= 0 and max(y) <= 1:
            axis = _share(y, name)
        layout = _layout(_rounds(history), axis)
        group = groups.get(name.partition("_")[0], "evaluation")
        data = _series(x, y, name, "@blue", "solid")
        found.append(Chart(name, data, layout, f"From: {group}", height=220))
    return sorted(found, key=lambda chart: chart.note)


def partition(clients: Sequence[Holder], classes: int) -> Chart | None:
    """Clients by classes as a heat map, with the clients' sizes beside it."""
    if not clients or classes < 1:
        return None
    sizes = [client.train for client in clients]
    note = (
        f"{counted(len(clients), 'client')}, {sum(sizes):,} training samples: {min(sizes):,} to "
        f"{max(sizes):,} each, {statistics.median(sizes):,g} at the median."
    )
    shown = list(clients)
    if len(shown) > CLIENTS_SHOWN:
        # Evenly spaced by rank, so that the smallest, the largest and all between are there.
        ranked = sorted(clients, key=lambda client: client.train)
        last = CLIENTS_SHOWN - 1
        shown = [ranked[i * (len(ranked) - 1) // last] for i in range(CLIENTS_SHOWN)]
        note += (
            f" Only {CLIENTS_SHOWN} of the {len(clients):,} clients are shown: evenly spaced in "
            "order of their size, from the smallest (top) to the largest."
        )
    at = list(range(len(shown)))
    labels = [_text(_short(client.name, 16)) for client in shown]
    shares = [[round(n / max(1, sum(c.classes)), 4) for n in c.classes] for c in shown]
    heat = {
        "type": "heatmap",
        "x": list(range(classes)),
        "y": at,
        "z": shares,
        "customdata": [
            [[n, name] for n in c.classes] for c, name in zip(shown, labels, strict=True)
        ],
        "hovertemplate": "client %{customdata[1]}, class %{x}<br>%{customdata[0]} samples, "
        "%{z:.3f} of the client's<extra></extra>",
        "zmin": 0,
        "zmax": max(map(max, shares)) or 1,
        "colorscale": [[0, "@heat0"], [0.5, "@heat1"], [1, "@heat2"]],
        "xgap": 1 if classes <= 50 else 0,
        "ygap": 1,
        "colorbar": {
            "orientation": "h",
            "thickness": 10,
            "len": 0.7,
            "x": 0,
            "xanchor": "left",
            "y": 1,
            "yanchor": "bottom",
            "title": {"text": "share of the client's training samples", "side": "top"},
            "outlinewidth": 0,
        },
    }
    bars = {
        "type": "bar",
        "orientation": "h",
        "x": [client.train for client in shown],
        "y": at,
        "customdata": [[name, c.test] for c, name in zip(shown, labels, strict=True)],
        "hovertemplate": "client %{customdata[0]}: %{x} training samples, %{customdata[1]} test "
        "samples<extra></extra>",
        "xaxis": "x2",
        "marker": {"color": "@blue"},
    }
    step = 1 if len(shown) <= CLIENTS_SHOWN // 2 else 2
    layout = _layout(
        {"title": {"text": "class"}, "domain": [0, 0.7], "showgrid": False, "automargin": False},
        {
            "title": {"text": "client"},
            "autorange": "reversed",
            "showgrid": False,
            "tickvals": at[::step],
            "ticktext": labels[::step],
        },
    )
    if classes <= 10:
        layout["xaxis"]["dtick"] = 1
    layout["xaxis2"] = _AXIS | {
        "title": {"text": "training samples"},
        "domain": [0.74, 1],
        "automargin": False,
        "rangemode": "tozero",
        "nticks": 4,
    }
    # Plotly puts a title between two labels where it fits; this far off it is below them all.
    layout["xaxis"]["title"]["standoff"] = layout["xaxis2"]["title"]["standoff"] = 32
    layout["margin"] |= {"t": 70, "b": 65}
    layout |= {"showlegend": False, "hovermode": "closest", "bargap": 0.2}
    return Chart("Who holds what", [heat, bars], layout, note, height=175 + 14 * len(shown))


def _spread(history: Sequence[Row]) -> list[dict[str, Any]]:
    """The clients' mean with its band, or with bars where one point has no band."""
    mean, std = "client_accuracy_mean", "client_accuracy_std"
    line = _series(*_points(history, mean), "clients' own test data, mean", "@green", "dash")
    both = [row for row in history if mean in row.metrics and std in row.metrics]
    if not line or not both:
        return line
    if len(both) == 1:
        return [line[0] | {"error_y": {"array": [both[0].metrics[std]], "color": "@green"}}]
    x = [row.round + 1 for row in both]
    edge = {"type": "scatter", "x": x, "mode": "lines", "line": {"width": 0}, "hoverinfo": "skip"}
    low = [max(0.0, row.metrics[mean] - row.metrics[std]) for row in both]
    high = [min(1.0, row.metrics[mean] + row.metrics[std]) for row in both]
    band = {"fill": "tonexty", "fillcolor": "@band", "name": "± standard deviation"}
    return [edge | {"y": low, "showlegend": False}, edge | {"y": high} | band, *line]


def _points(history: Sequence[Row], name: str) -> tuple[list[float], list[float]]:
    pairs = [(row.round + 1, row.metrics[name]) for row in history if name in row.metrics]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _series(
    x: list[float], y: list[float], name: str, colour: str, dash: str
) -> list[dict[str, Any]]:
    """One line; nothing for no points, and markers where a line would hardly show."""
    if not x:
        return []
    mode = "markers" if len(x) == 1 else "lines+markers" if len(x) <= _MARKED else "lines"
    line = {"color": colour, "dash": dash, "width": 2}
    look = {"mode": mode, "line": line, "marker": _marker(colour, size=9 if len(x) == 1 else 5)}
    return [{"type": "scatter", "x": x, "y": y, "name": _text(name), **look}]


def _marker(colour: str, symbol: str = "circle", size: int = 8) -> dict[str, Any]:
    return {"color": colour, "symbol": symbol, "size": size}


def _layout(x: dict[str, Any], y: dict[str, Any]) -> dict[str, Any]:
    for axis in (x, y):
        axis["title"]["standoff"] = 10  # else a title may lie on the ticks' labels
    return {
        "autosize": True,
        "margin": {"l": 10, "r": 14, "t": 10, "b": 10},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": "@ink"},
        "paper_bgcolor": "@card",
        "plot_bgcolor": "@card",
        "hoverlabel": {"bgcolor": "@card", "bordercolor": "@line", "font": {"color": "@ink"}},
        "hovermode": "x unified",
        "legend": {
            "orientation": "h",
            "x": 0,
            "y": 1.02,
            "yanchor": "bottom",
            "traceorder": "normal",
        },
        "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": "@line", "activecolor": "@ink"},
        "shapes": [],
        "annotations": [],
        "xaxis": _AXIS | x,
        "yaxis": _AXIS | y,
    }


def _rounds(history: Sequence[Row]) -> dict[str, Any]:
    first, last = history[0].round + 1, history[-1].round + 1
    axis: dict[str, Any] = {"title": {"text": "round"}, "tickformat": "d"}
    pad = 0.5 if last - first < 20 else 0.02 * (last - first)
    axis["range"] = [first - pad, last + pad]
    return axis | ({"dtick": 1} if last - first <= 10 else {})


def _share(values: Sequence[float], name: str = "accuracy") -> dict[str, Any]:
    """An axis for shares from 0, up to the tenth above the highest."""
    top = min(10, int(10 * max(values) + 1.5)) / 10
    return {"title": {"text": f"{_text(_short(name, 28))} (share)"}, "range": [0, top * 1.02]}


def _rule(layout: dict[str, Any], axis: str, at: float, text: str) -> None:
    """A dotted line across the chart with a word at its end."""
    across = "x" if axis == "y" else "y"
    span = {f"{across}ref": "paper", f"{across}0": 0, f"{across}1": 1}
    ends = {f"{axis}0": at, f"{axis}1": at}
    line = {"color": "@line", "width": 1, "dash": "dot"}
    layout["shapes"].append({"type": "line", "line": line, "layer": "below", **span, **ends})
    # Accuracies begin low: a word about a target is out of their way on the left.
    end = 0 if axis == "y" else 1
    place = {
        axis: at,
        across: end,
        f"{across}ref": "paper",
        "showarrow": False,
        "text": _text(text),
    }
    place |= {
        "xanchor": "left",
        "yanchor": "bottom" if axis == "y" and at < _HIGH else "top",
        "font": {"size": 11, "color": "@soft"},
    }
    layout["annotations"].append(place)


def _stages(layout: dict[str, Any], history: Sequence[Row]) -> None:
    """Where a stage begins, if there are several."""
    begun = [row for i, row in enumerate(history) if i and row.stage != history[i - 1].stage]
    for row in begun if len(begun) <= _STAGES else ():
        _rule(layout, "x", row.round + 0.5, _short(row.stage, 20))


def counted(number: int, word: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _text(value: str) -> str:
    """Plotly reads some HTML in its labels; what comes from a file is not to be read so."""
    return html.escape(value, quote=False)


def _short(value: str, length: int) -> str:
    return value if len(value) <= length else value[: length - 1] + "…"
