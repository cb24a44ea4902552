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
    plain: dict[str, dict[str, Any]] = field(default_factory=dict)  # what that FedAvg runs on
    falls: str = "loss"  # the metric that goes down: on the test set, or `train_...`
    within: int | None = None  # rounds in which it goes down, if four do not show it
    variant: bool = False  # of a method that is here by itself too
    staged: bool = False  # it has rounds that rely on an upload


def _views(objective: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Small images of which two views are taken, instead of the points of the toy problem."""
    return {
        "data": {"name": "digits", "root": "", "limit": 180, "augment": "resized-crop"},
        "objective": objective,
        "evaluate": {"with": ["knn", "personal_knn"], "metric": "knn"},
    }


_VIEWS: dict[str, dict[str, Any]] = {
    "simsiam": {"name": "simsiam", "hidden": 16, "bottleneck": 4},
    "simclr": {"name": "simclr", "hidden": 16},
    "byol": {"name": "byol", "hidden": 16},
    "byol-reset": {"name": "byol", "hidden": 16, "target": "reset", "momentum": 0.9},
    "byol-aggregate": {"name": "byol", "hidden": 16, "target": "aggregate", "momentum": 0.9},
    "swav": {"name": "swav", "hidden": 16, "prototypes": 12},
    "rotation": {"name": "rotation", "hidden": 16},
}  # self-supervised objectives, each its [objective] table
_UNLABELLED = ("la_ssfl", "maml_ssfl", "bilevel_ssfl", "per_ssfl")  # do not take "supervised"
_ZERO: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedprox": {"mu": 0.0},
    "moon": {"mu": 0.0},
    "fedproc": {"schedule": "fixed", "alpha": 0.0},
    "fedssc": {"mu_moon": 0.0, "mu_glob": 0.0},
    "la_ssfl": {},
    "maml_ssfl": {"inner_lr": 0.0},
    "bilevel_ssfl": {},
    "per_ssfl": {},
}  # of shipped methods, by name
_LATE = ("fedproc-two-stage", "fedproc-literal", "fedssc-two-stage", "fedssc-two-stage-moon")
_SLOW = ("moon", "moon-buffer", "moon-random-init", "fedssc", "fedssc-all", "fedssc-device-draw")
_ROUNDS = {**dict.fromkeys(_SLOW, 8), **dict.fromkeys(_LATE, 16), "solo": 8}
# in which the loss falls, if four do not show it: in _LATE the output layer is trained last


def _modular(**method: Any) -> dict[str, dict[str, Any]]:
    """MFCL with networks of a few hundred weights."""
    small = {"sense_rounds": 2, "sensor_width": 4, "server_batch": 48, "server_warmup": 1}
    return {
        **_views(_VIEWS["simclr"]),
        "method": {"name": "mfcl", "share_representations": True, **small, **method},
    }


def _clustered(**method: Any) -> dict[str, dict[str, Any]]:
    """Orchestra with small memories and few clusters."""
    small = {"clusters": 12, "local_clusters": 4, "memory": 32, "server_steps": 20, "ema": 0.9}
    return {**_views(_VIEWS["rotation"]), "method": {"name": "orchestra", **small, **method}}


def _shipped() -> list[Case]:
    found = []
    for name in registry.names("methods"):
        if name == "mfcl":
            found.append(Case(name, _modular(), falls="server_loss", staged=True))
            continue
        if name == "orchestra":
            found.append(Case(name, _clustered(), falls="train_loss"))
            continue
        plain = _views(_VIEWS["simsiam"]) if name in _UNLABELLED else {}
        zero = {**plain, "method": {"name": name, **_ZERO[name]}} if name in _ZERO else None
        falls = "train_loss" if name in _UNLABELLED else "loss"
        changes, within = {**plain, "method": {"name": name}}, _ROUNDS.get(name)
        found.append(Case(name, changes, zero, plain, falls, within))
    return found


_VARIANTS: dict[str, dict[str, Any]] = {
    "moon-buffer": {"name": "moon", "buffer": 3},
    "moon-random-init": {"name": "moon", "first": "random_init"},
    "moon-l2": {"name": "moon", "term": "l2", "mu": 0.1},
    "fedproc-dot": {"name": "fedproc", "similarity": "dot"},
    "fedproc-official": {"name": "fedproc", "alpha_horizon": 2, "proto_transform": "train"},
    "fedproc-fixed": {"name": "fedproc", "schedule": "fixed", "alpha": 0.5},
    "fedproc-two-stage": {"name": "fedproc", "schedule": "two-stage", "stage1_fraction": 0.5},
    "fedproc-literal": {
        **{"name": "fedproc", "proto_agg": "mean", "round0": "gpc_init"},
        "ce_through": "classifier",
    },
    "fedssc-all": {"name": "fedssc", "k_shared": "all", "exclude_self": False, "min_count": 1},
    "fedssc-device-draw": {"name": "fedssc", "k_shared": 2, "shared_draw": False, "stale": "drop"},
    "fedssc-extract": {"name": "fedssc", "init_with": "extract", "mu_moon": 0.0},
    "fedssc-other-class": {"name": "fedssc", "negative": "other_class"},
    "fedssc-no-negative": {"name": "fedssc", "negative": "none", "mu_moon": 0.5},
    "fedssc-two-stage": {"name": "fedssc", "two_stage": True, "stage1_fraction": 0.5},
    "fedssc-two-stage-moon": {"name": "fedssc", "two_stage": True, "stage1": "moon+glob"},
    "fedssc-local-pairs": {"name": "fedssc", "local_pairs": True, "mu_moon": 1.0},
}  # named variants of shipped methods, each its [method] table


_OFFICIAL = {"net": {"unit_projection": True}, "local": {"drop_last": True}}


def _variants() -> list[Case]:
    found = []
    for name, method in _VARIANTS.items():
        more = _OFFICIAL if name == "fedproc-official" else {}
        within = _ROUNDS.get(name)
        found.append(Case(name, {**more, "method": method}, within=within, variant=True))
    return found


def _unlabelled() -> list[Case]:
    """Every self-supervised objective with FedAvg, and variants of the methods on top of them."""
    found = {f"fedavg-{name}": _views(objective) for name, objective in _VIEWS.items()}
    simsiam = _views(_VIEWS["simsiam"])
    hessian_free = {"name": "maml_ssfl", "order": "hessian_free", "inner_lr": 0.01}
    few = {"local": {"steps": 3, "batch_size": 8, "accumulate": 2}}
    some = {"cohort": {"fraction": 0.5, "drop_before": 0.2, "drop_after": 0.2}}
    norms = {"net": {"norm": "bn", "bn_buffers": "local"}}
    head = {"method": {"name": "fedprox", "mu": 0.5, "part": "head"}}
    peers, first = (
        {"net": {"norm": "pn"}},
        {"backbone": "resnet8", "norm": "bn", "norm_first": "pn"},
    )
    fedsimclr = {**_views({**_VIEWS["simclr"], "layers": 3}), **head}
    calibrated = {"evaluate": {"with": ["knn"], "last": ["ccvr"], "metric": "knn"}}
    found |= {
        "fedsimclr": {**fedsimclr, **calibrated},
        "fedsimclr-first-peers": {**fedsimclr, "net": first},
        "fedswav-peers": {**_views(_VIEWS["swav"]), **head, **peers},
        "fedavg-byol-peers": {**_views(_VIEWS["byol"]), **peers},
        "per_ssfl-received-peers": {
            **simsiam,
            **{"method": {"name": "per_ssfl", "anchor": "received"}, **peers},
        },
        "la_ssfl-byol": {**_views(_VIEWS["byol"]), "method": {"name": "la_ssfl", "steps": 2}},
        "maml_ssfl-hessian-free": {**simsiam, "method": hessian_free},
        "maml_ssfl-simclr": {**_views(_VIEWS["simclr"]), "method": {"name": "maml_ssfl"}},
        "bilevel_ssfl-byol": {**_views(_VIEWS["byol"]), "method": {"name": "bilevel_ssfl"}},
        "bilevel_ssfl-sampled": {**simsiam, "method": {"name": "bilevel_ssfl"}, **some},
        "per_ssfl-received": {**simsiam, "method": {"name": "per_ssfl", "anchor": "received"}},
        "per_ssfl-independent-views": {
            **simsiam,
            "method": {"name": "per_ssfl", "independent_views": True},
        },
        "per_ssfl-steps": {**simsiam, "method": {"name": "per_ssfl"}, **few},
        "per_ssfl-local-buffers": {**simsiam, "method": {"name": "per_ssfl"}, **norms},
        "orchestra-sampled": {**_clustered(), **some},
        "orchestra-steps": {**_clustered(memory=50), **few},
        "orchestra-local-buffers": {**_clustered(), **norms},
        "orchestra-server-adam": {**_clustered(), "server": {"optimizer": "adam", "lr": 0.02}},
    }
    return [Case(n, changes, falls="train_loss", variant=True) for n, changes in found.items()]


def _modulars() -> list[Case]:
    """Variants of MFCL: uploads anew, statistics that stay, other objectives of the server."""
    norms = {"net": {"bn_buffers": "local"}}
    joint = {"share_labels": True, "joint": "backbone", "precision": "fp32", "drop": 0.34}
    found = {
        "mfcl-epoch": _modular(refresh="epoch", quorum=2, sensor="table5"),
        "mfcl-cached-joint": _modular(views_cached=2, **joint),
        "mfcl-local-buffers": {**_modular(sensor_norm="bn", loss="mse"), **norms},
        "mfcl-byol": {**_modular(sensor_norm="gn"), "objective": _VIEWS["byol"]},
        "mfcl-simsiam": {**_modular(sensor_norm="none"), "objective": _VIEWS["simsiam"]},
    }
    return [
        Case(name, changes, falls="server_loss", variant=True, staged=True)
        for name, changes in found.items()
    ]


def _toys() -> list[Case]:
    following = {"objective": {"name": "toy_methods:Following"}}
    two_models = {"method": {"name": "toy_methods:TwoModels"}}
    probe = {"evaluate": {"with": ["accuracy", "personal", "toy_methods:FederatedProbe"]}}
    return [
        Case("staged", {"method": {"name": "toy_methods:Staged", "delta": 0.34}}, staged=True),
        Case(
            "addressed",
            {"method": {"name": "toy_methods:Addressed"}},
            zero={"method": {"name": "toy_methods:Addressed", "weight": 0.0}},
        ),
        Case("two-models", two_models, zero=two_models),
        Case("private-names", following, within=8),
        Case("private-two-models", {**two_models, **following}, within=8),
        Case("local-buffers", {"net": {"norm": "bn", "bn_buffers": "local"}}),
        Case("averaged-buffers", {"net": {"norm": "bn"}}),
        Case("federated-evaluator", probe),
        Case("momentum", {"server": {"optimizer": "momentum", "lr": 0.5}}),
        Case("adam", {"server": {"optimizer": "adam", "lr": 0.02}}),
        Case("yogi", {"server": {"optimizer": "yogi", "lr": 0.02}}),
        Case("adagrad", {"server": {"optimizer": "adagrad", "lr": 0.02}}),
        Case("sampled", {"cohort": {"fraction": 0.5, "drop_before": 0.2, "drop_after": 0.2}}),
    ]


CASES = [*_shipped(), *_variants(), *_unlabelled(), *_modulars(), *_toys()]
