"""Plans what a recipe runs at a scale: cells of row and column, each with its configurations."""

import itertools
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.core.settings import WITHOUT_EFFECT
from coterie.data.datasets import is_installed
from coterie.experiment import config as configuration
from coterie.experiment.tables import Tables, by_table, data_name, shipped, tables_of
from coterie.report.page import marks_end
from coterie.reproduce.recipe import Column, Grid, Recipe, Row, Scale, Target, get_at_scale

_FLOAT32 = {"net": {"precision": "fp32"}}  # so that runs of several machines can be compared
HELD = 0.1  # the share of the training samples that is set aside to choose the point of a grid
_SHORT = 12


@dataclass(frozen=True)
class Point:
    """One choice of a grid; a row without a grid has one point without a name."""

    name: str
    setting: str
    overrides: Tables


@dataclass(frozen=True)
class Cell:
    """A row in a column: one point, or several of which one is chosen, over some seeds."""

    row: Row
    column: Column
    points: tuple[Point, ...]
    seeds: int
    metric: str = "accuracy"
    chosen_by: str = "accuracy"  # the metric by which a point is chosen
    asked: bool = True  # False: it is not run, only what is finished of it is shown

    @property
    def name(self) -> str:
        """Row and column, for people."""
        return f"{self.row.name}, {self.column.name}"


@dataclass(frozen=True)
class Study:
    """A recipe at a scale: the cells to be run."""

    recipe: Recipe
    scale: str
    cells: tuple[Cell, ...]
    left_out: Sequence[str] = ()  # why columns are not run here, in sentences
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    seeds: int | None = None  # of all rows, where the user asked for a number
    asked: Mapping[str, Sequence[str]] = field(default_factory=dict)  # the user's rows and columns
    root: str = ""  # of the data, where the user named it
    grids: bool = True  # False: nothing is tuned, every row has its own setting
    first: int = 0  # the seed that is run first
    _configs: dict[tuple[str, str, str, int], configuration.Config] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of the folder that its outcome is written to."""
        return f"{self.recipe.name}-{self.scale}"

    @property
    def title(self) -> str:
        """The title of its pages."""
        return f"{self.recipe.name}, {self.scale} scale"

    @property
    def command(self) -> str:
        """The command that runs it, without the folder."""
        arguments = ["coterie reproduce", self.recipe.source]
        arguments += [shlex.quote(f"data.root={self.root}")] if self.root else []
        arguments += ["--scale", self.scale]
        arguments += ["--seeds", str(self.seeds)] if self.seeds else []
        arguments += ["--first-seed", str(self.first)] if self.first else []
        arguments += [] if self.grids else ["--no-grids"]
        for key, names in self.asked.items():
            arguments += [f"--{key}", f"'{','.join(names)}'"]
        return " ".join(arguments)

    @property
    def total(self) -> int:
        """The number of runs: all points of a grid on the first seed, then the chosen one."""
        return sum(len(cell.points) + cell.seeds - 1 for cell in self.cells)

    def metric(self, column: Column) -> str:
        """The metric of a column; where rows have different ones, all of them."""
        return " / ".join({cell.metric: None for cell in self.cells if cell.column is column})

    def cell(self, row: str, column: str) -> Cell | None:
        """Find the cell of a row and a column; None where it is not in the study."""
        return next((c for c in self.cells if (c.row.name, c.column.name) == (row, column)), None)

    def config(self, cell: Cell, point: Point, seed: int) -> configuration.Config:
        """Resolve a configuration, once; seeds are counted from 0, which is the setting's own."""
        key = (cell.row.name, cell.column.name, point.name, seed)
        if key not in self._configs:
            source = cell.row.config, point.setting, point.overrides
            try:
                self._configs[key] = configuration.method_config(*source, seed)
            except ConfigError as error:
                raise ConfigError(f"{self.recipe.source}: {cell.name}: {error}") from error
        return self._configs[key]


def locate_run(out: Path, config: configuration.Config) -> Path:
    """Return the folder of a configuration's run, the same for all recipes: none is run twice."""
    method = re.sub(r"[^A-Za-z0-9.-]+", "-", config.tables["method"]["name"])
    return out / "cells" / f"{method}-{config.hash()[:_SHORT]}"


def is_finished(folder: Path) -> bool:
    """Return whether a folder holds a finished run: its report is written last."""
    return marks_end(folder)


