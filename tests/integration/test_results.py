"""The page of results is that of the committed outcomes, and misses no table of the papers."""

import json
import re
import runpy
from dataclasses import replace
from typing import Any

import pytest

from coterie.reproduce.recipe import Claim, Column, Recipe, Row, Scale, list_shipped, load
from pages import ROOT

RESULTS = runpy.run_path(str(ROOT / "docs" / "results.py"))
FINDINGS = runpy.run_path(str(ROOT / "docs" / "findings.py"))
REPEATING = runpy.run_path(str(ROOT / "docs" / "repeating.py"))


def test_the_page_and_the_totals_of_the_readme_are_those_of_the_outcomes() -> None:
    stale = [file.name for file, text in RESULTS["renew"]() if file.read_text() != text]
    assert not stale, f"renew them: python docs/results.py ({', '.join(stale)})"


def test_every_table_and_figure_has_a_recipe_or_a_reason() -> None:
    shown = {
        f"{paper['name']}, {exhibit['name']}": exhibit.get("without")
        for paper in RESULTS["read_papers"]()
        for exhibit in paper["exhibits"]
    }
    covers = {name: load(name).covers for name in list_shipped()}
    assert not [name for name, covered in covers.items() if not covered]
    covered = {cover for each in covers.values() for cover in each}
    assert covered == {name for name, reason in shown.items() if reason is None}


def test_every_committed_outcome_of_a_recipe_is_on_the_page() -> None:
    page = (ROOT / "docs" / "results.md").read_text()
    for file in ROOT.glob("benchmarks/papers/*/outcome.json"):
        outcome = json.loads(file.read_text())
        if "recipe" in outcome:
            assert f"benchmarks/papers/{file.parent.name}/table.md" in page
            assert f"`coterie reproduce {outcome['recipe']} --scale {outcome['scale']}" in page


def test_a_cell_of_the_page_has_at_most_a_dozen_words() -> None:
    lines = (ROOT / "docs" / "results.md").read_text().splitlines()
    cells = [cell for line in lines if line.startswith("|") for cell in line[1:-1].split("|")]
    assert not [cell for cell in cells if len(cell.split()) > 12]


def score(row: str, column: str, *values: float, **more: Any) -> dict[str, Any]:
    mean = sum(values) / len(values) if values else None
    return {"row": row, "column": column, "values": list(values), "mean": mean, **more}


def made_outcome(*cells: dict[str, Any], **more: Any) -> dict[str, Any]:
    names = dict.fromkeys(cell["column"] for cell in cells)
    columns = [{"name": n, "rows": [c for c in cells if c["column"] == n]} for n in names]
    return {"recipe": "mine", "scale": "laptop", "columns": columns, "claims": [], **more}


def made_recipe(*claims: Claim) -> Recipe:
    rows = (Row("A", "moon", rounds={"one": 20}), Row("B", "fedavg", rounds={"one": ">100"}))
    head = {"name": "mine", "source": "mine", "paper": "Me", "about": "", "reference": "B"}
    return Recipe(**head, base="digits/fedavg", unit="percent", rows=rows, claims=claims)


@pytest.mark.parametrize(
    ("claim", "paper", "ours"),
    [
        # B has a second seed, which A has not
        (
            Claim("x", "A", below="B", columns=("one",)),
            "+2.0 (62.0 against 60.0)",
            "+5.0 (45.0 against 40.0)",
        ),
        (Claim("x", "A", below="B"), "-", "+5.0, -1.0"),  # the paper has no value of B in two
        (Claim("x", "A", kind="monotone"), "62.0, 70.0", "45.0, 30.0"),
        (
            Claim("x", "A", below="B", kind="faster", columns=("one",)),
            "20 against >100",
            "7 against 9 (5: 12/>20)",
        ),
        (
            Claim("x", "A", below="B", kind="faster", columns=("one", "two")),
            "-",
            "7/9, 3/4 (5: 12/>20,-)",
        ),
        (Claim("x", "A", kind="falls", columns=("one",)), "-", "45.0 at the end, 50.0 at best"),
        (Claim("x", "A", below="B", columns=("three",)), "-", "-"),
    ],
)
def test_the_numbers_of_a_claim(claim: Claim, paper: str, ours: str) -> None:
    outcome = made_outcome(
        score(
            "A",
            "one",
            0.45,
            paper=0.62,
            rounds=[7],
            smoothed={"5": [12]},
            curve=[[1, 0.5], [2, 0.45]],
        ),
        score(
            *("B", "one", 0.40, 0.60),
            paper=0.60,
            rounds=[9, 10],
            smoothed={"5": [None, 15]},
            length=20,
        ),
        score("A", "two", 0.30, paper=0.70, rounds=[3]),
        score("B", "two", 0.31, rounds=[4]),
    )
    assert FINDINGS["write"](claim, made_recipe(claim), outcome) == (paper, ours)


