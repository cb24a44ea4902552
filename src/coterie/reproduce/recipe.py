"""A recipe: the table of a paper as rows and columns, read from a TOML file.

A row is a method, a column a setting; a scale says how much of it is run, and how long.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.fields import Count, NonNegative, Positive, PositiveCount, PositiveShare
from coterie.experiment.tables import validate

RECIPES = Path(__file__).parent.parent / "recipes"
Changes = dict[str, Any]  # "table.key" -> value
Grid = dict[str, tuple[Any, ...]]  # "table.key" -> the values to try
Target = PositiveShare | Literal["reference"]  # an accuracy, or the final one of the reference row
Choice = Literal["test", "holdout"]
ScaleName = Literal["paper", "laptop", "smoke"]
SCALES: tuple[ScaleName, ...] = ("paper", "laptop", "smoke")
Measure = Literal["accuracy", "time", "cost"]
Kind = Literal[
    "above", "not-above", "faster", "closer", "monotone", "peak", "gap-shrinks", "falls", "times"
]
_OF_TWO = (
    "above",
    "not-above",
    "faster",
    "closer",
    "gap-shrinks",
    "times",
)  # kinds that compare rows
T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """How much of the table is run: a `[scale.NAME]` table."""

    seeds: PositiveCount = 1
    set: Changes = field(default_factory=dict)
    base: str = ""  # another setting at this scale
    columns: tuple[str, ...] = ()  # empty: all
    rows: tuple[str, ...] = ()
    target: Target | None = None  # of every column, in the place of their own
    choose: Choice | None = None  # in the place of the recipe's
    gpu: bool = False  # without a GPU no column is run
    note: str = ""


@dataclass(frozen=True)
class Column:
    """A setting: a `[[column]]` table."""

    name: str
    base: str = ""
    set: Changes = field(default_factory=dict)
    set_paper: Changes = field(default_factory=dict)
    set_laptop: Changes = field(default_factory=dict)
    set_smoke: Changes = field(default_factory=dict)
    at: PositiveCount | None = None  # training rounds after which the value is read
    seeds_paper: PositiveCount | None = None  # in the place of its rows' numbers
    seeds_laptop: PositiveCount | None = None
    seeds_smoke: PositiveCount | None = None
    target: Target | None = None
    metric: str = ""  # what is read, where it is not the recipe's
    gpu: bool = False
    scales: tuple[ScaleName, ...] = SCALES


@dataclass(frozen=True)
class Row:
    """A method: a `[[row]]` table, with the numbers that the paper prints for it."""

    name: str
    config: str
    set: Changes = field(default_factory=dict)
    set_paper: Changes = field(default_factory=dict)
    set_laptop: Changes = field(default_factory=dict)
    set_smoke: Changes = field(default_factory=dict)
    seeds: PositiveCount | None = None
    seeds_paper: PositiveCount | None = None
    seeds_laptop: PositiveCount | None = None
    seeds_smoke: PositiveCount | None = None
    grid: Grid = field(default_factory=dict)
    grid_paper: Grid | None = None
    grid_laptop: Grid | None = None
    grid_smoke: Grid | None = None
    afresh: bool = False  # a column's `at` is the length of the run
    metric: str = ""  # what is read, where it is not the column's
    like: str = ""  # a row before it, whose configuration it has but for its own changes
    value: dict[str, float] = field(default_factory=dict)
    spread: dict[str, NonNegative] = field(default_factory=dict)
    rounds: dict[str, int | float | str] = field(default_factory=dict)
    seconds: dict[str, Positive] = field(default_factory=dict)
    scales: tuple[ScaleName, ...] = SCALES

    def count(self, scale: str, usual: int) -> int:
        """The number of its seeds at a scale; `usual` is that of the scale."""
        own: int | None = getattr(self, f"seeds_{scale}")
        return own or self.seeds or usual

    def tried(self, scale: str) -> Grid:
        """The grid at a scale."""
        own: Grid | None = getattr(self, f"grid_{scale}")
        return self.grid if own is None else own


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that can be tested: a `[[claim]]` table."""

    text: str
    above: str  # a row
    below: str = ""  # another row, where two are compared
    columns: tuple[str, ...] = ()  # empty: all that were run
    kind: Kind = "above"
    margin: NonNegative = 0.0  # as a fraction
    direction: Literal["up", "down"] = "up"
    at: str = ""  # the column in which the row peaks


