"""A recipe: the table of a paper, read from a TOML file and checked.

A row is a method, a column a setting; a scale says how much of the table is run, and how long.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from coterie.core import paths, registry
from coterie.core.errors import ConfigError
from coterie.core.fields import Count, NonNegative, Positive, PositiveCount, PositiveShare
from coterie.core.formatting import quote
from coterie.experiment.schema import validate
from coterie.experiment.tables import read_toml

RECIPES = Path(__file__).parent.parent / "recipes"
Changes = dict[str, Any]  # "table.key" -> value
Grid = dict[str, tuple[Any, ...]]  # "table.key" -> the values to try
Target = PositiveShare | Literal["reference"]  # an accuracy, or the final one of the reference row
Choice = Literal["test", "holdout"]
ScaleName = Literal["paper", "laptop", "smoke"]
SCALES: tuple[ScaleName, ...] = ("paper", "laptop", "smoke")
Kind = Literal[
    "above", "not-above", "faster", "closer", "monotone", "peak", "gap-shrinks", "falls", "times"
]
_OF_TWO_ROWS = ("above", "not-above", "faster", "closer", "gap-shrinks", "times")
T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """How much of the table is run: a `[scale.NAME]` table."""

    seeds: PositiveCount = 1
    set: Changes = field(default_factory=dict)
    base: str = ""  # another setting at this scale
    columns: tuple[str, ...] = ()  # empty: all
    rows: tuple[str, ...] = ()
    target: Target | None = None  # of columns without one for this scale
    choose: Choice | None = None  # instead of the recipe's
    gpu: bool = False  # without a GPU no column is run
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class _Part:
    """The keys of both rows and columns."""

    set: Changes = field(default_factory=dict)
    set_paper: Changes = field(default_factory=dict)
    set_laptop: Changes = field(default_factory=dict)
    set_smoke: Changes = field(default_factory=dict)
    seeds_paper: PositiveCount | None = None  # a column's instead of the rows'
    seeds_laptop: PositiveCount | None = None
    seeds_smoke: PositiveCount | None = None
    metric: str = ""  # empty: for a row the column's, for a column the recipe's
    scales: tuple[ScaleName, ...] = SCALES


@dataclass(frozen=True)
class Column(_Part):
    """A setting: a `[[column]]` table."""

    name: str
    base: str = ""
    at: PositiveCount | None = None  # training rounds after which the value is read
    target: Target | None = None
    target_paper: Target | None = None
    target_laptop: Target | None = None
    target_smoke: Target | None = None
    gpu: bool = False
    gpu_paper: bool | None = None
    gpu_laptop: bool | None = None
    gpu_smoke: bool | None = None
    points_paper: PositiveCount | None = None  # of a row's grid that are tried, from the first
    points_laptop: PositiveCount | None = None
    points_smoke: PositiveCount | None = None


@dataclass(frozen=True)
class Row(_Part):
    """A method: a `[[row]]` table, with the numbers that the paper prints for it."""

    name: str
    config: str
    seeds: PositiveCount | None = None
    grid: Grid = field(default_factory=dict)
    grid_paper: Grid | None = None
    grid_laptop: Grid | None = None
    grid_smoke: Grid | None = None
    afresh: bool = False  # a column's `at` is the length of the run
    like: str = ""  # an earlier row, whose configuration it inherits
    value: dict[str, float] = field(default_factory=dict)
    spread: dict[str, NonNegative] = field(default_factory=dict)
    rounds: dict[str, int | float | str] = field(default_factory=dict)
    seconds: dict[str, Positive] = field(default_factory=dict)


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that can be tested: a `[[claim]]` table."""

    text: str
    above: str  # a row
    below: str = ""  # another row, where two are compared
    columns: tuple[str, ...] = ()  # empty: all that were run
    kind: Kind = "above"
    margin: NonNegative = 0.0  # as a fraction
    direction: Literal["up", "down"] = "up"
    at: str = ""  # the column in which the row peaks
    short: str = ""  # the text in a dozen words, where it has more


@dataclass(frozen=True)
class Features:
    """A picture of representations: the `[features]` table."""

    rows: tuple[str, ...]
    of: Literal["local", "global", "both"] = "local"  # models
    clients: tuple[Count, ...] = (0, 1)  # whose models, and of `local` whose images, are shown
    raw: bool = False  # of `global`: also the first client's images themselves
    samples: PositiveCount = 400  # images of each panel, at most
    samples_smoke: PositiveCount = 60


