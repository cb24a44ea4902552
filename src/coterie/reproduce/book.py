"""The files of an outcome: `outcome.json`, `table.md`, `report.html` and the curves as SVG."""

import json
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import coterie
from coterie.core.files import replace_durably
from coterie.reproduce import claims
from coterie.reproduce.claims import Finding
from coterie.reproduce.difference import differences
from coterie.reproduce.entries import Entry, Outcome
from coterie.reproduce.outcome import conclude
from coterie.reproduce.page import render
from coterie.reproduce.picture import pictures
from coterie.reproduce.plan import Cell, Plan
from coterie.reproduce.run import Found
from coterie.reproduce.sheet import aligned
from coterie.reproduce.table import command, markdown, sheets, shown


class Book:
    """Keeps the files of an outcome."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self.plan, self.folder = plan, out / plan.folder

    def write(self, found: Found) -> None:
        """Renew all of them; each is whole or the one before."""
        self.keep(conclude(found))

    def keep(self, outcome: Outcome) -> None:
        """Write what an outcome says."""
        findings = judged(self.plan, outcome)
        replace_durably(self.folder / "outcome.json", to_json(self.plan, outcome, findings))
        text = markdown(self.plan, outcome, findings)
        replace_durably(self.folder / "table.md", text.encode())
        page = render(self.plan, outcome, findings)
        replace_durably(self.folder / "report.html", page.encode())
        for name, picture in pictures(self.plan, outcome):
            replace_durably(self.folder / name, picture.encode())

    def text(self, found: Found) -> str:
        """The tables and claims for a terminal."""
        return self.told(conclude(found))

    def told(self, outcome: Outcome) -> str:
        """What an outcome says, for a terminal."""
        parts = [f"{sheet.title}\n{aligned(sheet)}" for sheet in sheets(self.plan, outcome)]
        told = [f"{one.verdict}: {one.text}" for one in judged(self.plan, outcome)]
        return "\n\n".join([*parts, "\n".join(told)]).rstrip()


def judged(plan: Plan, outcome: Outcome) -> list[Finding]:
    """The claims of the recipe, tested."""
    recipe = plan.recipe
    return claims.test(recipe.claims, plan, outcome, lambda value: shown(recipe, value))


def commit() -> str:
    """The commit of the package, where it is run from a clone; else nothing."""
    asked = ["git", "-C", str(Path(coterie.__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _beside(folders: Sequence[str]) -> list[str]:
    """Run directories as seen from the folder that outcomes and runs share."""
    return ["/".join(Path(folder).parts[-2:]) for folder in folders]


def _row(cell: Cell, entry: Entry) -> dict[str, Any]:
    """All that is known of a row in a column."""
    read = {"metric": cell.metric, "chosen_by": cell.chosen_by}
    derived = {"ratio": entry.ratio, "folders": _beside(entry.folders)}
    return {**asdict(entry), **read, **derived}


def to_json(plan: Plan, outcome: Outcome, findings: Sequence[Finding]) -> bytes:
    """All figures, accuracies as fractions, with the curves."""
    recipe = plan.recipe
    columns = [
        {
            "name": column.name,
            "target": outcome.targets.get(column.name),
            "rows": [
                _row(cell, outcome.entry(cell.row.name, column.name))
                for cell in plan.cells
                if cell.column is column
            ],
        }
        for column in plan.columns
    ]
    told = {
        "recipe": recipe.name,
        "scale": plan.scale,
        "command": command(plan),
        "version": coterie.__version__,
        "commit": commit(),
        "paper": recipe.paper,
        "measure": recipe.measure,
        "reference": recipe.reference,
        "finished": outcome.finished,
        "total": outcome.total,
        "columns": columns,
        "claims": [asdict(finding) for finding in findings],
        "left_out": list(plan.left_out),
        "settings": list(differences(plan)),
    }
    if outcome.sheets:
        told["tables"] = [asdict(sheet) for sheet in outcome.sheets]
    return (json.dumps(told, indent=1, ensure_ascii=False) + "\n").encode()
