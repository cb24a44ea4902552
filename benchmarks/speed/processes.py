"""What the system knows of processes: memory, processor time, who started whom."""

import os
from collections.abc import Iterable
from pathlib import Path


def memory(pid: int) -> dict[str, int]:
    """Resident bytes of a process: all, and those that are not of files."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines)
    return {key: int(fields[key].split()[0]) * 1024 for key in ("VmRSS", "RssAnon")}


def processor(pid: int) -> float:
    """Seconds of the processor that a process has used."""
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def descendants(pids: Iterable[int]) -> list[int]:
    """Processes with all that they started, and those these started."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            parents[int(path.name)] = int(_stat(int(path.name))[1])
        except OSError:  # it has ended since
            continue
    found = list(pids)
    for pid in found:  # grows while it is walked through
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def used(pids: Iterable[int]) -> float:
    """Seconds of the processor that processes and their descendants have used, if they live."""
    total = 0.0
    for pid in descendants(pids):
        try:
            total += processor(pid)
        except OSError:
            continue
    return total


def _stat(pid: int) -> list[str]:
    """The fields of a process behind its name, which may have spaces and brackets in it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
