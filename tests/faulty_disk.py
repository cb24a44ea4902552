"""Counts the operations of `coterie.core.files` that change files, and lets one of them fail."""

import os
from collections.abc import Callable
from typing import Any

from coterie.core import files

OPERATIONS = (
    "open_to_write",
    "write",
    "truncate",
    "sync",
    "rename",
    "mkdir",
    "remove_file",
    "remove_tree",
)
Operation = Callable[..., Any]


def wrap_operations(wrap: Callable[[str, int, Operation], Operation]) -> None:
    """From now on, do `wrap(name, n, operation)` instead of the n-th operation of this process."""
    seen = 0

    def counted(name: str, operation: Operation) -> Operation:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal seen
            number, seen = seen, seen + 1
            return wrap(name, number, operation)(*arguments, **options)

        return call

    for name in OPERATIONS:
        setattr(files, name, counted(name, getattr(files, name)))


def in_child(work: Callable[[], None]) -> int:
    """Run something in a fork of this process; how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
