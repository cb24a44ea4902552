"""Write the table of trials in docs/reliability.md: `python docs/reliability.py`.

What was tried and what came out is in tests/endurance/outcome.json, which `make endurance` writes;
what should be tried is in tests/endurance/parts.py. Nothing is run for it. Below the table the page
names every part that was not tried as it should be, or in an earlier form of its trial, and the
digest of the package that rows are compared with: a row of another one is of an earlier version.
"""

import json
import re
import sys
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests" / "endurance"))

import bench  # noqa: E402

bench.find_modules()

import parts  # noqa: E402
import run  # noqa: E402

PAGE, OUTCOME = ROOT / "docs" / "reliability.md", run.OUTCOME
TABLE = re.compile(r"(<!-- trials, written by docs/reliability.py -->\n).*?(<!-- end -->)", re.S)
PRESENT = re.compile(r"sources with the digest `([0-9a-f]+)`")
OLDER = "Tried in an earlier form of the trial"
HEAD = "| promise | a trial | N | failures | rate below | command | version |\n"
HEAD += "|---|---|---|---|---|---|---|\n"
Outcomes = dict[str, dict[str, Any]]


def bound(trials: int, failures: int) -> str:
    """The failure rate that is excluded at 95 %, where none was seen."""
    return f"{300.0 / trials:.3g} %" if trials > 3 and not failures else "-"


def row(outcome: dict[str, Any], present: str) -> str:
    """One row of the table; `present` is the digest of the package that it is compared with."""
    tried, failed = outcome["trials"], outcome["failures"]
    earlier = "" if outcome.get("sources") == present else ", an earlier version"
    cells = [
        str(outcome["promise"]),
        outcome["done"],
        f"{tried:,}",
        str(failed),
        bound(tried, failed),
        f"`{outcome['command']}`",
        f"{outcome['version']} ({outcome['commit']}){earlier}",
    ]
    return f"| {' | '.join(cells)} |\n"


def find_older(planned: Iterable[bench.Part], outcomes: Outcomes) -> set[str]:
    """Name the parts whose outcome is of another form of the trial than the present one."""
    return {
        part.name
        for part in planned
        if part.name in outcomes and outcomes[part.name].get("trial") != run.form(part)
    }


def list_gaps(planned: Iterable[bench.Part], outcomes: Outcomes, earlier: Collection[str]) -> str:
    """Say which parts were not tried as `make endurance` would, and which trials failed.

    `earlier` are those that were tried in an earlier form.
    """
    gaps: dict[str, list[str]] = {
        "No outcome yet": [],
        "Tried with fewer trials than planned": [],
        OLDER: [],
        "With failures": [],
    }
    untried, fewer, older, failed = gaps.values()
    for part in planned:
        outcome, name = outcomes.get(part.name), f"`{part.name}`"
        if outcome is None:
            untried.append(name)
            continue
        if outcome["trials"] < part.trials:
            fewer.append(f"{name} ({outcome['trials']:,} of {part.trials:,})")
        if part.name in earlier:
            older.append(name)
        if outcome["failures"]:
            failed.append(f"{name} ({outcome['failures']:,} of {outcome['trials']:,})")
    return "".join(f"- {title}: {', '.join(names)}.\n" for title, names in gaps.items() if names)


def renew(present: str, earlier: Collection[str]) -> str:
    """The page with the outcomes; rows of another package than `present` are called earlier."""
    outcomes: Outcomes = json.loads(OUTCOME.read_text())
    ordered = sorted(outcomes.values(), key=lambda outcome: outcome["promise"])
    table = HEAD + "".join(row(outcome, present) for outcome in ordered)
    said = list_gaps(parts.PARTS, outcomes, earlier)
    said += f"- Earlier versions: those before the sources with the digest `{present}`.\n"
    return TABLE.sub(lambda match: f"{match[1]}{table}\n{said}{match[2]}", PAGE.read_text())


def read_present() -> str:
    """The digest of the package that the page was last compared with."""
    found = PRESENT.search(PAGE.read_text())
    return found[1] if found else ""


def read_older() -> set[str]:
    """The parts that the page says were tried in an earlier form."""
    found = re.search(f"^- {OLDER}: (.*)", PAGE.read_text(), re.M)
    return set(re.findall("`(.+?)`", found[1])) if found else set()


if __name__ == "__main__":
    older = find_older(parts.PARTS, json.loads(OUTCOME.read_text()))
    PAGE.write_text(renew(run.sources(), older))
