"""Tables of a recipe's page: the paper's beside ours, verdicts in colour and words, the runs."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from coterie.core.formatting import TextTable, list_first
from coterie.report.comparison_page import make_link
from coterie.report.document import format_note
from coterie.report.tables import TableCell, format_table
from coterie.reproduce.recipe import Column
from coterie.reproduce.scores import NONE, Outcome
from coterie.reproduce.tables import find_claims, format_ours, format_paper
from coterie.reproduce.verdicts import (
    DIRECTION,
    FAILED,
    FAILS,
    HOLDS,
    NOT,
    ONE_SEED,
    UNTESTED,
    WITHIN,
)

_NUMBER = re.compile(r"-?|-, -|[-+>]?\d[\d.,]*(e\d+)?( ± [\d.]+)?(, [\d.]+)?|failed")
_FIRST = re.compile(r"[-+]?\d[\d.,]*(e\d+)?")
_ACROSS = 3  # columns of the paper's table beside each other
_LISTED = 600  # runs
_VERDICT = "verdict"
_LONG = 26  # characters of a verdict that is broken into lines
_SAID = {  # verdicts in a sentence, of one and of many
    WITHIN: ("is within reach", "are within reach"),
    DIRECTION: ("goes in its direction", "go in its direction"),
    NOT: ("is not reproduced", "are not reproduced"),
    HOLDS: (HOLDS, "hold"),
    FAILS: (FAILS, "do not hold"),
    UNTESTED: ("is not tested here", "are not tested here"),
}
_KINDS = {  # how a verdict begins, and its class in style.css
    WITHIN: "good",
    HOLDS: "good",
    DIRECTION: "way",
    NOT: "bad",
    FAILED: "bad",
    FAILS: "bad",
}


def show_verdict(text: str) -> TableCell:
    """Show a verdict in words, with a colour; a dashed rim says that no spread is known."""
    kind = next((kind for start, kind in _KINDS.items() if text.startswith(start)), "")
    if not kind:
        return TableCell(text)
    if "; over" in text or (kind == "good" and ";" in text):
        kind = "part"  # it depends on how rounds are counted, or holds in some columns alone
    kind += " unsure" if ONE_SEED in text else ""
    return TableCell(text, kind=f"verdict {kind}{' long' if len(text) > _LONG else ''}")


def describe_verdicts(outcome: Outcome) -> str:
    """Count the verdicts of a study in a sentence."""
    numbers = [cell.verdict for cell in outcome.cells.values() if cell.verdict != NONE]
    if outcome.study.scale == "smoke" and not numbers:
        return "The smoke scale checks that everything runs, and says nothing about the paper."
    claims = [finding.verdict for finding in find_claims(outcome)]
    parts = [_count("number of the paper", "numbers of the paper", numbers)] if numbers else []
    parts += [_count("claim", "claims", claims)] if claims else []
    return " ".join(parts)


def _count(one: str, many: str, verdicts: Sequence[str]) -> str:
    """Count verdicts by how they begin: `Of 3 claims 2 hold, 1 does not hold.`"""
    begun = Counter(re.split(r";|:| \(", verdict)[0] for verdict in verdicts)
    said = ((n, _SAID.get(text, (text, text))[n > 1]) for text, n in begun.most_common())
    listed = ", ".join(f"{n:,} {text}" for n, text in said)
    return f"Of {len(verdicts):,} {one if len(verdicts) == 1 else many} {listed}."


def format_beside(outcome: Outcome) -> str:
    """Format the paper's table beside ours; empty where an outcome brings tables of its own."""
    cells = outcome.cells.values()
    if outcome.tables or not any(cell.paper is not None for cell in cells):
        return ""
    columns, parts = outcome.study.columns, list[str]()
    for start in range(0, len(columns), _ACROSS):
        parts.append(_format_columns(outcome, columns[start : start + _ACROSS]))
    note = (
        "Means over seeds, the sample standard deviation behind ±. Within: no further from the "
        "paper than 0.01 (times: 0.05), or than its own spread. Direction: on the same side of "
        f"{outcome.study.recipe.reference} as in the paper, beyond our spread. A dashed rim: one "
        "seed, so no spread is known. - is not printed, not run, not judged at this scale, or a "
        "tie in the paper with one seed here."
    )
    return "\n".join(parts) + format_note(note)


def _format_columns(outcome: Outcome, columns: Sequence[Column]) -> str:
    study, lines = outcome.study, list[list[str | TableCell]]()
    for row in study.rows:
        line: list[str | TableCell] = [row.name]
        for column in columns:
            score = outcome.cell(row.name, column.name)
            line.append(TableCell(format_paper(study.recipe, row, score), score.paper))
            line.append(TableCell(format_ours(study.recipe, score), score.mean))
            line.append(show_verdict(score.verdict))
        lines.append(line)
    head = ["row", *("paper", "ours", _VERDICT) * len(columns)]
    numbers = [at for at, name in enumerate(head) if name in ("paper", "ours")]
    groups = [("", 1), *((column.name, 3) for column in columns)]
    name = f"Paper and ours, {', '.join(column.name for column in columns)}"
    return format_table(lines, head, numbers, name=name, groups=groups)


def format_section(table: TextTable) -> str:
    """Format a table of an outcome: it sorts, and its verdicts have colours."""
    numbers = _find_numbers(table.lines)
    verdicts = [at for at, name in enumerate(table.head) if name == _VERDICT]
    lines: list[list[str | TableCell]] = []
    for line in table.lines:
        cells = [_read_number(t) if i in numbers else t for i, t in enumerate(line)]
        for at in verdicts:
            cells[at] = show_verdict(line[at])
        lines.append(cells)
    head = ["row" if not at and not name else name for at, name in enumerate(table.head)]
    return format_table(lines, head, numbers, name=table.title)


def _find_numbers(lines: Sequence[Sequence[str]]) -> list[int]:
    """Find the columns of a table that hold numbers, or a dash for none."""
    columns = enumerate(zip(*lines, strict=True))
    return [i for i, cells in columns if i and all(map(_NUMBER.fullmatch, cells))]


def _read_number(text: str) -> TableCell:
    number = _FIRST.search(text)
    return TableCell(text, float(number[0].replace(",", "")) if number else None)


def format_runs(outcome: Outcome, page: Path) -> str:
    """Format the runs of an outcome with links to their pages; empty where nothing is run."""
    lines = list(_list_runs(outcome, page))
    if not lines:
        return ""
    more = len(lines) - _LISTED
    note = format_note(f"{more:,} more are left out.") if more > 0 else ""
    head = ("row", "columns", "seed", "page", "directory")
    return format_table(lines[:_LISTED], head, {2}, name="Runs") + note


def _list_runs(outcome: Outcome, page: Path) -> Iterator[list[str | TableCell]]:
    """List every run once, with the columns that read it."""
    runs: dict[str, tuple[str, list[str], TableCell]] = {}
    for score in outcome.cells.values():
        known = list(score.by_seed()) if len(score.folders) == len(score.values) else []
        for at, folder in enumerate(score.folders):
            shown = TableCell(str(known[at]), known[at]) if known else TableCell(NONE)
            runs.setdefault(folder, (score.row, [], shown))[1].append(score.column)
    for folder, (row, columns, shown) in runs.items():
        own = Path(folder) / "report.html"
        linked = TableCell("report.html", link=make_link(own, page)) if own.is_file() else ""
        place = TableCell("/".join(own.parts[-3:-1]), link=f"{make_link(own.parent, page)}/")
        yield [row, list_first(columns), shown, linked, place]
