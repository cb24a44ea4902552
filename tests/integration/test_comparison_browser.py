"""Pages of many runs and of recipes in a real browser: sections, sorting, files, narrow screens."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest
from made_recipe import paper_study, scored
from made_run import EVIL, make_run

from browser import Browser, assert_drawn, assert_narrow, assert_quiet, figure
from coterie.report import write_report
from coterie.report.comparison_page import write_comparison
from coterie.report.rows import group_runs, read_member
from coterie.reproduce.page import write_outcome
from coterie.reproduce.verdicts import conclude

pytestmark = pytest.mark.slow
SECTIONS = {
    "comparison": [
        *("Curves", "Table", "Clients", "Differences by seed", "Warnings", "What differs"),
        *("Runs", "Do it again"),
    ],
    "recipe": [
        *("The paper and ours", "Curves", "one", "two"),
        *("Settings that differ from the shipped configurations", "Runs", "Do it again"),
    ],
}
TABLE = "document.querySelector('#{} table')"
COLUMN = "[...{}.tBodies[0].rows].map(r => r.cells[{}].textContent)"


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    runs = []
    for method, lift in (("fedavg", 0.05), ("moon", 0.1), (EVIL, 0.0)):
        for seed in (0, 1, 2):
            run = make_run(
                folder / f"{len(runs)}",
                *(100, 10),
                seed=seed,
                method=method,
                lift=lift + seed / 50,
                by_client=True,
                trouble=method == "moon",
            )
            write_report(run)
            runs.append(run)
    rows = group_runs(map(read_member, runs))
    compared = write_comparison(rows, folder / "comparison.html", "coterie report .")
    values = {(row, column): [0.6, 0.62] for row in ("FedAvg",) for column in ("one", "two")}
    values |= {("FedProx", "one"): [0.65, 0.66], ("FedProx", "two"): [0.5, 0.4]}
    recipe = write_outcome(conclude(scored(paper_study(), values)), folder) / "report.html"
    return {"comparison": compared, "recipe": recipe}


@pytest.mark.parametrize(("name", "sections"), SECTIONS.items())
def test_every_section_is_drawn_on_a_desk_and_on_a_phone(
    name: str, sections: list[str], browser: Browser, pages: dict[str, Path]
) -> None:
    page = pages[name]
    browser.open(page)
    assert_drawn(browser, sections)
    assert browser.run("window.hurt === undefined && !document.querySelector('img')")
    assert_narrow(browser, page)
    assert_quiet(browser, page)


def test_a_table_is_sorted_by_a_click_and_by_a_key(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["comparison"])
    table = TABLE.format("table")
    names = COLUMN.format(table, 0)
    assert browser.run(names) == ["FedAvg", "MOON", EVIL]
    browser.run(f"window.head = n => {table}.tHead.rows[0].cells[n]")
    browser.run("head(2).querySelector('button').click()")
    assert browser.run(names) == ["MOON", "FedAvg", EVIL]
    assert browser.run("head(2).getAttribute('aria-sort')") == "descending"
    browser.run("head(2).querySelector('button').focus()")
    for kind in ("keyDown", "keyUp"):
        browser.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", text="\r")
    assert browser.run("head(2).getAttribute('aria-sort')") == "ascending"
    assert browser.run(names) == [EVIL, "FedAvg", "MOON"]
    browser.run("head(0).querySelector('button').click()")
    assert browser.run("head(2).getAttribute('aria-sort')") is None
    assert browser.run(names)[1:] == ["FedAvg", "MOON"]
    never = browser.run("[...document.querySelectorAll('#table th')].map(t => t.textContent)")
    reached = never.index("rounds to 0.99")  # by one method alone: the others are last either way
    for _ in range(2):
        browser.run(f"head({reached}).querySelector('button').click()")
        assert browser.run(names)[0] == "MOON"
    assert_quiet(browser, pages["comparison"])


def test_tables_and_figures_are_saved(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"], dark=True)
    saved = browser.download("document.querySelector('#table .save').click()", ".csv")
    rows = list(csv.reader(saved.splitlines()))
    assert [row[0] for row in rows] == ["row", "FedAvg", "MOON", EVIL]
    assert len({len(row) for row in rows}) == 1 and rows[0][2] == "final"
    for title in ("Accuracy", "Accuracy of the clients, by row"):
        save = f"{figure(title)}.querySelectorAll('.save')[%d].click()"
        lines = list(csv.reader(browser.download(save % 0, ".csv").splitlines()))
        assert len(lines) > 30 and {row[0] for row in lines[1:]} >= {"FedAvg", "MOON"}
        text = browser.download(save % 1, ".svg")
        assert "var(" not in text and title in "".join(ElementTree.fromstring(text).itertext())
    assert_quiet(browser, pages["comparison"])


def test_curves_switch_and_the_clients_of_a_row_are_read_out(
    browser: Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["comparison"])
    browser.run(f"window.fig = {figure('Accuracy')}")
    assert browser.run("fig.querySelectorAll('.plot path[fill-opacity]').length") == 3  # bands
    browser.run("fig.querySelectorAll('.switch button')[2].click()")
    assert "seconds so far" in browser.run("fig.querySelector('.plot').textContent")
    browser.run(f"window.fig = {figure('Accuracy of the clients, by row')}")
    press = "new KeyboardEvent('keydown', { key: 'ArrowDown' })"
    browser.run(f"fig.querySelector('.plot > svg').dispatchEvent({press})")
    said = browser.run("fig.querySelector('.readout').textContent")
    assert said.startswith("FedAvglowest (site 0, seed 0)") and "points30" in said


def test_links_lead_to_files_that_are_there(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["comparison"])
    links = browser.run("[...document.querySelectorAll('#runs a')].map(a => a.href)")
    assert len(links) == 18
    assert all(Path(link.removeprefix("file://")).exists() for link in links)


def test_verdicts_are_in_words_and_in_colour(browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["recipe"])
    shown = browser.run(
        "[...document.querySelectorAll('#the-paper-and-ours .verdict')]"
        ".map(v => [v.textContent, getComputedStyle(v).borderColor])"
    )
    words = [text for text, _ in shown]
    assert words == ["within", "not reproduced", "within", "not reproduced"]
    assert len({colour for _, colour in shown}) == 2
    table = TABLE.format("the-paper-and-ours")
    heads = browser.run(f"[...{table}.tHead.rows].map(r => [...r.cells].map(c => c.textContent))")
    assert heads == [["", "one", "two"], ["row", *("paper", "ours", "verdict") * 2]]
    browser.run(f"{table}.tHead.rows[1].cells[5].querySelector('button').click()")
    assert browser.run(COLUMN.format(table, 0)) == ["FedAvg", "FedProx"]
    browser.run(f"{table}.tHead.rows[1].cells[2].querySelector('button').click()")
    assert browser.run(COLUMN.format(table, 0)) == ["FedProx", "FedAvg"]
    bands = f"{figure('one')}.querySelectorAll('.plot path[fill-opacity]').length"
    assert browser.run(bands) == 2


@pytest.mark.parametrize("name", SECTIONS)
def test_no_table_is_cut_on_paper(name: str, browser: Browser, pages: dict[str, Path]) -> None:
    browser.open(pages[name], 700, media="print")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    widest = "Math.max(...[...document.querySelectorAll('table')].map(t => t.offsetWidth))"
    assert browser.run(widest) <= 700


def test_the_largest_page_of_the_two_is_small(pages: dict[str, Path]) -> None:
    assert max(page.stat().st_size for page in pages.values()) < 400_000