def make_study(
    recipe: Recipe,
    scale: str,
    gpu: bool | None = None,
    seeds: int | None = None,
    root: str = "",
    grids: bool = True,
    first: int = 0,
) -> Study:
    """Plan every cell of a recipe at a scale; each is resolved once, so that errors show now.

    `gpu` says whether there is one; by default torch is asked. `seeds` is for all rows, `root` is
    the folder of the data in all cells whose data are not installed with Coterie. Without `grids`
    every row has the values of its configuration where it would try others, but in a column that
    has one point anyway; all else stays, so that runs are shared with a study that has grids.
    Seeds are counted from `first` on: with 1 the second seed is run alone.
    """
    gpu = torch.cuda.is_available() if gpu is None else gpu
    registry.check_known(f"{recipe.source}: scale", scale, recipe.scales)
    settings = recipe.scales[scale]
    rows = [r for r in recipe.rows if scale in r.scales and r.name in (settings.rows or [r.name])]
    wanted = [
        c for c in recipe.columns if scale in c.scales and c.name in (settings.columns or [c.name])
    ]
    columns = [c for c in wanted if gpu or not (get_at_scale(c, "gpu", scale) or settings.gpu)]
    left_out = [f"{c.name} is left out: it needs a GPU" for c in wanted if c not in columns]
    columns = [replace(column, target=_find_target(settings, column, scale)) for column in columns]
    common = _merge(_FLOAT32, by_table(settings.set))
    if root:
        common = _merge(common, {"data": {"root": root}})
    held_out = (settings.choose or recipe.choose) == "holdout"
    if held_out:  # in all cells, so that all rows train on the same data
        common = _merge({"data": {"holdout": HELD}}, common)
    cells = []
    for column, row in itertools.product(columns, rows):
        grid = _find_grid(row, column, scale, grids)
        points = tuple(_list_points(recipe, settings, scale, row, column, common, grid))
        own = get_at_scale(column, "seeds", scale) or get_at_scale(row, "seeds", scale)
        metric = row.metric or column.metric or recipe.metric
        by = f"holdout_{metric}" if held_out else metric
        cells.append(Cell(row, column, points, seeds or own or settings.seeds, metric, by))
    study = Study(
        recipe,
        scale,
        tuple(cells),
        left_out,
        tuple(columns),
        tuple(rows),
        seeds,
        root=root,
        grids=grids,
        first=first,
    )
    for cell in cells:
        for point in cell.points:
            _check(study, cell, study.config(cell, point, 0))
    return study


def _find_target(settings: Scale, column: Column, scale: str) -> Target | None:
    """Find a column's target: its own at this scale, else the scale's, else its own."""
    own: Target | None = getattr(column, f"target_{scale}")
    if own is None:
        own = settings.target
    return column.target if own is None else own


def _check(study: Study, cell: Cell, config: configuration.Config) -> None:
    """Refuse what would otherwise only show after the run."""
    at, rounds, features = cell.column.at, config.run.rounds, study.recipe.features
    source, clients = study.recipe.source, config.tables["partition"].get("clients")
    if at is not None and at > rounds:
        raise ConfigError(f"{source}: {cell.name}: at = {at} is beyond its {rounds} rounds")
    last = max(features.clients) if features else -1
    if clients is not None and last >= clients:
        there = f"there are {clients} clients, counted from 0"
        raise ConfigError(f"{source}: features.clients = {last}, but {there}")


def _find_grid(row: Row, column: Column, scale: str, grids: bool) -> Grid:
    """Find what a row tries in a column: nothing where grids are not wanted.

    A column that tries the first point alone tunes nothing: its rows have that point either way.
    """
    tuned = get_at_scale(column, "points", scale) != 1
    grid: Grid = {} if tuned and not grids else get_at_scale(row, "grid", scale)
    return grid


def _list_points(
    recipe: Recipe,
    settings: Scale,
    scale: str,
    row: Row,
    column: Column,
    common: Tables,
    grid: Grid,
) -> Iterator[Point]:
    """Lay over each other: column, row, scale, then what column and row say of this scale."""
    changes = [by_table(column.set), by_table(row.set), common]
    changes += [by_table(getattr(part, f"set_{scale}")) for part in (column, row)]
    if row.afresh and column.at is not None:
        changes.append({"run": {"rounds": column.at}})
    setting = settings.base or column.base or recipe.base
    tried = get_at_scale(column, "points", scale)
    for values in itertools.islice(itertools.product(*grid.values()), tried):
        choice = dict(zip(grid, values, strict=True))
        overrides = _merge(*changes, by_table(choice))
        if is_installed(data_name(tables_of(setting), overrides)):
            overrides.get("data", {}).pop("root", None)  # it is for other columns and scales
        yield Point(_format_changes(choice), setting, overrides)


def _merge(*layers: Mapping[str, Mapping[str, Any]]) -> Tables:
    """Lay tables over each other, later ones on top."""
    merged: Tables = {}
    for layer in layers:
        for name, table in layer.items():
            merged.setdefault(name, {}).update(table)
    return merged


def _format_changes(changes: Mapping[str, Any]) -> str:
    values = {key: f"{v:g}" if isinstance(v, float) else str(v) for key, v in changes.items()}
    return ", ".join(f"{key} = {value}" for key, value in values.items())


