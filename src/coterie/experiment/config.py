"""TOML and `table.key=value` in, frozen dataclasses out.

`[method]`, `[objective]` and `[partition]` are the chosen class itself: its fields are the schema.
"""

import functools
import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
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
from coterie.data import datasets
from coterie.data.augment import AUGMENTS
from coterie.data.partition import Scheme, load_class
from coterie.experiment.evaluators import make_evaluators, read_entries
from coterie.kit.evaluator import Evaluator
from coterie.kit.method import FederatedEvaluator, Method
from coterie.kit.objective import Objective
from coterie.native.library import kernel_in_use

Tables = dict[str, dict[str, Any]]

CONFIGS = Path(__file__).parent.parent / "configs"
DEFAULT = "digits/moon"
GIVEN = "given"  # the data set of a run over arrays that Python code passed in

_PLAIN: dict[str, type] = {
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
_CHOSEN = {"partition": "kind", "objective": "name", "method": "name"}
_DEFAULT_CHOICE = {"partition": "dirichlet", "objective": "supervised", "method": "fedavg"}
_TABLES = (
    *("run", "data", "partition", "net", "objective", "method", "local", "server", "cohort"),
    *("executor", "evaluate", "checkpoint", "record"),
)
_SPELLING = {"with": "evaluators"}  # a TOML key that Python has for itself
_UNHASHED = ("executor", "checkpoint", "record")
_OF_METHOD = ("method", "objective", "server")


@dataclass(frozen=True)
class Config:
    """A validated configuration."""

    name: str  # where it came from, for the run directory
    tables: Tables  # resolved: every key of every table
    run: RunSettings
    data: DataSettings
    partition: Scheme
    net: NetSettings
    objective: Objective
    method: Method
    local: Local
    server: ServerSettings
    cohort: Cohort
    executor: ExecutorSettings
    evaluate: EvaluateSettings
    checkpoint: Checkpoint
    record: RecordSettings
    evaluators: Mapping[str, Evaluator | FederatedEvaluator] = field(default_factory=dict)

    def hash(self) -> str:
        """What two runs must share to be the same experiment."""
        kept = {name: t for name, t in self.tables.items() if name not in _UNHASHED}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def to_toml(self) -> str:
        """The resolved configuration as a file that can be run again."""
        lines = [f"# {self.name}, every key written out"]
        for name, table in self.tables.items():
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(v)}" for key, v in table.items() if v is not None]
        return "\n".join(lines) + "\n"

    def difference(self, other: "Config") -> str | None:
        """The first key on which two experiments differ."""
        for name, table in self.tables.items():
            for key, value in table.items() if name not in _UNHASHED else ():
                theirs = other.tables[name].get(key)
                if value != theirs:
                    return f"{name}.{key} is {value!r} there and {theirs!r} here"
        return None


def shipped() -> tuple[str, ...]:
    """The names of the configurations that come with Coterie."""
    return tuple(
        sorted(str(p.relative_to(CONFIGS).with_suffix("")) for p in CONFIGS.glob("*/*.toml"))
    )


def load(source: str | Path | None = None, overrides: Tables | None = None) -> Config:
    """A configuration by path or shipped name, with overrides laid over it."""
    path = _locate(str(source or DEFAULT))
    return resolve(read(path), overrides, _label(path))


def tables_of(source: str) -> Tables:
    """The tables of a configuration as they are written."""
    return read(_locate(source))


def _locate(name: str) -> Path:
    if Path(name).is_file():
        return Path(name)
    path = CONFIGS / f"{name}.toml"
    if not path.is_file():
        hint = registry.nearest(name, shipped()) or "; coterie list configs shows them"
        raise ConfigError(f"there is no configuration {name!r}{hint}")
    return path


def read(path: Path) -> Tables:
    """The tables of a TOML file."""
    try:
        tables = tomllib.loads(path.read_text())
    except ValueError as error:  # no TOML, no UTF-8, a number of thousands of digits
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    for name, table in tables.items():
        _check_table(name)
        if not isinstance(table, dict):
            raise ConfigError(f"{path}: {name} must be a table, e.g. [{name}]")
    return tables


