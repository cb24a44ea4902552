"""Random runs of the loop over canned replies, against a model of what must have happened."""

import random
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench import Trial
from random_runs import check, draw


@contextmanager
def bench(folder: Path) -> Iterator[Trial]:
    """Draw a run for each trial."""

    def trial(number: int) -> str:
        said = check(draw(random.Random(number)), folder / "run")
        shutil.rmtree(folder / "run")
        return said

    yield trial