def select(study: Study, rows: Iterable[str], columns: Iterable[str], out: Path) -> Study:
    """Restrict a study to some rows and columns; the reference row stays, and empty means all.

    Other cells are kept, without being run, where `out` holds their runs on the first seed.
    """
    texts = {"rows": tuple(rows), "columns": tuple(columns)}
    if not any(texts.values()):
        return study
    asked = {key: _find_names(study, key, options) for key, options in texts.items()}
    wanted = [*asked["rows"], study.recipe.reference]
    cells = []
    for cell in study.cells:
        chosen = not asked["rows"] or cell.row.name in wanted
        if chosen and cell.column.name in (asked["columns"] or [cell.column.name]):
            cells.append(cell)
        elif seeds := _count_finished_seeds(study, cell, out):
            cells.append(replace(cell, seeds=seeds, asked=False))
    return replace(
        study,
        cells=tuple(cells),
        rows=tuple(r for r in study.rows if any(cell.row is r for cell in cells)),
        columns=tuple(c for c in study.columns if any(cell.column is c for cell in cells)),
        asked={key: names for key, names in asked.items() if names},
    )


def _count_finished_seeds(study: Study, cell: Cell, out: Path) -> int:
    """Count seeds that are finished: all points on the first, at least one on each other."""

    def finished(seed: int) -> list[bool]:
        configs = (study.config(cell, point, seed) for point in cell.points)
        return [is_finished(locate_run(out, config)) for config in configs]

    first = study.first
    if not all(finished(first)):
        return 0
    others = range(1, cell.seeds)
    return next((n for n in others if not any(finished(first + n))), cell.seeds)


def _find_names(study: Study, key: str, texts: Iterable[str]) -> tuple[str, ...]:
    """Read the names in an option's texts, each of which may hold several; in table order."""
    planned = [part.name for part in getattr(study, key)]
    existing = [part.name for part in getattr(study.recipe, key)]
    names = {name for text in texts for name in _split_names(text, existing)}
    for name in sorted(names - set(planned)):
        there = f"; there are: {', '.join(planned)}"
        problem = f"is not known{registry.nearest(name, existing) or there}"
        if name in existing:
            problem = f"is not run here at the {study.scale} scale{there}"
        raise ConfigError(f"--{key}: {name!r} {problem}")
    return tuple(name for name in planned if name in names)


def _split_names(text: str, existing: Sequence[str]) -> list[str]:
    """Split names at commas, but not inside an existing name that has one."""
    parts = [part.strip() for part in text.split(",")]
    names = []
    while parts:
        lengths = (n for n in range(len(parts), 0, -1) if ", ".join(parts[:n]) in existing)
        length = next(lengths, 1)
        names.append(", ".join(parts[:length]))
        del parts[:length]
    return names


def describe_changes(study: Study) -> Iterator[str]:
    """Say what differs from the shipped configurations: in all cells, by column, by row."""
    rest = {(cell.row.name, cell.column.name): _find_changes(study, cell) for cell in study.cells}
    groups = [("everywhere", list(rest))]
    groups += [(column.name, [k for k in rest if k[1] == column.name]) for column in study.columns]
    groups += [(row.name, [k for k in rest if k[0] == row.name]) for row in study.rows]
    groups += [(", ".join(key), [key]) for key in rest]
    for name, keys in groups:
        first, *others = [rest[key] for key in keys] or [{}]
        common = {k: v for k, v in first.items() if all(k in c and c[k] == v for c in others)}
        if common:
            yield f"{name}: {_format_changes(common)}"
        for key in keys:
            rest[key] = {k: v for k, v in rest[key].items() if k not in common}


def _find_changes(study: Study, cell: Cell) -> dict[str, Any]:
    """Compare a cell's configuration with the shipped one it is nearest to, but for its grid."""
    config = study.config(cell, cell.points[0], 0)
    named = f"{config.data.name}/{cell.row.config}"
    source = named if named in shipped() else cell.points[0].setting
    base = configuration.load(source, _merge(_FLOAT32, _permissions(config, source))).tables
    grid = _find_grid(cell.row, cell.column, study.scale, study.grids)
    return {
        f"{table}.{key}": value
        for table, values in config.tables.items()
        for key, value in values.items()
        if table not in WITHOUT_EFFECT and f"{table}.{key}" not in grid
        if key not in base[table] or base[table][key] != value
    }


def _permissions(config: configuration.Config, source: str) -> Tables:
    """The user's consent to what may be shared, without which the shipped file is refused."""
    method = config.tables["method"]
    if tables_of(source).get("method", {}).get("name") != method["name"]:
        return {}
    return {"method": {key: value for key, value in method.items() if key.startswith("share_")}}
