"""Deployed runs whose server or client is killed at random moments.

A server and three clients of a stateful method as processes, over TLS with keys. In each trial one
of them is killed at a random moment and started again, the server with `--resume`; the run must
have the digests of the same federation simulated in one process.
"""

import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fleet
import warm
import warm_sites
from bench import Trial

from site_processes import kill, wait_for_rounds

ROUNDS = 10
VICTIMS = ("server", "berlin")


def settings(root: Path) -> dict[str, dict[str, Any]]:
    """Every client has a state that its next round relies on."""
    run = {"rounds": ROUNDS, "seed": 5}
    return fleet.tables(root, run=run, method={"name": "scaffold"}, checkpoint={"every": 2})


def prepare(folder: Path) -> Path:
    """Simulate the federation once, deploy it once, and return the folder of the sites' data."""
    root, log = fleet.write_sites(folder / "sites"), folder / "alone.log"
    alone = warm.spawn(lambda: fleet.simulate(root, folder / "alone", settings(root)), log)
    assert alone.wait() == 0, log.read_text()[-500:]
    warm_sites.import_all(folder / "first", root, settings(root))
    return root


def compare(out: Path, root: Path) -> str:
    """Say if a run has other bits than the simulated federation."""
    same = fleet.digests(out) == fleet.digests(root.parent / "alone")
    return "" if same else "the bits differ"


def kill_one(folder: Path, root: Path, victim: str, generator: random.Random) -> str:
    """Kill the server or a client in the middle of a run; say if its bits differ."""
    with warm_sites.sites(folder, root) as sites:
        server = sites.serve(folder / "run", settings(root))
        for name in fleet.NAMES:
            sites.join(name)
        wait_for_rounds(folder / "run", generator.randint(0, ROUNDS - 3), server)
        time.sleep(generator.uniform(0.0, 0.1))
        kill(server if victim == "server" else sites.clients[victim])
        sites.restart(victim, folder / "run")
        sites.finish()
    problem = compare(folder / "run", root)
    return f"{victim} killed: {problem}" if problem else ""


@contextmanager
def bench(folder: Path) -> Iterator[Trial]:
    """The server and a client, killed in turn."""
    root = prepare(folder)

    def trial(number: int) -> str:
        victim, place = VICTIMS[number % len(VICTIMS)], folder / f"killed-{number}"
        try:
            return kill_one(place, root, victim, random.Random(number))
        finally:
            shutil.rmtree(place, ignore_errors=True)

    yield trial
