"""Deployed runs whose server or client is killed at random moments.

A server and three clients of a stateful method as processes, over TLS with keys. In each trial one
of them is killed at a random moment and started again, the server with `--resume`; the run must
have the digests and the model of the same federation simulated in one process, and a server must
have gone on from its newest checkpoint.
"""

import random
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fleet
import kills
import warm
import warm_sites
from bench import Trial

from site_processes import kill, wait_for_rounds

ROUNDS, EVERY = 10, 2  # every: rounds between checkpoints
VICTIMS = ("server", "berlin")
ENDED = "the run had ended"  # before anything could be done to it
# ends a process, given its log and the run; what is wrong with its end, or `ENDED`
Strike = Callable[[warm.Process, Path, Path, random.Random], str]


def settings(root: Path) -> dict[str, dict[str, Any]]:
    """Every client has a state that its next round relies on."""
    run = {"rounds": ROUNDS, "seed": 5}
    return fleet.tables(root, run=run, method={"name": "scaffold"}, checkpoint={"every": EVERY})


def prepare(folder: Path) -> Path:
    """Simulate the federation once, deploy it once, and return the folder of the sites' data."""
    root, log = fleet.write_sites(folder / "sites"), folder / "alone.log"
    alone = warm.spawn(lambda: fleet.simulate(root, folder / "alone", settings(root)), log)
    assert alone.wait() == 0, log.read_text()[-500:]
    warm_sites.import_all(folder / "first", root, settings(root))
    return root


def disturb(folder: Path, root: Path, number: int, strike: Strike) -> str:
    """End the server or a client in the middle of a run, start it again; what is wrong."""
    generator, problem = random.Random(number), ENDED
    victim = VICTIMS[number % len(VICTIMS)]
    while problem == ENDED:
        try:
            problem = _disturb_once(folder, root, victim, strike, generator)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return f"{victim}: {problem}" if problem else ""


def _disturb_once(
    folder: Path, root: Path, victim: str, strike: Strike, generator: random.Random
) -> str:
    out = folder / "run"
    with warm_sites.sites(folder, root) as sites:
        server = sites.serve(out, settings(root))
        for name in fleet.NAMES:
            sites.join(name)
        wait_for_rounds(out, generator.randint(0, ROUNDS - 3), server)
        time.sleep(generator.uniform(0.0, 0.1))
        process = server if victim == "server" else sites.clients[victim]
        problem = strike(process, sites.log(victim), out, generator)
        if problem:
            return problem
        committed = kills.count_committed(out, EVERY)
        sites.restart(victim, out)
        sites.finish()
        if victim == "server":
            problem = kills.restarted(kills.read_start(sites.log(victim)), committed)
    return problem or (
        "" if _remains(out) == _remains(root.parent / "alone") else "the bits differ"
    )


def _remains(out: Path) -> object:
    return fleet.digests(out), (out / "model.safetensors").read_bytes()


def _kill(process: warm.Process, *_: object) -> str:
    ended = process.poll() is not None
    kill(process)
    return ENDED if ended else ""


@contextmanager
def bench(folder: Path) -> Iterator[Trial]:
    """The server and a client, killed in turn."""
    root = prepare(folder)
    yield lambda number: disturb(folder / f"killed-{number}", root, number, _kill)
