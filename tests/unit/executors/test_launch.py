"""Workers forked from a fork server: what they inherit, how they end, who outlives whom."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import toy
from coterie.core.errors import RunFailed
from coterie.core.exact import THREAD_VARIABLES
from coterie.core.registry import Component
from coterie.executors import launch
from coterie.executors.processes import Worker
from coterie.experiment.config import resolve
from coterie.experiment.prepare import prepare

pytestmark = pytest.mark.skipif(not launch.can_fork(), reason="workers are not forked here")

# a module whose import tells, by failing, what it finds around it
PROBE = """
import json, os, signal, sys, threading
import torch
found = json.dumps({
    "environment": dict(os.environ),
    "folder": os.getcwd(),
    "path": sys.path,
    "handles": sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                      if os.path.exists(f"/proc/self/fd/{n}")),
    "session": os.getsid(0) == os.getpid(),
    "signals": [signal.getsignal(n) == signal.SIG_DFL for n in (signal.SIGTERM, signal.SIGIO)],
    "main": sys.modules["__main__"].__file__,
    "cuda": torch.cuda.is_initialized(),
    "threads": torch.get_num_threads(),
})
with open(__file__.replace(".py", ".json"), "w") as file:
    file.write(found)
raise RuntimeError("it has looked around")
"""
# a main process: starts two workers, says who they are, and waits to be killed
MAIN = """
import os, sys
from coterie.executors import launch
children = [launch.start(dict(os.environ)) for _ in range(2)]
print(launch._server.pid, *(child.pid for child in children), flush=True)
sys.stdin.read()
"""


def environment() -> dict[str, str]:
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}


@pytest.fixture
def start() -> Iterator[Callable[[], launch.Child]]:
    """Starts workers, and ends them after the test."""
    made: list[launch.Child] = []

    def one() -> launch.Child:
        child = launch.start(environment())
        assert isinstance(child, launch.Child)
        made.append(child)
        return child

    yield one
    for child in made:
        child.kill()
        child.wait()
        close(child)


def close(child: launch.Process) -> None:
    assert child.stdin is not None and child.stdout is not None
    child.stdin.close()
    child.stdout.close()


def state(pid: int) -> str:
    """The letter of a process's state, Z for one whose status was not asked for; "" if gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def soon(condition: Callable[[], bool], seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def pipes(pid: int) -> set[str]:
    """The pipes and sockets that a process holds, other than its standard error."""
    names = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile, as a worker does while it starts
            if handle.name != "2":
                names.add(str(handle.readlink()))
    return {name for name in names if name.startswith(("pipe:", "socket:"))}


def test_all_workers_are_forked_from_one_fork_server(start: Callable[[], launch.Child]) -> None:
    children = [start() for _ in range(3)]
    (fork_server,) = {parent(child.pid) for child in children}
    assert launch._server is not None and fork_server == launch._server.pid
    assert parent(fork_server) == os.getpid()
    assert os.getsid(fork_server) == fork_server  # Ctrl-C does not reach it
    assert len(list(Path(f"/proc/{fork_server}/task").iterdir())) == 1  # a fork would lose a thread
    assert Path(f"/proc/{fork_server}/fd/0").readlink() == Path(os.devnull)
    assert soon(lambda: all(os.getsid(child.pid) == child.pid for child in children))


def test_an_exit_status_is_that_of_popen(start: Callable[[], launch.Child]) -> None:
    killed, asked, left, running = start(), start(), start(), start()
    assert [child.poll() for child in (killed, asked, left, running)] == [None] * 4
    killed.kill()
    assert soon(lambda: parent(asked.pid) != 0 and os.getsid(asked.pid) == asked.pid)
    os.kill(asked.pid, signal.SIGTERM)
    assert left.stdin is not None
    left.stdin.close()  # a worker ends when its input does
    for child in (killed, asked, left):
        child.wait()
    assert [child.returncode for child in (killed, asked, left)] == [-9, -15, 0]
    killed.kill()  # again: nothing is there to be killed
    killed.wait()
    assert killed.poll() == -9
    assert running.poll() is None


