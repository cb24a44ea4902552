"""Runs on two nodes of Ray that lose a raylet in the middle.

    python tests/endurance/cluster.py --kills 20

Each run of a stateful method loses the raylet of one node at a random moment. Metrics (less the
clock), models, personal models and client states must equal those of a run that was left alone,
bit for bit.
"""

import argparse
import os
import random
import sys
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory

TESTS = Path(__file__).parent.parent
sys.path[0:1] = [str(TESTS)]

import ray_nodes  # noqa: E402
import toy  # noqa: E402
from ray_nodes import HEAD, OTHER, Nodes, run, same  # noqa: E402

ROUNDS = 12
STATEFUL = {
    "run": {"rounds": ROUNDS},
    "method": {"name": "toy_methods:TwoModels"},
    "net": {"norm": "bn"},
}


def kill_raylet(nodes: Nodes, out: Path, generator: random.Random) -> None:
    """Kill the raylet of the other node at a random moment of a run's rounds."""
    target, metrics = generator.randint(0, ROUNDS - 3), out / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < target:
        time.sleep(0.005)
    time.sleep(generator.uniform(0.0, 0.2))
    ray_nodes.kill(nodes.raylet(OTHER))


def endure(data: Path, folder: Path, nodes: Nodes, trials: int, seed: int) -> int:
    """Kill a raylet in each of many runs; return how many differ from one left alone."""
    run(data, folder / "alone", STATEFUL)
    wrong = 0
    for trial in range(trials):
        out = folder / f"killed-{trial}"
        thread = threading.Thread(
            target=kill_raylet, args=(nodes, out, random.Random(seed + trial)), daemon=True
        )
        thread.start()
        executor = {"kind": "ray", "workers": 2, "address": nodes.address}
        run(data, out, {**STATEFUL, "executor": executor})
        thread.join(1.0)
        equal = not thread.is_alive() and same(folder / "alone", out)
        wrong += not equal
        print(f"kill {trial + 1}: {'equal' if equal else 'DIFFERENT'}", flush=True)
        nodes.restart(OTHER, 1)
    print(f"{trials - wrong} of {trials} runs that lost a raylet are equal", flush=True)
    return wrong


def main() -> None:
    """Kill and report; exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with TemporaryDirectory(prefix="ce") as name:  # Ray's sockets need a short path
        folder = Path(name)
        os.environ["COTERIE_CACHE"] = str(folder / "cache")
        data = toy.write_data(folder / "toy.npz")
        with ray_nodes.two_nodes(folder / "ray", {HEAD: 1, OTHER: 1}) as nodes:
            os.environ.update(nodes.token)
            wrong = endure(data, folder, nodes, options.kills, options.seed)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
