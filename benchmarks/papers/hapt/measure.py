"""HAPT: probes on a federated encoder beside training from scratch on the same few labels.

    python benchmarks/papers/hapt/measure.py --root DIR [--out FOLDER] [--seeds 3] [--finished]

DIR as for `coterie run hapt/simclr data.root=DIR`. With each seed: federated SimCLR and SimSiam by
their shipped configurations, the untrained network, and supervised training on 1 % and 10 % of the
labels, the same ones that the probes of that seed get. Labels are in one place, or each at its
person; training starts from scratch, or from the encoder of SimCLR. Runs that are finished are
kept, others are resumed; with --finished they are left out. After each seed outcome.json and
table.md are written beside this file; a cell with fewer seeds says how many.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import torch

import coterie
from coterie.core import seeds
from coterie.data.datasets import Dataset, load
from coterie.evaluate.shared.head import choose_balanced
from coterie.experiment.result import Result

HERE = Path(__file__).parent
SHARES = {"1 %": 0.01, "10 %": 0.1}
PROBES = ["probe_1", "probe_10", "linear_probe", "own_probe"] + [
    {"name": "own_probe", "labels": share, "as": f"own_probe_{round(100 * share)}"}
    for share in SHARES.values()
]
ENCODERS = {
    "federated SimCLR": ("simclr", {}),
    "federated SimSiam": ("simsiam", {}),
    "untrained network": ("simclr", {"local.lr": 1e-30, "run.rounds": 1}),
}
# Method of a supervised run, and whether it starts from the encoder of SimCLR.
SUPERVISED = {
    "scratch, labels in one place": ("centralized", False),
    "scratch, labels at the persons": ("fedavg", False),
    "fine-tuned SimCLR, labels in one place": ("centralized", True),
}
AT_PERSONS = "SimCLR, probe with labels at the persons"
Rows = dict[str, dict[str, float]]


def train_encoder(
    root: str, config: str, changes: Mapping[str, Any], seed: int, out: Path
) -> Result:
    """Run a shipped configuration, with all probes after the last round."""
    if is_finished(out):
        return coterie.load(out)
    last = {"evaluate.last": PROBES, "data.root": root, "run.seed": seed}
    return coterie.run(f"hapt/{config}", out=out, resume=True, progress=False, **last, **changes)


def hide_labels(data: Dataset, share: float, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Take the normalised windows of every person, with the labels that a probe would draw."""
    labels = np.array(data.y_train)  # in the order in which the server encodes training samples
    drawn_by = seeds.derive(seed, "evaluate")  # as evaluators on the server draw
    shown = choose_balanced(torch.from_numpy(labels), share, drawn_by).numpy()
    y = np.full(len(labels), -1)
    y[shown] = labels[shown]
    x, groups = normalise(data, data.x_train), data.groups
    assert groups is not None
    return {
        name: (x[groups.train == person], y[groups.train == person])
        for person, name in enumerate(groups.names)
    }


def normalise(data: Dataset, x: np.ndarray) -> np.ndarray:
    """Subtract the mean of each channel and divide by its deviation, as a run does."""
    mean, std = (np.array(v, np.float32)[:, np.newaxis] for v in (data.mean, data.std))
    return (x - mean) / std


def fit_few(data: Dataset, share: float, seed: int, out: Path, **tables: Any) -> Result:
    """Call `fit` on the windows of all persons, of which a share is labelled."""
    if is_finished(out):
        return coterie.load(out)
    return coterie.fit(
        hide_labels(data, share, seed),
        test=(normalise(data, data.x_test), data.y_test),
        kind="signal",
        seed=seed,
        data={"augment": "auto"},
        executor={"kind": "serial"},
        out=out,
        resume=True,
        progress=False,
        **tables,
    )


def train_supervised(
    data: Dataset, share: float, seed: int, out: Path, method: str, weights: str
) -> float:
    """Train on a share of the labels for 100 epochs, from scratch or from weights."""
    result = fit_few(
        data,
        share,
        seed,
        out,
        method=method,
        rounds=50,
        net={"backbone": "conv1d", "projection": 0, "weights": weights},
        local={"epochs": 2, "batch_size": 32, "lr": 0.02, "schedule": "cosine"},
        evaluate={"every": 0, "with": ["accuracy"]},
    )
    return result.metrics["accuracy"]


