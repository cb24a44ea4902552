"""Parts that a user brings from Python: how a configuration names them.

An importable class or function is named `"package.module:Name"`; an instance of an importable
dataclass by that name and its fields. Anything else (a module instance, a lambda, a class of a
notebook) is named `"object:Name"` and lives in this process only.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any

from coterie.core import registry
from coterie.core.errors import ConfigError

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

SLOTS = {
    ("method", "name"): "method",
    ("objective", "name"): "objective",
    ("partition", "kind"): "partition",
    ("net", "backbone"): "net",
    ("data", "name"): "data",
    ("data", "augment"): "augment",
}
"""The keys that take a class, function or object, and under which name the object is kept."""

IN_WORKERS = ("method", "objective", "net", "augment")  # evaluators, as `evaluate.KEY`, too
_SHIPPED = {
    "method": "coterie.methods.",
    "objective": "coterie.objectives.",
    "partition": "coterie.data.partitions.",
}


def is_main(table: str, value: Any) -> bool:
    """Whether a value of a table stands for its main key: a name, a class, a function, a list."""
    if table not in MAIN:
        return False
    if table == "evaluate":
        return isinstance(value, str | list | tuple | type) or is_dataclass(value)
    if isinstance(value, str):
        return True
    if table in ("net", "data"):
        return callable(value)  # a module is callable too
    return isinstance(value, type) and table in _SHIPPED


def is_instance(table: str, value: Any) -> bool:
    """Whether a value is an object that replaces a table with a chosen class."""
    return table in _SHIPPED and is_dataclass(value) and not isinstance(value, type)


def describe_part(slot: str, value: Any, key: str) -> tuple[Any, Any]:
    """A class, function or object as a file names it, and the object if only we have it."""
    if not callable(value):
        raise ConfigError(f"{key} = {value!r} must be a name, a class, a function or an object")
    if isinstance(value, type) or hasattr(value, "__qualname__"):
        name = name_class(slot, value)
        return (name, None) if name else (f"{registry.OBJECT}:{value.__qualname__}", value)
    if slot == "augment":
        table, held = describe_instance(slot, value)
        return (table["name"], held) if held is not None else (table, None)
    return f"{registry.OBJECT}:{type(value).__name__}", value


def describe_instance(table: str, part: Any) -> tuple[dict[str, Any], Any]:
    """The table of an object: its name and fields; and the object if only we have it."""
    kind, key = type(part), MAIN.get(table, "name")
    name = name_class(table, kind)
    values = _plain_fields(part)
    if name is None or values is None:
        return {key: f"{registry.OBJECT}:{kind.__name__}"}, part
    return {key: name, **values}, None


def name_class(table: str, kind: Any) -> str | None:
    """The name of a class or function in a configuration; None where no process can import it."""
    name = registry.import_name(kind)
    prefix = _SHIPPED.get(table)
    if name and prefix and name.startswith(prefix):
        stem = name.removeprefix(prefix).partition(":")[0]
        return stem.replace("_", "-") if table == "partition" else stem
    return name


def _plain_fields(part: Any) -> Mapping[str, Any] | None:
    """The fields of a dataclass where JSON can carry them."""
    if not is_dataclass(part) or isinstance(part, type):
        return None
    values = asdict(part)
    try:
        json.dumps(values)
    except (TypeError, ValueError):
        return None
    return values
