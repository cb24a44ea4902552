"""What an evaluator on clients reports of the whole federation."""

from collections.abc import Mapping

import numpy as np

from coterie.kit import ClientId


def summarise_clients(
    found: Mapping[ClientId, Mapping[str, float]], metric: str
) -> dict[str, float]:
    """Mean, spread and worst decile of a metric, each client counting once."""
    values = np.sort([metrics[metric] for metrics in found.values()])
    worst = max(1, len(values) // 10)
    return {
        f"client_{metric}_mean": float(values.mean()),
        f"client_{metric}_std": float(values.std()),
        f"client_{metric}_worst_decile": float(values[:worst].mean()),
    }


def average_clients(found: Mapping[ClientId, Mapping[str, float]], metric: str) -> float:
    """The mean of a metric, each client counting once."""
    return float(np.mean([metrics[metric] for metrics in found.values()]))
