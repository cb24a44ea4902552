"""Resolved configurations: every key of every table, and the parts that they name.

`[method]`, `[objective]` and `[partition]` are the chosen class itself: its fields are the schema.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from coterie.core import registry, settings
from coterie.core.errors import ConfigError
from coterie.core.formatting import quote
from coterie.core.settings import WITHOUT_EFFECT
from coterie.data.augment import make_augment
from coterie.data.partition import load_class
from coterie.data.skew import Skewed
from coterie.experiment import own
from coterie.experiment.evaluators import find_unmeasured, make_evaluators
from coterie.experiment.part_keys import DEFAULT_CHOICE
from coterie.experiment.privacy import check_private
from coterie.experiment.schema import to_lists, validate, write_fields
from coterie.experiment.tables import (
    SPELLING,
    TABLES,
    Request,
    Source,
    Tables,
    make_plain,
    method_tables,
    request,
)
from coterie.kit.evaluator import Evaluator
from coterie.kit.method import FederatedEvaluator, Method
from coterie.kit.objective import Objective
from coterie.native.library import kernel_in_use, note_fallback
from coterie.nets.precision import choose_precision
from coterie.nets.weights import pin

_BARE = re.compile(r"[A-Za-z0-9_-]+")  # keys that TOML takes without quotes
_WITHOUT_CLASSIFIER = ("knn", "geometry")  # the evaluators of objectives without labels
_LOWER = ("loss", "uniformity")  # parts of the names of such metrics
# keys that earlier runs do not have: at these values they are the same experiment as without them
_LATER: dict[str, dict[str, Any]] = {
    "data": {"test": ""},
    "partition": {"balance": True},
    "net": {"unit_projection": False, "peers": "views", "groups": 16, "precision": "fp32"},
    "privacy": asdict(settings.PrivacySettings()),
}
_BASES: dict[str, type[Any]] = {"method": Method, "objective": Objective, "partition": object}


@dataclass(frozen=True)
class Config:
    """A validated configuration."""

    name: str  # where it came from, for the run directory
    tables: Tables  # resolved: every key of every table
    run: settings.RunSettings
    data: settings.DataSettings
    partition: Skewed
    net: settings.NetSettings
    objective: Objective
    method: Method
    local: settings.Local
    server: settings.ServerSettings
    cohort: settings.Cohort
    privacy: settings.PrivacySettings
    executor: settings.ExecutorSettings
    evaluate: settings.EvaluateSettings
    checkpoint: settings.Checkpoint
    record: settings.RecordSettings
    evaluators: Mapping[str, Evaluator | FederatedEvaluator] = field(default_factory=dict)
    objects: Mapping[str, Any] = field(default_factory=dict)  # parts that only this process has
    by_group: Mapping[str, Any] | None = None
    """Keys of `by-group`, which divides data with groups; None: `[partition]` is meant for them."""
    precision_chosen: bool = False  # whether `net.precision` was chosen for this machine
    notes: tuple[str, ...] = ()  # what the user should know of how it was resolved

    def with_part(self, table: str, part: Any, values: Mapping[str, Any]) -> "Config":
        """Replace the part of a table, and the table by its values."""
        changes: dict[str, Any] = {table: part, "tables": {**self.tables, table: dict(values)}}
        return replace(self, **changes)

    def update(self, table: str, **values: Any) -> "Config":
        """Change fields of a plain table."""
        part = replace(getattr(self, table), **values)
        spelled = {SPELLING.get(name, name): to_lists(value) for name, value in values.items()}
        return self.with_part(table, part, {**self.tables[table], **spelled})

    def identity(self) -> Tables:
        """Return the tables that make the experiment; the others may change in a run."""
        return {name: table for name, table in self.tables.items() if name not in WITHOUT_EFFECT}

    def hash(self) -> str:
        """Compute a hash that is equal for runs of the same experiment."""
        kept = {
            name: {key: v for key, v in table.items() if not _is_as_before(name, key, v)}
            for name, table in self.identity().items()
        }
        if not kept["privacy"]:
            del kept["privacy"]  # the whole table came later than some runs
        return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()

    def to_toml(self, classes: Sequence[int | str] = ()) -> str:
        """Write the resolved configuration as a file that can be run again.

        The classes of the data are a comment: they come from the data, and cannot be chosen.
        """
        lines = [f"# {self.name}, every key written out"]
        if classes:
            lines += [f"# classes, in the order of the network's outputs: {_toml(list(classes))}"]
        for name, table in self.tables.items():
            lines += ["", f"[{name}]"]
            lines += [f"{key} = {_toml(v)}" for key, v in table.items() if v is not None]
        return "\n".join(lines) + "\n"

    def difference(self, written: Tables) -> str | None:
        """Describe the first key that differs from a saved configuration (`to_toml`)."""
        for key, there, here in self.differences(written):
            return f"{key} is {quote(there)} there and {quote(here)} here"
        return None

    def differences(
        self, written: Mapping[str, Mapping[str, Any]]
    ) -> Iterator[tuple[str, Any, Any]]:
        """List the keys that differ from a saved configuration, with the values there and here."""
        for name, table in self.identity().items():
            later = {key: value for key, value in _LATER.get(name, {}).items() if key in table}
            saved = {**later, **written.get(name, {})}
            for key in dict.fromkeys((*table, *saved)):
                if saved.get(key) != table.get(key):
                    yield f"{name}.{key}", saved.get(key), table.get(key)


def _is_as_before(table: str, key: str, value: Any) -> bool:
    """Whether a key came later than some runs, and has the value that they had without it."""
    later = _LATER.get(table, {})
    return key in later and bool(value == later[key])


def load(
    source: Source = None, overrides: Mapping[str, Any] | None = None, saved: Path | None = None
) -> Config:
    """Resolve a configuration with overrides; `request` says how it is found."""
    return resolve_request(request(source, overrides or {}, saved))


def method_config(method: str, setting: str, overrides: Tables, number: int) -> Config:
    """Configure a setting with the tables of a method, on the seed of a given number.

    The method is a shipped configuration of the setting's data set, or the name of a method.
    """
    tables = method_tables(method, setting, overrides)
    seed = resolve(tables, overrides).run.seed + number
    return resolve(tables, {**overrides, "run": {**overrides.get("run", {}), "seed": seed}}, method)


def resolve(tables: Tables, overrides: Tables | None = None, name: str = "custom") -> Config:
    """Resolve tables, with overrides."""
    return resolve_request(replace(request(tables, overrides or {}), name=name))


def resolve_request(asked: Request) -> Config:
    """Fill in defaults, build all parts, then check the tables against each other."""
    objects = dict(asked.changes.objects)
    built: dict[str, Any] = {}
    resolved: Tables = {}
    for table in TABLES:
        if table in DEFAULT_CHOICE:
            built[table], resolved[table] = _choose(table, asked, objects)
        else:
            built[table] = make_plain(table, asked.merge(table))
            resolved[table] = write_fields(built[table], SPELLING)
    measured = _default_evaluators(asked.merge("evaluate"), built["objective"])
    evaluators = make_evaluators(measured)
    measured["metric"], fallen_back = _choose_metric(measured, asked, evaluators.made)
    built["evaluate"] = make_plain("evaluate", measured)
    resolved["evaluate"] = write_fields(built["evaluate"], SPELLING) | evaluators.resolved
    objects |= {f"evaluate.{key}": evaluators.made[key] for key in evaluators.local}
    devices = (built["run"].device, *built["executor"].devices)
    pinned = pin(built["net"])
    fallback = note_fallback(pinned.kernel, devices)
    changes: Tables = {
        "executor": {"kind": _choose_executor(objects, asked, built["executor"].kind)},
        # a run resumes only under the same kernel, and in the same precision
        "net": {
            "kernel": kernel_in_use(pinned.kernel, devices),
            "precision": choose_precision(pinned, devices),
            "weights_sha256": pinned.weights_sha256,
        },
    }
    for table, values in changes.items():
        built[table] = replace(built[table], **values)
        resolved[table] |= values
    config = Config(
        asked.name,
        resolved,
        **built,
        evaluators=evaluators.made,
        objects=objects,
        by_group=_read_by_group(asked),
        precision_chosen=pinned.precision == "auto",
        notes=tuple(note for note in (fallback, fallen_back) if note),
    )
    _check_together(config)
    return config


def _default_evaluators(table: dict[str, Any], objective: Objective) -> dict[str, Any]:
    """Fill in evaluators that suit the objective, where none are named."""
    if "with" in table or objective.labels:
        return table
    return {**table, "with": list(_WITHOUT_CLASSIFIER)}


def _choose_metric(
    table: Mapping[str, Any],
    asked: Request,
    made: Mapping[str, Evaluator | FederatedEvaluator],
) -> tuple[Any, str]:
    """Choose what a run is judged by, with a note where it is not the metric of the file.

    That of a file counts for the evaluators of the file: if others are chosen and none of them
    measures it, the first metric of theirs is taken.
    """
    first = next((part.headline for part in made.values() if part.headline), "")
    first = first or settings.EvaluateSettings.metric
    metric = table.get("metric", first)
    if "metric" not in table or not made or not isinstance(metric, str):
        return metric, ""
    problem = find_unmeasured(metric, made)
    over = asked.changes.tables.get("evaluate", {})
    if problem and ("metric" in over or "with" not in over):
        raise ConfigError(problem)
    return (
        (first, f"evaluate.metric = {first!r} instead of {metric!r}") if problem else (metric, "")
    )


def _read_by_group(asked: Request) -> Mapping[str, Any] | None:
    """Return the keys of `by-group`, if the groups of the data are to be the clients.

    The `[partition]` of a file counts for the data that the file names.
    """
    over = asked.changes.tables.get("partition", {})
    if "kind" in over:
        return None
    named = asked.changes.tables.get("data", {}).get("name")
    others = named is not None and named != asked.base("data").get("name")
    return over if others or "kind" not in asked.base("partition") else None


def _choose_executor(objects: Mapping[str, Any], asked: Request, kind: str) -> str:
    """Choose `serial` if workers cannot import a part; refuse that if workers were asked for."""
    local = [name for name in objects if name in own.IN_WORKERS or name.startswith("evaluate.")]
    if not local:
        return kind
    if asked.merge("executor").get("kind", "serial") != "serial":
        raise ConfigError(
            f"executor.kind = {kind!r} needs parts that workers can import, and {local[0]} is an "
            "object of this process: put its class in a module, or use executor.kind = 'serial'"
        )
    return "serial"


def _choose(table: str, asked: Request, objects: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Make an instance of the class that a table names; also return the table with every key.

    If an override names another class than the file does, the file's other keys were meant for
    that class and are left out; a partition keeps those that the new class has too (`clients`).
    """
    key, base, over = own.MAIN[table], asked.base(table), asked.changes.tables.get(table, {})
    choice = over.get(key, base.get(key, DEFAULT_CHOICE[table]))
    what = f"{table}.{key} = {quote(choice)}"
    if not isinstance(choice, str):
        raise ConfigError(f"{what} must be a name")
    part = objects.get(table)
    kind = _find_class(table, choice, part)
    if not issubclass(kind, _BASES[table]):
        raise ConfigError(f"{what} is no {_BASES[table].__name__}")
    if part is not None and part is not kind:
        return part, {key: choice, **own.write_plain(part)}
    if not is_dataclass(kind):
        raise ConfigError(f"{what} must be a dataclass, its fields are its keys")
    file = dict(base)
    if key in over and choice != base.get(key):
        kept = {f.name for f in fields(kind)} if table == "partition" else set()
        file = {name: value for name, value in base.items() if name in kept}
    values = {name: value for name, value in {**file, **over}.items() if name != key}
    instance = validate(table, choice, kind, values, main=(key,))
    if part is not None:
        objects[table] = instance
    return instance, {key: choice, **write_fields(instance)}


