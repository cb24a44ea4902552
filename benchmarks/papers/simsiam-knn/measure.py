"""Federated SimSiam against the untrained network and raw pixels, by kNN on real CIFAR-10.

    COTERIE_DATA=DIR python benchmarks/papers/simsiam-knn/measure.py [--out FOLDER]

The runs are two of `coterie reproduce ssfl-objectives` at laptop scale, in the same folder: 10,000
training images over 10 clients by Dirichlet(0.1), 40 rounds. What is finished there is not run
again. The untrained network has random weights and the BatchNorm statistics of the data. Pixels are
normalised, reduced by PCA and compared in the same way. Writes outcome.json and curve.svg beside
this file.
"""

import argparse
import json
import math
from pathlib import Path

import torch
from sklearn.decomposition import PCA
from torch import Tensor
from torch.nn import functional as F

from coterie.evaluate.knn import vote
from coterie.experiment.config import Config
from coterie.experiment.prepare import Experiment, make_plan, prepare
from coterie.experiment.result import Result
from coterie.experiment.run import execute
from coterie.kit.context import Shard
from coterie.report.line_chart import draw
from coterie.reproduce.plan import Study, locate_run, make_study
from coterie.reproduce.recipe import load

HERE = Path(__file__).parent
COMPONENTS = (32, 128)


def configure(study: Study, row: str) -> Config:
    """The configuration of a row of the recipe."""
    cell = study.cell(row, "kNN")
    assert cell is not None
    return study.config(cell, cell.points[0], 0)


def run(config: Config, out: Path) -> Result:
    """A run of the recipe, or the one that is there."""
    return execute(config, locate_run(out, config), resume=True)


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
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    out = parser.parse_args().out
    study = make_study(load("ssfl-objectives"), "laptop", seeds=1)
    untrained = run(configure(study, "untrained"), out)
    config = configure(study, "SimSiam")
    trained, experiment = run(config, out), prepare(config, out)
    curve = tuple(
        (event.round + 1, event.metrics["knn"])
        for event in trained.history
        if "knn" in event.metrics
    )
    before, after = untrained.metrics["knn"], curve[-1][1]
    tests = len(experiment.dataset.y_test)
    error = math.sqrt((before * (1 - before) + after * (1 - after)) / tests)
    levels = {"untrained network": before, **of_pixels(experiment, out)}
    found = {
        "knn": after,
        **levels,
        "standard error of the difference": error,
        "difference in standard errors": (after - before) / error,
        "curve": curve,
        "feature_std": trained.history[-1].metrics["train_feature_std"],
        "seconds": sum(event.seconds for event in trained.history),
    }
    (HERE / "outcome.json").write_text(json.dumps(found, indent=1) + "\n")
    lines = [("federated SimSiam", ((0, before), *curve))]
    ends = (0, curve[-1][0])
    lines += [(name, tuple((end, value) for end in ends)) for name, value in levels.items()]
    title = "kNN on CIFAR-10, 10,000 images, Dirichlet 0.1"
    (HERE / "curve.svg").write_text(draw(lines, title, "knn"))
    print(json.dumps({k: v for k, v in found.items() if k != "curve"}, indent=1))


if __name__ == "__main__":
    main()
