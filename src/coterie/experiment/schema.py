"""Dataclasses as schemas: from the keys of a table to an instance, and back.

A field may have another name than its key: `with` and `as` are reserved words of Python.
"""

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coterie.core import registry
from coterie.core.errors import ConfigError

Spelling = Mapping[str, str]  # the key of a field, where the two differ
AS_FIELDS: Spelling = MappingProxyType({})
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
        if not _is_finite(value):
            raise ConfigError(f"{table}.{key} = {value} is not a finite number")
    try:
        text = json.dumps({known[key]: value for key, value in given.items()}, default=str)
        return _make_adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]) if first["loc"] else ""
        key = spelling.get(field, field)
        message = first["msg"].removeprefix("Value error, ")
        where = f"{table}.{key} = {given.get(key)!r}" if key else table
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
        if key not in known:
            hint = registry.nearest(key, [*known, *main])
            takes = f"; {owner} takes: {', '.join(known) or 'no key'}"
            raise ConfigError(f"{table} has no key {key!r}{hint}{takes}".replace("?;", "?"))


def write_fields(part: Any, spelling: Spelling = AS_FIELDS) -> dict[str, Any]:
    """Return the fields of a dataclass as a file has them: by key, lists instead of tuples."""
    return {spelling.get(name, name): to_lists(value) for name, value in asdict(part).items()}


def to_lists(value: Any) -> Any:
    """Replace tuples by lists, as TOML reads them."""
    return [to_lists(item) for item in value] if isinstance(value, tuple | list) else value


def _is_finite(value: Any) -> bool:
    """Whether a value has no NaN, no infinity and no number too large for a float."""
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    try:
        return not isinstance(value, int | float) or math.isfinite(value)
    except OverflowError:
        return False
