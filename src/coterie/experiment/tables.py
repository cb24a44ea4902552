"""Reading configurations: TOML files, `key=value` arguments, and arguments from Python.

No torch here, so that a wrong table or key, or a wrong value of a plain table, is reported at once.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

from coterie.core import paths, registry, settings
from coterie.core.errors import ConfigError
from coterie.core.formatting import list_first, quote
from coterie.experiment import own
from coterie.experiment.evaluators import read_entries
from coterie.experiment.part_keys import (
    DEFAULT_CHOICE,
    NAMED,
    check_entry,
    check_name,
    check_part,
)
from coterie.experiment.schema import validate, write_fields

Tables = dict[str, dict[str, Any]]
Source = str | Path | Mapping[str, Any] | None  # a path, a shipped name or tables

CONFIGS = Path(__file__).parent.parent / "configs"
DEFAULT = "digits/moon"
TABLES = (
    *("run", "data", "partition", "net", "objective", "method", "local", "server", "cohort"),
    *("privacy", "executor", "evaluate", "checkpoint", "record"),
)
PLAIN: dict[str, Any] = {
    "run": settings.RunSettings,
    "data": settings.DataSettings,
    "net": settings.NetSettings,
    "local": settings.Local,
    "server": settings.ServerSettings,
    "cohort": settings.Cohort,
    "privacy": settings.PrivacySettings,
    "executor": settings.ExecutorSettings,
    "evaluate": settings.EvaluateSettings,
    "checkpoint": settings.Checkpoint,
    "record": settings.RecordSettings,
}
SPELLING = {"evaluators": "with"}
_OF_METHOD = ("method", "objective", "server")  # tables that a comparison takes from a method
_REFERENCE = "fedavg"
_LARGEST, _DEEPEST = 1_000_000, 20  # bytes and levels of a configuration
# A key or table with more parts, at the start of a line: parsing takes their number squared. What
# was matched is not given back (`*+`): else a long row of spaces would take as long.
_PART = r"""(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+"""
_DOTTED = re.compile(rf"^[ \t]*+\[{{0,2}}+[ \t]*+(?:{_PART}){{{_DEEPEST}}}", re.MULTILINE)
_SHORT = {"rounds": "run", "seed": "run", "device": "run"}


@dataclass
class Changes:
    """What overrides a configuration."""

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
                f"{name} is given twice: {before} = {quote(known)} and {origin} = {quote(value)}"
            )
        slot = own.SLOTS.get(name)
        if slot == "sensor" and not callable(value):
            slot = None  # the key of a method: another one may have a number there
        if slot is not None and not isinstance(value, str | Mapping):
            if not callable(value):
                raise ConfigError(
                    f"{name} = {quote(value)} must be a name, a class, a function or an object"
                )
            part = self._describe(slot, value)
            value = {"name": part.name, **part.values} if part.values else part.name
        self.tables.setdefault(table, {})[key] = value

    def replace(self, table: str, part: Any) -> None:
        """Replace a table by an object."""
        if table in self.tables:
            raise ConfigError(f"{table} is given twice: as an object and by its keys")
        self.replaced.add(table)
        if isinstance(part, PLAIN.get(table, ())):
            self.tables[table] = write_fields(part, SPELLING)
        else:
            described = self._describe(table, part)
            self.tables[table] = {own.MAIN[table]: described.name, **described.values}

    def _describe(self, slot: str, part: Any) -> own.Described:
        described = own.describe(slot, part)
        if described.part is not None:
            self.objects[slot] = part
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
        if name in _SHORT:
            arranged.put(_SHORT[name], name, value, name)
            continue
        check_table(table)
        if dot:
            arranged.put(table, key, value, name)
        elif isinstance(value, Mapping):
            for key, entry in value.items():
                arranged.put(name, key, entry, f"{name}.{key}")
        elif isinstance(value, PLAIN.get(name, ())):
            arranged.replace(name, value)
        elif own.is_main(name, value):
            arranged.put(name, own.MAIN[name], value, name)
        elif own.is_instance(name, value):
            arranged.replace(name, value)
        else:
            example = f"{name}.{own.MAIN.get(name, 'key')}"
            raise ConfigError(
                f"{name} = {quote(value)} must be a table or a key like {quote(example)}"
            )
    return arranged


def parse_overrides(arguments: Iterable[str]) -> Tables:
    """Parse `local.lr=0.1`, `rounds=5`, `method=fedprox`; a value that is not TOML is a string."""
    pairs = []
    for argument in arguments:
        name, equals, value = argument.partition("=")
        name = name.strip()
        if not equals or not all(name.split(".", 1)):
            raise ConfigError(
                f"{quote(argument)} is not of the form table.key=value, e.g. run.seed=3"
            )
        pairs.append((name, _parse(value.strip())))
    return arrange(pairs).tables


def by_table(changes: Mapping[str, Any]) -> Tables:
    """Sort changes of plain values, given as tables or dotted keys, into tables."""
    return arrange(changes.items()).tables


@dataclass(frozen=True)
class Request:
    """A configuration as it was asked for: its tables, what overrides them, where it is from."""

    tables: Tables
    changes: Changes = field(default_factory=Changes)
    name: str = "custom"

    def base(self, table: str) -> Mapping[str, Any]:
        """Return a table without its overrides; it is empty if an object replaces it."""
        return {} if table in self.changes.replaced else self.tables.get(table, {})

    def merge(self, table: str) -> dict[str, Any]:
        """Return a table with its overrides."""
        return {**self.base(table), **self.changes.tables.get(table, {})}


def request(source: Source, changes: Mapping[str, Any], saved: Path | None = None) -> Request:
    """Read a configuration by path, shipped name or tables, and check its plain tables.

    `saved` is the configuration of a run that is resumed; it is used if there is no source.
    """
    arranged = arrange(changes.items())
    if isinstance(source, Mapping):
        written = arrange(source.items())
        arranged.objects = {**written.objects, **arranged.objects}
        asked = Request(written.tables, arranged)
    elif source is None and saved is not None and paths.is_file(saved):
        asked = Request(read(saved), arranged, saved.parent.name)
    else:
        path = _locate(DEFAULT if source is None else str(source))
        inside = path.is_relative_to(CONFIGS)
        name = str(path.relative_to(CONFIGS).with_suffix("")) if inside else path.stem
        asked = Request(read(path), arranged, name)
    for table in PLAIN:
        plain = make_plain(table, asked.merge(table))
        if table in NAMED:
            check_name(table, getattr(plain, own.MAIN[table]))
    for table in DEFAULT_CHOICE:
        if table not in arranged.objects:
            check_part(table, asked.base(table), asked.changes.tables.get(table, {}))
    for entry in read_entries(asked.merge("evaluate"))[0]:
        check_entry(entry)
    return asked


def make_plain(table: str, values: Mapping[str, Any]) -> Any:
    """Make the settings of a plain table."""
    if table == "evaluate":
        values = read_entries(values)[1]
    return validate(table, table, PLAIN[table], values, SPELLING)


@cache
def shipped() -> tuple[str, ...]:
    """List the names of the configurations that come with Coterie."""
    files = CONFIGS.glob("*/*.toml")
    return tuple(sorted(str(file.relative_to(CONFIGS).with_suffix("")) for file in files))


def tables_of(source: str) -> Tables:
    """Read the tables of a configuration by path or shipped name."""
    return read(_locate(source))


def method_tables(method: str, setting: str, overrides: Tables) -> Tables:
    """Put the tables of a method into a setting, whose overrides may name another data set.

    The method is a shipped configuration of the setting's data set, or the name of a method.
    """
    base = tables_of(setting)
    named = f"{data_name(base, overrides)}/{method}"
    if named in shipped():
        chosen = tables_of(named)
    else:
        chosen = {"method": {"name": method}, "objective": base.get("objective", {})}
    tables = {name: table for name, table in base.items() if name not in _OF_METHOD}
    return tables | {name: chosen[name] for name in _OF_METHOD if name in chosen}


def shipped_rate(method: str, setting: str, overrides: Tables) -> float:
    """How many times the rate of `fedavg` a method's shipped configuration has; 1 if unknown.

    Only configurations of the same objective are compared: others are tuned for other losses. The
    rate is that of the file's `[method]`: SCAFFOLD's is high because its momentum is 0, and is not
    taken where an override changes a value that the file sets.
    """
    data = data_name(tables_of(setting), overrides)
    names = (f"{data}/{method}", f"{data}/{_REFERENCE}")
    if not set(names) <= set(shipped()):
        return 1.0
    own_tables, reference = map(tables_of, names)
    if own_tables.get("objective") != reference.get("objective"):
        return 1.0
    chosen, changed = own_tables.get("method", {}), overrides.get("method", {})
    if any(changed[key] != chosen[key] for key in changed.keys() & chosen.keys()):
        return 1.0
    rates = [
        tables.get("local", {}).get("lr", settings.Local.lr) for tables in (own_tables, reference)
    ]
    return float(rates[0] / rates[1])


def data_name(base: Tables, overrides: Tables) -> str:
    """Return the name of the data that a configuration with overrides is about."""
    data = {**base.get("data", {}), **overrides.get("data", {})}
    return str(data.get("name", settings.DataSettings.name))


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file."""
    if problem := paths.find_problem(path):
        raise ConfigError(f"{path} {problem}; give a TOML file")
    try:
        with path.open("rb") as file:
            data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ConfigError(
                f"{path} has {path.stat().st_size:,} bytes, and a configuration has at most "
                f"{_LARGEST:,}: it is another file"
            )
        return _parse_toml(data.decode())
    except ValueError as error:  # no TOML, no UTF-8, a number of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error


def _parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; what is nested deeper than any configuration is a `ValueError`."""
    too_deep = f"it is nested more than {_DEEPEST} levels deep"
    if _DOTTED.search(text):
        raise ValueError(too_deep)
    try:
        parsed = tomllib.loads(text)
    except RecursionError:
        raise ValueError(too_deep) from None
    level: list[Any] = [parsed]
    for _ in range(_DEEPEST):
        below = (v.values() if isinstance(v, dict) else v for v in level)
        level = [v for values in below for v in values if isinstance(v, dict | list)]
    if level:
        raise ValueError(too_deep)
    return parsed


def read(path: Path) -> Tables:
    """Read the tables of a configuration."""
    tables = read_toml(path)
    for name, table in tables.items():
        check_table(name)
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} must be a table, e.g. [{name}]")
    if tables.get("record", {}).get("tensorboard") is False:
        del tables["record"]["tensorboard"]  # in the directories of runs before `record.to`
    return tables


def check_table(name: str) -> None:
    """Refuse a name that is no table's; suggest the key of that name, or the nearest table."""
    if name in TABLES:
        return
    for table, kind in PLAIN.items():
        if name in {SPELLING.get(f.name, f.name) for f in fields(kind)}:
            raise ConfigError(f"there is no table {quote(name)}; did you mean {table}.{name}?")
    hint = registry.nearest(name, (*TABLES, *_SHORT)) or f"; there are: {', '.join(TABLES)}"
    raise ConfigError(f"there is no table {quote(name)}{hint}")


def _locate(name: str) -> Path:
    problem = paths.find_problem(Path(name))
    if problem is None:
        return Path(name)
    path = CONFIGS / f"{name}.toml"
    if not paths.is_file(path):
        reason = "" if problem == paths.ABSENT else f": that {problem}"
        raise ConfigError(f"there is no configuration {quote(name)}{reason}{_suggest(name)}")
    return path


def _suggest(name: str) -> str:
    """Suggest shipped configurations: of that name, in that folder, or similar ones."""
    known = shipped()
    same = [other for other in known if other.partition("/")[2] == name]
    same.sort(key=lambda other: not other.startswith("digits/"))  # these need no data
    inside = [other for other in known if other.partition("/")[0] == name]
    if found := same or inside:
        return f"; did you mean {list_first([repr(other) for other in found])}?"
    return registry.nearest(name, known) or _suggest_by_part(name, known)


def _suggest_by_part(name: str, known: Iterable[str]) -> str:
    """Suggest configurations whose folder or own name is similar."""
    parts = {part for other in known for part in other.split("/")}
    close = difflib.get_close_matches(name.rpartition("/")[2], sorted(parts), n=1)
    return _suggest(close[0]) if close else "; coterie list configs shows them"


def _parse(text: str) -> Any:
    try:
        return _parse_toml(f"value = {text}")["value"]
    except ValueError:  # no TOML, nested too deeply, or a number of thousands of digits
        return text
