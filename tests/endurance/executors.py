"""Every method on every executor: serial, processes, two nodes of Ray, and sites over Flower.

Three sites. Serial, worker processes (one, two and three) and Ray simulate the federation; over
Flower it is deployed: a server and three clients as processes of their own, with TLS and keys.
Digests of every round, who was lost or rejected, what clients measure, the trained model and those
of the clients must be equal, bit for bit; over Flower the last are at the sites.
`centralized` pools the data of all sites and is compared where that can be done.
"""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fleet
import kills
import numpy as np
import warm
import warm_sites
from bench import Trial
from cases import CASES, Case
from sklearn.datasets import load_digits

import coterie
import ray_nodes

POOLED = "centralized"
SERVER_ONLY = ("accuracy", "knn")  # evaluators that need test samples on the server
METHODS = [case for case in CASES if not case.variant]
COMPARED = ("digest", "states", "metrics", "lost", "rejected", "skipped")  # of each round
SEEDS = 5
PAIRS = [(case, seed) for case in METHODS for seed in range(SEEDS)]
SIMULATED: dict[str, dict[str, Any]] = {
    "serial": {"kind": "serial"},
    **{f"{n} processes": {"kind": "processes", "workers": n} for n in (1, 2, 3)},
    "ray": {"kind": "ray", "workers": 2},
}


def write_digits(root: Path) -> Path:
    """Give each site digits of its own."""
    root.mkdir(parents=True)
    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 1, 8, 8) * 15).astype(np.uint8)
    for number, name in enumerate(fleet.NAMES):
        own = slice(number * 60, number * 60 + 50 - 5 * number)
        np.savez(root / f"{name}.npz", x=pixels[own], y=labels[own])
    return root


def settings(case: Case, roots: dict[bool, Path], seed: int) -> dict[str, Any]:
    """The configuration of a case for sites; evaluation happens on clients alone."""
    changes = {name: dict(table) for name, table in case.changes.items()}
    data = changes.pop("data", {})
    views = "augment" in data
    own = [n for n in changes.get("evaluate", {}).get("with", []) if n not in SERVER_ONLY]
    personal = "personal_knn" if views else "personal"
    changes["evaluate"] = {
        "with": own or [personal],
        "metric": "client_knn_mean" if views else "client_accuracy_mean",
    }
    augment = {"augment": data["augment"]} if views else {}
    run = {"rounds": 3, "seed": seed}
    return fleet.tables(roots[views], **{**changes, "data": augment, "run": run})


def simulate(tables: dict[str, Any], out: Path) -> None:
    """Run a federation on this machine."""
    log = out.with_suffix(".log")
    process = warm.spawn(lambda: coterie.run(tables, out=out), log)
    try:
        status = process.wait()
    except subprocess.TimeoutExpired:
        kills.strike(process, "main", random.Random())  # it must not write to a folder that is gone
        raise AssertionError(f"{out.name} did not end: {log.read_text()[-500:]}") from None
    assert status == 0, f"{out.name} ended with {status}: {log.read_text()[-500:]}"


def remains(out: Path, deployed: Path | None = None) -> object:
    """What must be equal: what happened by round, the model and the clients' own models.

    Those of a deployed run are in the folders of its sites.
    """
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    rounds = [[line[key] for key in COMPARED] for line in lines]
    own = deployed.glob("*/site/*/personal/*") if deployed else out.glob("personal/*")
    models = {path.name: path.read_bytes() for path in (*out.glob("model.safetensors"), *own)}
    assert models, f"{out.name} left no model"
    return rounds, models


def compare(case: Case, tables: dict[str, Any], folder: Path, address: str) -> str:
    """Run a case on all executors; name those that differ from serial."""
    folder.mkdir()
    outs = {kind: folder / kind.replace(" ", "-") for kind in SIMULATED}
    for kind, executor in SIMULATED.items():
        where = {"address": address} if kind == "ray" else {}
        simulate({**tables, "executor": {**executor, **where}}, outs[kind])
    found = {kind: remains(out) for kind, out in outs.items()}
    if case.name != POOLED:
        out, deployed = folder / "flower", folder / "deployed"
        with warm_sites.sites(deployed, Path(tables["data"]["root"])) as sites:
            sites.run(out, tables)
        found["flower"] = remains(out, deployed)
    wrong = [kind for kind, one in found.items() if one != found["serial"]]
    return f"{case.name}: other bits on {', '.join(wrong)}" if wrong else ""


@contextmanager
def bench(folder: Path) -> Iterator[Trial]:
    """A method and a seed on every executor."""
    roots = {False: fleet.write_sites(folder / "points"), True: write_digits(folder / "digits")}
    cpus = {ray_nodes.HEAD: 1, ray_nodes.OTHER: 1}
    with ray_nodes.two_nodes(folder / "ray", cpus) as nodes:
        os.environ.update(nodes.token)
        warm_sites.import_all(folder / "first", roots[True], settings(METHODS[0], roots, 0))

        def trial(number: int) -> str:
            (case, seed), place = PAIRS[number], folder / f"pair-{number}"
            try:
                return compare(case, settings(case, roots, seed), place, nodes.address)
            finally:
                shutil.rmtree(place, ignore_errors=True)

        yield trial
