"""Names of methods, metrics and measures in plain words, for people who read a page."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

_METHODS = {
    "bilevel_ssfl": "BiLevel-SSFL",
    "centralized": "Centralised training",
    "fedavg": "FedAvg",
    "fedproc": "FedProc",
    "fedprox": "FedProx",
    "fedssc": "FedSSC",
    "la_ssfl": "LA-SSFL",
    "maml_ssfl": "MAML-SSFL",
    "mfcl": "MFCL",
    "moon": "MOON",
    "orchestra": "Orchestra",
    "per_ssfl": "Per-SSFL",
    "scaffold": "SCAFFOLD",
    "solo": "SOLO",
}
_OBJECTIVES = {
    "byol": "BYOL",
    "rotation": "rotation",
    "simclr": "SimCLR",
    "simsiam": "SimSiam",
    "swav": "SwAV",
}
_OWN = ("mfcl", "orchestra")  # methods whose name says what they learn
_METRICS = {  # the name in a sentence, and what it is
    "accuracy": ("accuracy", "Share of test samples that are classified correctly."),
    "balanced_accuracy": ("balanced accuracy", "Mean of the recalls of all classes."),
    "auroc": ("AUROC", "Area under the ROC curve of the second class."),
    "loss": ("test loss", "Mean cross-entropy on the test set."),
    "knn": (
        "kNN accuracy",
        "Share of test samples whose nearest training samples, by their representations, are "
        "mostly of the right class.",
    ),
    "projection_knn": ("kNN accuracy of z", "kNN accuracy behind the projector."),
    "probe": (
        "linear-probe accuracy",
        "Accuracy of a linear classifier that was trained on the frozen representations.",
    ),
    "projection_probe": (
        "linear-probe accuracy of z",
        "Linear-probe accuracy behind the projector.",
    ),
    "federated_probe": (
        "federated-probe accuracy",
        "A linear probe that clients trained together.",
    ),
    "feature_std": ("spread of features", "1: features are spread out; 0: they have collapsed."),
    "effective_rank": ("effective rank", "As many directions do the features really use."),
    "uniformity": ("uniformity", "0: all features are the same; lower: more spread."),
    "alignment": ("alignment", "Mean squared distance of two views of one sample; 0: the same."),
    "epsilon": ("epsilon", "What the models up to this round may tell of any one client."),
    "steps": ("local steps", "Optimiser steps of a client in a round."),
    "rate": ("learning rate", "Learning rate at the end of the round."),
}
_SOURCES = {  # prefixes of metrics, and what they say of the rest
    "client_": "clients, each on its own test data",
    "unseen_": "clients that never train",
    "train_personal_": "training of the clients' own models",
    "train_": "training",
    "server_": "server",
    "holdout_": "held-out training samples",
}
_SUFFIXES = {
    "_mean": "mean over the clients",
    "_std": "standard deviation over the clients",
    "_worst_decile": "mean of the worst tenth of the clients",
}
SHARES = ("accuracy", "balanced_accuracy", "auroc", "knn", "probe", "ccvr")


def name_run(method: str, objective: str, dataset: str) -> str:
    """Name a run as a heading does: `MOON on digits`, `FedAvg with SimSiam on digits`."""
    title = name_method(method, objective)
    return f"{title} on {dataset}" if title else dataset


def name_method(method: str, objective: str) -> str:
    """Name a method, with its objective where that says more: `FedAvg with SimSiam`."""
    title = _METHODS.get(method, method)
    if objective in _OBJECTIVES and method not in _OWN:
        title = f"{title} with {_OBJECTIVES[objective]}"
    return title


def get_stem(metric: str) -> str:
    """Return what a metric measures, without where and over whom: `client_knn_mean` is `knn`."""
    stem = metric
    for prefix in _SOURCES:
        stem = stem.removeprefix(prefix)
    return stem.removesuffix(_find_suffix(metric))


def _find_suffix(metric: str) -> str:
    """Find how a metric over clients ends: `_mean`, `_std`, ...; empty for any other metric."""
    if not metric.startswith(("client_", "unseen_")):
        return ""
    return next((suffix for suffix in _SUFFIXES if metric.endswith(suffix)), "")


def name_metric(metric: str) -> str:
    """Name a metric in a sentence: `knn` is `kNN accuracy`."""
    stem = get_stem(metric)
    name = _METRICS.get(stem, (stem.replace("_", " "), ""))[0]
    if metric.startswith("client_") and metric.endswith("_mean"):
        return f"mean {name} of the clients"
    if metric.startswith("unseen_") and metric.endswith("_mean"):
        return f"mean {name} of unseen clients"
    return name if metric in _METRICS else metric.replace("_", " ")


def begin(text: str) -> str:
    """Write a name as a heading begins; one with a capital inside, as kNN, stays as it is."""
    first = text.partition(" ")[0]
    return text if first != first.lower() else text[:1].upper() + text[1:]


def explain_metric(metric: str) -> str:
    """Explain a metric in a sentence or two; where it comes from, at least."""
    about = _METRICS.get(get_stem(metric), ("", ""))[1]
    source = next((text for prefix, text in _SOURCES.items() if metric.startswith(prefix)), "test")
    source = "the accountant" if metric == "epsilon" else source
    over = _SUFFIXES.get(_find_suffix(metric), "")
    origin = f"From: {source}{f', {over}' if over else ''}."
    return f"{about} {origin}".strip()


def is_share(metric: str) -> bool:
    """Whether a metric is a share of samples, by its name."""
    return get_stem(metric).endswith(SHARES)


_BASE_LINES = {
    "untrained": ("an untrained network", "untrained"),
    "raw_input": ("the input without any network", "raw input"),
    "largest_class": ("always guessing the largest class", "largest class"),
}


def describe_base_lines(values: Mapping[str, float]) -> str:
    """Describe base lines in a clause: `an untrained network has 0.103`."""
    clauses = [f"{_BASE_LINES.get(key, (key,))[0]} has {v:.3f}" for key, v in values.items()]
    return ", ".join(clauses)


def name_base_line(key: str) -> str:
    """Name a base line beside its line in a chart."""
    return _BASE_LINES.get(key, ("", key.replace("_", " ")))[1]


@dataclass(frozen=True)
class Measure:
    """A measure of how much clients differ, in words."""

    key: str
    name: str
    value: float
    low: float  # the ends of its range
    high: float
    meaning: str


def explain_measures(
    values: Mapping[str, float], clients: int, classes: int
) -> tuple[list[Measure], dict[str, float]]:
    """Explain measures of heterogeneity; also return those that are not known."""
    bits, apart = math.log2(max(2, classes)), math.log2(1e6)
    few = max(1, clients)
    known = {
        "effective_classes": (
            "Classes of a client",
            (1.0, float(max(1, classes))),
            f"So many equally frequent classes would be as varied as a client's own, on average: "
            f"{classes} where every client has all classes alike, 1 where each has a single one.",
        ),
        "beta_cib": (
            "Class imbalance within clients",
            (0.0, bits),
            f"How one-sided a client's own classes are, in bits: 0 where it has all equally often, "
            f"{bits:.2f} where it has a single one.",
        ),
        "jensen_shannon": (
            "Distance from the whole",
            (0.0, 1.0),
            "Jensen-Shannon divergence of a client's class shares from those of all samples, in "
            "bits: 0 where they are the same, 1 where they have nothing in common.",
        ),
        "earth_mover": (
            "Difference of class shares",
            (0.0, 2.0),
            "Sum of the differences between a client's class shares and those of all samples: 0 "
            "where they are the same, 2 where they have nothing in common.",
        ),
        "beta_hetero_pairs": (
            "Divergence between two clients",
            (0.0, apart),
            f"Mean Kullback-Leibler divergence of two clients, in bits: 0 where all clients are "
            f"alike, {apart:.1f} where no two have a class in common.",
        ),
        "beta_hetero_tables": (
            "The same, over M² pairs",
            (0.0, apart * (few - 1) / few),
            f"As MFCL's tables print it: 0 where all clients are alike, "
            f"{apart * (few - 1) / few:.1f} where no two have a class in common.",
        ),
        "size_gini": (
            "Inequality of sizes",
            (0.0, 1 - 1 / few),
            f"Gini coefficient of the clients' numbers of samples: 0 where all have as many, "
            f"{1 - 1 / few:.2f} where one has nearly all.",
        ),
    }
    explained = [
        Measure(key, name, values[key], *ends, meaning)
        for key, (name, ends, meaning) in known.items()
        if key in values
    ]
    return explained, {key: value for key, value in values.items() if key not in known}