@dataclass(frozen=True)
class Features:
    """A picture of representations: the `[features]` table."""

    rows: tuple[str, ...]
    of: Literal["local", "global"] = "local"  # models
    clients: tuple[Count, ...] = (0, 1)  # whose models and images are shown
    raw: bool = False  # of `global`: also the first client's images as they are
    samples: PositiveCount = 400  # images of each panel, at most
    samples_smoke: PositiveCount = 60

    def count(self, scale: str) -> int:
        """The number of images of a panel at a scale."""
        return self.samples_smoke if scale == "smoke" else self.samples


@dataclass(frozen=True)
class Cost:
    """How communication is counted: the `[cost]` table."""

    shape: tuple[PositiveCount, ...] = (3, 32, 32)  # of an image
    classes: PositiveCount = 10
    clients: PositiveCount = 10
    samples: PositiveCount = 5000  # of a client
    bits: PositiveCount = 32  # of a number
    code: PositiveCount = 1  # how often every bit is sent: 3 for a code of rate 1/3

    @property
    def sent(self) -> int:
        """Bits that are sent for a number."""
        return self.bits * self.code


@dataclass(frozen=True)
class Recipe:
    """The whole file."""

    name: str
    source: str  # how it is named on the command line
    paper: str
    about: str
    reference: str
    base: str
    unit: Literal["fraction", "percent"] = "fraction"
    measure: Measure = "accuracy"
    metric: str = "accuracy"
    choose: Choice = "test"
    scales: Mapping[str, Scale] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    claims: tuple[Claim, ...] = ()
    features: Features | None = None
    cost: Cost = field(default_factory=Cost)

    def row(self, name: str) -> Row:
        """The row of a name."""
        return next(row for row in self.rows if row.name == name)

    def fraction(self, printed: float) -> float:
        """A number of the paper as a fraction."""
        return printed / 100 if self.unit == "percent" else printed


@dataclass(frozen=True)
class _Head:
    """What stands above the tables of a recipe."""

    paper: str
    about: str
    reference: str
    base: str
    unit: Literal["fraction", "percent"] = "fraction"
    measure: Measure = "accuracy"
    metric: str = "accuracy"
    choose: Choice = "test"


def shipped() -> tuple[str, ...]:
    """The names of the recipes that come with Coterie."""
    return tuple(sorted(path.stem for path in RECIPES.glob("*.toml")))


def load(source: str) -> Recipe:
    """A recipe by path or shipped name."""
    path = Path(source)
    if not path.is_file():
        path = RECIPES / f"{source}.toml"
    if not path.is_file():
        hint = registry.nearest(source, shipped()) or "; coterie list recipes shows them"
        raise ConfigError(f"there is no recipe {source!r}{hint}")
    try:
        tables = tomllib.loads(path.read_text())
    except ValueError as error:  # no TOML, no UTF-8
        raise ConfigError(f"{path} is not TOML: {error}") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return parse(tables, path.stem, source)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(tables: Mapping[str, Any], name: str = "custom", source: str = "custom") -> Recipe:
    """The recipe that the tables of a file say, every key checked."""
    tables = {**tables, "row": _likened(tables.get("row", []))}
    above = {key: value for key, value in tables.items() if key not in _TABLES}
    head: _Head = _read(_Head, "the recipe", above, extra=_TABLES)
    recipe = Recipe(
        name,
        source,
        **{item.name: getattr(head, item.name) for item in fields(_Head)},
        scales={
            _known("scale", key, SCALES): _read(Scale, f"scale.{key}", table)
            for key, table in _table(tables, "scale").items()
        },
        columns=_all(Column, tables, "column") or (Column("accuracy"),),
        rows=_all(Row, tables, "row"),
        claims=_all(Claim, tables, "claim"),
        features=_read(Features, "features", tables["features"]) if "features" in tables else None,
        cost=_read(Cost, "cost", tables.get("cost", {})),
    )
    _check(recipe)
    return recipe


_TABLES = ("scale", "column", "row", "claim", "features", "cost")
_TAKEN = (  # what a row takes from the one it is like, its own keys laid over
    *("set", "set_paper", "set_laptop", "set_smoke"),
    *("grid", "grid_paper", "grid_laptop", "grid_smoke"),
)


