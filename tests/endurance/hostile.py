"""Generated updates against screen and aggregate, and generated payloads against the codec."""

import math
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import test_hostile_bundles as payload_tests
import torch
from bench import Trial
from canned import WEIGHT, Canned, make_player, model, position, value

from coterie.core import codec
from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import CodecError
from coterie.core.task import METHOD, Attempt, Reply, Task
from coterie.engine.cohort import Invited

SECONDS = 0.05  # of processor time, for one decoding
GROWTH = 64 * 2**20  # bytes that all decodings together may add
SAMPLES: list[Any] = [0, -1, math.nan, 1e18, 10**18, True, "5", None, 2.0]
TENSORS: dict[str, Any] = {
    "nan": torch.tensor([math.nan]),
    "infinity": torch.tensor([math.inf]),
    "minus infinity": torch.tensor([-math.inf]),
    "huge": torch.tensor([1e38]),
    "float64": torch.ones(1, dtype=torch.float64),
    "int64": torch.ones(1, dtype=torch.int64),
    "complex": torch.ones(1) * 1j,
    "longer": torch.ones(2),
    "empty": torch.ones(0),
    "scalar": torch.tensor(1.0),
}


def spoil(generator: random.Random, number: float) -> tuple[Bundle, Any]:
    """An update with one thing wrong, and its number of samples."""
    kind = generator.choice([*TENSORS, "samples", "key", "more", "group", "no group", "scalar nan"])
    if kind in TENSORS:
        return Bundle({"model": {WEIGHT: TENSORS[kind]}}), 5
    return {
        "samples": (model(number), generator.choice(SAMPLES)),
        "key": (Bundle({"model": {"other": torch.ones(1)}}), 5),
        "more": (Bundle({"model": {WEIGHT: torch.ones(1), "other": torch.ones(1)}}), 5),
        "group": (Bundle({"model": {WEIGHT: torch.ones(1)}, "other": {}}), 5),
        "no group": (Bundle(), 5),
        "scalar nan": (Bundle({"model": {WEIGHT: torch.ones(1)}}, {"x": math.nan}), 5),
    }[kind]


@contextmanager
def updates(folder: Path) -> Iterator[Trial]:
    """A round of up to ten clients, some of which send what they must not."""
    executor = Canned()
    player = make_player(folder, executor)
    stage = player.parts.stage(METHOD, "train")

    def trial(number: int) -> str:
        generator = random.Random(number)
        cohort = tuple(generator.sample(range(20), generator.randint(1, 10)))
        hostile = {client for client in cohort if generator.random() < 0.5}
        sent: dict[int, tuple[Bundle, Any]] = {}
        for client in cohort:
            weight = generator.uniform(-1e6, 1e6)
            good = model(weight), generator.randint(1, 1000)
            sent[client] = spoil(generator, weight) if client in hostile else good

        def answer(task: Task) -> Reply:
            return Reply(task.client, *sent[task.client])

        executor.answer = answer
        played = player.round(METHOD, stage, position(), model(1.0), Invited(cohort), Attempt())
        rejected = {int(client) for client in played.replies.rejected}
        if rejected != hostile:
            return f"rejected are {played.replies.rejected}, hostile {sorted(hostile)}"
        good = [sent[client] for client in cohort if client not in hostile]
        if not good:
            return "" if played.server is None else "an aggregate of nobody"
        total = sum(count for _, count in good)
        mean = sum(torch.tensor(value(up)).double() * count for up, count in good) / total
        if played.server is None or value(played.server) != float(mean.float()):
            return f"the aggregate is {played.server and value(played.server)}, not {float(mean)}"
        return ""

    yield trial


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def read_in_time(read: Callable[[], object]) -> str:
    """Decode once; what is wrong, also with the time, of which the least of three counts."""
    spent: list[float] = []
    while len(spent) < 3:  # what else happens in this process is not the decoder's time
        begin = time.process_time()
        try:
            read()
        except CodecError:
            pass
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        spent.append(time.process_time() - begin)
        if spent[-1] < SECONDS:
            return ""
    return f"{1000 * min(spent):.0f} ms of processor time"


@contextmanager
def payloads(folder: Path) -> Iterator[Trial]:
    """Ways to damage a payload, in turn; headers with 100,000 tensors among them."""
    tensors = {"w": torch.arange(32.0).reshape(8, 4), "n": torch.tensor(3)}
    blob = Blob.write(folder / "rows", [np.arange(24, dtype=np.float32).reshape(6, 4)])
    whole = codec.pack(Bundle({"model": tensors}, {"steps": 4, "name": "é"}, {"rows": blob}))
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    many = payload_tests.frame(payload_tests.with_many_tensors(entry))
    damages = [*payload_tests.DAMAGES, lambda data, draw: payload_tests.flip(many, draw)]
    before: list[int] = []  # memory, after the first hundred

    def decode(data: bytes) -> Iterator[Callable[[], object]]:
        for form in (None, payload_tests.FORM):
            yield partial(codec.unpack, data, folder / "spool", expected=form)
            yield partial(codec.decode, data[16:], codec.DEFAULT, form)

    def trial(number: int) -> str:
        draw = np.random.default_rng(number)
        data = damages[number % len(damages)](whole, draw)
        problems = [problem for read in decode(data) if (problem := read_in_time(read))]
        if len(before) < 100:
            before.append(resident())
        grown = resident() - before[-1]
        if grown > GROWTH:
            problems.append(f"{grown / 2**20:.0f} MiB more memory")
        return "; ".join(problems)

    yield trial
