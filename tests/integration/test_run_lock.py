"""Several processes on one run directory: one wins, the others say who holds it."""

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
from coterie.engine import rundir
from coterie.engine.rundir import lock_folder
from coterie.experiment.config import resolve

Pipe = tuple[int, int]

RACES = 10
# wait for the others, take the lock and keep it until standard input ends
CONTEND = """
import sys
from pathlib import Path
from coterie.core.errors import ConfigError
from coterie.engine import rundir
from coterie.engine.rundir import lock_folder
print("ready", flush=True)
sys.stdin.readline()
try:
    with lock_folder(Path(sys.argv[1])):
        print("won", flush=True)
        sys.stdin.read()
except ConfigError as error:
    print("lost", error, flush=True)
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


def test_of_four_processes_exactly_one_wins_ten_times(tmp_path: Path) -> None:
    """Forks that start on one signal; losers name the process that won and do not wait."""
    for race in range(RACES):
        folder = tmp_path / str(race)
        start, end, answers = os.pipe(), os.pipe(), os.pipe()

        def contend(
            folder: Path = folder, start: Pipe = start, end: Pipe = end, answers: Pipe = answers
        ) -> int:
            os.close(start[1])
            os.close(end[1])
            os.read(start[0], 1)  # ends for all when the parent closes its side
            try:
                with lock_folder(folder):
                    os.write(answers[1], f"{os.getpid()} won\n".encode())
                    os.read(end[0], 1)
            except ConfigError as error:
                os.write(answers[1], f"{os.getpid()} lost: {error}\n".encode())
            return 0

        children = [fork(contend) for _ in range(4)]
        os.close(start[1])
        os.close(answers[1])
        with os.fdopen(answers[0]) as lines:
            said = [lines.readline().rstrip("\n") for _ in children]  # the winner still holds it
        os.close(end[1])
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
        os.close(start[0])
        os.close(end[0])
        (winner,) = (line.removesuffix(" won") for line in said if line.endswith(" won"))
        assert int(winner) in children
        expected = rf"\d+ lost: {folder} is in use by process {winner} on .*choose another --out"
        assert sum(bool(re.fullmatch(expected, line)) for line in said) == 3, said


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
    with lock_folder(tmp_path):
        assert f"process {os.getpid()} on" in (tmp_path / ".lock").read_text()


def test_a_holder_that_has_not_yet_written_its_name_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between taking the lock and writing its name a holder may be put to sleep."""
    pauses = 0
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def pause(_: float) -> None:
            nonlocal pauses
            pauses += 1
            if pauses == 3:
                file.write("process 7 on here")
                file.flush()

        monkeypatch.setattr("coterie.engine.rundir.time.sleep", pause)
        with pytest.raises(ConfigError, match="in use by process 7 on here"), lock_folder(tmp_path):
            pass
    assert pauses == 3


@pytest.mark.parametrize("after", ["is_used", "has_foreign_files"])
def test_a_run_that_begins_while_the_folder_is_looked_at_is_named(
    after: str, toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The winner writes its first files after the loser's first look, and before its second."""
    look = getattr(rundir, after)
    with (tmp_path / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("process 7 on here")
        file.flush()

        def begin(folder: Path) -> bool:
            seen = bool(look(folder))
            for name in ("config.toml", "baseline.json"):
                (tmp_path / name).touch()
            return seen

        monkeypatch.setattr(rundir, after, begin)
        with pytest.raises(ConfigError, match="in use by process 7 on here"):
            toy.run(toy_data, tmp_path)


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
    with lock_folder(folder):
        pass
