"""Accuracy by round of the contrastive methods beside FedAvg, on the digits: the curves in docs.

    python benchmarks/curves/digits.py               runs what is missing in runs/curves, then draws
    python benchmarks/curves/digits.py --draw        draws again from digits.json beside this file

Every run is a shipped configuration with the network of the papers (`coterie run digits/NAME
net.backbone=simple-cnn run.seed=SEED`), on three seeds. A line is the mean over the seeds. FedSSC's
values in digits.json are from when `method.shared_draw = false` was the default.
"""

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import coterie
from coterie.report.line_chart import Curve, draw

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RECORD = HERE / "digits.json"
PICTURES = ROOT / "docs" / "methods" / "curves"

SEEDS = (0, 1, 2)
BASE = "fedavg"
DRAWN = {"moon": ("moon",), "fedproc": ("fedproc", "fedproc-official"), "fedssc": ("fedssc",)}
LABELS = {
    "fedavg": "FedAvg",
    "moon": "MOON",
    "fedproc": "FedProc",
    "fedproc-official": "FedProc, as the authors' code",
    "fedssc": "FedSSC",
}
Curves = dict[str, list[list[float]]]  # by configuration: one list of accuracies for every seed


def measure(folder: Path) -> Curves:
    """The accuracies after every round, by configuration and seed."""
    names = (BASE, *(name for group in DRAWN.values() for name in group))
    found: Curves = {}
    for name in names:
        for seed in SEEDS:
            result = coterie.run(
                f"digits/{name}",
                out=folder / f"{name}-{seed}",
                resume=True,
                run={"seed": seed},
                net={"backbone": "simple-cnn"},
                executor={"kind": "serial"},
            )
            accuracies = [event.metrics["accuracy"] for event in result.history]
            found.setdefault(name, []).append([round(value, 4) for value in accuracies])
            print(f"{name} seed {seed}: {accuracies[-1]:.4f}", flush=True)
    return found


def mean(seeds: Sequence[Sequence[float]]) -> Curve:
    """The mean over seeds, round by round."""
    return tuple(enumerate(map(statistics.fmean, zip(*seeds, strict=True)), start=1))


def table(curves: Curves) -> str:
    """The accuracies at the end, by configuration, in the form of the pages."""
    lines = []
    for name, seeds in curves.items():
        last = [line[-1] for line in seeds]
        half = [line[len(line) // 2 - 1] for line in seeds]
        lines.append(
            f"| `digits/{name}` | {statistics.fmean(half):.3f} ± {statistics.stdev(half):.3f}"
            f" | {statistics.fmean(last):.3f} ± {statistics.stdev(last):.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("runs/curves"), help="where runs are")
    parser.add_argument("--draw", action="store_true", help="run nothing, draw from digits.json")
    args = parser.parse_args()
    if not args.draw:
        lines = ",\n".join(
            f" {json.dumps(name)}: [\n  "
            + ",\n  ".join(json.dumps(seed) for seed in seeds)
            + "\n ]"
            for name, seeds in measure(args.runs).items()
        )
        RECORD.write_text("{\n" + lines + "\n}\n")
    curves: Curves = json.loads(RECORD.read_text())
    PICTURES.mkdir(parents=True, exist_ok=True)
    for name, group in DRAWN.items():
        title = f"{LABELS[name]} beside FedAvg on the digits, {len(SEEDS)} seeds"
        lines = [(LABELS[one], mean(curves[one])) for one in (BASE, *group)]
        (PICTURES / f"{name}.svg").write_text(draw(lines, title, "accuracy"))
    print(table(curves))


if __name__ == "__main__":
    main()
