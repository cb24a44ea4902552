"""A FedAvg round over Ray against one over processes, on the same cores.

    python benchmarks/speed/cluster.py --data DIR     real CIFAR-10; without --data, random images

The setting of `round.py`: simple-cnn, 10 clients by Dirichlet(0.5), one local epoch, batch 64, two
workers with one thread each, evaluation and checkpoints off. The two take turns, round by round;
medians are compared. Ray starts a cluster of its own on this machine. Writes JSON.
"""

import json
import statistics
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from round import WORKERS, Coterie, choose_data, parse_arguments, setting, take_turns

KINDS = ("processes", "ray")


def measure(folder: Path, data: dict[str, Any], rounds: int) -> dict[str, Any]:
    """The two by turns."""
    tables = setting(data, rounds + 2, "none")
    contenders = {
        kind: Coterie({**tables, "executor": {"kind": kind, "workers": WORKERS}}, folder / kind)
        for kind in KINDS
    }
    seconds = take_turns(contenders, rounds)
    for contender in contenders.values():
        contender.close()
    medians = {kind: statistics.median(values) for kind, values in seconds.items()}
    return {
        "seconds": seconds,
        "ray / processes": medians["ray"] / medians["processes"],
    }


def main() -> None:
    """Measure, print, write JSON."""
    options = parse_arguments(__doc__, "cluster", 7)
    with TemporaryDirectory() as name:
        folder = Path(name)
        data = choose_data(folder, options.data, options.samples)
        found = measure(folder, data, options.rounds)
    found["data"] = "CIFAR-10" if options.data else "random images"
    for kind, values in found["seconds"].items():
        print(f"{kind:<20} seconds a round: {', '.join(f'{v:.2f}' for v in values)}")
    print(f"{'ray / processes':<20} {found['ray / processes']:.3f}")
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
