"""What an evaluator on clients reports about the whole federation."""

from collections.abc import Iterable, Mapping

import numpy as np

from coterie.kit import ClientId

Scores = Mapping[ClientId, Mapping[str, float]]  # the metrics of every client
_PARTS = ("mean", "std", "worst_decile")


def name_summary(metric: str, averages: Iterable[str]) -> tuple[str, ...]:
    """List the metrics that `summarise_clients` reports at most."""
    return (*(f"client_{metric}_{part}" for part in _PARTS), *averages)


def summarise_clients(scores: Scores, metric: str, averages: Mapping[str, str]) -> dict[str, float]:
    """Compute mean, spread and worst decile of a metric, and plain means of other metrics.

    Each client counts once. `averages` has the metric of each mean, by the name it is reported as;
    it is taken over the clients that have the metric, and left out where none has.
    """
    values = np.sort([metrics[metric] for metrics in scores.values() if metric in metrics])
    if not len(values):
        return {}
    worst = max(1, len(values) // 10)
    parts = (values.mean(), values.std(), values[:worst].mean())
    summary = dict(zip(name_summary(metric, ()), map(float, parts), strict=True))
    for name, other in averages.items():
        if measured := [metrics[other] for metrics in scores.values() if other in metrics]:
            summary[name] = float(np.mean(measured))
    return summary
