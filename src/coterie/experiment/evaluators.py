"""The entries of `evaluate.with` and `evaluate.last`: names, tables or objects.

Reading them needs no torch; making evaluators of them does.
"""

import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.formatting import quote
from coterie.core.settings import EvaluateSettings
from coterie.evaluate import ALIASES
from coterie.experiment import own
from coterie.experiment.schema import to_lists, validate, write_fields

if TYPE_CHECKING:
    from coterie.kit.evaluator import Evaluator
    from coterie.kit.method import FederatedEvaluator

_DEFAULTS = {"with": EvaluateSettings.evaluators, "last": EvaluateSettings.last}
_OF_METHODS = ("train_", "server_")  # begin the metrics that clients and server record
SPELLING = {"key": "as"}
_KEY = re.compile(r"(?!method$)[A-Za-z][A-Za-z0-9_.-]*")  # `method` is the program of other tasks


@dataclass(frozen=True)
class EvaluatorEntry:
    """One evaluator as it was asked for."""

    origin: str  # `evaluate.with` or `evaluate.last`
    name: str
    given: Mapping[str, Any] = field(default_factory=dict)  # its other keys
    part: Any = None  # the evaluator or its class, if only this process has it

    @property
    def key(self) -> str:
        """The name of the evaluator within the run."""
        return str(self.given.get("as", self.name))

    def remedy(self) -> str:
        """Say how this entry gets a key of its own."""
        name = self.name.rpartition(":")[2].lower()
        return (
            f"; give one of them a key of its own with `as`, "
            f'e.g. {{ name = "{self.name}", as = "{name}_2" }}'
        )


@dataclass(frozen=True)
class Evaluators:
    """The evaluators of a run by key."""

    made: dict[str, "Evaluator | FederatedEvaluator"]
    resolved: dict[str, list[Any]]  # both lists of the table, with the shortest entries
    local: tuple[str, ...]  # the keys of those that only this process has


def names() -> tuple[str, ...]:
    """List the names that an entry may have, besides `"package.module:Class"`."""
    return tuple(sorted({*registry.names("evaluate"), *ALIASES}))


def read_entries(table: Mapping[str, Any]) -> tuple[list[EvaluatorEntry], dict[str, Any]]:
    """Read the entries of an `[evaluate]` table; also return the table with their keys instead."""
    entries: dict[str, EvaluatorEntry] = {}
    keys = dict(table)
    for name, default in _DEFAULTS.items():
        listed = table.get(name, default)
        if isinstance(listed, str | Mapping) or is_dataclass(listed):
            listed = [listed]
        if not isinstance(listed, list | tuple):
            continue  # the type of the field refuses it later
        read = [_read(f"evaluate.{name}", entry) for entry in listed]
        keys[name] = [entry.key for entry in read]
        for entry in read:
            if (first := entries.setdefault(entry.key, entry)) is not entry:
                raise ConfigError(
                    f"{entry.origin} = {quote(entry.key)} is named twice (also in {first.origin})"
                    f"{entry.remedy()}"
                )
    return list(entries.values()), keys


def make_evaluators(table: Mapping[str, Any]) -> Evaluators:
    """Make the evaluators of an `[evaluate]` table."""
    entries, _ = read_entries(table)
    made = {entry.key: _make(entry) for entry in entries}
    resolved: dict[str, list[Any]] = {name: [] for name in _DEFAULTS}
    owners: dict[str, str] = {}  # the evaluator whose metrics begin with a word
    for entry in entries:
        evaluator = made[entry.key]
        stem = str(getattr(evaluator, "key", entry.key))
        if evaluator.where == "client":
            stem = f"client_{stem}"
        if owners.setdefault(stem, entry.key) != entry.key:
            raise ConfigError(
                f"{entry.origin}: {owners[stem]!r} and {entry.key!r} give the same metrics "
                f"({stem!r}){entry.remedy()}"
            )
        resolved[entry.origin.removeprefix("evaluate.")].append(_shorten(entry, evaluator))
    return Evaluators(made, resolved, tuple(e.key for e in entries if e.part is not None))