def test_a_process_keeps_its_number_until_its_status_was_asked_for(
    start: Callable[[], launch.Child],
) -> None:
    child = start()
    os.kill(child.pid, signal.SIGKILL)
    assert soon(lambda: state(child.pid) == "Z")
    start()  # the fork server has been at work, and has not looked
    assert state(child.pid) == "Z"
    assert child.poll() == -9
    assert state(child.pid) == ""


def test_no_process_holds_a_pipe_of_another(start: Callable[[], launch.Child]) -> None:
    children = [start() for _ in range(3)]
    assert launch._server is not None
    assert soon(lambda: all(len(pipes(child.pid)) == 2 for child in children))
    held = [pipes(child.pid) for child in children]
    assert len(set.union(*held)) == 6
    (link,) = pipes(launch._server.pid)
    assert link.startswith("socket:")
    assert not pipes(launch._server.pid) & set.union(*held)


def probe(toy_data: Path, folder: Path, code: Path) -> dict[str, Any]:
    """What a worker finds around it; `code` is the folder of the module that looks."""
    folder.mkdir(exist_ok=True)
    experiment = prepare(resolve(toy.tables(toy_data)), folder)
    worker = Worker(
        replace(experiment.spec, method=Component("probe_of_a_worker:Nothing", {})),
        experiment.partition,
    )
    try:
        with pytest.raises(RunFailed, match="it has looked around"):
            worker.prepare()
    finally:
        worker.end()
    found: dict[str, Any] = json.loads((code / "probe_of_a_worker.json").read_text())
    return found


def test_environment_folder_and_import_path_are_those_of_the_request(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: Callable[[], Any]
) -> None:
    start()  # the fork server is there before any of this
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "probe_of_a_worker.py").write_text(PROBE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "code"), "", *sys.path])
    monkeypatch.setenv("OF_THE_REQUEST", "žluť \udcff")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("HOME", raising=False)
    found = probe(toy_data, tmp_path / "run", tmp_path / "code")
    assert found["path"] == [path or str(tmp_path) for path in sys.path]
    assert found["folder"] == str(tmp_path)
    expected = environment()
    expected["PYTHONPATH"] = os.pathsep.join(found["path"])
    assert found["environment"] == expected
    assert found["session"] and not found["cuda"]
    assert found["threads"] == 1
    assert found["signals"] == [True, True]
    assert found["main"].endswith("fork_server.py")  # no main script of ours
    kinds = [name.split(":")[0] for name in found["handles"] if name.startswith(("pi", "so"))]
    assert kinds.count("pipe") >= 2 and "socket" not in kinds


@pytest.mark.parametrize("handles", [True, False], ids=["pidfd", "number"])
def test_when_the_fork_server_was_killed_its_workers_are_still_ended_and_the_next_is_new(
    handles: bool, monkeypatch: pytest.MonkeyPatch, start: Callable[[], launch.Child]
) -> None:
    if not handles:
        monkeypatch.setattr(launch, "_open_pidfd", lambda pid: None)
    dead, alive = start(), start()
    assert soon(lambda: os.getsid(alive.pid) == alive.pid)
    before = parent(alive.pid)
    dead.kill()
    os.kill(before, signal.SIGKILL)
    assert soon(lambda: state(before) in ("", "Z"))
    assert alive.poll() is None and state(alive.pid) not in ("", "Z")
    for child in (dead, alive):
        child.kill()
        child.wait()
        assert state(child.pid) in ("", "Z")
        assert child.returncode is None  # nobody knows
        assert child.poll() is None
    fresh = start()
    assert parent(fresh.pid) not in (before, os.getpid())
    fresh.kill()
    fresh.wait()
    assert fresh.returncode == -9


