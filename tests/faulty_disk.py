"""Counts the operations of `coterie.core.files` that change files, and lets one of them fail.

Workers import this file too, through `disk_orders`.
"""

import errno
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core import files

OPERATIONS = (
    "open_to_write",
    "write",
    "truncate",
    "sync",
    "rename",
    "link",
    "allocate",
    "make_scratch",
    "mkdir",
    "remove_file",
    "remove_tree",
)
GROWING = (
    "open_to_write",
    "write",
    "link",
    "allocate",
    "make_scratch",
    "mkdir",
)  # what a full disk refuses
REMOVING = ("remove_file", "remove_tree")
FAULTS = ("full", "broken", "short")
Operation = Callable[..., Any]
Wrap = Callable[[str, int, Operation], Operation]


def wrap_operations(wrap: Wrap) -> dict[str, Operation]:
    """From now on do `wrap(name, n, operation)` instead of the n-th operation; what was before."""
    before, seen = {name: getattr(files, name) for name in OPERATIONS}, 0

    def counted(name: str) -> Operation:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            number, seen = seen, seen + 1
            return wrap(name, number, before[name])(*arguments, **options)

        return call

    for name in OPERATIONS:
        setattr(files, name, counted(name))
    return before


@contextmanager
def wrapped(wrap: Wrap) -> Iterator[None]:
    """Wrap operations for a time."""
    before = wrap_operations(wrap)
    try:
        yield
    finally:
        for name, operation in before.items():
            setattr(files, name, operation)


@dataclass
class Fault:
    """Lets the n-th operation fail: the disk is full from then on, or breaks once.

    `short`: half of the bytes are written before the disk is full.
    """

    victim: int
    kind: str
    name: str = ""  # of the operation that failed first
    path: str = ""  # what it was to change
    needed: int = 0  # bytes that it was to write on a disk that is full
    log: str = ""  # a file for another process: the name of the operation, and the bytes needed

    def __call__(self, name: str, number: int, operation: Operation) -> Operation:
        again = self.name and self.kind != "broken" and name in GROWING
        if number != self.victim and not again:
            return operation

        def fail(*arguments: Any, **_: Any) -> None:
            if not self.name:
                self._note(name, arguments)
            if name == "remove_tree":
                return  # as of a real one: what cannot be removed stays
            if name == "write" and self.kind == "short":
                file, data = arguments
                operation(file, bytes(data)[: len(data) // 2])
            paths = [str(one) for one in arguments if isinstance(one, Path)]
            code = errno.EIO if self.kind == "broken" else errno.ENOSPC
            raise OSError(code, os.strerror(code), *paths[:1])

        return fail

    def _note(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.path = name, _find_path(arguments[0])
        if name == "write" and self.kind != "broken":
            self.needed = memoryview(arguments[1]).nbytes
        if self.log:
            Path(self.log).write_text(f"{name} {self.needed}")


def _find_path(changed: Any) -> str:
    """The path of what an operation changes: of a path, a file, or a descriptor."""
    if isinstance(changed, int):
        return str(Path(f"/proc/self/fd/{changed}").readlink())
    return str(getattr(changed, "name", "") if hasattr(changed, "fileno") else changed)


def in_child(work: Callable[[], None]) -> int:
    """Run something in a fork of this process; how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()  # pytest shows it if the test fails
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
