"""Charts which client holds what: a heat map of clients by classes, with their sizes."""

import statistics
from collections.abc import Sequence

from coterie.core.formatting import counted, shorten
from coterie.report.chart import AXIS, Chart, Plotly, escape_label, make_axis, make_layout
from coterie.report.read import Holder

CLIENTS_SHOWN = 60  # rows of the heat map that are still readable


def chart_partition(clients: Sequence[Holder], classes: int) -> Chart | None:
    """Chart clients by classes as a heat map, with the clients' sizes beside it.

    Without labels the sizes stand alone.
    """
    if not clients:
        return None
    sizes = [client.train for client in clients]
    note = (
        f"{counted(len(clients), 'client')}, {sum(sizes):,} training samples: {min(sizes):,} to "
        f"{max(sizes):,} each, {statistics.median(sizes):,g} at the median."
    )
    shown = clients
    if len(clients) > CLIENTS_SHOWN:
        # Evenly spaced by rank, so that the smallest, the largest and all between are there.
        ranked = sorted(clients, key=lambda client: client.train)
        last = CLIENTS_SHOWN - 1
        shown = [ranked[i * (len(ranked) - 1) // last] for i in range(CLIENTS_SHOWN)]
        note += (
            f" Only {CLIENTS_SHOWN} of the {len(clients):,} clients are shown: evenly spaced in "
            "order of their size, from the smallest (top) to the largest."
        )
    labels = [escape_label(shorten(client.name, 16)) for client in shown]
    named = list(zip(shown, labels, strict=True))
    data = [*([_heat(named, classes)] if classes else []), _bars(named)]
    height = 175 + 14 * len(shown)
    return Chart("Who holds what", data, _layout(labels, classes), note, height)


def _heat(clients: Sequence[tuple[Holder, str]], classes: int) -> Plotly:
    shares = [[round(n / max(1, sum(c.classes)), 4) for n in c.classes] for c, _ in clients]
    position = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "len": 0.7}
    title = {"title": {"text": "share of the client's training samples", "side": "top"}}
    return {
        "type": "heatmap",
        "x": list(range(classes)),
        "y": list(range(len(clients))),
        "z": shares,
        "customdata": [[[n, label] for n in client.classes] for client, label in clients],
        "hovertemplate": "client %{customdata[1]}, class %{x}<br>%{customdata[0]} samples, "
        "%{z:.3f} of the client's<extra></extra>",
        "zmin": 0,
        "zmax": max(map(max, shares)) or 1,
        "colorscale": [[0, "@heat0"], [0.5, "@heat1"], [1, "@heat2"]],
        "xgap": 1 if classes <= 50 else 0,
        "ygap": 1,
        "colorbar": {"orientation": "h", "thickness": 10, "outlinewidth": 0} | position | title,
    }


def _bars(clients: Sequence[tuple[Holder, str]]) -> Plotly:
    return {
        "type": "bar",
        "orientation": "h",
        "x": [client.train for client, _ in clients],
        "y": list(range(len(clients))),
        "customdata": [[label, client.test] for client, label in clients],
        "hovertemplate": "client %{customdata[0]}: %{x} training samples, %{customdata[1]} test "
        "samples<extra></extra>",
        "xaxis": "x2",
        "marker": {"color": "@blue"},
    }


def _layout(labels: Sequence[str], classes: int) -> Plotly:
    step = 1 if len(labels) <= CLIENTS_SHOWN // 2 else 2
    ticks = {"tickvals": list(range(0, len(labels), step)), "ticktext": labels[::step]}
    columns = {"domain": [0, 0.7], "showgrid": False, "automargin": False}
    rows = {"autorange": "reversed", "showgrid": False} | ticks
    look = make_layout(make_axis("class") | columns, make_axis("client") | rows)
    if classes <= 10:
        look["xaxis"]["dtick"] = 1
    if not classes:
        look["xaxis"]["visible"] = False
    left = 0.74 if classes else 0
    sizes = {"domain": [left, 1], "automargin": False, "rangemode": "tozero", "nticks": 4}
    look["xaxis2"] = AXIS | make_axis("training samples") | sizes
    # Plotly puts a title between two labels where it fits; this far off it is below them all.
    look["xaxis"]["title"]["standoff"] = look["xaxis2"]["title"]["standoff"] = 32
    look["margin"] |= {"t": 70, "b": 65}
    return look | {"showlegend": False, "hovermode": "closest", "bargap": 0.2}
