"""Ray clusters of several nodes on this machine, each a real `ray start` with its own address."""

import contextlib
import ipaddress
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import coterie
import toy
from coterie.executors.cluster.connect import AS_PROCESSES, write_token

HEAD, OTHER = "127.0.0.1", "127.0.0.2"
ACTOR = "ray::SiteActor"  # Ray calls the processes of our actors so
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
    token: Mapping[str, str]  # variables of whoever connects
    variables: Mapping[str, str]  # of the nodes
    address: str = ""
    started: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def start(self, host: str, cpus: int) -> None:
        """Start a node with so many CPUs; the first one is the head."""
        where = ["--address", self.address] if self.address else ["--head", "--port=0"]
        where += [] if self.address else [f"--temp-dir={self.folder}", "--include-dashboard=false"]
        command = [sys.executable, "-c", _START, "start", "--block", "--disable-usage-stats"]
        command += [*where, f"--node-ip-address={host}", f"--num-cpus={cpus}", "--num-gpus=0"]
        log = self.folder / f"start-{len(list(self.folder.glob('start-*')))}.txt"
        environment = {**os.environ, **self.variables}
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

    def restart(self, host: str, cpus: int) -> None:
        """Start a node again whose raylet was killed."""
        self._end(self.started.pop(host))
        self.start(host, cpus)

    def raylet(self, host: str) -> int:
        """The process of a node that the cluster misses if it dies."""
        (pid,) = (p for p in descendants(self.started[host].pid) if name_of(p) == "raylet")
        return pid

    def stop(self) -> None:
        """End every process of every node."""
        for process in self.started.values():
            self._end(process)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        for pid in [process.pid, *descendants(process.pid)]:
            kill(pid)
        process.wait()


@contextlib.contextmanager
def two_nodes(
    folder: Path, cpus: Mapping[str, int], more: Mapping[str, str] | None = None
) -> Iterator[Nodes]:
    """Start nodes with a token of their own, in a folder that is removed at the end."""
    folder.mkdir(parents=True)
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(write_token(folder))}
    nodes = Nodes(folder, token, {**token, **AS_PROCESSES, **(more or {})})
    try:
        for host, count in cpus.items():
            nodes.start(host, count)
        yield nodes
    finally:
        nodes.stop()
        shutil.rmtree(folder, ignore_errors=True)


def listening(pids: list[int]) -> dict[str, str]:
    """The addresses on which processes listen for TCP connections, with the process's name."""
    owners: dict[str, str] = {}
    for pid in pids:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(FileNotFoundError):
                    link = str(descriptor.readlink())
                    if link.startswith("socket:["):
                        owners[link[8:-1]] = name_of(pid)
    found = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            local, state, inode = words[1], words[3], words[9]
            if state == "0A" and inode in owners:  # LISTEN
                found[_readable(local)] = owners[inode]
    return found


def _readable(local: str) -> str:
    """An address of /proc/net/tcp: words of four bytes, each in the machine's order."""
    host, port = local.split(":")
    words = [bytes.fromhex(host[i : i + 8]) for i in range(0, len(host), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    address = ipaddress.ip_address(b"".join(words))
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    return f"{address}:{int(port, 16)}"


def run(data: Path, out: Path, changes: Mapping[str, Mapping[str, Any]]) -> None:
    """Run the toy configuration with tables changed, also the table of the data."""
    tables = toy.tables(data)
    tables |= {name: {**tables.get(name, {}), **change} for name, change in changes.items()}
    coterie.run(tables, out=out)


def same(one: Path, other: Path) -> bool:
    """Whether two runs have the same metrics, models and client states, bit for bit."""
    return _remains(one) == _remains(other)


def _remains(folder: Path) -> object:
    files = folder.glob("clients/*/*.safetensors")
    states = {str(path.relative_to(folder)): path.read_bytes() for path in files}
    return toy.trace(folder), toy.outputs(folder), states
