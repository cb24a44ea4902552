"""A deployed federation whose server and sites are forks of this process."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import fleet
import warm

import site_processes
from coterie.cli.main import main


class Sites(site_processes.Sites):
    """A server and clients that start at once: this process has imported everything already."""

    def deploy(self, who: str, words: Sequence[str], before: str = "") -> warm.Process:
        """Start `coterie deploy` with its output in a file; `before`: Python that runs first."""

        def work() -> object:
            exec(before, {})
            return main(["deploy", *words])

        process = warm.spawn(work, self.log(who))
        self._all.append(process)
        return process

    def restart(self, who: str, out: Path) -> None:
        """Start a process again that has ended; the server resumes the run."""
        if who == "server":
            self.serve(out)
        else:
            self.join(who)

    def run(self, out: Path, tables: Mapping[str, Any]) -> None:
        """Start the server and all clients, and wait for their end."""
        self.serve(out, tables)
        for name in self.names:
            self.join(name)
        self.finish()


@contextlib.contextmanager
def sites(folder: Path, data: Path, names: Sequence[str] = fleet.NAMES) -> Iterator[Sites]:
    """Certificates, keys and processes, all of which end with the `with` block."""
    found = Sites(folder, data, names)
    try:
        yield found
    finally:
        found.stop()


def import_all(folder: Path, data: Path, tables: Mapping[str, Any]) -> None:
    """Deploy a federation once, and import here what its processes had imported."""
    with sites(folder, data) as found:
        found.run(folder / "run", tables)
        for who in ("server", *found.names):
            warm.import_all(found.log(who))