def parse_overrides(overrides: Iterable[str]) -> Tables:
    """`local.lr=0.1` and the like; a value that is not TOML is a string."""
    tables: Tables = {}
    for text in overrides:
        key, equals, value = text.partition("=")
        table, dot, name = key.strip().partition(".")
        if not (equals and dot and name):
            raise ConfigError(f"{text!r} is not of the form table.key=value, e.g. run.seed=3")
        _check_table(table)
        tables.setdefault(table, {})[name] = _value(value.strip())
    return tables


def by_table(changes: Mapping[str, Any]) -> Tables:
    """Changes as tables (`{"local": {"lr": 0.1}}`) or dotted keys (`{"local.lr": 0.1}`)."""
    tables: Tables = {}
    for key, value in changes.items():
        table, dot, name = key.partition(".")
        if dot:
            tables.setdefault(table, {})[name] = value
        elif isinstance(value, Mapping):
            tables.setdefault(table, {}).update(value)
        else:
            raise ConfigError(f"{key} = {value!r} must be a table or a key like 'local.lr'")
    return tables


def method_config(method: str, setting: str, overrides: Tables, number: int) -> Config:
    """The setting with the tables of a method, on the seed of a given number.

    The method is a shipped configuration of the setting's data set, or the name of a method.
    """
    base = tables_of(setting)
    data = {"name": DataSettings.name, **base.get("data", {}), **overrides.get("data", {})}
    named = f"{data['name']}/{method}"
    if named in shipped():
        theirs: dict[str, Any] = tables_of(named)
    else:
        theirs = {"method": {"name": method}, "objective": base.get("objective", {})}
    kept = {name: table for name, table in base.items() if name not in _OF_METHOD}
    tables = {**kept, **{name: theirs[name] for name in _OF_METHOD if name in theirs}}
    first = resolve(tables, overrides)
    seed = {"run": {**overrides.get("run", {}), "seed": first.run.seed + number}}
    return resolve(tables, {**overrides, **seed}, method)


def resolve(tables: Tables, overrides: Tables | None = None, name: str = "custom") -> Config:
    """Merge, fill in defaults, validate every table, then check the tables against each other."""
    for table in (*tables, *(overrides or {})):
        _check_table(table)
    overrides = overrides or {}
    built: dict[str, Any] = {}
    resolved: Tables = {}
    entries, keys = read_entries({**tables.get("evaluate", {}), **overrides.get("evaluate", {})})
    for table in _TABLES:
        base, over = tables.get(table, {}), overrides.get(table, {})
        if table in _CHOSEN:
            built[table], resolved[table] = _choose(table, base, over)
        else:
            values = keys if table == "evaluate" else {**base, **over}
            built[table] = validated(table, table, _PLAIN[table], values, _SPELLING)
            back = {new: old for old, new in _SPELLING.items()}
            found = asdict(built[table])
            resolved[table] = {back.get(key, key): _plain(value) for key, value in found.items()}
    devices = (built["run"].device, *built["executor"].devices)
    kernel = kernel_in_use(built["net"].kernel, devices)  # a run resumes only under the same
    built["net"] = replace(built["net"], kernel=kernel)
    resolved["net"]["kernel"] = kernel
    evaluators, written = make_evaluators(entries, validated)
    resolved["evaluate"] |= written
    config = Config(name, resolved, **built, evaluators=evaluators)
    _check_together(config)
    return config


