"""Watch the memory of every process of a run with many clients.

    python tests/endurance/memory.py

1,000 clients with 20 images of 8 x 8 each, 2 % of them a round, 50 rounds: resident memory must
stay flat after round 5, or after the first evaluation if that is later: it allocates for good. What
all processes have together is also looked at amid rounds.
"""

import argparse
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import coterie
from coterie.engine.record import ClientEvent, Event, RoundEvent

sys.path.insert(0, str(Path(__file__).parent))

from kills import children

SETTLED = 5  # rounds after which nothing may grow
SAMPLE = 50  # replies between two looks amid a round
SLACK = 8 * 2**20  # what an allocator may take later than that
TOTAL = 8 * 2**30  # of all processes together


def resident(pid: int) -> int:
    """Resident bytes of a process; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class Watch:
    """A recorder that notes the memory of this process and its workers after every round.

    `settled` is the round from which on nothing may grow, counted from 0.
    """

    def __init__(self, settled: int = SETTLED) -> None:
        self.rounds: list[dict[int, int]] = []
        self.settled, self.peak = settled, 0  # peak: of all processes together

    def __call__(self, event: Event) -> None:
        amid = isinstance(event, ClientEvent) and event.done % SAMPLE == 0
        if not amid and not isinstance(event, RoundEvent):
            return
        pids = (os.getpid(), *children(os.getpid()))
        sizes = {pid: size for pid in pids if (size := resident(pid))}
        self.peak = max(self.peak, sum(sizes.values()))
        if isinstance(event, RoundEvent):
            self.rounds.append(sizes)

    def growth(self) -> int:
        """The most that any process had grown after a round since the settled one."""
        first, *later = self.rounds[self.settled :]
        return max(sizes[pid] - first[pid] for sizes in later for pid in sizes.keys() & first)

    def gone(self) -> list[int]:
        """The processes of the settled round that ended before the last one."""
        first, *later = self.rounds[self.settled :]
        return [pid for pid in first if any(pid not in sizes for sizes in later)]


def watch(
    folder: Path,
    clients: int,
    rounds: int,
    every: int,
    fraction: float = 0.02,
    method: str = "fedavg",
) -> Watch:
    """Run with many clients, and watch."""
    generator = np.random.default_rng(0)
    y = np.arange(clients * 20) % 10
    x = generator.integers(0, 256, size=(len(y), 8, 8), dtype=np.uint8)
    np.savez(
        folder / "many.npz", x_train=x, y_train=y, x_test=x[: clients * 2], y_test=y[: clients * 2]
    )
    found = Watch(max(SETTLED, every))  # in the round after the first evaluation
    assert every > 0 and found.settled < rounds - 1, "an evaluation must come before the end"
    coterie.run(
        f"digits/{method}",
        out=folder / "run",
        recorders=[found],
        run={"rounds": rounds},
        data={"name": "arrays", "root": str(folder / "many.npz")},
        partition={"kind": "iid", "clients": clients},
        cohort={"fraction": fraction},
        local={"epochs": 1},
        executor={"workers": 2},
        evaluate={"every": every},
    )
    return found


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"


def main() -> None:
    """Print what every process held once it was settled, and at the end."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--fraction", type=float, default=0.02, help="of the clients, a round")
    parser.add_argument("--every", type=int, default=1, help="evaluate after so many rounds")
    parser.add_argument("--method", default="fedavg")
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        sizes = (options.clients, options.rounds, options.every)
        found = watch(Path(name), *sizes, options.fraction, options.method)
    first, last = found.rounds[found.settled], found.rounds[-1]
    for pid, size in first.items():
        who = "main" if pid == os.getpid() else "worker or fork server"
        begin, end = _mebibytes(size), _mebibytes(last.get(pid, 0))
        print(f"{who} {begin} after round {found.settled + 1}, {end} at the end")
    total = found.peak
    grown = _mebibytes(found.growth())
    print(f"a process grew by {grown} at most, all together had {_mebibytes(total)} at most")
    if gone := found.gone():
        print(f"processes that were there after round {found.settled + 1} have ended: {gone}")
    sys.exit(found.growth() > SLACK or total > TOTAL or bool(gone))


if __name__ == "__main__":
    main()
