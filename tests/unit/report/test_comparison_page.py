"""The page for many runs: its sections, its tables, its size."""

import html
import re
from dataclasses import replace
from pathlib import Path

import pytest
from made_run import EVIL, charts_of, make_run, sections_of

from coterie.report import write_report
from coterie.report.chart import allot_points, describe_thinning, make_series
from coterie.report.comparison_page import write_comparison
from coterie.report.rows import group_runs, read_member

SECTIONS = ["Curves", "Table", "Clients", "Differences by seed", "Warnings", "What differs"]
LARGEST = 1_500_000  # bytes


def cells_of(page: str, title: str) -> list[list[str]]:
    """The lines of the first table of a section, its head first."""
    section = page.split(f"<h2>{title}</h2>")[1].split("</section>")[0]
    table = section.split("<table>")[1].split("</table>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table, flags=re.DOTALL)
    cells = (re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, flags=re.DOTALL) for row in rows)
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in cells]


def write(folder: Path, *runs: Path, command: str = "") -> str:
    rows = group_runs(map(read_member, runs))
    text = write_comparison(rows, folder / "comparison.html", command).read_text(encoding="utf-8")
    return re.sub(r"<(script|style)>.*?</\1>", "", text, flags=re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods on two seeds, finished."""
    folder = tmp_path_factory.mktemp("runs")
    for method, lift in (("fedavg", 0.0), ("moon", 0.05)):
        for seed in (0, 1):
            name = f"{method} #{seed}"
            run = make_run(
                folder / name, seed=seed, method=method, lift=lift + seed / 100, by_client=True
            )
            write_report(run)
    return folder


def test_the_page_has_every_section_and_says_how_it_came_out(folder: Path) -> None:
    page = write(folder, *sorted(folder.glob("*#*")), command="coterie report 'a b'")
    assert sections_of(page) == [*SECTIONS, "Runs", "Do it again"]
    assert "<h1>FedAvg and MOON on digits</h1>" in page
    assert "MOON has the highest accuracy at the end" in page
    assert "<span>report</span> <span>&#x27;a</span> <span>b&#x27;</span>" in page
    assert "None: all runs are finished" in page


def test_curves_have_bands_over_seeds_by_round_bytes_and_seconds(folder: Path) -> None:
    charts = charts_of(write(folder, *sorted(folder.glob("*#*"))))
    drawn = charts["Accuracy"]
    assert [view["name"] for view in drawn["views"]] == ["by round", "by data sent", "by time"]
    fedavg, moon = drawn["series"]
    assert (fedavg["name"], moon["name"]) == ("FedAvg", "MOON")
    assert moon["y"][0] - fedavg["y"][0] == pytest.approx(0.05, abs=1e-5)
    assert fedavg["high"][0] - fedavg["low"][0] == pytest.approx(0.01, abs=1e-5)
    assert [level["text"] for level in drawn["levels"]] == ["target 0.3", "target 0.99"]
    clients = charts["Accuracy of the clients, by row"]
    assert [len(group["values"]) for group in clients["groups"]] == [8, 8]
    low, first, median, third, high = clients["groups"][0]["five"]
    assert low <= first <= median <= third <= high


def test_the_tables_have_means_targets_and_differences_by_seed(folder: Path) -> None:
    page = write(folder, *sorted(folder.glob("*#*")))
    head, fedavg, moon = cells_of(page, "Table")
    assert head == [
        *("row", "runs", "final", "best", "clients' mean", "worst tenth"),
        *("rounds to 0.3", "MB to 0.3", "rounds to 0.99", "MB to 0.99", "time ratio"),
    ]
    assert fedavg[:3] == ["FedAvg", "2", "0.5797 ± 0.0071"] and fedavg[6:] == [
        *("1.0 ± 0.0", "3.0 ± 0.0", "-", "-", "1.00"),
    ]
    assert moon[2] == "0.6297 ± 0.0071"
    assert 'data-value="0.579744272"' in page and '<div class="sortable"' in page
    assert cells_of(page, "Differences by seed") == [
        ["minus FedAvg", "seed 0", "seed 1", "mean", "deviation", "higher on"],
        ["MOON", "+0.0500", "+0.0500", "+0.0500", "0.0000", "2 of 2"],
    ]
    assert cells_of(page, "What differs") == [
        ["key", "FedAvg", "MOON"],
        ["method.name", "fedavg", "moon"],
    ]


def test_links_lead_to_the_pages_of_the_runs(folder: Path) -> None:
    page = write(folder, *sorted(folder.glob("*#*")))
    links = re.findall(r'href="([^#"][^"]*)"', page)
    assert links[:2] == ["fedavg%20%230/report.html", "fedavg%20%230/"] and len(links) == 8


def test_failed_and_lacking_rows_are_named(folder: Path, tmp_path: Path) -> None:
    other = make_run(tmp_path / "knn", accuracy=False, knn=0.5, method="scaffold", trouble=True)
    failed = make_run(tmp_path / "failed", method="fedprox")
    members = [*map(read_member, [*sorted(folder.glob("*#*")), other])]
    members.append(read_member(failed, "no client's training stayed finite"))
    page = write_comparison(group_runs(members), tmp_path / "page.html").read_text("utf-8")
    assert "Without accuracy: SCAFFOLD." in page
    assert "Without kNN accuracy: FedAvg, MOON, FedProx." in page
    assert "failed: no client&#x27;s training stayed finite" in page
    assert "1 run failed or cannot be read; 1 run not finished" in page
    assert page.count("<h3>Accuracy of the clients, by row</h3>") == 1
    assert '<th class="number">clients&#x27; mean, accuracy</th>' in page
    assert "judged by different metrics" in page and "answer lost" in page
    assert {"Accuracy", "kNN accuracy"} <= {*charts_of(page)}
    assert '<td class="name">FedProx (failed)</td>' in page
    assert "MOON has the highest accuracy" in page  # rows that are not finished are not compared


def test_names_are_shown_as_text(folder: Path, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"<b>{i}", method=EVIL, lift=i / 10, seed=i) for i in (0, 1)]
    other = make_run(tmp_path / "other", method="moon", more=f"[x]\ny = '{EVIL}'\n")
    page = write(tmp_path, *runs, other)
    assert "<img" not in page and "<b>0" not in page and html.escape(EVIL) in page


def test_a_page_of_hundreds_of_runs_stays_small(tmp_path: Path) -> None:
    one = read_member(make_run(tmp_path / "run", rounds=320, clients=10, by_client=True))
    members = [
        replace(one, config={**one.config, "local": {"lr": i / 100, "name": "<&" * 20}})
        for i in range(210)
    ]
    write_comparison(group_runs(members), tmp_path / "comparison.html")
    page = (tmp_path / "comparison.html").read_text("utf-8")
    assert len(page.encode()) < LARGEST
    assert "<h1>FedAvg on digits: 210 rows</h1>" in page
    assert "Of 210 rows the figures show 16" in page and "The first 200 of 210 rows." in page
    assert len(charts_of(page)["Accuracy"]["series"]) == 16
    assert len(cells_of(page, "Table")) == 201 and len(cells_of(page, "Runs")) == 211


def test_the_lines_of_a_page_share_its_points() -> None:
    assert [allot_points(lines) for lines in (0, 3, 80, 10**6)] == [500, 500, 187, 50]
    line = [(i, i / 1000) for i in range(1000)]
    (drawn,) = make_series(line, "a", "blue", band=[(y - 1, y + 1) for _, y in line], most=50)
    assert (drawn["x"][0], drawn["x"][-1]) == (0, 999)
    assert {len(drawn[key]) for key in ("x", "y", "low", "high")} == {50}
    assert describe_thinning(1000, 50).strip() == "50 rounds of a line are drawn, evenly spaced."
    assert describe_thinning(50, 50) == ""
