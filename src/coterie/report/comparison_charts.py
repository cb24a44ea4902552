"""Charts rows of runs: curves with bands over seeds, and how the clients of every row fare."""

from collections.abc import Mapping, Sequence
from math import isfinite
from statistics import fmean, quantiles

from coterie.core.formatting import counted, list_first, shorten_middle
from coterie.report import words
from coterie.report.chart import (
    Chart,
    Points,
    Spec,
    describe_thinning,
    make_axis,
    make_looks,
    make_series,
    make_share_axis,
    thin,
)
from coterie.report.curves import AXES, list_ways
from coterie.report.read import Run
from coterie.report.rows import RunRow
from coterie.report.summary import rank_clients

_CLIENTS = 150  # points of a row
_LEGEND = 48  # characters of a name in a legend
Looks = Mapping[str, tuple[str, str]]  # by row, its colour and dash


def choose_looks(rows: Sequence[RunRow]) -> Looks:
    """Choose a colour and a dash for every row, the same in all figures."""
    names = (row.name for row in rows)
    return dict(zip(names, make_looks(len(rows)), strict=True))


def chart_rows(
    rows: Sequence[RunRow], metric: str, targets: Sequence[float], looks: Looks, most: int
) -> Chart | None:
    """Chart a metric of every row by round, data sent and time; None if no row has it.

    A line is the mean over seeds and its band goes from the lowest to the highest, in the rounds
    that all seeds measured. A line has at most so many points.
    """
    views: list[Spec] = []
    measured = {row.name: _list_common(row, metric) for row in rows}
    measured = {name: rounds for name, rounds in measured.items() if rounds}
    for way, (name, axis) in enumerate(AXES.items()):
        series = []
        for row, rounds in measured.items():
            points, band = _average(rounds, way)
            several = band if len(rounds[0]) > 1 else ()
            label = shorten_middle(row, _LEGEND)
            series += make_series(points, label, *looks[row], several, most)
        if series and (not views or any(line["x"][-1] for line in series)):
            views.append({"name": f"by {name}", "x": axis, "series": series})
    if not views:
        return None
    name, share = words.name_metric(metric), {"most": 1} if words.is_share(metric) else {}
    levels = [{"value": value, "text": f"target {value:g}"} for value in targets]
    spec: Spec = {"kind": "lines", "choose": "horizontal axis", "y": make_axis(name, **share)}
    note = _describe_curves([row for row in rows if row.name in measured], metric, measured, most)
    return Chart(words.begin(name), spec | {"levels": levels, "views": views}, note)


_Measured = list[list[tuple[float, float, float, float]]]  # by round and seed: `list_ways`, value


def _list_common(row: RunRow, metric: str) -> _Measured:
    """List the rounds in which all counted runs of a row measured a metric."""
    runs = [_list_rounds(run, metric) for run in row.counted.values()]
    runs = [run for run in runs if run]
    shared = [round for round in (runs[0] if runs else ()) if all(round in run for run in runs)]
    return [[run[round] for run in runs] for round in shared]


def _list_rounds(run: Run, metric: str) -> dict[int, tuple[float, float, float, float]]:
    """List where a run was after the rounds that measured a metric, and the value."""
    places = zip(run.history, *list_ways(run.history), strict=True)
    return {
        event.round: (at, sent, spent, event.metrics[metric])
        for event, at, sent, spent in places
        if metric in event.metrics
    }


def _average(rounds: _Measured, way: int) -> tuple[Points, Points]:
    """Average places and values over seeds; the band is from the lowest to the highest value."""
    points = [(fmean(s[way] for s in seeds), fmean(s[3] for s in seeds)) for seeds in rounds]
    return points, [(min(s[3] for s in seeds), max(s[3] for s in seeds)) for seeds in rounds]


def _describe_curves(
    rows: Sequence[RunRow], metric: str, measured: Mapping[str, _Measured], most: int
) -> str:
    note = words.explain_metric(words.get_stem(metric)).removesuffix("From: test.").strip()
    if any(len(rounds[0]) > 1 for rounds in measured.values()):
        note += (
            " A line is the mean over seeds, its band goes from the lowest to the highest seed. By "
            "data sent and by time, a point is at the mean of the seeds."
        )
    cut = [
        row.name
        for row in rows
        if any(len(_list_rounds(r, metric)) > len(measured[row.name]) for r in row.counted.values())
    ]
    if cut:
        note += f" Drawn in the rounds alone that all its seeds measured: {list_first(cut)}."
    return (note + describe_thinning(max(map(len, measured.values())), most)).strip()


def chart_clients(rows: Sequence[RunRow], metric: str, looks: Looks) -> Chart | None:
    """Chart how the clients of every row fare in its last evaluation; None if none was measured."""
    labels, groups, name, whole = list[str](), list[Spec](), "", 0
    for row in rows:
        points: list[tuple[float, str]] = []
        for seed, run in row.counted.items():
            ranked = rank_clients(run.history, metric)
            name = name or ranked[0]
            if ranked[0] == name:
                known = (score for score in ranked[1] if isfinite(score.value))
                points += [(score.value, f"{score.name}, seed {seed}") for score in known]
        if not points:
            continue
        points.sort()
        whole = max(whole, len(points))
        values = [value for value, _ in points]
        middle = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        shown = thin(points, _CLIENTS)
        labels.append(row.name)
        groups.append(
            {
                "colour": looks[row.name][0],
                "count": len(values),
                "five": [round(v, 6) for v in (values[0], *middle, values[-1])],
                "values": [round(value, 6) for value, _ in shown],
                "names": [shorten_middle(text, 40) for _, text in shown],
            }
        )
    if not groups:
        return None
    word = words.name_metric(name)
    axis = make_share_axis(word) if words.is_share(name) else make_axis(word)
    spec: Spec = {"kind": "strips", "row": "row", "x": axis, "labels": labels, "groups": groups}
    note = (
        "Each point is a client on its own test data in the last evaluation of one seed. The box "
        "holds the middle half of them, its line is the median."
    )
    if whole > _CLIENTS:
        note += f" Of more than {counted(_CLIENTS, 'point')} some are left out, evenly."
    return Chart(words.begin(f"{word} of the clients, by row"), spec, note)
