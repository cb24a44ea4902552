"""One contender of `round.py`: Coterie in a process of its own, a round whenever it is asked.

The first line of standard input is a configuration (JSON tables and a folder). Every further line
lets one round run; it is answered with its seconds and the resident memory of the workers. A round
in which a client's work was lost is no measurement, nor is one with kernels that were built from
other sources, which are not used: the process then ends with the reason.
"""

import json
import os
import sys
from pathlib import Path

import coterie
from coterie.engine.record import Event, RoundEvent, StartEvent
from coterie.native.library import note_fallback


def resident(pid: int) -> int:
    """Resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def workers() -> list[int]:
    """The resident bytes of this process's workers."""
    return [resident(pid) for fork_server in children(os.getpid()) for pid in children(fork_server)]


def children(pid: int) -> list[int]:
    """The processes that a process has started, in whichever of its threads."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for one in lists for word in one.read_text().split()]


def main() -> None:
    """Run rounds in step with the lines of standard input."""
    task = json.loads(sys.stdin.readline())
    if unfit := note_fallback("auto", ("cpu",)):
        sys.exit(unfit)

    def record(event: Event) -> None:
        if isinstance(event, RoundEvent):
            for client, reason in {**event.lost, **event.rejected}.items():
                sys.exit(f"round {event.round} lacks client {client}: {reason}")
            print(json.dumps({"seconds": event.seconds, "workers": workers()}), flush=True)
        if isinstance(event, StartEvent | RoundEvent) and not sys.stdin.readline():
            raise KeyboardInterrupt

    try:
        coterie.run(task["tables"], out=task["folder"], recorders=[record])
    except coterie.CoterieError:
        return


if __name__ == "__main__":
    main()
