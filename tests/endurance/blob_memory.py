"""Watch the memory of MFCL while clients send representations and the server trains on them.

    python tests/endurance/blob_memory.py

Ten clients, the `table5` sensor with 64 channels, 500 and then 2,000 images of 3 x 32 x 32 each.
The anonymous memory (RssAnon) of all processes together, at its highest in each stage, must not
differ by more than 200 MB between the two: the representations, 0.3 and 1.3 GB, stay in files.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

import coterie
from coterie.engine.record import Event, RoundEvent

sys.path.insert(0, str(Path(__file__).parent))

from kills import children

IMAGES = (500, 2000)  # of each client
SLACK = 200 * 10**6
PAUSE = 0.02  # seconds between two looks


def anonymous(pid: int) -> int:
    """Bytes of a process that no file stands behind."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Watch:
    """Looks at this process and its workers all the time; a recorder that tells the stages."""

    def __init__(self) -> None:
        self.stages: dict[str, int] = {}
        self._peak, self._done = 0, threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._done.wait(PAUSE):
            pids = [os.getpid(), *children(os.getpid())]
            self._peak = max(self._peak, sum(anonymous(pid) for pid in pids))

    def __call__(self, event: Event) -> None:
        if isinstance(event, RoundEvent):
            self.stages[event.stage] = max(self.stages.get(event.stage, 0), self._peak)
            self._peak = 0

    def stop(self) -> None:
        """End the looking."""
        self._done.set()
        self._thread.join()


def measure(images: int, clients: int = 10) -> dict[str, int]:
    """The highest memory of each stage of a run, and the bytes that were sent."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        y = np.arange(images * clients) % 10
        x = np.random.default_rng(0).integers(0, 256, (len(y), 3, 32, 32), dtype=np.uint8)
        np.savez(folder / "many.npz", x_train=x, y_train=y, x_test=x[:100], y_test=y[:100])
        del x
        os.environ["COTERIE_CACHE"] = str(folder / "cache")
        watch = Watch()
        result = coterie.run(
            "cifar10/mfcl",
            out=folder / "run",
            recorders=[watch],
            run={"rounds": 1},
            data={"name": "arrays", "root": str(folder / "many.npz")},
            partition={"kind": "iid", "clients": clients},
            net={"backbone": "resnet8"},
            method={"share_representations": True, "sensor": "table5", "sense_rounds": 1},
            local={"steps": 2},
            executor={"workers": 2},
            evaluate={"every": 0, "with": [], "last": []},
        )
        watch.stop()
        sent = sum(event.bytes_up for event in result.history if event.stage == "upload")
    return {**watch.stages, "sent": sent}


def main() -> None:
    """Measure each size in a process of its own, print both, and say whether they agree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=int, default=0, help="measure one size here, as JSON")
    options = parser.parse_args()
    if options.images:
        print(json.dumps(measure(options.images)))
        return
    found = {}
    for images in IMAGES:
        command = [sys.executable, __file__, "--images", str(images)]
        found[images] = json.loads(subprocess.check_output(command))
        words = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in found[images].items())
        print(f"{images} images a client: {words}", flush=True)
    few, many = (found[images] for images in IMAGES)
    growth = max(many[stage] - few[stage] for stage in ("upload", "contrast"))
    print(f"the memory of upload and contrast differs by {growth / 1e6:.0f} MB at most")
    sys.exit(growth > SLACK)


if __name__ == "__main__":
    main()
