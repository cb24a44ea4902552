"""The methods under conformance: every file of the directory, and the toy methods."""

from dataclasses import dataclass, field
from typing import Any

from coterie.core import registry


@dataclass(frozen=True)
class Case:
    """A method with what it needs to run on the toy problem."""

    name: str
    changes: dict[str, dict[str, Any]] = field(default_factory=dict)
    zero: dict[str, dict[str, Any]] | None = None  # the setting in which it is FedAvg


_OBJECTIVE: dict[str, str] = {}  # of a shipped method that does not take "supervised"
_ZERO: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.0},
    "moon": {"mu": 0.0},
    "fedproc": {"schedule": "fixed", "alpha": 0.0},
    "fedssc": {"mu_moon": 0.0, "mu_glob": 0.0},
}  # of shipped methods, by name


def _shipped() -> list[Case]:
    found = []
    for name in registry.names("methods"):
        changes: dict[str, dict[str, Any]] = {"method": {"name": name}}
        if name in _OBJECTIVE:
            changes["objective"] = {"name": _OBJECTIVE[name]}
        zero = {"method": {"name": name, **_ZERO[name]}} if name in _ZERO else None
        found.append(Case(name, changes, zero))
    return found


_VARIANTS: dict[str, dict[str, Any]] = {
    "moon-buffer": {"name": "moon", "buffer": 3},
    "moon-random-init": {"name": "moon", "first": "random_init"},
    "moon-l2": {"name": "moon", "term": "l2", "mu": 0.1},
    "fedproc-official": {
        **{"name": "fedproc", "similarity": "dot", "alpha_horizon": 2},
        "proto_transform": "train",
    },
    "fedproc-fixed": {"name": "fedproc", "schedule": "fixed", "alpha": 0.5},
    "fedproc-two-stage": {"name": "fedproc", "schedule": "two-stage", "stage1_fraction": 0.5},
    "fedproc-literal": {
        **{"name": "fedproc", "proto_agg": "mean", "round0": "gpc_init"},
        "ce_through": "classifier",
    },
    "fedssc-all": {"name": "fedssc", "k_shared": "all", "exclude_self": False, "min_count": 1},
    "fedssc-shared-draw": {"name": "fedssc", "k_shared": 2, "shared_draw": True, "stale": "drop"},
    "fedssc-extract": {"name": "fedssc", "init_with": "extract", "mu_moon": 0.0},
    "fedssc-other-class": {"name": "fedssc", "negative": "other_class"},
    "fedssc-no-negative": {"name": "fedssc", "negative": "none", "mu_moon": 0.5},
    "fedssc-two-stage": {"name": "fedssc", "two_stage": True, "stage1_fraction": 0.5},
    "fedssc-two-stage-moon": {"name": "fedssc", "two_stage": True, "stage1": "moon+glob"},
    "fedssc-local-pairs": {"name": "fedssc", "local_pairs": True, "mu_moon": 1.0},
}  # named variants of shipped methods, each its [method] table


def _variants() -> list[Case]:
    return [Case(name, {"method": method}) for name, method in _VARIANTS.items()]


def _toys() -> list[Case]:
    following = {"objective": {"name": "toy_methods:Following"}}
    probe = {"evaluate": {"with": ["accuracy", "personal", "toy_methods:FederatedProbe"]}}
    return [
        Case("staged", {"method": {"name": "toy_methods:Staged", "delta": 0.34}}),
        Case(
            "addressed",
            {"method": {"name": "toy_methods:Addressed"}},
            zero={"method": {"name": "toy_methods:Addressed", "weight": 0.0}},
        ),
        Case(
            "two-models",
            {"method": {"name": "toy_methods:TwoModels"}},
            zero={"method": {"name": "toy_methods:TwoModels"}},
        ),
        Case("private-names", following),
        Case("private-two-models", {"method": {"name": "toy_methods:TwoModels"}, **following}),
        Case("local-buffers", {"net": {"norm": "bn", "bn_buffers": "local"}}),
        Case("averaged-buffers", {"net": {"norm": "bn"}}),
        Case("federated-evaluator", probe),
        Case("momentum", {"server": {"optimizer": "momentum", "lr": 0.5}}),
        Case("adam", {"server": {"optimizer": "adam", "lr": 0.02}}),
        Case("yogi", {"server": {"optimizer": "yogi", "lr": 0.02}}),
        Case("adagrad", {"server": {"optimizer": "adagrad", "lr": 0.02}}),
        Case("sampled", {"cohort": {"fraction": 0.5, "drop_before": 0.2, "drop_after": 0.2}}),
    ]


CASES = [*_shipped(), *_variants(), *_toys()]