def _find_class(table: str, choice: str, part: Any) -> Any:
    """Find the class of a name; that of an object, if one was given."""
    if part is not None:
        return part if isinstance(part, type) else type(part)
    if table == "partition":
        return load_class(choice)
    return registry.find(f"{table}s", choice, _BASES[table], f"{table}.name")


def _check_together(config: Config) -> None:
    method, objective = config.tables["method"]["name"], config.tables["objective"]["name"]
    allowed = config.method.objectives
    if allowed is not None and objective not in allowed:
        raise ConfigError(
            f"method.name = {method!r} works with objective.name = {' or '.join(allowed)}, "
            f"not with {objective!r}"
        )
    config.method.check(config.local)
    check_private(config)
    lower = next((name for name in _LOWER if name in config.evaluate.metric), None)
    if lower is not None:
        raise ConfigError(
            f"evaluate.metric = {config.evaluate.metric!r} is better the lower it is, and a run is "
            "judged by its highest value: choose another metric"
        )
    for key in ("stop_at_target", "patience"):
        if config.evaluate.last and getattr(config.evaluate, key):
            raise ConfigError(
                f"evaluate.last waits for the last round, which evaluate.{key} may leave out: "
                "choose one of them"
            )
    if config.data.augment != "auto":
        make_augment(config.objects.get("augment", config.data.augment))
    net = config.objects.get("net")
    if config.method.draws_fresh and hasattr(net, "parameters") and not isinstance(net, type):
        raise ConfigError(
            f"method.name = {method!r} draws fresh weights for each client, which a module with "
            "weights cannot have: give its class as net.backbone"
        )


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        pairs = (f"{k if _BARE.fullmatch(k) else _toml(k)} = {_toml(v)}" for k, v in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # TOML has no raw DEL
