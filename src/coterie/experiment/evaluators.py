"""The entries of `evaluate.with` and `evaluate.last`: names, tables or objects.

Reading them needs no torch; making evaluators of them does.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.settings import EvaluateSettings
from coterie.evaluate import ALIASES

if TYPE_CHECKING:
    from coterie.kit.evaluator import Evaluator
    from coterie.kit.method import FederatedEvaluator

    Made = Evaluator | FederatedEvaluator

Validate = Callable[[str, str, Any, Mapping[str, Any], Mapping[str, str]], Any]

_DEFAULTS = {"with": EvaluateSettings.evaluators, "last": EvaluateSettings.last}
_SPELLING = {"as": "key"}  # a TOML key that Python has for itself
_KEY = re.compile(r"(?!method$)[A-Za-z][A-Za-z0-9_.-]*")  # tasks call the run's method so
_SHIPPED = "coterie.evaluate."


@dataclass(frozen=True)
class Entry:
    """One evaluator as it was asked for."""

    origin: str  # `evaluate.with` or `evaluate.last`
    name: str
    given: Mapping[str, Any]  # its other keys
    part: Any = None  # the evaluator or its class, where only this process has it

    @property
    def key(self) -> str:
        """What the run calls it."""
        return str(self.given.get("as", self.name))


def names() -> tuple[str, ...]:
    """The names that an entry may have, besides `"package.module:Class"`."""
    return tuple(sorted({*registry.names("evaluate"), *ALIASES}))


def read_entries(table: Mapping[str, Any]) -> tuple[list[Entry], dict[str, Any]]:
    """The entries of an `[evaluate]` table, and the table with their keys instead of them."""
    entries: list[Entry] = []
    keys = dict(table)
    for name, default in _DEFAULTS.items():
        listed = table.get(name, default)
        if isinstance(listed, str | Mapping) or is_dataclass(listed):
            listed = [listed]
        if not isinstance(listed, list | tuple):
            continue  # what the field's type refuses
        read = [_read(f"evaluate.{name}", entry) for entry in listed]
        keys[name] = [entry.key for entry in read]
        entries += read
    _check_keys(entries)
    return entries, keys


def make_evaluators(
    entries: list[Entry], validate: Validate
) -> tuple[dict[str, "Made"], dict[str, list[Any]], dict[str, "Made"]]:
    """Make the evaluators.

    Returns them by key, the entries of both lists as they stand in a resolved table, and by key
    those that only this process has.
    """
    made: dict[str, Made] = {}
    held: dict[str, Made] = {}
    resolved: dict[str, list[Any]] = {name: [] for name in _DEFAULTS}
    metrics: dict[str, str] = {}  # by what the metrics of an evaluator begin with: its key
    for entry in entries:
        evaluator = _make(entry, validate)
        stem = _stem(entry, evaluator)
        if metrics.setdefault(stem, entry.key) != entry.key:
            raise ConfigError(
                f"{entry.origin}: {metrics[stem]!r} and {entry.key!r} give the same metrics "
                f"({stem!r}){_remedy(entry)}"
            )
        made[entry.key] = evaluator
        if entry.part is not None:
            held[entry.key] = evaluator
        resolved[entry.origin.removeprefix("evaluate.")].append(_resolved(entry, evaluator))
    return made, resolved, held


def _read(origin: str, entry: Any) -> Entry:
    if is_dataclass(entry):
        described = _describe(entry)
        if described is None:
            kind = entry if isinstance(entry, type) else type(entry)
            return Entry(origin, f"{registry.OBJECT}:{kind.__name__}", {}, entry)
        entry = described
    if isinstance(entry, str):
        return Entry(origin, entry, {})
    if not isinstance(entry, Mapping):
        example = '{ name = "knn", k = 5 }'
        raise ConfigError(
            f"{origin} = [{entry!r}]: an entry is a string or a table, e.g. {example}"
        )
    name, key = entry.get("name"), entry.get("as", "")
    if not isinstance(name, str):
        raise ConfigError(f"{origin} = [{dict(entry)!r}]: an entry needs a name, e.g. name = 'knn'")
    if "as" in entry and not (isinstance(key, str) and _KEY.fullmatch(key)):
        raise ConfigError(
            f"{origin}: as = {key!r} of {name!r} must be a word of letters, digits, '_', '-' and "
            "'.', other than 'method'"
        )
    return Entry(origin, name, {key: value for key, value in entry.items() if key != "name"})


def _describe(part: Any) -> dict[str, Any] | None:
    """The entry of an evaluator that Python code gave; None where it cannot be imported."""
    kind = part if isinstance(part, type) else type(part)
    importable = registry.import_name(kind)
    if importable is None:
        return None
    shipped = kind.__module__.startswith(_SHIPPED)
    name = kind.__module__.removeprefix(_SHIPPED) if shipped else importable
    if isinstance(part, type):
        return {"name": name}
    return {"name": name, **_changed(part, {field.name: _default(field) for field in fields(kind)})}


def _check_keys(entries: list[Entry]) -> None:
    origins: dict[str, str] = {}
    for entry in entries:
        if entry.key in origins:
            raise ConfigError(
                f"{entry.origin} = {entry.key!r} is named twice (also in {origins[entry.key]})"
                f"{_remedy(entry)}"
            )
        origins[entry.key] = entry.origin


def _remedy(entry: Entry) -> str:
    name = entry.name.rpartition(":")[2].lower()
    return (
        f"; give one of them a key of its own with `as`, "
        f'e.g. {{ name = "{entry.name}", as = "{name}_2" }}'
    )


def _make(entry: Entry, validate: Validate) -> "Made":
    from coterie.kit.evaluator import Evaluator
    from coterie.kit.method import FederatedEvaluator

    alias = ALIASES.get(entry.name, {})
    if ":" not in entry.name:
        registry.check_known(entry.origin, entry.name, names())
    kind: Any = entry.part
    if kind is None:
        anything: Any = object
        kind = registry.find("evaluate", alias.get("name", entry.name), anything, entry.origin)
    elif isinstance(kind, Evaluator | FederatedEvaluator):
        return kind
    if not issubclass(kind, Evaluator | FederatedEvaluator):
        raise ConfigError(f"{entry.origin} = {entry.name!r} is not an evaluator")
    if not is_dataclass(kind):
        raise ConfigError(
            f"{entry.origin} = {entry.name!r} must be a dataclass, its fields are its keys"
        )
    if "as" in entry.given and "key" not in {field.name for field in fields(kind)}:
        raise ConfigError(
            f"{entry.origin}: {entry.name!r} names its metrics itself; for `as` it needs a field "
            "`key: str` that its metrics carry"
        )
    values = {**{key: value for key, value in alias.items() if key != "name"}, **entry.given}
    try:
        made: Made = validate(f"{entry.origin}: {entry.name}", entry.name, kind, values, _SPELLING)
    except TypeError as error:  # abstract
        raise ConfigError(f"{entry.origin} = {entry.name!r} cannot be made: {error}") from error
    return made


def _stem(entry: Entry, evaluator: "Made") -> str:
    """What the names of its metrics begin with; the key, where it names them itself."""
    key = str(getattr(evaluator, "key", entry.key))
    return f"client_{key}" if evaluator.where == "client" else key


def _resolved(entry: Entry, evaluator: Any) -> Any:
    """The shortest entry for the same evaluator: its name, or a table with what differs."""
    alias = {_SPELLING.get(key, key): value for key, value in ALIASES.get(entry.name, {}).items()}
    default = {field.name: alias.get(field.name, _default(field)) for field in fields(evaluator)}
    given = _changed(evaluator, default)
    if entry.key != entry.name:
        given = {"as": entry.key, **given}
    return {"name": entry.name, **given} if given else entry.name


def _changed(evaluator: Any, default: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with other values than by default, as keys of an entry."""
    back = {new: old for old, new in _SPELLING.items()}
    return {
        back.get(name, name): _plain(value)
        for name, value in asdict(evaluator).items()
        if value != default[name]
    }


def _default(field: "Field[Any]") -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _plain(value: Any) -> Any:
    """Lists instead of tuples, as TOML reads them."""
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value
