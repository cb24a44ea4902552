"""The best round of a run: the one with the highest `evaluate.metric`, and its weights.

    checkpoints/best/round_000017.safetensors     as the run directory's `best.safetensors`

Its round, value and SHA-256 are part of a commit. The file is written before that commit, so that a
resumed run never keeps a best round that was not committed.
"""

import contextlib
import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from coterie.core import files
from coterie.core.bundle import Tensors
from coterie.core.files import disk_errors, make_folder
from coterie.engine import copies
from coterie.engine.record import RoundEvent
from coterie.engine.rundir import has_hash, write_weights


@dataclass(frozen=True)
class Best:
    """The best round so far."""

    round: int
    metric: str
    value: float
    sha256: str = ""  # of the file with its weights; empty until they are written


class BestWeights:
    """The weights of the best rounds that checkpoints refer to, each with a second copy."""

    def __init__(self, run: Path) -> None:
        self.folder = run / "checkpoints" / "best"

    def write(self, best: Best, weights: Tensors) -> Best:
        """Write the weights of a best round durably, and return it with their SHA-256."""
        with disk_errors(self.folder):
            make_folder(self.folder.parent)
        path = self._path(best.round)
        sha256 = write_weights(path, weights)
        copies.make_copy(path, renew=True)  # there may be one of another attempt
        return replace(best, sha256=sha256)

    def read(self, best: Best) -> bytes | None:
        """Read the file of a best round, or its copy; None if both are missing or damaged."""
        path = self._path(best.round)
        for one in (path, copies.find_copy(path)):
            with contextlib.suppress(OSError):
                data = one.read_bytes()
                if hashlib.sha256(data).hexdigest() == best.sha256:
                    return data
        return None

    def mend(self, best: Best) -> str | None:
        """Restore the file of a best round from its copy, if it is damaged, and say so."""
        return copies.mend(self._path(best.round), partial(has_hash, best.sha256))

    def prune(self, rounds: Collection[int]) -> None:
        """Remove the weights of all other rounds."""
        kept = {self._path(round).name for round in rounds}
        for path in self.folder.glob(f"*.safetensors{copies.SUFFIX}"):
            if path.name.removesuffix(copies.SUFFIX) not in kept:
                files.remove_file(path)
        for path in self.folder.glob("*.safetensors"):
            if path.name not in kept:
                files.remove_file(path)

    def _path(self, round: int) -> Path:
        return self.folder / f"round_{round:06d}.safetensors"


def find_best(history: Sequence[RoundEvent], metric: str) -> RoundEvent | None:
    """Return the round with the highest value of a metric, the earlier one of two equals."""
    measured = [event for event in history if metric in event.metrics]
    return max(measured, key=lambda event: event.metrics[metric], default=None)


def count_stale(history: Sequence[RoundEvent], metric: str, stage: str) -> int:
    """Count the evaluations in a stage since the metric last improved."""
    best = find_best(history, metric)
    if best is None:
        return 0
    later = [event for event in history if event.round > best.round and event.stage == stage]
    return sum(metric in event.metrics for event in later)
