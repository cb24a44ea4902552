"""Some rows and columns of a plan: these are run, and what is finished of the others is shown."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.experiment.run import REPORT
from coterie.reproduce.plan import Cell, Plan, run_folder


def narrow(plan: Plan, rows: Iterable[str], columns: Iterable[str], out: Path) -> Plan:
    """The plan with these rows and columns alone, the reference row always; empty: all of them.

    Other cells stay, without being run, where `out` holds their runs on the first seed.
    """
    named = {"rows": tuple(rows), "columns": tuple(columns)}
    if not any(named.values()):
        return plan
    known = {
        "rows": ([row.name for row in plan.rows], [row.name for row in plan.recipe.rows]),
        "columns": ([c.name for c in plan.columns], [c.name for c in plan.recipe.columns]),
    }
    some = {key: _asked(key, named[key], *known[key], plan.scale) for key in named}
    wanted = {key: some[key] or known[key][0] for key in named}
    wanted["rows"] = [*wanted["rows"], plan.recipe.reference]
    cells = []
    for cell in plan.cells:
        if cell.row.name in wanted["rows"] and cell.column.name in wanted["columns"]:
            cells.append(cell)
        elif seeds := _kept(plan, cell, out):
            cells.append(replace(cell, seeds=seeds, asked=False))
    return replace(
        plan,
        cells=tuple(cells),
        rows=tuple(r for r in plan.rows if any(cell.row is r for cell in cells)),
        columns=tuple(c for c in plan.columns if any(cell.column is c for cell in cells)),
        asked={key: names for key, names in some.items() if names},
        _configs={},
    )


def _kept(plan: Plan, cell: Cell, out: Path) -> int:
    """On how many seeds a cell is finished: all points on the first, one of them on the others."""

    def done(number: int) -> list[bool]:
        configs = (plan.config(cell, point, number) for point in cell.points)
        return [(run_folder(out, config) / REPORT).is_file() for config in configs]

    if not all(done(0)):
        return 0
    return next((n for n in range(1, cell.seeds) if not any(done(n))), cell.seeds)


def _asked(
    key: str, texts: Iterable[str], here: Sequence[str], all_: Sequence[str], scale: str
) -> tuple[str, ...]:
    """The names in texts that may hold several, in the order of the table."""
    found: set[str] = set()
    for text in texts:
        for name in _names(text, all_):
            if name not in all_:
                hint = registry.nearest(name, all_) or f"; there are: {', '.join(here)}"
                raise ConfigError(f"--{key}: {name!r} is not known{hint}")
            if name not in here:
                there = ", ".join(here)
                raise ConfigError(
                    f"--{key}: {name!r} is not run here at the {scale} scale; there are: {there}"
                )
            found.add(name)
    return tuple(name for name in here if name in found)


def _names(text: str, known: Sequence[str]) -> list[str]:
    """Names between commas; one with a comma inside is known as a whole."""
    parts = [part.strip() for part in text.split(",")]
    found = []
    while parts:
        whole = (n for n in range(len(parts), 0, -1) if ", ".join(parts[:n]) in known)
        count = next(whole, 1)
        found.append(", ".join(parts[:count]))
        parts = parts[count:]
    return found