def find_unmeasured(metric: str, made: Mapping[str, "Evaluator | FederatedEvaluator"]) -> str:
    """Say why none of the evaluators can measure a metric, with the nearest that one does; or "".

    Metrics of the training, and those of an evaluator that does not name its own, are not known
    before a run.
    """
    if metric.startswith(_OF_METHODS) or not all(part.metrics for part in made.values()):
        return ""
    known = [name for part in made.values() for name in part.metrics]
    spread = [f"{name}_std" for name in known]  # over clients' models, without a global one
    held_out = [f"holdout_{name}" for name in known]
    unseen = [f"unseen_{name.removeprefix('client_')}" for name in known]
    if metric in (*known, *spread, *held_out, *unseen):
        return ""
    hint = registry.nearest(metric, known) or f"; there are: {', '.join(known)}"
    return f"evaluate.metric = {quote(metric)} is measured by no evaluator of the run{hint}"


def _read(origin: str, entry: Any) -> EvaluatorEntry:
    if is_dataclass(entry):
        described = own.describe("evaluate", entry)
        if described.part is not None:
            return EvaluatorEntry(origin, described.name, part=entry)
        given = {} if isinstance(entry, type) else _write_changed(entry)
        return EvaluatorEntry(origin, described.name, given)
    if isinstance(entry, str):
        return EvaluatorEntry(origin, entry)
    if not isinstance(entry, Mapping):
        example = '{ name = "knn", k = 5 }'
        raise ConfigError(
            f"{origin} = [{quote(entry)}]: an entry is a string or a table, e.g. {example}"
        )
    name, key = entry.get("name"), entry.get("as", "")
    if not isinstance(name, str):
        raise ConfigError(
            f"{origin} = [{quote(dict(entry))}]: an entry needs a name, e.g. name = 'knn'"
        )
    if "as" in entry and not (isinstance(key, str) and _KEY.fullmatch(key)):
        raise ConfigError(
            f"{origin}: as = {quote(key)} of {quote(name)} must be a word of letters, digits, "
            "'_', '-' and '.', other than 'method'"
        )
    return EvaluatorEntry(origin, name, _without_name(entry))


def _make(entry: EvaluatorEntry) -> Any:
    from coterie.kit.evaluator import Evaluator
    from coterie.kit.method import FederatedEvaluator

    kind, alias = entry.part, ALIASES.get(entry.name, {})
    if isinstance(kind, Evaluator | FederatedEvaluator):
        return kind
    if ":" not in entry.name:
        registry.check_known(entry.origin, entry.name, names())
    if kind is None:
        kind = registry.find("evaluate", alias.get("name", entry.name), object, entry.origin)
    what = f"{entry.origin} = {quote(entry.name)}"
    if not issubclass(kind, Evaluator | FederatedEvaluator):
        raise ConfigError(f"{what} is not an evaluator")
    if not is_dataclass(kind):
        raise ConfigError(f"{what} must be a dataclass, its fields are its keys")
    if "as" in entry.given and "key" not in {f.name for f in fields(kind)}:
        raise ConfigError(
            f"{entry.origin}: {entry.name!r} names its metrics itself; for `as` it needs a field "
            "`key: str` that its metrics carry"
        )
    values = {**_without_name(alias), **entry.given}
    try:
        return validate(f"{entry.origin}: {entry.name}", entry.name, kind, values, SPELLING)
    except TypeError as error:  # abstract
        raise ConfigError(f"{what} cannot be made: {error}") from error


def _shorten(entry: EvaluatorEntry, evaluator: Any) -> Any:
    """Write the shortest entry for an evaluator: its name, or a table with what differs."""
    given = _write_changed(evaluator, ALIASES.get(entry.name, {}))
    if entry.key != entry.name:
        given = {"as": entry.key, **given}
    return {"name": entry.name, **given} if given else entry.name


def _write_changed(evaluator: Any, alias: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Write the fields that differ from the defaults, or from those of an alias, by key."""
    defaults = {SPELLING.get(f.name, f.name): _default(f) for f in fields(evaluator)}
    defaults.update(alias or {})
    written = write_fields(evaluator, SPELLING)
    return {key: value for key, value in written.items() if value != to_lists(defaults[key])}


def _default(field: Any) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _without_name(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in entry.items() if key != "name"}
