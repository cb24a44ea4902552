"""Sites with tables: text, codes, missing cells, columns in another order or without a value."""

import csv
from pathlib import Path
from typing import Any

import fleet
import numpy as np

ROWS = {"amiens": 60, "berlin": 45, "cadiz": 36}
COLUMNS = ("age", "pressure", "smoker", "ward", "state")


def write_tables(root: Path, lacking: bool = True) -> Path:
    """Write a CSV file for each site; at cadiz nobody measured the pressure, if one lacks it."""
    root.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(11)
    for name, rows in ROWS.items():
        age, pressure = draw.normal(50 + len(name), 10, rows), draw.normal(130, 15, rows)
        smokes = draw.choice(["yes", "no"] + ["once"] * (name == "berlin"), rows)
        ward = draw.integers(1, 4 if name == "cadiz" else 3, rows)
        state = np.where(age + 12 * (smokes == "yes") > 60, "ill", "well")
        cells: dict[str, list[Any]] = {
            **{"age": age.tolist(), "pressure": pressure.tolist()},
            **{"smoker": smokes.tolist(), "ward": ward.tolist(), "state": state.tolist()},
        }
        for column, row in (("age", 3), ("smoker", 5), ("pressure", 7)):
            cells[column][row] = ""
        if lacking and name == "cadiz":
            cells["pressure"] = [""] * rows
        order = COLUMNS if name != "berlin" else COLUMNS[::-1]
        write_csv(root / f"{name}.csv", {column: cells[column] for column in order})
    return root


def write_csv(path: Path, columns: dict[str, list[Any]]) -> None:
    """Write columns as a CSV file."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))


def tables(root: Path, data: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """The toy configuration for tables of sites."""
    keys = {"name": "table", "label": "state", "categorical": ["ward"], **(data or {})}
    rest = {"run": {"rounds": 2, "seed": 5}, **changes}
    return fleet.tables(root, data=keys, **rest)
