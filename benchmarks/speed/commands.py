"""Commands that run beside each other in a folder, and end with the block that started them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

from processes import descendants, processor

LIMIT = 600.0  # seconds of one wait


class Commands:
    """Commands in a folder; all that are running, with what they started, end with the block."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._folder, self._started = folder, dict[str, subprocess.Popen[bytes]]()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        self._environment = {**os.environ, **threads, **variables}
        folder.mkdir()

    def __enter__(self) -> "Commands":
        return self

    def __exit__(self, *_: object) -> None:
        running = [process for process in self._started.values() if process.poll() is None]
        handles = []  # a number could be another process's by the time it is used
        for pid in descendants(process.pid for process in running):
            with suppress(ProcessLookupError):
                handles.append(os.pidfd_open(pid))
        for process in running:
            process.terminate()
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(10)
        for handle in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)
        for process in running:
            process.wait()

    def start(self, name: str, *words: object) -> None:
        """Start a command that prints to a file of this name."""
        with self._log(name).open("wb") as log:
            self._started[name] = subprocess.Popen(
                [str(word) for word in words],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def run(self, name: str, *words: object) -> None:
        """Run a command to its end."""
        self.start(name, *words)
        self.wait(lambda: not self.running(name))
        if self._started.pop(name).returncode:
            self.give_up(f"{name} failed")

    def processor(self, name: str) -> float:
        """Seconds of the processor that a command has used."""
        return processor(self._started[name].pid)

    def running(self, name: str) -> bool:
        """Whether a command has not ended."""
        return self._started[name].poll() is None

    def wait(self, condition: Callable[[], bool], *needed: str) -> None:
        """Wait until something is true, while the needed commands run."""
        deadline = time.monotonic() + LIMIT
        while not condition():
            if time.monotonic() > deadline:
                self.give_up(f"not done within {LIMIT:.0f} s")
            for name in needed:
                if not self.running(name) and not condition():
                    self.give_up(f"{name} ended too early")
            time.sleep(0.05)

    def give_up(self, reason: str) -> NoReturn:
        """End the benchmark with what the commands printed last."""
        for log in sorted(self._folder.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-2000:]}", file=sys.stderr)
        sys.exit(reason)

    def printed(self, name: str) -> str:
        """What a command has printed."""
        return self._log(name).read_text()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"
