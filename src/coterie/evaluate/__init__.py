"""One file an evaluator: its name in `evaluate.with` is the file's, its keys are its fields."""

from collections.abc import Mapping
from typing import Any

ALIASES: Mapping[str, Mapping[str, Any]] = {
    "linear_probe": {"name": "probe"},
    "naive_probe": {"name": "federated_probe", "own_models": True, "as": "naive_probe"},
    "own_probe": {"name": "probe", "where": "client", "as": "own_probe"},
    "personal": {"name": "accuracy", "where": "client"},
    "personal_knn": {"name": "knn", "where": "client"},
    "personal_probe": {"name": "probe", "where": "client", "data": "all"},
    "probe_1": {"name": "probe", "labels": 0.01, "as": "probe_1"},
    "probe_10": {"name": "probe", "labels": 0.1, "as": "probe_10"},
    "projection_knn": {"name": "knn", "layer": "z", "as": "projection_knn"},
    "projection_probe": {"name": "probe", "layer": "z", "as": "projection_probe"},
}
"""Names that are short for an entry of `evaluate.with`, with the metrics of that entry."""
