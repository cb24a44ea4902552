"""Write the table of trials in docs/reliability.md: `python docs/reliability.py`.

What was tried and what came out is in tests/endurance/outcome.json, which `make endurance` writes.
Nothing is run for it.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE, OUTCOME = ROOT / "docs" / "reliability.md", ROOT / "tests" / "endurance" / "outcome.json"
TABLE = re.compile(r"(<!-- trials, written by docs/reliability.py -->\n).*?(<!-- end -->)", re.S)
HEAD = "| promise | a trial | N | failures | rate below | command | version |\n"
HEAD += "|---|---|---|---|---|---|---|\n"


def bound(trials: int, failures: int) -> str:
    """The failure rate that is excluded at 95 %, where none was seen."""
    return f"{300.0 / trials:.3g} %" if trials > 3 and not failures else "-"


def row(outcome: dict[str, Any]) -> str:
    """One row of the table."""
    tried, failed = outcome["trials"], outcome["failures"]
    cells = [
        str(outcome["promise"]),
        outcome["done"],
        f"{tried:,}",
        str(failed),
        bound(tried, failed),
        f"`{outcome['command']}`",
        f"{outcome['version']} ({outcome['commit']})",
    ]
    return f"| {' | '.join(cells)} |\n"


def renew() -> str:
    """The page with the table of the outcomes."""
    outcomes = sorted(json.loads(OUTCOME.read_text()).values(), key=lambda one: one["promise"])
    table = HEAD + "".join(map(row, outcomes))
    return TABLE.sub(lambda match: f"{match[1]}{table}{match[2]}", PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(renew())