@dataclass(frozen=True)
class Cost:
    """How communication is counted: the `[cost]` table."""

    shape: tuple[PositiveCount, ...] = (3, 32, 32)  # of an image
    classes: PositiveCount = 10
    clients: PositiveCount = 10
    samples: PositiveCount = 5000  # of a client
    bits: PositiveCount = 32  # of a number
    code: PositiveCount = 1  # how often every bit is sent: 3 for a code of rate 1/3


@dataclass(frozen=True)
class Recipe:
    """A recipe file: its top-level keys, and its tables."""

    name: str
    source: str  # as the user named it
    paper: str
    about: str
    reference: str
    base: str
    covers: tuple[str, ...] = ()  # tables and figures, each as "Paper, Table 1"
    unit: Literal["fraction", "percent"] = "fraction"
    measure: Literal["accuracy", "time", "cost"] = "accuracy"
    metric: str = "accuracy"
    choose: Choice = "test"
    draw: tuple[str, ...] = ()  # metrics that are drawn row by row, beside the one that is read
    scales: Mapping[str, Scale] = field(default_factory=dict)
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    claims: tuple[Claim, ...] = ()
    features: Features | None = None
    cost: Cost = field(default_factory=Cost)

    def to_fraction(self, printed: float) -> float:
        """Convert an accuracy from the unit of the paper to a fraction."""
        return printed / 100 if self.unit == "percent" else printed


_KEYS = (
    *("paper", "about", "reference", "base", "covers", "unit", "measure", "metric", "choose"),
    "draw",
)
_TABLES = ("scale", "column", "row", "claim", "features", "cost")
# Tables that a row takes from the one it is like, its own keys laid over.
_INHERITED = [f.name for f in fields(Row) if f.name.startswith(("set", "grid"))]


def get_at_scale(part: Row | Column | Features, key: str, scale: str) -> Any:
    """Return what a table says of a scale (`seeds_smoke`), else of all scales (`seeds`), if any."""
    own = getattr(part, f"{key}_{scale}", None)
    return getattr(part, key, None) if own is None else own


def list_shipped() -> tuple[str, ...]:
    """List the names of the recipes that come with Coterie."""
    return tuple(sorted(path.stem for path in RECIPES.glob("*.toml")))


def load(source: str) -> Recipe:
    """Read a recipe, given its path or the name of a shipped one."""
    path = Path(source)
    if not paths.is_file(path):
        path = RECIPES / f"{source}.toml"
    if not paths.is_file(path):
        hint = registry.nearest(source, list_shipped()) or "; coterie list recipes shows them"
        raise ConfigError(f"there is no recipe {quote(source)}{hint}")
    tables = read_toml(path)
    try:
        return parse(tables, path.stem, source)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def parse(tables: Mapping[str, Any], name: str = "custom", source: str = "custom") -> Recipe:
    """Make a recipe of the tables of a file; every key is checked."""
    for key in tables:
        if key not in (*_KEYS, *_TABLES):
            known = registry.nearest(key, (*_KEYS, *_TABLES)) or f"; it takes: {', '.join(_KEYS)}"
            raise ConfigError(f"the recipe has no key {key!r}{known}")
    above = {key: value for key, value in tables.items() if key in _KEYS}
    keys = {"name": name, "source": source, **above}
    head: Recipe = validate("the recipe", "the recipe", Recipe, keys)
    scales = tables.get("scale")
    if not isinstance(scales, dict) or not scales:
        raise ConfigError("it has no scale; add e.g. [scale.smoke]")
    _check_known("scale", scales, SCALES)
    recipe = replace(
        head,
        scales={key: _read(Scale, f"scale.{key}", table) for key, table in scales.items()},
        columns=_read_array(Column, tables, "column") or (Column("accuracy"),),
        rows=_read_array(Row, {"row": _inherit(tables.get("row", []))}, "row"),
        claims=_read_array(Claim, tables, "claim"),
        features=_read(Features, "features", tables["features"]) if "features" in tables else None,
        cost=_read(Cost, "cost", tables.get("cost", {})),
    )
    _check(recipe)
    return recipe


