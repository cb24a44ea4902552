"""Real processes, really killed; `make endurance` does more of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import toy

sys.path.insert(0, str(Path(__file__).parent.parent / "endurance"))

import kills
import memory

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def left_alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, float]:
    return kills.reference(tmp_path_factory.mktemp("kills"))


@pytest.mark.parametrize("kind", kills.KINDS)
def test_killed_at_a_random_moment_a_run_resumes_to_the_same_bits(
    kind: str, left_alone: tuple[Path, Path, float], tmp_path: Path
) -> None:
    config, whole, duration = left_alone
    kills.trial(config, tmp_path / "run", kind, seed=len(kind), duration=duration)
    assert kills.equal(whole, tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_run_with_130_no_orphan_and_a_way_back(
    number: signal.Signals, left_alone: tuple[Path, Path, float], tmp_path: Path
) -> None:
    config, whole, _ = left_alone
    environment = {**os.environ, "PYTHONPATH": str(kills.TESTS)}
    command = [sys.executable, "-m", "coterie", "run", str(config), "--out", str(tmp_path / "run")]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    metrics = tmp_path / "run" / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_text().count("\n") >= 4):
        assert process.poll() is None
        time.sleep(0.05)
    assert len(kills.workers(process.pid)) == 2
    started = kills.children(process.pid)
    process.send_signal(number)
    _, said = process.communicate(timeout=120)
    assert process.returncode == 130
    again = f"coterie run --out {tmp_path / 'run'} --resume"
    assert said == f"coterie: interrupted; resume with: {again}\n"
    assert kills.gone(started, seconds=60.0)
    assert len(toy.trace(tmp_path / "run")) >= 4  # what was finished is committed
    assert kills.start(config, tmp_path / "run").wait(120) == 0
    assert kills.equal(whole, tmp_path / "run")


def test_memory_stays_flat_with_many_clients_that_have_states(tmp_path: Path) -> None:
    found = memory.watch(tmp_path, clients=1000, rounds=20, every=10, method="moon")
    assert not found.gone()
    assert found.growth() < memory.SLACK
