"""Ray clusters of several nodes on this machine, each a real `ray start` with its own address."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coterie.executors.cluster.connect import write_token

HEAD, OTHER = "127.0.0.1", "127.0.0.2"
_START_SECONDS = 120.0
_START = """
from coterie.executors.cluster.connect import as_given
from ray.scripts.scripts import main
with as_given():
    main()
"""


def descendants(pid: int) -> list[int]:
    """The processes that a process has started, and those that these have started."""
    found: list[int] = []
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            for word in (task / "children").read_text().split():
                found += [int(word), *descendants(int(word))]
    return found


def name_of(pid: int) -> str:
    """The name of a process; empty if it has ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def kill(pid: int) -> None:
    """SIGKILL, whether or not it is still there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@dataclass
class Nodes:
    """A head node and others, started by `ray start`."""

    folder: Path
    variables: Mapping[str, str]
    address: str = ""
    started: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, host: str, cpus: int) -> None:
        """Start a node with so many CPUs; the first one is the head."""
        where = ["--address", self.address] if self.address else ["--head", "--port=0"]
        where += [] if self.address else [f"--temp-dir={self.folder}", "--include-dashboard=false"]
        command = [sys.executable, "-c", _START, "start", "--block", "--disable-usage-stats"]
        command += [*where, f"--node-ip-address={host}", f"--num-cpus={cpus}", "--num-gpus=0"]
        log = self.folder / f"start-{len(list(self.folder.glob('start-*')))}.txt"
        environment = {**os.environ, **self.variables, "RAY_object_store_memory": "200000000"}
        with log.open("wb") as file:
            self.started[host] = subprocess.Popen(
                command, stdout=file, stderr=file, env=environment, start_new_session=True
            )
        deadline = time.monotonic() + _START_SECONDS
        while "--block" not in (text := log.read_text()):
            if self.started[host].poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no node: {text}")
            time.sleep(0.1)
        if not self.address:
            match = re.search(r"address='?\"?([\d.]+:\d+)", text)
            assert match, text
            self.address = match[1]

    def raylet(self, host: str) -> int:
        """The process of a node that the cluster misses if it dies."""
        (pid,) = (p for p in descendants(self.started[host].pid) if name_of(p) == "raylet")
        return pid

    def stop(self) -> None:
        """End every process of every node."""
        for process in self.started.values():
            pids = [process.pid, *descendants(process.pid)]
            for pid in pids:
                kill(pid)
            process.wait()


@contextlib.contextmanager
def two_nodes(folder: Path, cpus: Mapping[str, int]) -> Iterator[Nodes]:
    """Start nodes with a token of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(write_token(folder))}
    nodes = Nodes(folder, token)
    try:
        for host, count in cpus.items():
            nodes.start(host, count)
        yield nodes
    finally:
        nodes.stop()
