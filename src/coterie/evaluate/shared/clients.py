"""What an evaluator on clients reports about the whole federation."""

from collections.abc import Mapping

import numpy as np

from coterie.kit import ClientId

Scores = Mapping[ClientId, Mapping[str, float]]  # the metrics of every client


def summarise_clients(scores: Scores, metric: str, averages: Mapping[str, str]) -> dict[str, float]:
    """Compute mean, spread and worst decile of a metric, and plain means of other metrics.

    Each client counts once. `averages` has the metric of each mean, by the name it is reported as;
    it is taken over the clients that have the metric, and left out where none has.
    """
    values = np.sort([metrics[metric] for metrics in scores.values() if metric in metrics])
    if not len(values):
        return {}
    worst = max(1, len(values) // 10)
    summary = {
        f"client_{metric}_mean": float(values.mean()),
        f"client_{metric}_std": float(values.std()),
        f"client_{metric}_worst_decile": float(values[:worst].mean()),
    }
    for name, other in averages.items():
        if measured := [metrics[other] for metrics in scores.values() if other in metrics]:
            summary[name] = float(np.mean(measured))
    return summary
