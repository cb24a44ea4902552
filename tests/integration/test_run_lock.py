"""Two processes on one run directory: one wins, the other says who holds it."""

import fcntl
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import toy
from coterie.cli.main import main
from coterie.core.errors import ConfigError
from coterie.engine.rundir import RunLock
from coterie.experiment.config import resolve

RACES = 10
# wait for the others, take the lock and keep it until standard input ends
CONTEND = """
import os, sys, time
from pathlib import Path
from coterie.core.errors import ConfigError
from coterie.engine.rundir import RunLock
print("ready", flush=True)
sys.stdin.readline()
begin = time.monotonic()
try:
    with RunLock(Path(sys.argv[1])):
        print("won", flush=True)
        sys.stdin.read()
except ConfigError as error:
    print("lost", time.monotonic() - begin, error, flush=True)
"""


def contender(folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CONTEND, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def fork(work: Callable[[], int]) -> int:
    """Start `work` in a fork of this process, whose exit status is what it returns."""
    child = os.fork()
    if child == 0:
        status = 99
        try:
            status = work()
        finally:
            os._exit(status)
    return child


def test_of_two_processes_exactly_one_wins_ten_times(tmp_path: Path) -> None:
    """Forks that start on one signal; the loser must name the process that won."""
    for race in range(RACES):
        folder = tmp_path / str(race)
        start, end = os.pipe(), os.pipe()

        def contend(folder: Path = folder, pipes: tuple[int, ...] = (*start, *end)) -> int:
            os.close(pipes[1])
            os.close(pipes[3])
            os.read(pipes[0], 1)  # ends for both when the parent closes its side
            begin = time.monotonic()
            try:
                with RunLock(folder):
                    os.read(pipes[2], 1)
                    return 0
            except ConfigError as error:
                (folder / f"lost-{os.getpid()}").write_text(str(error))
                return 2 if time.monotonic() - begin < 1.0 else 3

        children = {fork(contend), fork(contend)}
        os.close(start[1])
        deadline = time.monotonic() + 10
        while not (lost := list(folder.glob("lost-*"))) and time.monotonic() < deadline:
            time.sleep(0.001)
        os.close(end[1])
        codes = {child: os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children}
        os.close(start[0])
        os.close(end[0])
        assert sorted(codes.values()) == [0, 2], f"race {race}"
        (winner,) = (child for child, code in codes.items() if code == 0)
        assert f"{folder} is in use by process {winner} on " in lost[0].read_text()


def test_among_many_processes_exactly_one_wins(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    processes = [contender(folder) for _ in range(4)]
    try:
        assert [line(process) for process in processes] == ["ready"] * 4
        for process in processes:
            tell(process)
        said = [line(process) for process in processes]
        (winner,) = (p for p, text in zip(processes, said, strict=True) if text == "won")
        for text in said:
            if text != "won":
                word, seconds, reason = text.split(" ", 2)
                assert word == "lost" and float(seconds) < 1.0
                assert f"{folder} is in use by process {winner.pid} on" in reason
                assert "choose another --out" in reason
    finally:
        for process in processes:
            process.communicate()


def test_a_lock_left_by_kill_does_not_block(tmp_path: Path) -> None:
    for _ in range(3):
        process = contender(tmp_path)
        assert line(process) == "ready"
        tell(process)
        assert line(process) == "won"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL
        assert f"process {process.pid} on" in (tmp_path / ".lock").read_text()
    with RunLock(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()


def test_a_holder_that_has_not_yet_written_its_name_is_waited_for(tmp_path: Path) -> None:
    """Between taking the lock and writing its name a holder may be put to sleep."""
    name = f"process {os.getpid()} on here"
    with (tmp_path / ".lock").open("w") as file, contender(tmp_path) as process:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert line(process) == "ready"
        tell(process)
        time.sleep(0.05)
        file.write(name)
        file.flush()
        said = line(process)
        process.communicate()
    assert f"in use by {name}" in said


@pytest.mark.slow
def test_of_two_commands_the_second_exits_with_2_and_leaves_the_first_alone(
    toy_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, config = tmp_path / "run", tmp_path / "toy.toml"
    sleepy = {"name": "toy_methods:Faulty", "fault": "sleep", "clients": [3]}
    config.write_text(resolve(toy.tables(toy_data, method=sleepy)).to_toml())
    environment = {**os.environ, "PYTHONPATH": str(Path(toy.__file__).parent)}
    command = [sys.executable, "-m", "coterie", "run", str(config), "--out", str(folder)]
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    first = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while not (folder / "config.toml").exists():
            assert first.poll() is None
            time.sleep(0.05)
        for extra in ([], ["--resume"]):
            with pytest.raises(SystemExit) as ended:
                main(["run", str(config), "--out", str(folder), *extra])
            said = capsys.readouterr()
            assert (ended.value.code, said.out) == (2, "")
            expected = rf"coterie: {folder} is in use by process {first.pid} on .*--out\n"
            assert re.fullmatch(expected, said.err)
        assert first.poll() is None
    finally:
        first.kill()
        first.wait()
        for number, handler in handlers.items():
            signal.signal(number, handler)
    with RunLock(folder):
        pass
