"""The outcome as text, Markdown, JSON and a page."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_recipe import Values, concluded, recipe, scored, tables

from coterie.report.tables import TableCell
from coterie.reproduce.page import write_outcome
from coterie.reproduce.page_tables import show_verdict
from coterie.reproduce.plan import Study, describe_changes, make_study
from coterie.reproduce.recipe import parse
from coterie.reproduce.scores import Score
from coterie.reproduce.tables import format_value
from coterie.reproduce.verdicts import conclude

VALUES: Values = {
    ("FedAvg", "one"): [0.60, 0.62],
    ("FedProx", "one"): [0.70, 0.72],
    ("FedAvg", "two"): [0.60],
    ("FedProx", "two"): [0.55],
}
EVIL = "<img src=x onerror=alert(1)>"


def study(**changes: Any) -> Study:
    some = tables(claim=[{"text": "It is above", "above": "FedProx", "below": "FedAvg"}])
    some["scale"]["paper"] |= {"target": 0.5, "note": "Two seeds."}
    return make_study(parse({**some, **changes}), "paper")


def written(out: Path, made: Study) -> tuple[dict[str, Any], str, str]:
    folder = write_outcome(concluded(made, VALUES), out)
    outcome = json.loads((folder / "outcome.json").read_text())
    return outcome, (folder / "table.md").read_text(), (folder / "report.html").read_text()


@pytest.mark.parametrize(
    ("unit", "value", "printed", "text"),
    [
        ("percent", 0.6934, None, "69.3"),
        ("fraction", 0.6934, None, "0.693"),
        ("percent", 0.4525, 45.25, "45.25"),
        ("percent", 0.69, 69.0, "69.0"),
        ("fraction", 0.6934, 0.6934, "0.6934"),
    ],
)
def test_accuracies_have_the_unit_of_the_paper(
    unit: str, value: float, printed: float | None, text: str
) -> None:
    assert format_value(replace(recipe(), unit=unit), value, printed) == text


def test_times_are_ratios() -> None:
    assert format_value(recipe(measure="time"), 1.0777) == "1.08"


def test_the_markdown_has_the_tables_and_the_claims(tmp_path: Path) -> None:
    _, text, _ = written(tmp_path, study())
    assert text.startswith("# custom, paper scale\n\nSomebody, Table 1\n\nA table.\n")
    assert "`coterie reproduce custom --scale paper`: 6 of 8 runs are finished." in text
    assert "Two seeds." in text
    first = "| 65.0 ± 2.0 | 7.5 | 9.5 | >10 | 27 | 1.20 | -, - | 1.00 | direction |"
    second = "| 71.0 | 10 | >10 | >10 | >100 | 0.90 | -, - | 1.00 | not reproduced (one seed) |"
    assert f"| FedProx | 71.0 ± 1.4 | 2 | +10.0 ± 0.0 {first}" in text
    assert f"| FedProx | 55.0 | 1 | -5.0 {second}" in text
    assert "| does not hold (one seed) | It is above |" in text
    assert "- two: partition.beta = 5" in text


def test_the_json_has_fractions_and_curves(tmp_path: Path) -> None:
    outcome, _, _ = written(tmp_path, study())
    one = outcome["columns"][0]
    assert (one["name"], one["target"]) == ("one", 0.5)
    row = one["rows"][1]
    assert row["row"] == "FedProx" and row["values"] == [0.70, 0.72] and row["paper"] == 0.65
    assert row["curve"][-1] == [10, pytest.approx(0.71)]
    assert outcome["claims"][0]["verdict"] == "does not hold (one seed)"
    assert (outcome["finished"], outcome["total"]) == (6, 8)


def test_the_page_draws_a_line_for_every_row_and_asks_nothing_of_the_network(
    tmp_path: Path,
) -> None:
    _, _, page = written(tmp_path, study())
    charts = re.findall(r'<script type="application/json">(.*?)</script>', page)
    assert len(charts) == 2
    drawn = json.loads(charts[0])
    assert [line["name"] for line in drawn["series"]] == ["FedAvg", "FedProx"]
    assert drawn["series"][1]["y"][-1] == pytest.approx(71.0)
    assert drawn["levels"] == [{"value": 50.0, "text": "target 50"}]
    assert '<td class="number" data-value="71">71.0 ± 1.4</td>' in page  # at the right, sorted
    assert drawn["series"][1]["low"][-1] == pytest.approx(70.0)
    assert drawn["series"][1]["high"][-1] == pytest.approx(72.0)
    assert len({line["colour"] for line in drawn["series"]}) == 2
    assert not re.search(r"https?://|@import|url\(|<link|\ssrc=", page)


def test_the_page_has_the_papers_table_beside_ours_with_verdicts(tmp_path: Path) -> None:
    _, _, page = written(tmp_path, study())
    beside = page.split("<h2>The paper and ours</h2>")[1].split("</section>")[0]
    assert beside.count('<th colspan="3">') == 2 and ">one</th>" in beside
    for text in ("65.0 ± 2.0", "71.0 ± 1.4", "60.0", "61.0 ± 1.4"):
        assert f">{text}</td>" in beside
    assert '<span class="verdict way">direction</span>' in beside
    assert '<span class="verdict bad unsure">not reproduced (one seed)</span>' in beside
    assert "Of 4 numbers of the paper 2 are not reproduced, 1 is within reach" in page
    assert "Of 1 claim 1 does not hold." in page


@pytest.mark.parametrize(
    ("verdict", "kind"),
    [
        ("within", "verdict good"),
        ("holds (one seed)", "verdict good unsure"),
        ("holds; over 5 rounds: does not hold", "verdict part long"),
        ("holds; run in two alone", "verdict part"),
        ("does not hold; run in two alone", "verdict bad long"),
        ("not reproduced: printed 3 times too much", "verdict bad long"),
        ("failed", "verdict bad"),
        ("not tested here", ""),
        ("-", ""),
    ],
)
def test_a_verdict_keeps_its_words_and_has_a_colour(verdict: str, kind: str) -> None:
    assert show_verdict(verdict) == TableCell(verdict, kind=kind)


def test_links_lead_from_the_page_to_the_runs(tmp_path: Path) -> None:
    run = tmp_path / "cells" / "fedprox <1>"
    run.mkdir(parents=True)
    (run / "report.html").write_text("")
    scores = scored(study(), VALUES)
    scores.add("FedProx", "two", "", Score(0, str(run), 0.5))
    page = (write_outcome(conclude(scores), tmp_path) / "report.html").read_text()
    assert 'href="../cells/fedprox%20%3C1%3E/report.html"' in page
    assert 'href="../cells/fedprox%20%3C1%3E/">cells/fedprox &lt;1&gt;</a>' in page


def test_text_of_a_recipe_is_escaped(tmp_path: Path) -> None:
    _, _, page = written(tmp_path, study(about=EVIL))
    assert "<img" not in page and "&lt;img" in page


def test_a_run_that_failed_is_in_the_table_with_its_reason(tmp_path: Path) -> None:
    scores = scored(study(), VALUES)
    scores.add("FedProx", "two", "", Score(0, "somewhere", failure="no disk"))
    folder = write_outcome(conclude(scores), tmp_path)
    text = (folder / "table.md").read_text()
    assert "| FedProx | failed | 0 |" in text
    assert "- FedProx, two, seed 0: no disk" in text
    assert "no disk" in (folder / "report.html").read_text()


def test_settings_are_told_once_where_they_are_shared() -> None:
    some = tables()
    some["row"][1]["set"] = {"local.lr": 0.5}
    made = make_study(parse(some), "smoke")
    assert list(describe_changes(made)) == [
        "everywhere: run.rounds = 3, local.epochs = 1",
        "two: partition.beta = 5",
        "FedProx: local.lr = 0.5",
    ]
