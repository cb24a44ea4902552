"""Resolved configurations: every key of every table, and the parts that they name.

`[method]`, `[objective]` and `[partition]` are the chosen class itself: its fields are the schema.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

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
from coterie.data.augment import make_augment
from coterie.data.partition import Scheme, load_class
from coterie.experiment import own
from coterie.experiment.evaluators import make_evaluators, read_entries
from coterie.experiment.tables import (
    SPELLING,
    TABLES,
    Request,
    Tables,
    check_table,
    make_plain,
    request,
    shipped,
    tables_of,
    validate,
)
from coterie.kit.evaluator import Evaluator
from coterie.kit.method import FederatedEvaluator, Method
from coterie.kit.objective import Objective
from coterie.native.library import kernel_in_use

GIVEN = "given"  # the data set of a run over arrays that Python code passed in
_DEFAULT_CHOICE = {"partition": "dirichlet", "objective": "supervised", "method": "fedavg"}
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
    objects: Mapping[str, Any] = field(default_factory=dict)  # parts that only this process has

    def hash(self) -> str:
        """A hash that two runs share if they are the same experiment."""
        kept = {name: t for name, t in self.tables.items() if name not in _UNHASHED}
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def to_toml(self) -> str:
        """The resolved configuration as a file that can be run again."""
        lines = [f"# {self.name}, every key written out"]
        for name, table in self.tables.items():
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(v)}" for key, v in table.items() if v is not None]
        return "\n".join(lines) + "\n"

    def difference(self, written: Tables) -> str | None:
        """The first key on which a saved configuration (`to_toml`) is another experiment."""
        for name, table in self.tables.items():
            saved = written.get(name, {})
            for key in (*table, *saved) if name not in _UNHASHED else ():
                if saved.get(key) != table.get(key):
                    return f"{name}.{key} is {saved.get(key)!r} there and {table.get(key)!r} here"
        return None


def load(source: str | Path | None = None, overrides: Tables | None = None) -> Config:
    """A configuration by path or shipped name, with overrides laid over it."""
    return resolve_request(request(source, overrides or {}))


def method_config(method: str, setting: str, overrides: Tables, number: int) -> Config:
    """Configure a setting with the tables of a method, on the seed of a given number.

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
    asked = request(tables, overrides or {})
    return resolve_request(replace(asked, name=name))


def resolve_request(asked: Request) -> Config:
    """Build everything that a request names."""
    base, over = asked.base(), asked.changes.tables
    for table in (*base, *over):
        check_table(table)
    objects = dict(asked.changes.objects)
    built: dict[str, Any] = {}
    resolved: Tables = {}
    for table in TABLES:
        below, above = base.get(table, {}), over.get(table, {})
        if table in _DEFAULT_CHOICE:
            built[table], resolved[table] = _choose(table, below, above, objects)
        else:
            built[table] = make_plain(table, {**below, **above})
            resolved[table] = _write_plain(built[table])
    entries, _ = read_entries({**base.get("evaluate", {}), **over.get("evaluate", {})})
    evaluators, written, held = make_evaluators(entries, validate)
    resolved["evaluate"] |= written
    objects |= {f"evaluate.{key}": evaluator for key, evaluator in held.items()}
    asked_for = {**base.get("executor", {}), **over.get("executor", {})}
    changes = {
        "executor": {"kind": _executor_for(objects, asked_for, built["executor"].kind)},
        # a run resumes only under the same kernel
        "net": {"kernel": _kernel(built["net"], built["run"], built["executor"])},
    }
    for table, values in changes.items():
        built[table] = replace(built[table], **values)
        resolved[table] |= values
    config = Config(asked.name, resolved, **built, evaluators=evaluators, objects=objects)
    _check_together(config)
    return config


def _write_plain(settings: Any) -> dict[str, Any]:
    """The keys of a plain table as a file spells them."""
    back = {new: old for old, new in SPELLING.items()}
    return {back.get(key, key): _plain(value) for key, value in asdict(settings).items()}


