"""Kill runs with SIGKILL at random moments, resume them, compare the bits.

    python tests/endurance/kills.py --trials 20

Every trial runs a stateful method in two workers, kills the main process, a worker, both, or the
fork_server of the workers at a random moment, and resumes until the run is done. It counts as equal
if the metrics (less the clock), the model and every personal model are those of a run that was
left alone.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

TESTS = Path(__file__).parent.parent
sys.path.insert(0, str(TESTS))

import toy  # noqa: E402

KINDS = ("main", "worker", "both", "fork-server")
ROUNDS = 40
_DEADLINE = 120.0

CONFIG = """
run = {{ rounds = {rounds}, seed = 11 }}
data = {{ name = "arrays", root = "{data}" }}
partition = {{ kind = "dirichlet", clients = 6, beta = 1.0, min_samples = 4 }}
net = {{ backbone = "mlp", projection = 8, norm = "bn" }}
method = {{ name = "toy_methods:TwoModels" }}
local = {{ epochs = 2, batch_size = 16, lr = 0.02 }}
executor = {{ kind = "processes", workers = 2 }}
checkpoint = {{ every = 3 }}
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


def gone(pids: list[int], seconds: float = 10.0) -> bool:
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


def _rounds(out: Path) -> int:
    """How many rounds a run has recorded."""
    metrics = out / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def _reach_a_moment(
    process: "subprocess.Popen[bytes]", out: Path, generator: random.Random, duration: float
) -> bool:
    """Let a run come to a random moment, mostly of its rounds; False if it ended before."""
    if generator.random() < 0.2:  # while it starts
        time.sleep(generator.uniform(0.0, 0.5) * duration)
    else:
        target = generator.randint(min(_rounds(out), ROUNDS - 2), ROUNDS - 2)
        while process.poll() is None and _rounds(out) <= target:
            time.sleep(0.005)
        time.sleep(generator.uniform(0.0, 0.1))
    return process.poll() is None


def trial(config: Path, out: Path, kind: str, seed: int, duration: float) -> None:
    """One run that is killed once or more, and resumed until it is done."""
    generator = random.Random(seed)
    for _ in range(2):
        process = start(config, out)
        if not _reach_a_moment(process, out, generator, duration):
            break
        every, working = children(process.pid), workers(process.pid)
        if kind in ("worker", "both") and working:
            kill(generator.choice(working))
        if kind == "fork-server":
            for one in set(every) - set(working):
                kill(one)
        if kind in ("main", "both"):
            kill(process.pid)
        process.wait(_DEADLINE)
        assert gone(every), "a worker outlived its run"
    process = start(config, out)
    assert process.wait(_DEADLINE) == 0, "the resumed run failed"


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


def main() -> None:
    """Run the trials and print how many were equal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    same = 0
    with TemporaryDirectory() as name:
        folder = Path(name)
        config, whole, duration = reference(folder)
        for number in range(options.trials):
            kind = KINDS[number % len(KINDS)]
            out = folder / f"trial-{number}"
            trial(config, out, kind, options.seed + number, duration)
            found = equal(whole, out)
            same += found
            print(f"trial {number + 1}: {kind} killed, {'equal' if found else 'DIFFERENT'}")
    print(f"{same} of {options.trials} runs ended with the bits of the run left alone")
    sys.exit(same != options.trials)


if __name__ == "__main__":
    main()
