"""Kill runs with SIGKILL at random moments, resume them, compare the bits.

A trial runs a method whose clients or server keep something, in two workers, kills the main
process, a worker, both, or the fork server of the workers at random moments, and resumes until the
run is done. It counts as equal if the metrics (less the clock), the digests of all states, the
model and every personal model are those of a run that was left alone, and if the last start went on
from the newest checkpoint that there must have been.
"""

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parent.parent
sys.path[:0] = [str(TESTS), str(TESTS / "conformance")]

import warm  # noqa: E402
from bench import Trial  # noqa: E402
from cases import CASES  # noqa: E402

import toy  # noqa: E402
from coterie.experiment.config import resolve  # noqa: E402

KINDS = ("main", "worker", "both", "fork-server")
MAIN = ("main", "both")  # those that end a run; it survives the others
STATEFUL = ("moon", "scaffold", "fedssc", "fedavg-byol", "per_ssfl", "orchestra", "mfcl")
ROUNDS = 20
_DEADLINE = 120.0
_STARTS = 50  # of a trial, until it was killed often enough

CONFIG = """
run = {{ rounds = {rounds}, seed = 11 }}
data = {{ name = "arrays", root = "{data}" }}
partition = {{ kind = "dirichlet", clients = 6, beta = 1.0, min_samples = 4 }}
net = {{ backbone = "mlp", projection = 8, norm = "bn" }}
method = {{ name = "toy_methods:TwoModels" }}
local = {{ epochs = 2, batch_size = 16, lr = 0.02 }}
executor = {{ kind = "processes", workers = 2 }}
checkpoint = {{ every = 3 }}
record = {{ embedding = 0 }}
"""


def start(config: Path, out: Path) -> "subprocess.Popen[bytes]":
    """Start or resume the run in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(TESTS)}
    command = [sys.executable, "-m", "coterie", "run", str(config), "--out", str(out), "--resume"]
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)


def children(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for word in (task / "children").read_text().split():
                found += [int(word), *children(int(word))]
    return found


def workers(pid: int) -> list[int]:
    """The workers of a run: what its fork_server, a child of its main process, has forked."""
    return [one for one in children(pid) if _parent(one) != pid]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def kill(pid: int) -> None:
    """SIGKILL, whether or not it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def gone(pids: Iterable[int], seconds: float = 10.0) -> bool:
    """Whether processes end by themselves within a time."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not any(_alive(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def count_rounds(out: Path) -> int:
    """Count the rounds that a run has recorded."""
    metrics = out / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def count_committed(out: Path, every: int) -> int:
    """Count the rounds that a run must have committed: it records a round before it commits it."""
    return max(0, count_rounds(out) - 1) // every * every


def restarted(first: int | None, committed: int) -> str:
    """What is wrong with the first round of a resumed run; None if it had none to play."""
    if first is None or first >= committed:
        return ""
    return f"resumed from round {first + 1}, although {committed} rounds were committed"


def read_start(log: Path) -> int | None:
    """The first round of a command, counted from 0, by what it printed; None without one."""
    said = log.read_text() if log.exists() else ""
    found = re.search(r"clients?, (?:from round ([\d,]+)|[\d,]+ rounds?) -> ", said)
    return int((found[1] or "1").replace(",", "")) - 1 if found else None


def ended_well(status: int, kind: str = "") -> bool:
    """Whether a command ended as it must: with 0, or by SIGKILL if `kind` was its main process."""
    return status == 0 or (status == -signal.SIGKILL and kind in MAIN)


def _reach_a_moment(
    process: "subprocess.Popen[bytes]", out: Path, generator: random.Random, duration: float
) -> bool:
    """Let a run come to a random moment, mostly of its rounds; False if it ended before."""
    if generator.random() < 0.2:  # while it starts
        time.sleep(generator.uniform(0.0, 0.5) * duration)
    else:
        target = generator.randint(min(count_rounds(out), ROUNDS - 2), ROUNDS - 2)
        while process.poll() is None and count_rounds(out) <= target:
            time.sleep(0.005)
        time.sleep(generator.uniform(0.0, 0.1))
    return process.poll() is None


def strike(
    process: "subprocess.Popen[bytes] | warm.Process",
    kind: str,
    generator: random.Random,
    wait: bool = True,
) -> bool:
    """Kill what `kind` says of a run; whether that was there to be killed.

    If so, wait until the run and all that it started have ended.
    """
    every = children(process.pid)
    working = [pid for pid in workers(process.pid) if _alive(pid)]
    generator.shuffle(working)
    victims = {
        "main": [process.pid],
        "worker": working[:1],
        "both": [*working[:1], process.pid],
        "fork-server": [pid for pid in every if _parent(pid) == process.pid],
    }[kind]
    if not victims or (kind == "both" and not working):
        return False
    for pid in victims:
        kill(pid)
    if wait:
        process.wait(_DEADLINE)
        assert gone(every), "a worker outlived its run"
    return True


def trial(config: Path, out: Path, kind: str, seed: int, duration: float) -> None:
    """One run that is killed, and resumed until it is done."""
    generator, killed = random.Random(seed), False
    while not killed:
        shutil.rmtree(out, ignore_errors=True)  # a run that ended before it could be killed
        process = start(config, out)
        while not killed and _reach_a_moment(process, out, generator, duration):
            killed = strike(process, kind, generator)
        status = process.wait(_DEADLINE)
        assert ended_well(status, kind if killed else ""), f"a start ended with {status}"
    assert start(config, out).wait(_DEADLINE) == 0, "the resumed run failed"


def reference(folder: Path) -> tuple[Path, Path, float]:
    """The configuration, the run that is left alone, and how long it took."""
    config = folder / "run.toml"
    config.write_text(CONFIG.format(data=toy.write_data(folder / "toy.npz"), rounds=ROUNDS))
    begin = time.monotonic()
    assert start(config, folder / "whole").wait(_DEADLINE) == 0
    return config, folder / "whole", time.monotonic() - begin


def equal(one: Path, other: Path) -> bool:
    """Whether two runs left the same metrics and models."""
    return toy.trace(one) == toy.trace(other) and toy.outputs(one) == toy.outputs(other)


def write_config(folder: Path, name: str, **changes: Any) -> Path:
    """Write a configuration of the toy problem."""
    data = folder / "toy.npz"
    base = toy.tables(data if data.exists() else toy.write_data(data))
    return write_tables(folder, name, merge(base, changes))


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Change keys of tables."""
    return {name: {**base.get(name, {}), **changes.get(name, {})} for name in {**base, **changes}}


