"""Every method on four executors: serial, processes, two nodes of Ray, and sites over Flower.

    python tests/endurance/executors.py

Three sites, two seeds. Serial, worker processes and Ray simulate the federation; over Flower it is
deployed: a server and three clients as processes of their own, with TLS and keys. Digests of every
round, what clients measure and the trained model must be equal, bit for bit. `centralized` pools
the data of all sites and is compared where that can be done.
"""

import argparse
import json
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

TESTS = Path(__file__).parent.parent
sys.path[0:1] = [str(TESTS), str(TESTS / "conformance"), str(TESTS / "unit" / "deploy")]

import fleet  # noqa: E402
from cases import CASES, Case  # noqa: E402

import coterie  # noqa: E402
import ray_nodes  # noqa: E402
import site_processes  # noqa: E402

POOLED = "centralized"
SERVER_ONLY = ("accuracy", "knn")  # evaluators that need test samples on the server


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


def deploy(folder: Path, out: Path, root: Path, tables: dict[str, Any]) -> None:
    """Run a federation as processes of its own."""
    with site_processes.processes(folder, root, fleet.NAMES) as sites:
        sites.serve(out, tables)
        for name in fleet.NAMES:
            sites.join(name)
        sites.finish()


def remains(out: Path) -> object:
    """What must be equal: digests and measurements by round, and the model if there is one."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    rounds = [(line["digest"], line["states"], line["metrics"]) for line in lines]
    return rounds, [path.read_bytes() for path in out.glob("model.safetensors")]


def compare(case: Case, seed: int, roots: dict[bool, Path], folder: Path, address: str) -> str:
    """Run a case on all executors; name those that differ from serial."""
    tables = settings(case, roots, seed)
    kinds: dict[str, dict[str, Any]] = {
        "serial": {"kind": "serial"},
        "processes": {"kind": "processes", "workers": 2},
        "ray": {"kind": "ray", "workers": 2, "address": address},
    }
    outs = {kind: folder / kind for kind in kinds}
    for kind, executor in kinds.items():
        coterie.run({**tables, "executor": executor}, out=outs[kind])
    if case.name != POOLED:
        outs["flower"] = folder / "flower"
        deploy(folder / "deployed", outs["flower"], Path(tables["data"]["root"]), tables)
    wrong = [kind for kind, out in outs.items() if remains(out) != remains(outs["serial"])]
    return f"DIFFERENT on {', '.join(wrong)}" if wrong else f"equal on {', '.join(outs)}"


def main() -> None:
    """Compare and report; exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--methods", nargs="*", default=[], help="only these")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--first", type=int, default=0, help="leave out so many pairs")
    parser.add_argument("--trials", type=int, default=0, help="at most so many pairs; 0: all")
    options = parser.parse_args()
    cases = [case for case in CASES if not case.variant]
    if unknown := set(options.methods) - {case.name for case in cases}:
        parser.error(f"no such methods: {', '.join(sorted(unknown))}")
    pairs = [
        (case, seed)
        for case in cases
        for seed in range(options.seeds)
        if not options.methods or case.name in options.methods
    ]
    pairs = pairs[options.first :][: options.trials or None]
    tried = wrong = 0
    with TemporaryDirectory(prefix="ce") as name:  # Ray's sockets need a short path
        folder = Path(name)
        os.environ["COTERIE_CACHE"] = str(folder / "cache")
        roots = {False: fleet.write_sites(folder / "points"), True: write_digits(folder / "digits")}
        cpus = {ray_nodes.HEAD: 1, ray_nodes.OTHER: 1}
        with ray_nodes.two_nodes(folder / "ray", cpus) as nodes:
            os.environ.update(nodes.token)
            for case, seed in pairs:
                place = folder / f"{case.name}-{seed}"
                said = compare(case, seed, roots, place, nodes.address)
                tried, wrong = tried + 1, wrong + said.startswith("DIFFERENT")
                print(f"{case.name}, seed {seed}: {said}", flush=True)
    print(f"{tried - wrong} of {tried} equal", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
