"""Write docs/results.md and the totals in README.md: `python docs/results.py`.

What the papers show is in benchmarks/papers/exhibits.toml, which recipe covers it and what the
paper prints in the recipes, and what came out in benchmarks/papers/*/outcome.json. Nothing is run
for it. `findings.py` writes the numbers of a claim, `repeating.py` the commands of an outcome.
"""

import json
import re
import runpy
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.reproduce.recipe import Claim, Recipe, list_shipped, load

ROOT = Path(__file__).parents[1]
OUTCOMES = ROOT / "benchmarks" / "papers"
PAGE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
TOTALS = re.compile(r"(<!-- totals, written by docs/results.py -->\n).*?(<!-- end -->)", re.S)
SCALES = ("paper", "laptop", "smoke")  # the larger ones first
WRITE_NUMBERS = runpy.run_path(str(Path(__file__).with_name("findings.py")))["write"]
LIST_COMMANDS = runpy.run_path(str(Path(__file__).with_name("repeating.py")))["list_commands"]
_WORDS = 12  # of a cell, at most
OURS = "Not in the paper"  # how a claim begins that is ours
HOLDS, FAILS, UNTESTED = "holds", "does not hold", "not tested here"
HEAD = """\
# Results

Which claims of the papers hold, as far as they were run. How a verdict comes about is in
[reproducing.md](reproducing.md#reading-the-outcome); what can be read from the numbers, and the
conditions they were taken under, in [benchmarks/papers](../benchmarks/papers/README.md).

"""
NOTE = """\

- A claim compares two rows of a table. One sentence of a paper may be several claims: one for each
  method it is about, and one for each reading of what the paper leaves open (FedProc by its
  equations and by its authors' code, SCAFFOLD without and with momentum).
- A claim that was tested at two scales counts here by the larger one.
- *Paper scale*: with the paper's data, rounds and epochs, or counted. All others: a laptop's scale,
  with less data and fewer rounds. **A claim that does not hold there may hold at the paper's.**
- *One seed*: what another seed would do is not known.
- *Run in ... alone*: the claim is about all settings, of which this scale has more.

In the tables below, `paper` and `ours` are differences of the two rows of a claim, in the paper's
unit: the mean over the seeds that both have, with the two means in brackets; one for each setting
where there are several, or their range. Where a claim is about one row, they are its values. `35
against 56 (5: 41/44; 10: 46/49)` are rounds to a target: to the first round that reached it, and in
brackets by the mean of 5 and of 10 rounds; `7/9, 5/6` are those of several settings. They are means
over the seeds that both rows have, `26†` over those of them that reached the target, where some
never did. Where the target is the final accuracy of the reference row, every run is held against
that on the same seed. The commands run every row and setting of the outcome again, whichever way
they were run; the reference row is run with each. This page is written by `python docs/results.py`
from the committed outcomes; nothing is run for it.
"""


@dataclass(frozen=True)
class Result:
    """An outcome that is committed, with the recipe that it came from."""

    folder: str
    recipe: Recipe
    outcome: dict[str, Any]

    @property
    def scale(self) -> str:
        """The scale it was run at; what is only counted is the same at all of them."""
        return "counted" if self.recipe.measure == "cost" else str(self.outcome["scale"])

    def find(self, claim: Claim) -> dict[str, str] | None:
        """Find what became of a claim."""
        return next((c for c in self.outcome["claims"] if c["text"] == claim.text), None)

    def verdict(self, claim: Claim) -> str:
        """One of three words about a claim."""
        found = self.find(claim)
        verdicts = [v for v in (FAILS, HOLDS) if found and found["verdict"].startswith(v)]
        return verdicts[0] if verdicts else UNTESTED


def read_papers() -> list[dict[str, Any]]:
    """Read the list of all tables and figures."""
    papers: list[dict[str, Any]] = tomllib.loads((OUTCOMES / "exhibits.toml").read_text())["paper"]
    return papers