def write_tables(folder: Path, name: str, tables: dict[str, Any]) -> Path:
    """Write a configuration to a file."""
    config = folder / f"{name}.toml"
    config.write_text(resolve(tables).to_toml())
    return config


def settings(name: str, **changes: Any) -> dict[str, Any]:
    """The tables of a conformance case, for a run of a second in two workers."""
    (case,) = (case for case in CASES if case.name == name)
    tables = {table: dict(values) for table, values in case.changes.items()}
    return {
        **tables,
        "run": {"rounds": 6, "seed": 11},
        "executor": {"kind": "processes", "workers": 2},
        "checkpoint": {"every": 2},
        **changes,
    }


class Alone:
    """A run that is left alone: its configuration, folder, and duration."""

    def __init__(self, folder: Path, name: str, tables: dict[str, Any]) -> None:
        self.folder, self.config = folder, write_config(folder, name, **tables)
        self.every = int(tomllib.loads(self.config.read_text())["checkpoint"]["every"])
        self.out = folder / f"{name}-alone"
        assert self.start(self.out).wait() == 0, f"{name} cannot run at all"
        warm.import_all(folder / f"{name}-alone.log")
        begin = time.monotonic()
        assert self.start(folder / f"{name}-again").wait() == 0
        self.duration = time.monotonic() - begin

    def start(self, out: Path) -> warm.Process:
        """Start or resume such a run."""
        log = out.with_name(f"{out.name}.log")
        return warm.start(["run", str(self.config), "--out", str(out), "--resume"], log)

    def finish(self, out: Path) -> str:
        """Resume a run until it is done; what is wrong with the result."""
        log, committed = out.with_name(f"{out.name}.log"), count_committed(out, self.every)
        if self.start(out).wait() != 0:
            return f"the resumed run failed: {log.read_text()[-300:]}"
        if problem := restarted(read_start(log), committed):
            return problem
        return "" if equal(self.out, out) else "the bits differ"


def _kill_twice(run: Alone, out: Path, kind: str, generator: random.Random) -> str:
    """Start a run and kill `kind` of it until it was hit twice, or hit and done; what is wrong."""
    killed, longest = 0, 0.9 * run.duration
    for number in range(_STARTS):
        if (out / "report.html").exists():
            if killed:
                return ""
            shutil.rmtree(out)  # it ended before it could be killed: that is no trial
        process, hit = run.start(out), False
        time.sleep(generator.uniform(0.0, longest))
        while not hit and process.poll() is None:
            hit = strike(process, kind, generator)
            if not hit:
                time.sleep(generator.uniform(0.0, 0.2 * longest))  # there is no worker yet
        if not ended_well(status := process.wait(), kind if hit else ""):
            said = out.with_name(f"{out.name}.log").read_text()
            return f"start {number + 1} ended with {status}: {said[-300:]}"
        killed, longest = killed + hit, 0.8 * longest
        if killed == 2:
            return ""
    return f"in {_STARTS} starts it was not killed"


@contextmanager
def bench(folder: Path) -> Iterator[Trial]:
    """Trials by method and by what is killed, in turn."""
    runs: dict[str, Alone] = {}

    def trial(number: int) -> str:
        name = STATEFUL[number % len(STATEFUL)]
        kind = KINDS[number // len(STATEFUL) % len(KINDS)]
        if name not in runs:
            runs[name] = Alone(folder, name, settings(name))
        run, out, generator = runs[name], folder / f"{name}-{number}", random.Random(number)
        problem = _kill_twice(run, out, kind, generator) or run.finish(out)
        shutil.rmtree(out)
        return f"{name}, {kind} killed: {problem}" if problem else ""

    yield trial
