"""Base lines of a run: its metric before training, and without any network; `baseline.json`.

They are measured before the first round on a bounded sample of the data, and draw nothing from the
random streams of the run. A run that starts again before its first checkpoint measures them again.

    untrained       the evaluator of `evaluate.metric` on the network as it was initialised
    raw_input       the same evaluator on the input itself, if it judges representations
    largest_class   the share of the most frequent class in the test data, if it judges a classifier
"""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from torch import nn

from coterie.core import seeds
from coterie.core.files import replace_durably
from coterie.core.task import METHOD
from coterie.data.batches import DataShard
from coterie.data.checks import NOBODY
from coterie.evaluate.shared.features import LayerEvaluator
from coterie.experiment.prepare import Experiment
from coterie.kit.evaluator import Evaluator
from coterie.kit.networks import Frozen
from coterie.nets.heads import Network

FILE = "baseline.json"
_TRAIN, _TEST = 2000, 1000  # samples at most


@dataclass(frozen=True)
class Baseline:
    """The contents of `baseline.json`."""

    metric: str
    values: Mapping[str, float]
    train: int  # samples that were looked at
    test: int

    def describe(self) -> str:
        """Describe it in a line: `accuracy 0.100 untrained, 0.103 largest class`."""
        values = (f"{value:.3f} {name.replace('_', ' ')}" for name, value in self.values.items())
        return f"{self.metric} {', '.join(values)}"


def keep_baseline(experiment: Experiment, folder: Path) -> Baseline | None:
    """Measure the base lines of a run that has no checkpoint yet, and write them."""
    baseline = measure_baseline(experiment)
    if baseline is not None:
        replace_durably(folder / FILE, f"{json.dumps(asdict(baseline), indent=1)}\n".encode())
    return baseline


def measure_baseline(experiment: Experiment) -> Baseline | None:
    """Measure the base lines; None if the metric needs no labels, or is not the server's."""
    parts, metric = experiment.parts, experiment.config.evaluate.metric
    judges = (e for e in parts.evaluators.values() if e.headline == metric and e.where == "server")
    judge = next(judges, None)
    weights = parts.method.model(parts.start())
    if judge is None or not judge.labels or weights is None:
        return None
    train, test = _draw_rows(experiment)
    if not (len(train) and len(test)):
        return None
    nets, spec, dataset = parts.nets(METHOD), experiment.spec, experiment.dataset
    data = DataShard(dataset, train, test, device=spec.device, in_lanes=nets.in_lanes)
    networks = {"untrained": nets.frozen_on_server("model", weights)}
    if isinstance(judge, LayerEvaluator):
        networks["raw_input"] = Frozen(Network(nn.Flatten()).eval())
    values = {}
    with parts.arithmetic(), seeds.scoped(seeds.torch_seed(spec.seed, "baseline", 0)):
        for name, net in networks.items():
            measured = judge(net, data, seeds.derive(spec.seed, "evaluate"))
            if math.isfinite(value := measured.get(metric, math.nan)):
                values[name] = float(value)
    nets.release()
    if _judges_classifier(judge):
        values["largest_class"] = float(np.bincount(dataset.y_test[test]).max() / len(test))
    return Baseline(metric, values, len(train), len(test)) if values else None


def _judges_classifier(judge: Evaluator) -> bool:
    return "classifier" in judge.needs


def _draw_rows(experiment: Experiment) -> tuple[np.ndarray, np.ndarray]:
    """Draw labelled training samples of the clients, and labelled samples of the global test."""
    dataset = experiment.dataset
    train = np.concatenate(list(experiment.partition.train.values()))
    test = np.arange(len(dataset.y_test))
    if dataset.groups is not None and (dataset.groups.test == NOBODY).any():
        test = test[dataset.groups.test == NOBODY]  # the others are held out by clients
    train, test = train[dataset.y_train[train] >= 0], test[dataset.y_test[test] >= 0]
    draw = seeds.generator(0, "baseline").permutation
    return np.sort(draw(train)[:_TRAIN]), draw(test)[:_TEST]