def read_results(recipes: dict[str, Recipe]) -> dict[str, list[Result]]:
    """Read the committed outcomes by recipe, the largest scale first."""
    results = defaultdict[str, list[Result]](list)
    for file in sorted(OUTCOMES.glob("*/outcome.json")):
        outcome = json.loads(file.read_text())
        if recipe := recipes.get(outcome.get("recipe", "")):
            results[recipe.name].append(Result(file.parent.name, recipe, outcome))
    for each in results.values():
        each.sort(key=lambda result: SCALES.index(result.outcome["scale"]))
    return results


def find_paper(recipe: Recipe) -> str:
    """The paper that a recipe's claims are counted for."""
    return recipe.covers[0].partition(", ")[0]


def count_claims(recipe: Recipe, results: list[Result]) -> Counter[str]:
    """Count the paper's claims by verdict, each at the largest scale that tested it."""
    counts = Counter[str]()
    for claim in recipe.claims:
        if claim.text.startswith(OURS):
            continue
        tested = [result for result in results if result.verdict(claim) != UNTESTED]
        counts["claims"] += 1
        counts[tested[0].verdict(claim) if tested else UNTESTED] += 1
        if tested:
            found = tested[0].find(claim)
            assert found is not None
            counts["one seed"] += "(one seed)" in found["verdict"]
            counts["paper scale"] += tested[0].scale in ("paper", "counted")
    return counts


def write_page() -> str:
    """Write the whole page."""
    recipes = {name: load(name) for name in list_shipped()}
    results, papers = read_results(recipes), read_papers()
    totals = {paper["name"]: Counter[str]() for paper in papers}
    for recipe in recipes.values():
        totals[find_paper(recipe)] += count_claims(recipe, results.get(recipe.name, []))
    sections = [_write_paper(paper, recipes, results) for paper in papers]
    return "\n".join([HEAD + write_totals(totals), NOTE, *sections])


def write_totals(totals: dict[str, Counter[str]]) -> str:
    """Write the table of totals, by paper and over all."""
    kinds = ("claims", HOLDS, FAILS, UNTESTED, "one seed", "paper scale")
    head = ["paper", "claims", "hold", "do not hold", "not tested", "tested on one seed"]
    lines = [[*head, "tested at paper scale"]]
    lines += [[_link(n), *(str(counts[k]) for k in kinds)] for n, counts in totals.items()]
    summed = sum(totals.values(), Counter[str]())
    lines.append(["**all**", *(f"**{summed[kind]}**" for kind in kinds)])
    return _write_table(lines)


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _write_table(lines: list[list[str]]) -> str:
    head, *rest = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, f"|{'---|' * len(lines[0])}", *rest])


def _write_paper(
    paper: dict[str, Any], recipes: dict[str, Recipe], results: dict[str, list[Result]]
) -> str:
    """Write what a paper shows, and below it the claims of every outcome."""
    name, lines = paper["name"], [["table or figure", "shows", "recipe", "outcome"]]
    for exhibit in paper["exhibits"]:
        covering = [r for r in recipes.values() if f"{name}, {exhibit['name']}" in r.covers]
        found = [_summarise(r, results.get(r.name, [])) for r in covering] or [exhibit["without"]]
        named = ", ".join(f"`{r.name}`" for r in covering) or "-"
        lines.append([exhibit["name"], exhibit["shows"], named, "; ".join(found)])
    parts = [f"## {name}", paper["title"], _write_table(lines)]
    for recipe in recipes.values():
        if find_paper(recipe) == name:
            parts += [_write_result(result) for result in results.get(recipe.name, [])]
    return "\n\n".join(parts) + "\n"


def _summarise(recipe: Recipe, results: list[Result]) -> str:
    """How many claims hold in every outcome of a recipe."""
    parts = []
    for result in results:
        verdicts = Counter(result.verdict(c) for c in recipe.claims if not c.text.startswith(OURS))
        tested = verdicts[HOLDS] + verdicts[FAILS]
        held = f"{verdicts[HOLDS]} of {tested} hold" if tested else "in part, no claim tested"
        parts.append(f"{result.scale}: {held}")
    return ", ".join(parts) or f"not run ({len(recipe.claims)} claims)"