def _kernel(net: NetSettings, run: RunSettings, executor: ExecutorSettings) -> str:
    return kernel_in_use(net.kernel, (run.device, *executor.devices))


def _executor_for(objects: Mapping[str, Any], asked: Mapping[str, Any], kind: str) -> str:
    """`serial` where a part cannot be had by workers; an error where workers were asked for."""
    local = [name for name in objects if name in own.IN_WORKERS or name.startswith("evaluate.")]
    if not local:
        return kind
    if asked.get("kind", "serial") != "serial":
        raise ConfigError(
            f"executor.kind = {kind!r} needs parts that workers can import, and {local[0]} is an "
            "object of this process: put its class in a module, or use executor.kind = 'serial'"
        )
    return "serial"


def _choose(
    table: str, base: Mapping[str, Any], over: Mapping[str, Any], objects: dict[str, Any]
) -> tuple[Any, Any]:
    """The instance of the class that a table names, and the table with every key.

    Where an override names another class than the file does, the file's other keys were meant for
    that one and are left out; a partition keeps those that the other kind has too (`clients`).
    """
    key = own.MAIN[table]
    choice = over.get(key, base.get(key, _DEFAULT_CHOICE[table]))
    if not isinstance(choice, str):
        raise ConfigError(f"{table}.{key} = {choice!r} must be a name")
    part = objects.get(table)
    if part is not None and not isinstance(part, type):
        return _check_part(table, choice, type(part)) and (part, {key: choice})
    kind = _find_class(table, choice) if part is None else _check_part(table, choice, part)
    if not is_dataclass(kind):
        raise ConfigError(
            f"{table}.{key} = {choice!r} must be a dataclass, its fields are its keys"
        )
    known = [f.name for f in fields(kind)]
    file = {k: v for k, v in base.items() if k != key}
    if key in over and over[key] != base.get(key):
        file = {k: v for k, v in file.items() if table == "partition" and k in known}
    values = {**file, **{k: v for k, v in over.items() if k != key}}
    instance = validate(table, choice, kind, values)
    if part is not None:
        objects[table] = instance
    return instance, {key: choice, **{k: _plain(v) for k, v in asdict(instance).items()}}


_BASES: dict[str, tuple[type[Any], str]] = {
    "method": (Method, "Method"),
    "objective": (Objective, "Objective"),
}


def _check_part(table: str, choice: str, kind: Any) -> Any:
    """The class of an object, if it is one for this table."""
    base, name = _BASES.get(table, (object, ""))
    if not issubclass(kind, base):
        raise ConfigError(f"{table}.{own.MAIN[table]} = {choice!r} is no {name}")
    return kind


def _find_class(table: str, choice: str) -> Any:
    if table == "partition":
        return load_class(choice)
    return registry.find(f"{table}s", choice, _BASES[table][0], f"{table}.name")


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
    make_augment(config.objects.get("augment", config.data.augment))
    if ":" not in config.net.backbone:
        registry.check_known("net.backbone", config.net.backbone, registry.names("nets/backbones"))
    if config.data.name != GIVEN and ":" not in config.data.name:
        registry.check_known("data.name", config.data.name, datasets.names())
    if config.method.draws_fresh and "net" in config.objects:
        _check_fresh(config)


def _check_fresh(config: Config) -> None:
    """Refuse a network that is given as a module where every client needs weights of its own."""
    if not isinstance(config.objects["net"], type) and hasattr(config.objects["net"], "parameters"):
        raise ConfigError(
            f"method.name = {config.tables['method']['name']!r} draws fresh weights for each "
            "client, which a module with weights cannot have: give its class as net.backbone"
        )


def _plain(value: Any) -> Any:
    """Lists instead of tuples, as TOML reads them."""
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_toml(v)}' for key, v in value.items())} }}"
    return repr(value) if isinstance(value, float) else json.dumps(value, ensure_ascii=False)
