"""Generated updates against screen and aggregate, and generated payloads against the codec."""

import math
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import test_hostile_bundles as payload_tests
import torch
from bench import Trial
from canned import Canned, make_player, position
from torch import Tensor

from coterie.core import codec
from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import CodecError
from coterie.core.task import METHOD, Attempt, Reply, Task
from coterie.engine.cohort import Invited
from coterie.kit import stock
from coterie.kit.builder import Builder
from coterie.kit.method import Method
from coterie.nets.build import Backbone
from coterie.nets.heads import Network

SECONDS = 0.05  # of processor time, for one decoding
GROWTH = 64 * 2**20  # bytes that a decoding, or all of them together, may add
SHAPES = {"rates": (3,), "table": (2, 4), "shift": (1,)}  # of the weights
SAMPLES: list[Any] = [0, -1, math.nan, 1e18, 10**18, True, "5", None, 2.0]
ENTRIES = {"nan": math.nan, "infinity": math.inf, "minus infinity": -math.inf, "huge": 1e38}
TENSORS: dict[str, Callable[[Tensor], Tensor]] = {
    "float64": Tensor.double,
    "int64": Tensor.long,
    "complex": lambda tensor: tensor * 1j,
    "longer": lambda tensor: torch.cat([tensor, tensor]),
    "empty": lambda tensor: tensor[:0],
    "scalar": Tensor.sum,
    "one more dimension": lambda tensor: tensor[None],
}
OTHERS = ("samples", "key", "no key", "more", "group", "no group", "scalar nan")


class Several(Backbone):
    """Has several weights of several entries; nobody computes with it here."""

    width = 1

    def __init__(self) -> None:
        super().__init__()
        for name, shape in SHAPES.items():
            self.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).sum(1, keepdim=True)


def build_several(method: Method, build: Builder) -> dict[str, Network]:
    """The networks of a method whose weights are those of `Several`."""
    return {"model": Network(Several())}


@final
@dataclass(frozen=True)
class Averaging(Method):
    """Averages what clients send."""

    objectives = None
    init = stock.start_from_net
    broadcast = stock.send_model
    client_update = stock.train_objective
    server_update = stock.average
    model = stock.global_model
    nets = build_several


def draw_weights(generator: random.Random) -> dict[str, Tensor]:
    """Weights as a client may send them."""
    numbers = {
        name: [generator.uniform(-1e6, 1e6) for _ in range(math.prod(shape))]
        for name, shape in SHAPES.items()
    }
    return {f"backbone.{k}": torch.tensor(v).reshape(SHAPES[k]) for k, v in numbers.items()}


def spoil(generator: random.Random, weights: dict[str, Tensor]) -> tuple[Bundle, Any]:
    """An update with one thing wrong, in one of its tensors, and its number of samples."""
    kind, name = generator.choice([*ENTRIES, *TENSORS, *OTHERS]), generator.choice(list(weights))
    if kind in ENTRIES:
        entries = weights[name].flatten()
        entries[generator.randrange(len(entries))] = ENTRIES[kind]
        weights[name] = entries.reshape(weights[name].shape)
        return Bundle({"model": weights}), 5
    if kind in TENSORS:
        return Bundle({"model": {**weights, name: TENSORS[kind](weights[name])}}), 5
    fewer, extra = {k: v for k, v in weights.items() if k != name}, {"other": weights[name]}
    return {
        "samples": (Bundle({"model": weights}), generator.choice(SAMPLES)),
        "key": (Bundle({"model": {**fewer, **extra}}), 5),
        "no key": (Bundle({"model": fewer}), 5),
        "more": (Bundle({"model": {**weights, **extra}}), 5),
        "group": (Bundle({"model": weights, "other": {}}), 5),
        "no group": (Bundle(), 5),
        "scalar nan": (Bundle({"model": weights}, {"x": math.nan}), 5),
    }[kind]


@contextmanager
def updates(folder: Path) -> Iterator[Trial]:
    """A round of up to ten clients, some of which send what they must not."""
    executor = Canned()
    player = make_player(folder, executor, method=Averaging())
    start = player.parts.start()
    stage = player.parts.stage(METHOD, "train")

    def trial(number: int) -> str:
        generator = random.Random(number)
        cohort = tuple(generator.sample(range(20), generator.randint(1, 10)))
        hostile = {client for client in cohort if generator.random() < 0.5}
        sent: dict[int, tuple[Bundle, Any]] = {}
        for client in cohort:
            weights, samples = draw_weights(generator), generator.randint(1, 1000)
            good = Bundle({"model": weights}), samples
            sent[client] = spoil(generator, weights) if client in hostile else good

        def answer(task: Task) -> Reply:
            return Reply(task.client, *sent[task.client])

        executor.answer = answer
        played = player.round(METHOD, stage, position(), start, Invited(cohort), Attempt())
        rejected = {int(client) for client in played.replies.rejected}
        if rejected != hostile:
            return f"rejected are {played.replies.rejected}, hostile {sorted(hostile)}"
        good = [sent[client] for client in cohort if client not in hostile]
        if not good:
            return "" if played.server is None else "an aggregate of nobody"
        if played.server is None:
            return "no aggregate"
        total, found = sum(count for _, count in good), played.server["model"]
        for name in start["model"]:
            mean = sum(up["model"][name].double() * count for up, count in good) / total
            if not torch.equal(found[name], mean.float()):
                return f"the aggregate of {name} is {found[name]}, not {mean}"
        return ""

    yield trial


def resident() -> int:
    """Resident bytes of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def forget_peak() -> None:
    """Let `peak` begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """The most resident bytes of this process since `forget_peak`."""
    (line,) = (x for x in Path("/proc/self/status").read_text().splitlines() if "VmHWM" in x)
    return int(line.split()[1]) * 1024


def read_in_time(read: Callable[[], object]) -> str:
    """Decode; what is wrong, also with the time, of which the least of three counts."""
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
    settled: list[int] = []  # memory before the first hundred

    def decode(data: bytes) -> Iterator[Callable[[], object]]:
        for form in (None, payload_tests.FORM):
            yield partial(codec.unpack, data, folder / "spool", expected=form)
            yield partial(codec.decode, data[16:], codec.DEFAULT, form)

    def trial(number: int) -> str:
        draw = np.random.default_rng(number)
        data = damages[number % len(damages)](whole, draw)
        if len(settled) < 100:
            settled.append(resident())
        problems = []
        for read in decode(data):
            begin = min(resident(), settled[-1])
            forget_peak()
            problems.append(read_in_time(read))
            if (grown := peak() - begin) > GROWTH:
                problems.append(f"{grown / 2**20:.0f} MiB more memory")
        return "; ".join(filter(None, problems))

    yield trial
