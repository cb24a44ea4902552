"""The outcome in words: tables as text and as Markdown."""

from collections.abc import Iterator, Sequence

from coterie.reproduce.claims import Finding, rounds_in_words
from coterie.reproduce.difference import differences
from coterie.reproduce.entries import Entry, Outcome
from coterie.reproduce.plan import Cell, Plan
from coterie.reproduce.recipe import Column, Recipe
from coterie.reproduce.sheet import Sheet, as_markdown, large
from coterie.reproduce.verdict import gap


def shown(recipe: Recipe, value: float, printed: float | None = None) -> str:
    """A value as the paper prints it: `69.3` or `0.693`, a ratio of times `1.08`.

    A number that the paper printed keeps the digits that it has there.
    """
    if recipe.measure == "cost":
        return large(value)
    if recipe.measure == "time":
        return f"{value:.2f}"
    scaled, digits = (100 * value, 1) if recipe.unit == "percent" else (value, 3)
    if printed is not None:
        digits = max(digits, len(repr(float(printed)).partition(".")[2]))
    return f"{scaled:.{digits}f}"


def sheets(plan: Plan, outcome: Outcome) -> Iterator[Sheet]:
    """A table for every column, then one for every grid; or those that the outcome has."""
    if outcome.sheets:
        yield from outcome.sheets
        return
    for column in plan.columns:
        yield _sheet(plan, outcome, column)
    for cell in plan.cells:
        entry = outcome.entry(cell.row.name, cell.column.name)
        if entry.grid:
            yield _grid(cell, plan.recipe, entry)


def _sheet(plan: Plan, outcome: Outcome, column: Column) -> Sheet:
    recipe, target = plan.recipe, outcome.targets.get(column.name)
    timed = recipe.measure == "time"
    ours, theirs = ("time ratio", "paper's ratio") if timed else ("ours", "paper")
    head = ["", ours, "seeds", theirs]
    if not timed:
        head.insert(3, f"- {recipe.reference}, by seed")
    if target is not None:
        goal = shown(recipe, target)
        head += [f"rounds to {goal}", "paper's rounds", "speedup"]
    head += ["seconds a round"] if timed else ["time ratio"]
    lines = []
    for row in plan.rows:
        entry = outcome.entry(row.name, column.name)
        line = [row.name, _mean(recipe, entry), str(entry.seeds), _paper(plan, entry)]
        if not timed:
            line.insert(3, _against(recipe, entry, outcome.entry(recipe.reference, column.name)))
        if target is not None:
            speedup = f"{entry.speedup:.2f}" if entry.speedup is not None else "-"
            line += [rounds_in_words(entry), entry.paper_rounds or "-", speedup]
        line.append(_seconds(entry) if timed else _ratio(entry))
        lines.append([*line, entry.verdict])
    if len({cell.metric for cell in plan.cells}) > 1:
        head.insert(1, "metric")
        for row, line in zip(plan.rows, lines, strict=True):
            cell = plan.cell(row.name, column.name)
            line.insert(1, cell.metric if cell else "-")
    return Sheet(column.name, [*head, "verdict"], lines)


def _mean(recipe: Recipe, entry: Entry) -> str:
    if entry.mean is None:
        return "failed" if entry.failures else "-"
    text = shown(recipe, entry.mean)
    return text if entry.deviation is None else f"{text} ± {shown(recipe, entry.deviation)}"


def _against(recipe: Recipe, entry: Entry, reference: Entry) -> str:
    """The mean difference from the reference on the seeds that both have."""
    if entry.mean is None or reference.mean is None or entry.row == reference.row:
        return "-"
    mine, theirs = entry.by_seed(entry.values), reference.by_seed(reference.values)
    common = mine.keys() & theirs.keys()
    if not common:
        return "-"
    difference, apart = gap(mine, theirs)
    text = f"{'+' if difference >= 0 else '-'}{shown(recipe, abs(difference))}"
    return text if len(common) < 2 or apart is None else f"{text} ± {shown(recipe, apart)}"


def _paper(plan: Plan, entry: Entry) -> str:
    recipe = plan.recipe
    if entry.paper is None:
        return "-"
    row = recipe.row(entry.row)
    text = shown(recipe, entry.paper, row.value.get(entry.column))
    if entry.paper_spread is None:
        return text
    return f"{text} ± {shown(recipe, entry.paper_spread, row.spread.get(entry.column))}"


def _ratio(entry: Entry) -> str:
    return "-" if entry.ratio is None else f"{entry.ratio:.2f}"


def _seconds(entry: Entry) -> str:
    return f"{sum(entry.seconds) / len(entry.seconds):.2f}" if entry.seconds else "-"


def _grid(cell: Cell, recipe: Recipe, entry: Entry) -> Sheet:
    lines = []
    for tried in entry.grid:
        found = [
            "-" if value is None else shown(recipe, value)
            for value in (tried.value, tried.chosen_by)
        ]
        lines.append([tried.name, *found, "chosen" if tried.chosen else ""])
    head = ["", cell.metric, f"chosen by {cell.chosen_by}", ""]
    return Sheet(f"{entry.row}, {entry.column}: what was tried, on the first seed", head, lines)


def markdown(plan: Plan, outcome: Outcome, findings: Sequence[Finding]) -> str:
    """The whole outcome as a page of Markdown."""
    return "\n\n".join(_markdown(plan, outcome, findings)) + "\n"


def _markdown(plan: Plan, outcome: Outcome, findings: Sequence[Finding]) -> Iterator[str]:
    yield f"# {plan.recipe.name}, {plan.scale} scale"
    yield from opening(plan, outcome)
    for sheet in sheets(plan, outcome):
        yield f"## {sheet.title}"
        yield as_markdown(sheet)
    if findings:
        yield "## Claims"
        yield as_markdown(claim_sheet(findings))
    if failed := failures(outcome):
        yield "## Failed runs"
        yield "\n".join(f"- {line}" for line in failed)
    yield "## Settings that differ from the shipped configurations"
    yield "\n".join(f"- {line}" for line in differences(plan)) or "None."


def opening(plan: Plan, outcome: Outcome) -> Iterator[str]:
    """The paper, the command, how far it is, what is left out, what is to be known of the scale."""
    yield plan.recipe.paper
    yield plan.recipe.about
    runs = f"{outcome.finished} of {outcome.total} runs are finished."
    yield f"`{command(plan)}`: {runs if outcome.total else 'nothing is run.'}"
    if plan.note:
        yield plan.note
    yield from plan.left_out


def command(plan: Plan) -> str:
    """What was typed, less the folder."""
    words = ["coterie reproduce", plan.recipe.source, "--scale", plan.scale]
    words += ["--seeds", str(plan.seeds)] if plan.seeds else []
    for key, names in plan.asked.items():
        words += [f"--{key}", f"'{','.join(names)}'"]
    return " ".join(words)


def claim_sheet(findings: Sequence[Finding]) -> Sheet:
    """The claims as a table."""
    lines = [[one.verdict, one.text, one.numbers] for one in findings]
    return Sheet("Claims", ["verdict", "claim", "numbers"], lines)


def failures(outcome: Outcome) -> list[str]:
    """Every run that failed, with its reason."""
    return [
        f"{entry.row}, {entry.column}, {failure}"
        for entry in outcome.entries.values()
        for failure in entry.failures
    ]