def _choose(table: str, base: Mapping[str, Any], over: Mapping[str, Any]) -> tuple[Any, Any]:
    """The instance of the class that a table names.

    Where an override names another class than the file does, the file's other keys were meant for
    that one and are left out; a partition keeps those that the other kind has too (`clients`).
    """
    key = _CHOSEN[table]
    choice = over.get(key, base.get(key, _DEFAULT_CHOICE[table]))
    if not isinstance(choice, str):
        raise ConfigError(f"{table}.{key} = {choice!r} must be a name")
    kind = _class(table, choice)
    if not is_dataclass(kind):
        raise ConfigError(
            f"{table}.{key} = {choice!r} must be a dataclass, its fields are its keys"
        )
    known = [f.name for f in fields(kind)]
    file = {k: v for k, v in base.items() if k != key}
    if key in over and over[key] != base.get(key):
        file = {k: v for k, v in file.items() if table == "partition" and k in known}
    values = {**file, **{k: v for k, v in over.items() if k != key}}
    instance = validated(table, choice, kind, values)
    return instance, {key: choice, **{k: _plain(v) for k, v in asdict(instance).items()}}


def _class(table: str, choice: str) -> Any:
    if table == "partition":
        return load_class(choice)
    base: type[Any] = Method if table == "method" else Objective
    return registry.find(f"{table}s", choice, base, f"{table}.name")


def validated(
    table: str,
    owner: str,
    kind: Any,
    given: Mapping[str, Any],
    spelling: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """The dataclass of a table; `owner` is who is said to take its keys."""
    back = {new: old for old, new in spelling.items()}
    known = [back.get(f.name, f.name) for f in fields(kind)]
    for key in given:
        if key not in known:
            hint = registry.nearest(key, [*known, *filter(None, [_CHOSEN.get(table)])])
            takes = f"; {owner} takes: {', '.join(known) or 'no key'}"
            raise ConfigError(f"{table} has no key {key!r}{hint}{takes}".replace("?;", "?"))
    for key, value in given.items():
        if not _finite(value):
            raise ConfigError(f"{table}.{key} = {value} is not a finite number")
    try:
        text = json.dumps({spelling.get(k, k): v for k, v in given.items()}, default=str)
        return _adapter(kind).validate_json(text, strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        key = back.get(str(first["loc"][0]), str(first["loc"][0])) if first["loc"] else ""
        said = first["msg"].removeprefix("Value error, ")
        place = f"{table}.{key} = {given.get(key)!r}" if key else table
        raise ConfigError(f"{place}: {said[0].lower()}{said[1:]}") from error


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """What checks a class; making one takes far longer than using it."""
    return TypeAdapter(kind)


def _check_table(name: str) -> None:
    if name not in _TABLES:
        hint = registry.nearest(name, _TABLES) or f"; there are: {', '.join(_TABLES)}"
        raise ConfigError(f"there is no table {name!r}{hint}")


def _check_together(config: Config) -> None:
    method, objective = config.tables["method"]["name"], config.tables["objective"]["name"]
    allowed = config.method.objectives
    if allowed is not None and objective not in allowed:
        raise ConfigError(
            f"method.name = {method!r} works with objective.name = {' or '.join(allowed)}, "
            f"not with {objective!r}"
        )
    config.method.check(config.local)
    if config.evaluate.last and config.evaluate.stop_at_target:
        raise ConfigError(
            "evaluate.last waits for the last round, which evaluate.stop_at_target may leave out: "
            "choose one of them"
        )
    _one_of("net.backbone", config.net.backbone, registry.names("nets/backbones"))
    _one_of("data.augment", config.data.augment, tuple(AUGMENTS))
    if config.data.name != GIVEN:
        _one_of("data.name", config.data.name, datasets.names())


def _one_of(key: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        hint = registry.nearest(value, known) or f"; it is one of: {', '.join(known)}"
        raise ConfigError(f"{key} = {value!r} is not known{hint}")


def _label(path: Path) -> str:
    inside = path.is_relative_to(CONFIGS)
    return str(path.relative_to(CONFIGS).with_suffix("")) if inside else path.stem


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:  # no TOML, or a number of thousands of digits
        return text


def _finite(value: Any) -> bool:
    """Whether a value holds no NaN, no infinity and nothing that becomes one as a float."""
    if isinstance(value, list | tuple):
        return all(map(_finite, value))
    try:
        return not isinstance(value, int | float) or math.isfinite(value)
    except OverflowError:
        return False


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(v)}' for key, v in value.items())} }}"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