def test_a_fork_of_the_main_process_leaves_its_fork_server_alone(
    start: Callable[[], launch.Child],
) -> None:
    child = start()
    before = parent(child.pid)

    def work() -> bool:
        child.kill()  # not a process of ours
        other = launch.start(environment())
        own = parent(other.pid) not in (before, os.getpid())
        other.kill()
        other.wait()
        launch._reap()
        return own and other.returncode == -9 and child.poll() is None

    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = 0 if work() else 1
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert child.poll() is None
    assert parent(start().pid) == before


def test_threads_may_start_and_end_workers_side_by_side(start: Callable[[], launch.Child]) -> None:
    start()
    statuses: list[int | None] = []

    def work() -> None:
        for _ in range(3):
            child = launch.start(environment())
            child.kill()
            child.wait()
            close(child)
            statuses.append(child.returncode)

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert statuses == [-9] * 18


def test_a_variable_that_is_read_at_the_start_of_a_process_makes_another_fork_server(
    start: Callable[[], launch.Child],
) -> None:
    child = start()
    other = launch.start({**environment(), "MALLOC_ARENA_MAX": "1"})
    assert parent(other.pid) != parent(child.pid)
    assert b"MALLOC_ARENA_MAX=1" in Path(f"/proc/{parent(other.pid)}/environ").read_bytes()
    for one in (child, other):  # the first fork_server is still there for its own
        one.kill()
        one.wait()
        assert one.returncode == -9
    close(other)


def test_an_interrupt_leaves_no_answer_to_be_taken_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    fork_server = object.__new__(launch.ForkServer)
    fork_server.lock, fork_server._owner, fork_server._link = threading.RLock(), os.getpid(), ours
    fork_server._process = subprocess.Popen(["sleep", "60"])

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            fork_server.ask({"do": "wait"})
    finally:
        signal.signal(signal.SIGALRM, before)
    assert not fork_server.alive()
    with pytest.raises(launch.Gone):
        fork_server.ask({"do": "wait"})
    theirs.close()


def test_a_fork_server_that_cannot_start_says_how_it_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_server", None)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RunFailed, match=r"no worker can be started: the fork server .* status 1"):
        launch.start(environment())


def main_process() -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", MAIN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def test_too_few_file_handles_are_one_line_and_leave_none_open(
    start: Callable[[], launch.Child], monkeypatch: pytest.MonkeyPatch
) -> None:
    start()  # the fork server runs
    pipes = iter([os.pipe()])

    def pipe() -> tuple[int, int]:
        if opened := next(pipes, None):
            return opened
        raise OSError(errno.EMFILE, "Too many open files")

    before = len([*Path("/proc/self/fd").iterdir()])
    monkeypatch.setattr(os, "pipe", pipe)
    with pytest.raises(RunFailed, match=r"Too many open files; raise the limit .*ulimit -n"):
        start()
    assert (
        len([*Path("/proc/self/fd").iterdir()]) == before - 2
    )  # also the pipe that could be opened


def test_nobody_outlives_a_main_process_that_is_killed() -> None:
    with main_process() as process:
        assert process.stdout is not None
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 3 and all(state(pid) not in ("", "Z") for pid in pids)
        process.kill()
    assert soon(lambda: all(state(pid) in ("", "Z") for pid in pids))


def test_a_fork_server_that_still_imports_ends_with_the_main_process() -> None:
    with main_process() as process:
        tasks = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        assert soon(lambda: bool(tasks.read_text().strip()))
        (fork_server,) = (int(word) for word in tasks.read_text().split())
        command = Path(f"/proc/{fork_server}/cmdline")
        assert soon(lambda: b"coterie.executors.fork_server" in command.read_bytes())
        process.kill()
    assert soon(lambda: state(fork_server) in ("", "Z"))


def test_where_nothing_can_be_forked_a_worker_is_a_process_from_scratch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "can_fork", lambda: False)
    child = launch.start(environment())
    assert isinstance(child, subprocess.Popen)
    assert child.poll() is None
    child.kill()
    child.wait()
    close(child)
    assert child.returncode == -9