def test_commands_repeat_all_that_an_outcome_has() -> None:
    rows = (
        Row("A", "moon", grid={"method.mu": (1.0, 5.0)}),
        Row("B", "fedavg"),
        Row("C", "fedprox", grid={"method.mu": (0.1, 1.0)}),
    )
    columns = tuple(Column(name) for name in ("one", "two", "three", "four"))
    recipe = replace(made_recipe(), rows=rows, columns=columns, scales={"laptop": Scale()})
    tuned = [{"name": "method.mu = 1"}, {"name": "method.mu = 5"}]
    cells = [
        *(score("A", "one", 0.5, seeds=1), score("B", "one", 0.4, seeds=1)),
        *(score("A", "two", 0.5, seeds=1), score("B", "two", 0.4, seeds=1)),
        *(score("A", "three", 0.5, seeds=1, grid=tuned), score("B", "three", 0.4, 0.5, seeds=2)),
        *(score("C", "three", 0.5, seeds=1), score("A", "four", seeds=0)),
        score("B", "four", 0.4, seeds=1, numbers=[1]),
    ]
    shown = "coterie reproduce mine --scale laptop --seeds"
    assert REPEATING["list_commands"](recipe, made_outcome(*cells)) == [
        f"{shown} 1 --no-grids --rows 'A,B' --columns 'one,two'",
        f"{shown} 1 --rows 'A' --columns 'three'",
        f"{shown} 2 --rows 'B' --columns 'three'",
        f"{shown} 1 --no-grids --rows 'C' --columns 'three'",
        f"{shown} 1 --first-seed 1 --rows 'B' --columns 'four'",
    ]


def test_an_outcome_without_newer_fields_is_read() -> None:
    cells = FINDINGS["read_cells"](made_outcome(score("A", "one", 0.5, chosen_by="accuracy")))
    assert cells["A", "one"].rounds_over(5) == ()


def test_a_claim_counts_by_the_largest_scale_that_tested_it() -> None:
    claims = [Claim(text, "A", below="B") for text in ("p", "q", "r", "Not in the paper: s")]
    recipe = made_recipe(*claims)

    def result(scale: str, **verdicts: str) -> Any:
        found = [{"text": text, "verdict": verdict} for text, verdict in verdicts.items()]
        return RESULTS["Result"]("f", recipe, made_outcome(scale=scale, claims=found))

    large = result("paper", p="holds (one seed)", q="not tested here")
    small = result("laptop", p="does not hold", q="does not hold", r="not tested here")
    counts = RESULTS["count_claims"](recipe, [large, small])
    assert counts == {
        **{"claims": 3, "holds": 1, "does not hold": 1, "not tested here": 1},
        **{"one seed": 1, "paper scale": 1},
    }


def test_the_longest_verdict_has_a_dozen_words_on_the_page() -> None:
    long = "holds (one seed); over 5 and 10 rounds: does not hold; run in CIFAR-10 alone"
    short = "holds (one seed); over 5/10: does not hold; run in CIFAR-10 alone"
    assert RESULTS["_shorten_verdict"](long) == short and len(short.split()) == 12
    usual = "holds; over 5 and 10 rounds: does not hold"
    assert RESULTS["_shorten_verdict"](usual) == usual


def test_a_long_claim_is_cut_to_a_dozen_words_on_the_page() -> None:
    for name in list_shipped():
        for claim in load(name).claims:
            short = claim.short or re.sub(r" \([^()]*\)", "", claim.text)
            assert min(len(short.split()), len(claim.text.split())) <= 12, claim.text
