"""Parts that a user brings from Python: how a configuration names them.

An importable class or function is named `"package.module:Name"`; an instance of an importable
dataclass by that name and its fields. Anything else (a module instance, a lambda, a class of a
notebook) is named `"object:Name"` and exists in this process only.
"""

import contextlib
import json
from dataclasses import dataclass, field, is_dataclass
from typing import Any

from coterie.core import registry
from coterie.experiment.schema import write_fields

MAIN = {
    "method": "name",
    "objective": "name",
    "partition": "kind",
    "net": "backbone",
    "data": "name",
    "executor": "kind",
    "evaluate": "with",
}
"""The key of a table that a name alone stands for: `method="moon"` is `method.name`."""

GIVEN = "given"  # `data.name` where the samples themselves were passed
_NAMES_ONLY = ("executor", "evaluate")  # no class or object stands for these
SLOTS = {f"{table}.{key}": table for table, key in MAIN.items() if table not in _NAMES_ONLY}
SLOTS |= {"data.augment": "augment", "method.sensor": "sensor"}
# the keys that take a class, function or object, and the name under which the object is kept

IN_WORKERS = (
    "method",
    "objective",
    "net",
    "augment",
    "sensor",
)  # evaluators, as `evaluate.KEY`, too
_SHIPPED = {
    "method": "coterie.methods.",
    "objective": "coterie.objectives.",
    "partition": "coterie.data.partitions.",
    "evaluate": "coterie.evaluate.",
}


@dataclass(frozen=True)
class Described:
    """A part as a configuration file names it."""

    name: str
    values: dict[str, Any] = field(default_factory=dict)  # the fields of an instance
    part: Any = None  # the part itself, if only this process has it


def is_main(table: str, value: Any) -> bool:
    """Whether a value stands for the main key of its table: a name, class, function or list."""
    if table == "evaluate":
        return isinstance(value, str | list | tuple | type) or is_dataclass(value)
    if table in ("net", "data"):
        return isinstance(value, str) or callable(value)  # a module is callable too
    return table in MAIN and isinstance(value, str | type if table in _SHIPPED else str)


def is_instance(table: str, value: Any) -> bool:
    """Whether a value is an object that replaces a table with a chosen class."""
    return table in _SHIPPED and is_dataclass(value) and not isinstance(value, type)


def describe(slot: str, part: Any) -> Described:
    """Name a class, function or object; an instance also by its fields, if JSON can write them."""
    named = isinstance(part, type) or hasattr(part, "__qualname__")
    kind = part if named else type(part)
    name = _name_class(slot, kind)
    values = {} if named else _write_instance(slot, part)
    if name is None or values is None:
        return Described(f"{registry.OBJECT}:{kind.__name__}", part=part)
    return Described(name, values)


def _name_class(slot: str, kind: Any) -> str | None:
    """Name a class or function; None if no other process can import it."""
    name, prefix = registry.import_name(kind), _SHIPPED.get(slot)
    if name and prefix and name.startswith(prefix):
        stem = name.removeprefix(prefix).partition(":")[0]
        return stem.replace("_", "-") if slot == "partition" else stem
    return name


def write_plain(part: Any) -> dict[str, Any]:
    """Write the fields of an object that JSON can hold, so that another one is noticed."""
    plain = {}
    for name, value in (write_fields(part) if is_dataclass(part) else {}).items():
        with contextlib.suppress(TypeError, ValueError):
            json.dumps(value)
            plain[name] = value
    return plain


def _write_instance(slot: str, part: Any) -> dict[str, Any] | None:
    """Write the fields of an instance; None if a configuration has no room for them."""
    if slot in ("net", "data", "sensor") or not is_dataclass(part):
        return None
    values = write_fields(part)
    try:
        json.dumps(values)
    except (TypeError, ValueError):
        return None
    return values
