"""Transactions of SuperLink's database: not interrupted, and an error of the disk is one line."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from sqlalchemy.exc import DBAPIError

from coterie.core import interrupts
from coterie.core.errors import CheckpointError
from coterie.core.files import RESUME, disk_errors

_P = ParamSpec("_P")
_R = TypeVar("_R")


class HasDatabase(Protocol):
    """An object whose methods use a database."""

    database: Path


_Owner = TypeVar("_Owner", bound=HasDatabase)


@contextmanager
def database_errors(database: Path) -> Iterator[None]:
    """Turn errors of a database and its disk into `CheckpointError` with its path."""
    try:
        with disk_errors(database):
            yield
    except DBAPIError as error:
        raise CheckpointError(f"cannot use {database}: {error.orig}{RESUME}") from error


def transaction(
    method: Callable[Concatenate[_Owner, _P], _R],
) -> Callable[Concatenate[_Owner, _P], _R]:
    """Have signals to stop wait until a method has used the database, and explain its errors."""

    @functools.wraps(method)
    def use(owner: _Owner, /, *arguments: _P.args, **options: _P.kwargs) -> _R:
        with interrupts.postpone(), database_errors(owner.database):
            return method(owner, *arguments, **options)

    return use
