"""Dataclasses as schemas: from the keys of a table to an instance, and back.

A field may have another name than its key: `with` and `as` are reserved words of Python.
"""

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.formatting import quote

Spelling = Mapping[str, str]  # the key of a field, where the two differ
AS_FIELDS: Spelling = MappingProxyType({})
_TOO_LARGE = 2**63
_RENAMED = {"record.tensorboard": 'record.to = ["tensorboard"]'}
_make_adapter = functools.cache(TypeAdapter[Any])  # making one takes far longer than using it


def validate(
    table: str,
    owner: str,
    kind: Any,
    given: Mapping[str, Any],
    spelling: Spelling = AS_FIELDS,
    main: tuple[str, ...] = (),
) -> Any:
    """Make the dataclass of a table.

    An error lists the keys that `owner` takes; `main` has keys that are read elsewhere, and are
    only suggested for misspelt ones.
    """
    known = {spelling.get(f.name, f.name): f.name for f in fields(kind)}
    for key, value in given.items():
        check_keys(table, owner, known, [key], main)
        if problem := _find_problem(value):
            raise ConfigError(f"{table}.{key} = {quote(value)} {problem}")
    try:
        text = json.dumps({known[key]: value for key, value in given.items()}, default=str)
        return _make_adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        key = spelling.get(field, field)
        message = first["msg"].removeprefix("Value error, ")
        where = f"{table}.{key} = {quote(given.get(key))}" if key else table
        raise ConfigError(f"{where}: {message[0].lower()}{message[1:]}") from error


def check_keys(
    table: str,
    owner: str,
    known: Iterable[str],
    given: Iterable[str],
    main: tuple[str, ...] = (),
) -> None:
    """Refuse a key that is not known, with the nearest one that is."""
    known = tuple(known)
    for key in given:
        if (renamed := _RENAMED.get(f"{table}.{key}")) and key not in known:
            raise ConfigError(f"{table}.{key} has another name now: write {renamed}")
        if key not in known:
            hint = registry.nearest(key, [*known, *main])
            takes = f"; {owner} takes: {', '.join(known) or 'no key'}"
            raise ConfigError(f"{table} has no key {quote(key)}{hint}{takes}".replace("?;", "?"))


def write_fields(part: Any, spelling: Spelling = AS_FIELDS) -> dict[str, Any]:
    """Return the fields of a dataclass as a file has them: by key, lists instead of tuples."""
    return {spelling.get(name, name): to_lists(value) for name, value in asdict(part).items()}


def to_lists(value: Any) -> Any:
    """Replace tuples by lists, as TOML reads them."""
    return [to_lists(item) for item in value] if isinstance(value, tuple | list) else value


def _find_problem(value: Any) -> str | None:
    """Say what is wrong with a value that no field takes: NaN, more than 64 bits, no UTF-8."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, list | tuple):
        return next(filter(None, map(_find_problem, value)), None)
    if isinstance(value, float) and not math.isfinite(value):
        return "is not a finite number"
    if isinstance(value, str | Path):
        try:
            str(value).encode()
        except UnicodeEncodeError:  # the bytes of a file name that is none
            return "is no UTF-8, and a configuration is text: rename the file or folder"
    return "is too large" if isinstance(value, int) and abs(value) >= _TOO_LARGE else None
