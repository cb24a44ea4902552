"""Deployed runs whose server or client is killed at random moments.

    python tests/endurance/sites.py --kills 20

A server and three clients of a stateful method as processes, over TLS with keys. In each trial one
of them is killed at a random moment and started again, the server with `--resume`; the run must
have the digests of the same federation simulated in one process.
"""

import argparse
import os
import random
import shutil
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[0:1] = [str(TESTS), str(TESTS / "unit" / "deploy")]

import fleet  # noqa: E402

from site_processes import kill, processes, wait_for_rounds  # noqa: E402

ROUNDS = 10
VICTIMS = ("server", "berlin")


def settings(root: Path) -> dict[str, dict[str, Any]]:
    """Every client has a state that its next round relies on."""
    run = {"rounds": ROUNDS, "seed": 5}
    return fleet.tables(root, run=run, method={"name": "scaffold"}, checkpoint={"every": 2})


def kill_one(folder: Path, root: Path, victim: str, generator: random.Random) -> bool:
    """Kill the server or a client in the middle of a run; return whether its bits stay."""
    with processes(folder, root, fleet.NAMES) as sites:
        server = sites.serve(folder / "run", settings(root))
        for name in fleet.NAMES:
            sites.join(name)
        wait_for_rounds(folder / "run", generator.randint(0, ROUNDS - 3), server)
        time.sleep(generator.uniform(0.0, 0.5))
        if victim == "server":
            kill(server)
            sites.serve(folder / "run")
        else:
            kill(sites.clients[victim])
            sites.join(victim)
        sites.finish()
    return fleet.digests(folder / "run") == fleet.digests(root.parent / "alone")


def endure(folder: Path, root: Path, victim: str, trials: int, seed: int) -> int:
    """Kill one process in each of many runs; return how many differ from one left alone."""
    wrong = 0
    for trial in range(trials):
        place, begin = folder / f"{victim}-{trial}", time.monotonic()
        equal = kill_one(place, root, victim, random.Random(f"{victim}-{seed + trial}"))
        wrong += not equal
        seconds = time.monotonic() - begin
        said = "equal" if equal else "DIFFERENT"
        print(f"{victim} killed, {trial + 1}: {said}, {seconds:.0f} s", flush=True)
        shutil.rmtree(place)
    print(f"{trials - wrong} of {trials} runs whose {victim} was killed are equal", flush=True)
    return wrong


def main() -> None:
    """Kill and report; exit status 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["COTERIE_CACHE"] = str(folder / "cache")
        root = fleet.write_sites(folder / "sites")
        fleet.simulate(root, folder / "alone", settings(root))
        wrong = sum(endure(folder, root, v, options.kills, options.seed) for v in VICTIMS)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
