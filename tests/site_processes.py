"""`coterie deploy` as real processes on this machine: a server and its sites, with TLS and keys."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.experiment.config import resolve
from flower_sites import Town

TESTS = Path(__file__).parent
LIMIT = 300.0  # seconds of any wait


def find_port() -> int:
    """Find a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Sites:
    """A server and clients that can be killed and started again; what they print is kept."""

    def __init__(self, folder: Path, data: Path, names: Sequence[str]) -> None:
        folder.mkdir(parents=True)
        self.folder, self.data, self.names = folder, data, tuple(names)
        self.town, self.port = Town(folder, names), find_port()
        self.clients: dict[str, subprocess.Popen[bytes]] = {}
        self.server: subprocess.Popen[bytes] | None = None
        self._all: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """Where the server listens."""
        return f"127.0.0.1:{self.port}"

    def serve(
        self, out: Path, tables: Mapping[str, Any] | None = None, *more: str
    ) -> "subprocess.Popen[bytes]":
        """Start the server; without a configuration it resumes the run in `out`."""
        words = ["server", "--out", str(out), "--port", str(self.port), "--wait", "120", *more]
        words += ["--certificates", str(self.town.tls.ca.parent), "--keys", str(self.town.registry)]
        if tables is None:
            words.append("--resume")
        else:
            path = self.folder / f"{out.name}.toml"
            plain = {**tables, "data": {**tables["data"], "root": ""}}
            path.write_text(resolve(plain).to_toml())
            words.insert(1, str(path))
        self.server = self.deploy("server", words)
        return self.server

    def join(self, name: str, *more: str) -> None:
        """Start the client of a site."""
        home = self.town.folder / name
        words = ["client", "--server", self.address, "--data", str(self.data / f"{name}.npz")]
        words += ["--ca", str(self.town.tls.ca), "--key", str(home / f"{name}.key")]
        words += ["--folder", str(home / "site"), "--own-code", *more]
        self.clients[name] = self.deploy(name, words)

    def deploy(self, who: str, words: Sequence[str], before: str = "") -> "subprocess.Popen[bytes]":
        """Start `coterie deploy` with its output in a file; `before`: Python that runs first."""
        begin = f"import sys; {before or 'pass'}\nfrom coterie.cli.main import main; main()"
        paths = [str(TESTS.parent / "src"), str(TESTS), os.environ.get("PYTHONPATH", "")]
        with self.log(who).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", begin, "deploy", *words],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            )
        self._all.append(process)
        return process

    def log(self, who: str) -> Path:
        """The file with what a process printed."""
        return self.folder / f"{who}.txt"

    def finish(self) -> None:
        """Wait until the server and all clients have ended, each with exit status 0."""
        assert self.server is not None
        for who, process in {"server": self.server, **self.clients}.items():
            status = process.wait(LIMIT)
            assert status == 0, f"{who} ended with {status}: {self.log(who).read_text()[-2000:]}"

    def stop(self) -> None:
        """Kill whatever still runs."""
        for process in self._all:
            kill(process)


def kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL, whether or not it still runs."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGKILL)
    process.wait()


def wait_for_rounds(out: Path, rounds: int, process: "subprocess.Popen[bytes]") -> None:
    """Wait until a run has recorded so many rounds."""
    metrics, deadline = out / "metrics.jsonl", time.monotonic() + LIMIT
    while not metrics.exists() or metrics.read_text().count("\n") < rounds:
        assert time.monotonic() < deadline, "waited too long"
        assert process.poll() is None, "the server has ended"
        time.sleep(0.005)


@contextlib.contextmanager
def processes(folder: Path, data: Path, names: Sequence[str]) -> Iterator[Sites]:
    """Certificates, keys and processes, all of which end with the `with` block."""
    sites = Sites(folder, data, names)
    try:
        yield sites
    finally:
        sites.stop()
