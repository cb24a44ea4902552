"""Runs on two nodes of Ray that lose a raylet in the middle.

    python tests/endurance/cluster.py --kills 20

Each run of a stateful method loses the raylet of one node at a random moment, while an actor of it
works and rounds are missing. Metrics (less the clock), models, personal models and client states
must equal those of a run that was left alone, bit for bit.
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
sys.path[0:1] = [str(TESTS), str(TESTS / "endurance")]

import kills  # noqa: E402

import ray_nodes  # noqa: E402
import toy  # noqa: E402
from ray_nodes import HEAD, OTHER, Nodes, run, same  # noqa: E402

ROUNDS = 12
TRIES = 5  # of a trial, until the node has a part in the run when it is lost
STATEFUL = {
    "run": {"rounds": ROUNDS},
    "method": {"name": "toy_methods:TwoModels"},
    "net": {"norm": "bn"},
}


class Blow(threading.Thread):
    """Kills the raylet of the other node at a random moment of a run's rounds."""

    def __init__(self, nodes: Nodes, out: Path, generator: random.Random) -> None:
        super().__init__(daemon=True)
        self.nodes, self.out, self.generator = nodes, out, generator
        self.ended = threading.Event()  # the run has
        self.struck = False  # with rounds to play, and somebody at work on the node
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self.struck = self._strike()
        except Exception as error:
            self.error = error

    def _strike(self) -> bool:
        target = self.generator.randint(0, ROUNDS - 3)
        # a run that has not connected yet refuses a cluster that lacks a node
        while not self.ended.is_set() and (
            kills.count_rounds(self.out) < target or not self._is_working()
        ):
            time.sleep(0.005)
        time.sleep(self.generator.uniform(0.0, 0.2))
        raylet, working = self.nodes.raylet(OTHER), self._is_working()
        ray_nodes.kill(raylet)
        return working and kills.count_rounds(self.out) < ROUNDS

    def _is_working(self) -> bool:
        """Whether an actor of the run works on the other node."""
        pids = ray_nodes.descendants(self.nodes.started[OTHER].pid)
        return any(ray_nodes.name_of(pid).startswith(ray_nodes.ACTOR) for pid in pids)


def lose_node(data: Path, folder: Path, nodes: Nodes, generator: random.Random) -> str:
    """Kill a raylet amid a run; what is wrong with the run. One that was not hit is repeated."""
    executor = {"kind": "ray", "workers": 2, "address": nodes.address}
    for number in range(TRIES):
        out = folder / f"try-{number}"
        blow = Blow(nodes, out, generator)
        blow.start()
        try:
            run(data, out, {**STATEFUL, "executor": executor})
        finally:
            blow.ended.set()
            blow.join()
            nodes.restart(OTHER, 1)
        if blow.error is not None:
            return f"the raylet was not killed: {type(blow.error).__name__}: {blow.error}"
        if blow.struck:
            return "" if same(folder.parent / "alone", out) else "DIFFERENT"
    return f"in {TRIES} tries no raylet was killed amid a run"


def endure(data: Path, folder: Path, nodes: Nodes, trials: int, seed: int) -> int:
    """Kill a raylet in each of many runs; return how many differ from one left alone."""
    run(data, folder / "alone", STATEFUL)
    wrong = 0
    for trial in range(trials):
        place = folder / f"killed-{trial}"
        try:
            problem = lose_node(data, place, nodes, random.Random(seed + trial))
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        wrong += bool(problem)
        print(f"kill {trial + 1}: {problem or 'equal'}", flush=True)
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