def _inherit(rows: Any) -> Any:
    """Fill in what rows with the key `like` take from the row they name."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        return rows  # `_read_array` says what is wrong
    by_name: dict[str, dict[str, Any]] = {}
    filled = []
    for table in rows:
        row = dict(table)
        if "like" in row:
            _check_known(f"{_title('row', row)}: like", [row["like"]], by_name)
            model = by_name[row["like"]]
            for key in ("config", *_INHERITED):
                if key in model and isinstance(row.get(key), dict):
                    row[key] = {**model[key], **row[key]}
                elif key in model:
                    row.setdefault(key, model[key])
        filled.append(row)
        by_name[str(row.get("name"))] = row
    return filled


def _read_array(kind: type[T], tables: Mapping[str, Any], key: str) -> tuple[T, ...]:
    """Read every table of an array of tables."""
    array = tables.get(key, [])
    if not isinstance(array, list):
        raise ConfigError(f"{key} must be written [[{key}]]")
    return tuple(_read(kind, _title(key, table), table) for table in array)


def _title(key: str, table: Any) -> str:
    named = table.get("name", table.get("text", "")) if isinstance(table, dict) else ""
    return f"{key} {named!r}" if named else key


def _read(kind: type[T], title: str, values: Any) -> T:
    if not isinstance(values, dict):
        raise ConfigError(f"{title} must be a table")
    table: T = validate(title, title, kind, values)
    return table


def _check(recipe: Recipe) -> None:
    """Check the tables against each other."""
    rows = [row.name for row in recipe.rows]
    columns = [column.name for column in recipe.columns]
    for kind, names in (("row", rows), ("column", columns)):
        for name, count in Counter(names).items():
            if count > 1:
                raise ConfigError(f"there are {count} {kind}s called {name!r}")
    if not rows:
        raise ConfigError("it has no row; add [[row]]")
    _check_known("reference", [recipe.reference], rows)
    for name, scale in recipe.scales.items():
        _check_known(f"scale.{name}.rows", scale.rows, rows)
        _check_known(f"scale.{name}.columns", scale.columns, columns)
        if scale.rows and recipe.reference not in scale.rows:
            raise ConfigError(f"scale.{name}.rows lacks the reference {recipe.reference!r}")
    for row in recipe.rows:
        _check_row(recipe, row, columns)
    for claim in recipe.claims:
        _check_claim(claim, rows, columns)
    _check_known("features.rows", recipe.features.rows if recipe.features else (), rows)


def _check_row(recipe: Recipe, row: Row, columns: Sequence[str]) -> None:
    title = f"row {row.name!r}"
    for key in ("value", "spread", "rounds", "seconds"):
        _check_known(f"{title}: {key}", getattr(row, key), columns)
    for column, printed in (*row.value.items(), *row.spread.items()):
        if recipe.measure == "accuracy" and not 0.0 <= recipe.to_fraction(printed) <= 1.0:
            raise ConfigError(f"{title}: {printed} of {column!r} is no accuracy as a {recipe.unit}")
    for grid in (row.grid, *(get_at_scale(row, "grid", scale) for scale in SCALES)):
        for key, values in grid.items():
            if not values:
                raise ConfigError(f"{title}: grid of {key!r} has no value")
            if any(values.count(value) > 1 for value in values):
                raise ConfigError(f"{title}: grid of {key!r} has a value twice")


def _check_claim(claim: Claim, rows: Sequence[str], columns: Sequence[str]) -> None:
    title = f"claim {claim.text!r}"
    if claim.kind in _OF_TWO_ROWS and not claim.below:
        raise ConfigError(f"{title} of kind {claim.kind!r} needs the key 'below'")
    if claim.kind == "closer" and claim.margin == 0:
        raise ConfigError(f"{title} of kind 'closer' needs a 'margin' above 0")
    _check_known(f"{title}: above", [claim.above], rows)
    _check_known(f"{title}: columns", claim.columns, columns)
    _check_known(f"{title}: below", [claim.below] if claim.kind in _OF_TWO_ROWS else [], rows)
    _check_known(f"{title}: at", [claim.at] if claim.kind == "peak" else [], columns)


def _check_known(key: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        registry.check_known(key, name, known)
