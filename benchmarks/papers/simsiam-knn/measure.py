"""Federated SimSiam against the untrained network and raw pixels, by kNN on real CIFAR-10.

    COTERIE_DATA=DIR python benchmarks/papers/simsiam-knn/measure.py [--runs FOLDER]

10,000 training images over 10 clients by Dirichlet(0.1), resnet8, nine rounds of two epochs. The
untrained network is one round at a rate of 1e-30: weights as initialised, BatchNorm statistics of
the data. Pixels are normalised, reduced by PCA and compared in the same way. What was run before
in the folder is not run again. Writes outcome.json and curve.svg beside this file.
"""

import argparse
import json
import math
from pathlib import Path
from typing import Any

import torch
from sklearn.decomposition import PCA
from torch import Tensor
from torch.nn import functional as F

import coterie
from coterie.evaluate.knn import vote
from coterie.experiment import Experiment, make_plan
from coterie.kit.context import Shard
from coterie.reproduce.picture import draw

HERE = Path(__file__).parent
COMPONENTS = (32, 128)
SETTING: dict[str, dict[str, Any]] = {
    "data": {"limit": 10000},
    "net": {"backbone": "resnet8", "projection": 512},
    "objective": {"hidden": 512, "bottleneck": 128},
    "evaluate": {"with": ["knn"]},
}
LOCAL = {"batch_size": 64, "accumulate": 1}


def train(folder: Path, rounds: int, **local: Any) -> coterie.Result:
    """A run, or the one that is there."""
    changes: dict[str, Any] = {**SETTING, "run": {"rounds": rounds}, "local": {**LOCAL, **local}}
    changes["evaluate"] = {**SETTING["evaluate"], "every": 1 if rounds > 1 else 10}
    return coterie.run("cifar10/simsiam", out=folder, resume=True, **changes)


def pixels(data: Shard, test: bool) -> tuple[Tensor, Tensor]:
    """Normalised pixels and labels, in order."""
    parts = [(batch.x.flatten(1), batch.y) for batch in data.sweep(test=test)]
    x, y = zip(*parts, strict=True)
    return torch.cat(x), torch.cat(y)


def of_pixels(experiment: Experiment, folder: Path) -> dict[str, float]:
    """kNN on principal components of the pixels."""
    data = make_plan(experiment, folder).evaluation.data
    (bank, labels), (queries, y) = pixels(data, test=False), pixels(data, test=True)
    found = {}
    for components in COMPONENTS:
        reduction = PCA(components, random_state=0).fit(bank.numpy())
        both = [torch.from_numpy(reduction.transform(x.numpy())) for x in (bank, queries)]
        ours, theirs = (F.normalize(x, dim=1) for x in both)
        right = vote(ours, labels, theirs, data.classes) == y
        found[f"pixels, {components} components"] = float(right.float().mean())
    return found


def main() -> None:
    """Run what is missing, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/simsiam-knn"))
    runs = parser.parse_args().runs
    untrained = train(runs / "ss-untrained", 1, epochs=1, lr=1e-30)
    trained = train(runs / "ss-simsiam", 9, epochs=2, lr=0.05)
    curve = tuple((event.round + 1, event.metrics["knn"]) for event in trained.history)
    before, after = untrained.metrics["knn"], curve[-1][1]
    tests = len(trained.experiment.dataset.y_test)
    error = math.sqrt((before * (1 - before) + after * (1 - after)) / tests)
    levels = {"untrained network": before, **of_pixels(trained.experiment, runs)}
    found = {
        "knn": after,
        **levels,
        "standard error of the difference": error,
        "difference in standard errors": (after - before) / error,
        "curve": curve,
        "feature_std": [event.metrics["train_feature_std"] for event in trained.history],
        "seconds": sum(event.seconds for event in trained.history),
    }
    (HERE / "outcome.json").write_text(json.dumps(found, indent=1) + "\n")
    ends = (curve[0][0], curve[-1][0])
    lines = [("federated SimSiam", curve)]
    lines += [(name, tuple((end, value) for end in ends)) for name, value in levels.items()]
    title = "kNN on CIFAR-10, 10,000 images, Dirichlet 0.1"
    (HERE / "curve.svg").write_text(draw(lines, title, "knn"))
    print(json.dumps({k: v for k, v in found.items() if k != "curve"}, indent=1))


if __name__ == "__main__":
    main()
