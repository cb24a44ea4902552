"""Charts a run round by round: what it measured, sent and lost."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean
from typing import Any

from coterie.core.formatting import MEGABYTE
from coterie.report import words
from coterie.report.chart import (
    DRAWN,
    PALETTE,
    Chart,
    History,
    Spec,
    list_points,
    list_stages,
    make_axis,
    make_round_axis,
    make_series,
    mark_stages,
)

AXES = {  # of `list_ways`
    "round": make_round_axis(),
    "data sent": make_axis("sent so far, up and down (MB)"),
    "time": make_axis("seconds so far, evaluation included"),
}
_LOSSES = {
    "train_loss": ("training", "orange", "dash"),
    "train_personal_loss": ("training of the clients' own models", "brown", "dashdot"),
    "server_loss": ("training on the server", "purple", "dash"),
    "loss": ("global test set", "blue", "solid"),
    "client_loss_mean": ("clients' own test data, mean", "green", "dot"),
}
_TERMS = ("train_loss_", "train_personal_loss_")  # how names of terms begin
_IDLE = 60  # more skipped rounds than this are only counted
_FEW = 1e-9  # a metric that varies by less, relatively, is constant


def choose_metric(history: History, wanted: str) -> str:
    """Choose the metric that the page is about: the wanted one, or one that was measured."""
    measured = {name for event in history for name in event.metrics}
    candidates = (wanted, "accuracy", "knn", *(m for m in sorted(measured) if words.is_share(m)))
    return next((name for name in candidates if name in measured), wanted)


def list_own(metric: str) -> tuple[str, str, str, str]:
    """List the names of a metric on the server, its mean, spread and worst decile over clients."""
    stem = words.get_stem(metric)
    return stem, f"client_{stem}_mean", f"client_{stem}_std", f"client_{stem}_worst_decile"


def chart_metric(
    history: History, metric: str, targets: Sequence[float], base_lines: Mapping[str, float]
) -> Chart | None:
    """Chart the metric of a run by round, by data sent and by time; None if it has no values."""
    begun, views = list_stages(history), list[Spec]()
    for (name, axis), at in zip(AXES.items(), list_ways(history), strict=True):
        if name != "round" and not at[-1]:
            continue
        series = _list_series(history, metric, at)
        marks = [{"at": at[max(0, i - 1)], "text": stage} for i, stage in begun]  # one's end
        marks = mark_stages(history) if name == "round" else marks
        views.append({"name": f"by {name}", "x": axis, "series": series, "marks": marks})
    if not views[0]["series"]:
        return None
    levels = [{"value": value, "text": f"target {value:g}"} for value in targets]
    named: dict[str, list[str]] = {}
    for key, value in base_lines.items():
        named.setdefault(f"{value:.3f}", []).append(words.name_base_line(key))
    levels += [{"value": float(v), "text": f"{', '.join(names)} {v}"} for v, names in named.items()]
    share = {"most": 1} if words.is_share(metric) else {}
    name = words.name_metric(words.get_stem(metric) if words.is_share(metric) else metric)
    note = words.explain_metric(words.get_stem(metric)).removesuffix("From: test.").strip()
    if any("low" in line for line in views[0]["series"]):
        note += " The band is one standard deviation over the clients either side of their mean."
    if (measured := len(list_points(history, metric))) < len(history):
        note += f" It was measured after {measured:,} of {len(history):,} rounds."
    if measured > DRAWN:
        note += f" {DRAWN} of the rounds are drawn, evenly spaced; metrics.jsonl has them all."
    spec: Spec = {"kind": "lines", "choose": "horizontal axis", "y": make_axis(name, **share)}
    spec |= {"levels": levels, "views": views}
    return Chart(words.begin(name), spec, note.strip())


def list_ways(history: History) -> tuple[list[float], list[float], list[float]]:
    """List how far a run was after each round: in rounds, megabytes sent and seconds."""
    sent = accumulate((e.bytes_up + e.bytes_down) / MEGABYTE for e in history)
    spent = accumulate(event.seconds for event in history)
    return [event.round + 1.0 for event in history], list(sent), list(spent)


def _list_series(history: History, metric: str, at: Sequence[float]) -> list[Spec]:
    """List the lines of a metric: global, over the clients, and the metric if it is another."""
    own, mean, std, worst = list_own(metric)

    def points(key: str, skipped: bool = False) -> list[tuple[float, float]]:
        wanted = ((x, e) for x, e in zip(at, history, strict=True) if e.skipped or not skipped)
        return [(x, event.metrics[key]) for x, event in wanted if key in event.metrics]

    both = [e.metrics for e in history if mean in e.metrics and std in e.metrics]
    band = [(m[mean] - m[std], m[mean] + m[std]) for m in both]
    if len(band) != len(points(mean)):
        band = []
    if words.is_share(metric):
        band = [(max(0.0, low), min(1.0, high)) for low, high in band]
    lines = make_series(points(own), "global test set", "blue")
    lines += make_series(points(mean), "clients' own test data, mean", "green", "dash", band)
    lines += make_series(points(worst), "clients' worst decile", "orange", "dot")
    if metric not in (own, mean, std, worst):
        lines += make_series(points(metric), words.name_metric(metric), "purple", "dashdot")
    # A skipped round is measured too, but its model is the one of the round before it.
    idle = points(own if points(own) else metric, skipped=True)
    return lines + make_series(idle if len(idle) <= _IDLE else [], "skipped round", "ink", "none")


def chart_losses(history: History) -> Chart | None:
    """Chart training and test loss by round."""
    lines = [make_series(list_points(history, key), *look) for key, look in _LOSSES.items()]
    series = [line for some in lines for line in some]
    if not series:
        return None
    tested = len(series) > 1 and any(key.startswith("train_") for key in history[-1].metrics)
    note = "Training may minimise another loss than is tested: compare shapes, not heights."
    note = note if tested else "Mean of what is minimised, over samples."
    return Chart("Loss", _lay_out(history, series, "loss, mean per sample"), note)


def chart_terms(history: History) -> Chart | None:
    """Chart the terms of the training loss; None where there is one term or none."""
    names = sorted({n for e in history for n in e.metrics if n.startswith(_TERMS)})
    if len(names) < 2:
        return None
    series = []
    for name, colour in zip(names, PALETTE, strict=False):
        stem = name.removeprefix("train_").replace("loss_", "").replace("_", " ")
        series += make_series(list_points(history, name), stem, colour)
    note = "The terms of a loss add up to it."
    return Chart("Terms of the training loss", _lay_out(history, series, "mean per sample"), note)


def chart_traffic(history: History) -> Chart | None:
    """Chart what was sent in every round; None where that is always the same."""
    kinds = {
        "up, to train": ([e.bytes_up for e in history], "blue"),
        "down, to train": ([e.bytes_down for e in history], "sky"),
        "both ways, to evaluate": (
            [e.evaluation_bytes_up + e.evaluation_bytes_down for e in history],
            "gold",
        ),
    }
    if all(len(set(counts)) == 1 for counts, _ in kinds.values()):
        return None
    series = [
        {"name": name, "colour": colour, "y": [round(n / MEGABYTE, 6) for n in counts]}
        for name, (counts, colour) in kinds.items()
        if any(counts)
    ]
    spec = _stack(history, series, make_axis("MB"))
    return Chart("Sent by round", spec, "1 MB is 1,000,000 bytes.")


def chart_participation(history: History) -> Chart | None:
    """Chart how many answered, were lost and rejected; None where everybody always answered."""
    if not any(event.lost or event.rejected for event in history):
        return None
    counts = {
        "answered": ([len(e.cohort) - len(e.lost) - len(e.rejected) for e in history], "blue"),
        "lost": ([len(e.lost) for e in history], "orange"),
        "rejected": ([len(e.rejected) for e in history], "purple"),
    }
    series = [{"name": n, "colour": colour, "y": y} for n, (y, colour) in counts.items() if any(y)]
    spec = _stack(history, series, make_axis("clients", whole=True))
    return Chart("Participation by round", spec, "Clients that were invited to a round.")


def chart_others(history: History, metric: str) -> list[Chart]:
    """Chart every metric that no other chart shows and that varies."""
    charts = []
    for name in _list_others(history, metric):
        points = list_points(history, name)
        if not _is_constant([value for _, value in points]):
            most = 1 if words.is_share(name) else None
            series = make_series(points, name, "blue")
            spec = _lay_out(history, series, "", height=190, most=most)
            charts.append(Chart(name, spec, words.explain_metric(name)))
    return charts


def list_constant(history: History, metric: str) -> list[tuple[str, float, int]]:
    """List the metrics that no chart shows since they never vary: name, value, times measured."""
    rows = []
    for name in _list_others(history, metric):
        values = [value for _, value in list_points(history, name)]
        if _is_constant(values):
            rows.append((name, values[-1], len(values)))
    return rows


def _list_others(history: History, metric: str) -> list[str]:
    """List the metrics that have no place elsewhere, those of training first."""
    shown = {metric, *list_own(metric), *_LOSSES}
    measured = {name for event in history for name in event.metrics} - shown
    if chart_terms(history) is not None:
        measured = {name for name in measured if not name.startswith(_TERMS)}
    return sorted(measured, key=lambda n: (n.partition("_")[0] not in ("train", "server"), n))


def _is_constant(values: Sequence[float]) -> bool:
    return max(values) - min(values) <= _FEW * max(map(abs, values))


def _lay_out(history: History, series: Sequence[Spec], label: str, **more: Any) -> Spec:
    """Lay out lines over the rounds of a run, with its stages."""
    y = make_axis(label, most=most) if (most := more.pop("most", None)) else make_axis(label)
    spec = {"kind": "lines", "x": make_round_axis(), "y": y, "series": list(series)}
    return spec | {"marks": mark_stages(history)} | more


def _stack(history: History, series: Sequence[Spec], y: Spec) -> Spec:
    """Stack bars over the rounds of a run; of very many rounds a bar is the mean of some."""
    size = -(-len(history) // DRAWN)
    if size > 1:
        starts = range(0, len(history), size)
        series = [
            one | {"y": [round(fmean(one["y"][i : i + size]), 3) for i in starts]} for one in series
        ]
        y = y | {"label": f"{y['label']}, mean of {size} rounds"}
    at = [event.round + 1 for event in history[::size]]
    spec = {"kind": "bars", "x": make_round_axis(), "y": y, "at": at, "series": list(series)}
    return spec | {"step": size}