def probe_at_persons(data: Dataset, share: float, seed: int, out: Path, weights: str) -> float:
    """Train the probe by FedAvg, each label at its person; the encoder stays as it is."""
    result = fit_few(
        data,
        share,
        seed,
        out,
        objective="simclr",
        rounds=1,
        net={"backbone": "conv1d", "projection": 128, "weights": weights},
        local={"batch_size": 64, "lr": 1e-30},
        evaluate={"with": ["federated_probe"], "metric": "federated_probe"},
    )
    return result.metrics["federated_probe"]


def measure(root: str, out: Path, seed: int, finished: bool) -> Rows:
    """Run everything with one seed, or read what is finished; return the metrics of each row."""
    data = load("hapt", root)
    rows: Rows = {name: {} for name in (*ENCODERS, *SUPERVISED, AT_PERSONS)}
    for name, (config, changes) in ENCODERS.items():
        folder = out / f"{name.replace(' ', '-')}-{seed}"
        if not finished or is_finished(folder):
            rows[name] = dict(train_encoder(root, config, changes, seed, folder).metrics)
    simclr = out / f"federated-SimCLR-{seed}"
    if not is_finished(simclr):
        return rows
    encoder = str(simclr / "encoder.safetensors")
    if not Path(encoder).exists():
        coterie.load(simclr).export(encoder, what="encoder")
    for label, share in SHARES.items():
        for row, (method, tuned) in SUPERVISED.items():
            folder = out / name_folder(row, share, seed)
            if not finished or is_finished(folder):
                weights = encoder if tuned else ""
                rows[row][label] = train_supervised(data, share, seed, folder, method, weights)
        folder = out / name_folder(AT_PERSONS, share, seed)
        if not finished or is_finished(folder):
            rows[AT_PERSONS][label] = probe_at_persons(data, share, seed, folder, encoder)
    return rows


def is_finished(folder: Path) -> bool:
    """Whether a run has ended: its report is written last."""
    return (folder / "report.html").exists()


def name_folder(row: str, share: float, seed: int) -> str:
    """Name the folder of a run by its row, share of labels and seed."""
    return f"{row.replace(', ', '-').replace(' ', '-')}-{share}-{seed}"


def write(found: Mapping[int, Rows]) -> None:
    """Write every value by seed, and the table of means and deviations."""
    kept = ("knn", "probe", "probe_1", "probe_10", "client_knn_mean", "client_knn_worst_decile")
    kept += tuple(f"client_own_probe{end}_mean" for end in ("_1", "_10", "")) + tuple(SHARES)
    by_seed = {
        str(seed): {row: {k: v for k, v in m.items() if k in kept} for row, m in rows.items()}
        for seed, rows in found.items()
    }
    (HERE / "outcome.json").write_text(json.dumps(by_seed, indent=1) + "\n")
    columns = {
        "1 % of labels": ("probe_1", "1 %"),
        "10 %": ("probe_10", "10 %"),
        "all": ("probe",),
        "kNN": ("knn",),
        "kNN per person": ("client_knn_mean",),
        "own labels, 1 %": ("client_own_probe_1_mean",),
        "own, 10 %": ("client_own_probe_10_mean",),
        "own, all": ("client_own_probe_mean",),
    }
    lines = [f"| {len(found)} seeds | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row in next(iter(found.values())):
        cells = []
        for names in columns.values():
            values = [rows[row][n] for rows in found.values() for n in names if n in rows[row]]
            cells.append(show(values, len(found)))
        lines.append(f"| {row} | {' | '.join(cells)} |")
    (HERE / "table.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def show(values: list[float], seeds: int) -> str:
    """Write mean and deviation in per cent, and how many seeds there are if not all."""
    if not values:
        return ""
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * fmean(values):.1f}{spread}{f' ({len(values)})' if len(values) < seeds else ''}"


def main() -> None:
    """Measure seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", required=True)
    parser.add_argument("--out", type=Path, default=Path("runs/hapt"))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--finished", action="store_true")
    given = parser.parse_args()
    found: dict[int, Rows] = {}
    for seed in range(given.seeds):
        found[seed] = measure(given.root, given.out, seed, given.finished)
        write(found)


if __name__ == "__main__":
    main()
