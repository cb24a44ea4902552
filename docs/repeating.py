"""The commands that repeat a committed outcome; `results.py` calls it.

An outcome is often made by several commands, on several days. What it has of rows, columns, seeds
and grids says which commands give the same table.
"""

import math
from collections import defaultdict
from typing import Any, NamedTuple

from coterie.reproduce.recipe import Recipe, get_at_scale


class _Options(NamedTuple):
    """What the cells of one command have in common."""

    first: int  # seed
    seeds: int
    tunes: bool  # False: a grid was left out


def list_commands(recipe: Recipe, outcome: dict[str, Any]) -> list[str]:
    """List them: columns with the same rows and options share a command."""
    if recipe.measure == "cost":
        return [outcome["command"]]  # nothing is run
    shared = defaultdict[tuple[_Options, tuple[str, ...]], list[str]](list)
    for column in outcome["columns"]:
        for options, rows in _group_rows(recipe, outcome["scale"], column).items():
            shared[options, tuple(rows)].append(column["name"])
    return [
        _write(recipe, outcome["scale"], options, rows, columns)
        for (options, rows), columns in shared.items()
    ]


def _group_rows(recipe: Recipe, scale: str, column: dict[str, Any]) -> dict[_Options, list[str]]:
    """Group the rows of a column that were run by the options that they need."""
    grids = {row.name: get_at_scale(row, "grid", scale) for row in recipe.rows}
    settings = next((c for c in recipe.columns if c.name == column["name"]), None)
    alone = settings is not None and get_at_scale(settings, "points", scale) == 1
    groups = defaultdict[_Options, list[str]](list)
    for row in column["rows"]:
        if not row["seeds"] or row["row"] not in grids:
            continue  # not run, or no longer in the recipe
        points = math.prod(len(values) for values in grids[row["row"]].values())
        left_out = points > 1 and not alone and len(row.get("grid", ())) <= 1
        first = min(row.get("numbers") or [0])
        groups[_Options(first, row["seeds"], not left_out)].append(row["row"])
    for options in [each for each in groups if not each.tunes]:
        # rows without a grid go with those whose grid was left out, unless others were tuned
        others = groups.get(options._replace(tunes=True), [])
        if all(not grids[name] for name in others):
            groups[options] += groups.pop(options._replace(tunes=True), [])
    order = list(grids)
    return {options: sorted(rows, key=order.index) for options, rows in groups.items()}


def _write(
    recipe: Recipe, scale: str, options: _Options, rows: tuple[str, ...], columns: list[str]
) -> str:
    """Write a command; rows and columns are named where they are not all of the scale."""
    words = [f"coterie reproduce {recipe.name} --scale {scale} --seeds {options.seeds}"]
    words += [f"--first-seed {options.first}"] if options.first else []
    words += [] if options.tunes else ["--no-grids"]
    settings = recipe.scales[scale]
    for key, names in (("rows", rows), ("columns", tuple(columns))):
        parts = [part.name for part in getattr(recipe, key) if scale in part.scales]
        known = [name for name in parts if name in (getattr(settings, key) or parts)]
        if set(names) != set(known):
            words.append(f"--{key} '{','.join(names)}'")
    return " ".join(words)
