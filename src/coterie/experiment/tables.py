"""Reading configurations: TOML files, `key=value` words and arguments from Python.

No torch here, so that a wrong table, key or value of a plain table is answered at once.
"""

import functools
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.settings import (
    Checkpoint,
    Cohort,
    DataSettings,
    EvaluateSettings,
    ExecutorSettings,
    Local,
    NetSettings,
    RecordSettings,
    RunSettings,
    ServerSettings,
)
from coterie.experiment import own
from coterie.experiment.evaluators import read_entries

Tables = dict[str, dict[str, Any]]

CONFIGS = Path(__file__).parent.parent / "configs"
DEFAULT = "digits/moon"
TABLES = (
    *("run", "data", "partition", "net", "objective", "method", "local", "server", "cohort"),
    *("executor", "evaluate", "checkpoint", "record"),
)
PLAIN: dict[str, Any] = {
    "run": RunSettings,
    "data": DataSettings,
    "net": NetSettings,
    "local": Local,
    "server": ServerSettings,
    "cohort": Cohort,
    "executor": ExecutorSettings,
    "evaluate": EvaluateSettings,
    "checkpoint": Checkpoint,
    "record": RecordSettings,
}
SPELLING = {"with": "evaluators"}  # a TOML key that Python has for itself
_SHORT = {"rounds": "run", "seed": "run", "device": "run"}


@dataclass
class Changes:
    """What is laid over a configuration."""

    tables: Tables = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)  # tables that an object replaces as a whole
    objects: dict[str, Any] = field(default_factory=dict)  # parts that only this process has
    _given: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def put(self, table: str, key: str, value: Any, origin: str) -> None:
        """Set a key; the same key with two values is an error that names both."""
        name = f"{table}.{key}"
        before, known = self._given.setdefault(name, (origin, value))
        if known is not value and known != value:
            raise ConfigError(
                f"{name} is given twice: {before} = {known!r} and {origin} = {value!r}"
            )
        self.tables.setdefault(table, {})[key] = self._describe(table, key, value)

    def replace(self, table: str, part: Any) -> None:
        """Let an object take the place of a table."""
        if table in self.tables:
            raise ConfigError(f"{table} is given twice: as an object and by its keys")
        self.replaced.add(table)
        if isinstance(part, PLAIN.get(table, ())):
            back = {new: old for old, new in SPELLING.items()}
            values = {f.name: getattr(part, f.name) for f in fields(part)}
            self.tables[table] = {back.get(key, key): value for key, value in values.items()}
            return
        self.tables[table], held = own.describe_instance(table, part)
        if held is not None:
            self.objects[table] = held

    def _describe(self, table: str, key: str, value: Any) -> Any:
        """A value as a configuration file has it; what has no such form is kept beside."""
        slot = own.SLOTS.get((table, key))
        if slot is None or isinstance(value, str | Mapping):
            return value
        described, held = own.describe_part(slot, value, f"{table}.{key}")
        if held is not None:
            self.objects[slot] = held
        return described


def arrange(changes: Iterable[tuple[str, Any]]) -> Changes:
    """Sort changes into tables.

    A change is a table (`local`, {"lr": 0.1}), its main key (`method`, "moon"), an object that
    replaces the table (`local`, Local(lr=0.1)), a dotted key (`local.lr`), or one of the short
    forms `rounds`, `seed` and `device`.
    """
    arranged = Changes()
    for name, value in changes:
        table, dot, key = name.partition(".")
        if dot:
            check_table(table)
            arranged.put(table, key, value, name)
        elif name in _SHORT:
            arranged.put(_SHORT[name], name, value, name)
        elif name not in TABLES:
            raise ConfigError(f"there is no table {name!r}{_hint(name)}")
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                arranged.put(name, key, entry, f"{name}.{key}")
        elif own.is_main(name, value):
            arranged.put(name, own.MAIN[name], value, name)
        elif isinstance(value, PLAIN.get(name, ())) or own.is_instance(name, value):
            arranged.replace(name, value)
        else:
            example = f"{name}.{own.MAIN[name]}" if name in own.MAIN else f"{name}.key"
            raise ConfigError(f"{name} = {value!r} must be a table or a key like {example!r}")
    return arranged


def parse_overrides(words: Iterable[str]) -> Tables:
    """`local.lr=0.1`, `rounds=5`, `method=fedprox`; a value that is not TOML is a string."""
    pairs = []
    for word in words:
        name, equals, value = word.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".", 1)):
            raise ConfigError(f"{word!r} is not of the form table.key=value, e.g. run.seed=3")
        pairs.append((name, _parse(value.strip())))
    return arrange(pairs).tables


def by_table(changes: Mapping[str, Any]) -> Tables:
    """Changes of plain values, as tables or dotted keys, by table."""
    return arrange(changes.items()).tables


@dataclass(frozen=True)
class Request:
    """A configuration as it was asked for: its tables, what is laid over them, where it is from."""

    tables: Tables
    changes: Changes = field(default_factory=Changes)
    name: str = "custom"

    def base(self) -> Tables:
        """The tables that no object replaces."""
        return {k: t for k, t in self.tables.items() if k not in self.changes.replaced}


