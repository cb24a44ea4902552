"""Charts which client holds what: a heat map of clients by classes, with their sizes."""

import statistics
from collections.abc import Sequence

from coterie.core.formatting import counted, shorten
from coterie.report.chart import AXIS, Chart, Plotly, escape_label, make_axis, make_layout
from coterie.report.read import Holder

CLIENTS_SHOWN = 60  # rows of the heat map that are still readable
_CLASSES_NAMED = 40  # labels below the heat map; of more classes every second, third, ...
_LONGEST = 16  # letters of a label


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
    labels = [escape_label(shorten(client.name, _LONGEST)) for client in shown]
    named = list(zip(shown, labels, strict=True))
    data = [*([_heat(named, classes)] if classes else []), _bars(named)]
    layout = _layout(labels, classes)
    height = 110 + layout["margin"]["b"] + 14 * len(shown)
    return Chart("Who holds what", data, layout, note, height)


def _heat(clients: Sequence[tuple[Holder, str]], classes: Sequence[str]) -> Plotly:
    shares = [[round(n / max(1, sum(c.classes)), 4) for n in c.classes] for c, _ in clients]
    named = list(map(escape_label, classes))
    position = {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom", "len": 0.7}
    title = {"title": {"text": "share of the client's training samples", "side": "top"}}
    return {
        "type": "heatmap",
        "x": list(range(len(classes))),
        "y": list(range(len(clients))),
        "z": shares,
        "customdata": [
            [[n, label, name] for n, name in zip(client.classes, named, strict=True)]
            for client, label in clients
        ],
        "hovertemplate": "client %{customdata[1]}, class %{customdata[2]}<br>"
        "%{customdata[0]} samples, %{z:.3f} of the client's<extra></extra>",
        "zmin": 0,
        "zmax": max(map(max, shares)) or 1,
        "colorscale": [[0, "@heat0"], [0.5, "@heat1"], [1, "@heat2"]],
        "xgap": 1 if len(classes) <= 50 else 0,
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


def _layout(labels: Sequence[str], classes: Sequence[str]) -> Plotly:
    step = 1 if len(labels) <= CLIENTS_SHOWN // 2 else 2
    ticks = {"tickvals": list(range(0, len(labels), step)), "ticktext": labels[::step]}
    columns = {"domain": [0, 0.7], "showgrid": False, "automargin": False}
    rows = {"autorange": "reversed", "showgrid": False} | ticks
    look = make_layout(make_axis("class") | columns, make_axis("client") | rows)
    if not classes:
        look["xaxis"]["visible"] = False
    below = _label_classes(look["xaxis"], classes)
    left = 0.74 if classes else 0
    sizes = {"domain": [left, 1], "automargin": False, "rangemode": "tozero", "nticks": 4}
    look["xaxis2"] = AXIS | make_axis("training samples") | sizes
    # Plotly puts a title between two labels where it fits; this far off it is below them all.
    look["xaxis"]["title"]["standoff"], look["xaxis2"]["title"]["standoff"] = 32 + below, 32
    look["margin"] |= {"t": 70, "b": 65 + below}
    return look | {"showlegend": False, "hovermode": "closest", "bargap": 0.2}


def _label_classes(axis: Plotly, classes: Sequence[str]) -> int:
    """Label an axis with the names of classes; return the height (pixels) of slanted labels.

    Classes that are numbered from 0 need no names; Plotly then chooses which numbers it shows.
    """
    if list(classes) == list(map(str, range(len(classes)))):
        if len(classes) <= 10:
            axis["dtick"] = 1
        return 0
    step = -(-len(classes) // _CLASSES_NAMED)
    named = [escape_label(shorten(name, _LONGEST)) for name in classes[::step]]
    axis |= {"tickvals": list(range(0, len(classes), step)), "ticktext": named}
    longest = max(min(len(name), _LONGEST) for name in classes)
    if longest * len(named) <= 60:  # they fit beside each other
        axis["tickangle"] = 0
        return 0
    axis["tickangle"] = -40
    return 4 * longest