def _likened(rows: Any) -> Any:
    """The rows, with what those that are like another take from it."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return rows  # said later
    found: dict[str, dict[str, Any]] = {}
    whole = []
    for row in rows:
        if "like" in row:
            other = found[_known(f"{_title('row', row)}: like", row["like"], list(found))]
            taken = {key: other[key] for key in ("config", *_TAKEN) if key in other}
            laid = {
                key: {**taken[key], **value}
                for key, value in row.items()
                if key in _TAKEN and key in taken and isinstance(value, dict)
            }
            row = {**taken, **row, **laid}
        whole.append(row)
        found[str(row.get("name"))] = row
    return whole


def _table(tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = tables.get(key, {})
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"it has no scale; add e.g. [{key}.smoke]")
    return found


def _all(kind: type[T], tables: Mapping[str, Any], key: str) -> tuple[T, ...]:
    """Every table of an array of tables."""
    found = tables.get(key, [])
    if not isinstance(found, list):
        raise ConfigError(f"{key} must be written [[{key}]]")
    return tuple(_read(kind, _title(key, table), table) for table in found)


def _title(key: str, table: Any) -> str:
    named = table.get("name", table.get("text", "")) if isinstance(table, dict) else ""
    return f"{key} {named!r}" if named else key


def _read(kind: type[T], title: str, values: Any, extra: Sequence[str] = ()) -> T:
    if not isinstance(values, dict):
        raise ConfigError(f"{title} must be a table")
    known = [item.name for item in fields(kind)]  # type: ignore[arg-type]
    for key in values:  # here, so that the tables of the file are among the spellings
        if key not in known:
            hint = registry.nearest(key, [*known, *extra])
            raise ConfigError(f"{title} has no key {key!r}{hint or f'; it takes: {_list(known)}'}")
    found: T = validate(title, title, kind, values)
    return found


def _check(recipe: Recipe) -> None:
    """What the tables say of each other."""
    rows = _unique("row", [row.name for row in recipe.rows])
    columns = _unique("column", [column.name for column in recipe.columns])
    if not rows:
        raise ConfigError("it has no row; add [[row]]")
    _known("reference", recipe.reference, rows)
    for name, scale in recipe.scales.items():
        for named in scale.rows:
            _known(f"scale.{name}.rows", named, rows)
        if scale.rows and recipe.reference not in scale.rows:
            raise ConfigError(f"scale.{name}.rows lacks the reference {recipe.reference!r}")
        for named in scale.columns:
            _known(f"scale.{name}.columns", named, columns)
    for row in recipe.rows:
        top = 1.0 if recipe.unit == "fraction" else 100.0
        for column, printed in {**row.value, **row.spread}.items():
            if recipe.measure == "accuracy" and not 0.0 <= printed <= top:
                raise ConfigError(
                    f"row {row.name!r}: {printed} of {column!r} is no accuracy as a {recipe.unit}"
                )
        for key in ("value", "spread", "rounds", "seconds"):
            for column in getattr(row, key):
                _known(f"row {row.name!r}: {key}", column, columns)
        for grid in (row.grid, *(row.tried(scale) for scale in SCALES)):
            for key, values in grid.items():
                if not values:
                    raise ConfigError(f"row {row.name!r}: grid of {key!r} has no value")
                if any(values.count(value) > 1 for value in values):
                    raise ConfigError(f"row {row.name!r}: grid of {key!r} has a value twice")
    for claim in recipe.claims:
        _check_claim(claim, rows, columns)
    for named in recipe.features.rows if recipe.features else ():
        _known("features.rows", named, rows)


def _check_claim(claim: Claim, rows: Sequence[str], columns: Sequence[str]) -> None:
    title = f"claim {claim.text!r}"
    _known(f"{title}: above", claim.above, rows)
    for column in claim.columns:
        _known(f"{title}: columns", column, columns)
    if claim.kind in _OF_TWO:
        if not claim.below:
            raise ConfigError(f"{title} of kind {claim.kind!r} needs the key 'below'")
        _known(f"{title}: below", claim.below, rows)
    if claim.kind == "peak":
        _known(f"{title}: at", claim.at, columns)
    if claim.kind == "closer" and claim.margin == 0:
        raise ConfigError(f"{title} of kind 'closer' needs a 'margin' above 0")


def _unique(what: str, names: Sequence[str]) -> Sequence[str]:
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"there are {names.count(name)} {what}s called {name!r}")
    return names


def _known(what: str, name: str, names: Sequence[str]) -> str:
    if name not in names:
        hint = registry.nearest(name, names) or f"; there are: {_list(names)}"
        raise ConfigError(f"{what} = {name!r} is not known{hint}")
    return name


def _list(names: Iterable[str]) -> str:
    return ", ".join(names)
