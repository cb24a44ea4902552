"""What a recipe asks to be run at a scale: cells of row and column, with their configurations."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.experiment import config as configuration
from coterie.experiment import tables
from coterie.experiment.config import Config
from coterie.experiment.tables import Tables
from coterie.reproduce.recipe import Column, Recipe, Row, Scale

HELD = 0.1  # the share of the training samples that is set aside to choose the cell of a grid
_SHORT = 12


@dataclass(frozen=True)
class Point:
    """One choice of a grid; a row without a grid has one point without a name."""

    name: str
    setting: str
    method: str
    overrides: Tables

    def config(self, number: int) -> Config:
        """Its configuration on the seed of a given number."""
        return configuration.method_config(self.method, self.setting, self.overrides, number)


@dataclass(frozen=True)
class Cell:
    """A row in a column: one point, or several of which one is chosen, over some seeds."""

    row: Row
    column: Column
    points: tuple[Point, ...]
    seeds: int
    metric: str = "accuracy"
    chosen_by: str = "accuracy"  # the metric by which a point is chosen
    asked: bool = True  # False: only what is finished of it is shown

    @property
    def name(self) -> str:
        """In words."""
        return f"{self.row.name}, {self.column.name}"


@dataclass(frozen=True)
class Plan:
    """A recipe at a scale."""

    recipe: Recipe
    scale: str
    cells: tuple[Cell, ...]
    left_out: Sequence[str] = ()  # why columns are not run here, in sentences
    columns: tuple[Column, ...] = ()
    rows: tuple[Row, ...] = ()
    seeds: int | None = None  # of all rows, where the recipe's own numbers were not asked for
    asked: Mapping[str, Sequence[str]] = field(default_factory=dict)  # some rows, some columns
    _configs: dict[tuple[int, str, int], Config] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """The name of the folder of its outcome."""
        return f"{self.recipe.name}-{self.scale}"

    @property
    def note(self) -> str:
        """What the recipe says about the scale."""
        return self.recipe.scales[self.scale].note

    def metric(self, column: Column) -> str:
        """What is read in a column, in words: rows may differ."""
        found = {cell.metric: None for cell in self.cells if cell.column is column}
        return " / ".join(found)

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell of a row and a column, where it is run."""
        for cell in self.cells:
            if (cell.row.name, cell.column.name) == (row, column):
                return cell
        return None

    def config(self, cell: Cell, point: Point, number: int) -> Config:
        """A configuration, resolved once."""
        key = (id(cell), point.name, number)
        if key not in self._configs:
            try:
                self._configs[key] = point.config(number)
            except ConfigError as error:
                raise ConfigError(f"{self.recipe.source}: {cell.name}: {error}") from error
        return self._configs[key]


def run_folder(out: Path, config: Config) -> Path:
    """Where a configuration is run: one place for all recipes, so that none is run twice."""
    method = re.sub(r"[^A-Za-z0-9.-]+", "-", config.tables["method"]["name"])
    return out / "cells" / f"{method}-{config.hash()[:_SHORT]}"


def make(recipe: Recipe, name: str, gpu: bool | None = None, seeds: int | None = None) -> Plan:
    """Every cell of a recipe at a scale, each of them resolved once.

    `gpu` says whether there is one; by default torch is asked. `seeds` is for all rows.
    """
    gpu = torch.cuda.is_available() if gpu is None else gpu
    if name not in recipe.scales:
        known = list(recipe.scales)
        hint = registry.nearest(name, known) or f"; there are: {', '.join(known)}"
        raise ConfigError(f"{recipe.source} has no scale {name!r}{hint}")
    scale = recipe.scales[name]
    rows = [r for r in recipe.rows if name in r.scales and r.name in (scale.rows or [r.name])]
    wanted = [
        c for c in recipe.columns if name in c.scales and c.name in (scale.columns or [c.name])
    ]
    columns = [c for c in wanted if gpu or not (c.gpu or scale.gpu)]
    left_out = [f"{c.name} is left out: it needs a GPU" for c in wanted if c not in columns]
    if scale.target is not None:
        columns = [replace(column, target=scale.target) for column in columns]
    common = tables.by_table(scale.set)
    if _choice(recipe, name) == "holdout":  # in all cells, so that all rows train on the same data
        common = _merged({"data": {"holdout": HELD}}, common)
    cells = tuple(
        Cell(
            row,
            column,
            tuple(_points(recipe, scale, name, row, column, common)),
            seeds or getattr(column, f"seeds_{name}") or row.count(name, scale.seeds),
            metric := row.metric or column.metric or recipe.metric,
            f"holdout_{metric}" if _choice(recipe, name) == "holdout" else metric,
        )
        for column in columns
        for row in rows
    )
    plan = Plan(recipe, name, cells, left_out, tuple(columns), tuple(rows), seeds)
    for cell in cells:
        for point in cell.points:
            _check(plan, cell, plan.config(cell, point, 0))
    return plan


def _check(plan: Plan, cell: Cell, config: Config) -> None:
    """What would only show after the run."""
    at, rounds, features = cell.column.at, config.run.rounds, plan.recipe.features
    if at is not None and at > rounds:
        raise ConfigError(
            f"{plan.recipe.source}: {cell.name}: at = {at} is beyond its {rounds} rounds"
        )
    clients = config.tables["partition"].get("clients")
    if features is not None and clients is not None and max(features.clients) >= clients:
        raise ConfigError(
            f"{plan.recipe.source}: features.clients = {max(features.clients)}, but there are "
            f"{clients} clients, counted from 0"
        )


def _points(
    recipe: Recipe, scale: Scale, name: str, row: Row, column: Column, common: Tables
) -> Iterator[Point]:
    """What column and row say in general, then what scale, column and row say of the scale."""
    by_table = tables.by_table
    changes = [by_table(column.set), by_table(row.set), common]
    changes += [by_table(getattr(one, f"set_{name}")) for one in (column, row)]
    if row.afresh and column.at is not None:
        changes.append({"run": {"rounds": column.at}})
    setting = scale.base or column.base or recipe.base
    grid = row.tried(name)
    for values in itertools.product(*grid.values()):
        tried = dict(zip(grid, values, strict=True))
        words = ", ".join(f"{key} = {plain(value)}" for key, value in tried.items())
        yield Point(words, setting, row.config, _merged(*changes, by_table(tried)))


def _choice(recipe: Recipe, scale: str) -> str:
    return recipe.scales[scale].choose or recipe.choose


def plain(value: Any) -> str:
    """A value of a configuration in words."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _merged(*tables: Mapping[str, Mapping[str, Any]]) -> Tables:
    """Tables laid over each other."""
    whole: Tables = {}
    for some in tables:
        for name, table in some.items():
            whole.setdefault(name, {}).update(table)
    return whole