def _write_result(result: Result) -> str:
    """Write the claims of an outcome, those that hold first."""
    recipe, outcome = result.recipe, result.outcome
    lines = [["verdict", "claim", "paper", "ours"]]
    ranked = sorted(recipe.claims, key=lambda c: (HOLDS, FAILS, UNTESTED).index(result.verdict(c)))
    for claim in ranked:
        found = result.find(claim)
        verdict = found["verdict"] if found else UNTESTED
        paper, ours = WRITE_NUMBERS(claim, recipe, outcome)
        tested = result.verdict(claim) != UNTESTED
        lines.append([_shorten_verdict(verdict), _shorten(claim), paper, ours if tested else "-"])
    covered = " and ".join(cover.partition(", ")[2] for cover in recipe.covers)
    counted = result.scale == "counted"
    scale, runs = (
        ("counted", "Nothing is run.")
        if counted
        else (f"{result.scale} scale", f"{_describe_seeds(outcome)}.")
    )
    numbers = f"[All numbers](../benchmarks/papers/{result.folder}/table.md)"
    names = [column["name"] for column in outcome["columns"]]
    order = f" Settings in this order: {'; '.join(names)}." if len(names) > 1 else ""
    commands = [f"`{command}`" for command in LIST_COMMANDS(recipe, outcome)]
    commands = [f"- {command}" for command in commands] if len(commands) > 1 else commands
    about = "\n".join(commands) + f"\n\n{runs} {numbers}.{'' if counted else order}"
    return f"### {recipe.name}: {covered}, {scale}\n\n{about}\n\n{_write_table(lines)}"


def _shorten(claim: Claim) -> str:
    """A claim in a dozen words: as it is, without what is in brackets, or as the recipe says."""
    if len(claim.text.split()) <= _WORDS:
        return claim.text
    return claim.short or re.sub(r" \([^()]*\)", "", claim.text)


def _shorten_verdict(verdict: str) -> str:
    """A verdict in a dozen words: `over 5/10:` for `over 5 and 10 rounds:` where it has more."""
    verdict = verdict.replace(UNTESTED, "not tested")
    if len(verdict.split()) <= _WORDS:
        return verdict
    return re.sub(r"over (\d+) and (\d+) rounds:", r"over \1/\2:", verdict)


def _describe_seeds(outcome: dict[str, Any]) -> str:
    """The number of seeds, from the fewest to the most of a row."""
    seeds = sorted({r["seeds"] for c in outcome["columns"] for r in c["rows"] if r["seeds"]})
    if len(seeds) > 1:
        return f"{seeds[0]} to {seeds[-1]} seeds"
    return f"{seeds[0]} seed{'s' if seeds[0] > 1 else ''}" if seeds else "no seed"


def write_sentence(page: str) -> str:
    """Write the totals for the README, from the page."""
    row = next(line for line in page.splitlines() if line.startswith("| **all**"))
    claims, held, failed, untested, alone, full = re.findall(r"\*\*(\d+)\*\*", row)
    tested = int(held) + int(failed)
    return (
        f"Of {claims} claims of the papers {tested} are tested, {full} of them at the papers' "
        f"scale and {alone} on one\nseed: **{held} hold, {failed} do not**; {untested} are not "
        "tested yet. [docs/results.md](docs/results.md) lists\nevery table and figure with its "
        "claims.\n"
    )


def renew() -> Iterator[tuple[Path, str]]:
    """Every file with the text that it should have."""
    page = write_page()
    yield PAGE, page
    sentence = write_sentence(page)
    yield README, TOTALS.sub(lambda match: f"{match[1]}{sentence}{match[2]}", README.read_text())


def main() -> None:
    """Write the files that have changed, and say which."""
    for file, text in renew():
        if not file.exists() or file.read_text() != text:
            file.write_text(text)
            print(file.relative_to(ROOT))


if __name__ == "__main__":
    main()