def request(
    source: str | Path | Mapping[str, Mapping[str, Any]] | None,
    changes: Mapping[str, Any],
    saved: Path | None = None,
) -> Request:
    """Read a configuration by path, shipped name or tables, and check its plain tables.

    `saved` is the configuration of a run that is resumed: it counts where there is no source.
    """
    arranged = arrange(changes.items())
    if isinstance(source, Mapping):
        written = arrange((name, dict(table)) for name, table in source.items())
        written.objects.update(arranged.objects)
        arranged.objects = written.objects
        asked = Request(written.tables, arranged)
    elif source is None and saved is not None and saved.is_file():
        asked = Request(read(saved), arranged, saved.parent.name)
    else:
        path = _locate(str(source or DEFAULT))
        asked = Request(read(path), arranged, _label(path))
    check_plain(asked.base(), arranged.tables)
    return asked


def check_plain(tables: Tables, overrides: Tables) -> None:
    """Refuse wrong tables, and wrong keys or values of plain tables."""
    for name in (*tables, *overrides):
        check_table(name)
    for name in PLAIN:
        make_plain(name, {**tables.get(name, {}), **overrides.get(name, {})})


def make_plain(table: str, values: Mapping[str, Any]) -> Any:
    """The settings of a plain table."""
    if table == "evaluate":
        values = read_entries(values)[1]
    return validate(table, table, PLAIN[table], values, SPELLING)


def shipped() -> tuple[str, ...]:
    """The names of the configurations that come with Coterie."""
    return tuple(
        sorted(str(p.relative_to(CONFIGS).with_suffix("")) for p in CONFIGS.glob("*/*.toml"))
    )


def tables_of(source: str) -> Tables:
    """The tables of a configuration as they are written."""
    return read(_locate(source))


def read(path: Path) -> Tables:
    """Read the tables of a TOML file."""
    try:
        tables = tomllib.loads(path.read_text())
    except ValueError as error:  # no TOML, no UTF-8, a number of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    for name, table in tables.items():
        check_table(name)
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} must be a table, e.g. [{name}]")
    return tables


def check_table(name: str) -> None:
    """Refuse a name that is no table's."""
    if name not in TABLES:
        hint = registry.nearest(name, TABLES) or f"; there are: {', '.join(TABLES)}"
        raise ConfigError(f"there is no table {name!r}{hint}")


def _hint(word: str) -> str:
    """The key of a plain table that has this name, or the nearest table or key."""
    back = {new: old for old, new in SPELLING.items()}
    keys: dict[str, str] = {}
    for table, kind in PLAIN.items():
        for entry in fields(kind):
            key = back.get(entry.name, entry.name)
            keys.setdefault(key, f"{table}.{key}")
    if word in keys:
        return f"; did you mean {keys[word]}?"
    nearest = registry.nearest(word, (*TABLES, *_SHORT))
    return nearest or f"; there are: {', '.join(TABLES)}"


def validate(
    table: str,
    owner: str,
    kind: Any,
    given: Mapping[str, Any],
    spelling: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """Make the dataclass of a table; `owner` is who is said to take its keys."""
    back = {new: old for old, new in spelling.items()}
    known = [back.get(f.name, f.name) for f in fields(kind)]
    for key in given:
        if key not in known:
            main = own.MAIN.get(table) if table not in PLAIN else None
            hint = registry.nearest(key, [*known, *filter(None, [main])])
            takes = f"; {owner} takes: {', '.join(known) or 'no key'}"
            raise ConfigError(f"{table} has no key {key!r}{hint}{takes}".replace("?;", "?"))
    for key, value in given.items():
        if not _is_finite(value):
            raise ConfigError(f"{table}.{key} = {value} is not a finite number")
    try:
        text = json.dumps({spelling.get(k, k): v for k, v in given.items()}, default=str)
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = back.get(str(first["loc"][0]), str(first["loc"][0])) if first["loc"] else ""
        said = first["msg"].removeprefix("Value error, ")
        where = f"{table}.{key} = {given.get(key)!r}" if key else table
        raise ConfigError(f"{where}: {said[0].lower()}{said[1:]}") from error


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The validator of a class; making one takes far longer than using it."""
    return TypeAdapter(kind)


def _locate(name: str) -> Path:
    if Path(name).is_file():
        return Path(name)
    path = CONFIGS / f"{name}.toml"
    if not path.is_file():
        hint = registry.nearest(name, shipped()) or "; coterie list configs shows them"
        raise ConfigError(f"there is no configuration {name!r}{hint}")
    return path


def _label(path: Path) -> str:
    inside = path.is_relative_to(CONFIGS)
    return str(path.relative_to(CONFIGS).with_suffix("")) if inside else path.stem


def _parse(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # no TOML, or a number of thousands of digits
        return text


def _is_finite(value: Any) -> bool:
    """Whether a value holds no NaN, no infinity and nothing that becomes one as a float."""
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    try:
        return not isinstance(value, int | float) or math.isfinite(value)
    except OverflowError:
        return False
