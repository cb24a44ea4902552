import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_run import EVIL, by_name, charts_of, make_run, page_of, sections_of

from coterie.core.errors import CheckpointError
from coterie.report import write_report
from coterie.report.page import make_page
from coterie.report.partition_chart import CLIENTS_SHOWN


def test_a_page_says_what_was_run_and_draws_it(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    page = page_of(folder)
    assert "<h1>FedAvg on digits</h1>" in page
    charts = charts_of(page)
    assert {*charts} == {"Accuracy", "Loss", "Who holds what"}
    assert "The same whenever it was measured: train_steps 5." in page
    by_round, by_bytes, by_time = charts["Accuracy"]["views"]
    assert by_name(by_round)["global test set"]["x"] == [1.0, 2.0, 3.0]
    assert by_name(by_bytes)["global test set"]["x"] == [3.0, 6.0, 9.0]
    assert by_name(by_time)["global test set"]["x"] == [1.5, 3.0, 4.5]
    mean = by_name(by_round)["clients' own test data, mean"]
    assert mean["high"][0] == pytest.approx(mean["y"][0] + 0.2, abs=1e-5)
    assert min(mean["low"]) >= 0 and max(mean["high"]) <= 1
    assert [level["text"] for level in charts["Accuracy"]["levels"]] == [
        "target 0.3",
        "target 0.99",
    ]
    assert "method" in page and "options.mu" in page and "ab" * 32 in page and "label_skew" in page
    assert f"<span>coterie</span> <span>run</span> <span>{folder}/config.toml</span>" in page


def test_sections_without_their_files_are_left_out(tmp_path: Path) -> None:
    assert sections_of(page_of(make_run(tmp_path / "run"))) == [
        *("Course", "Partition", "Losses and diagnostics", "What left the clients"),
        *("Run it again", "Configuration and digests"),
    ]


def test_optional_files_add_to_the_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    (folder / "baseline.json").write_text(
        '{"metric": "accuracy", "values": {"untrained": 0.1, "largest_class": 0.1004, "odd": "x"}}'
    )
    (folder / "model.json").write_text('{"leaves": "weights & its <size>"}')
    state = folder / "checkpoints" / "round_000002" / "state.json"
    state.parent.mkdir(parents=True)
    state.write_text('{"environment": {"torch": "9.9", "machine": "abacus"}}')
    page = page_of(folder)
    assert "an untrained network has 0.100, always guessing the largest class has 0.100." in page
    levels = [level["text"] for level in charts_of(page)["Accuracy"]["levels"]]
    assert levels[2:] == ["untrained, largest class 0.100"]
    assert "weights &amp; its &lt;size&gt;" in page and "9.9" in page and "abacus" in page
    for path in (folder / "baseline.json", folder / "model.json", state):
        path.write_text("[] broken")
    assert sections_of(page_of(folder)) == sections_of(page)


def test_colours_of_charts_are_those_of_the_style_sheet(tmp_path: Path) -> None:
    text = write_report(make_run(tmp_path / "run", trouble=True)).read_text(encoding="utf-8")
    used = {*re.findall(r'"colour":"([^"]*)"', text), *re.findall(r"colour\('([\w-]+)'\)", text)}
    named = {*re.findall(r"--([\w-]+):", text)}
    assert used and used <= named
    dark = text.split("prefers-color-scheme: dark")[1].split("\n}\n")[0]
    light = text.split(":root, .light {")[1].split("}")[0]
    assert {*re.findall(r"--([\w-]+):", light)} == {*re.findall(r"--([\w-]+):", dark)}


def test_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    page = write_report(make_run(tmp_path / "run")).read_text(encoding="utf-8")
    assert not re.search(r"https?://|@import|url\(|<link|\ssrc=", page)
    assert "default-src 'none'" in page


def test_large_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 500, 1000, 100, every=10, trouble=True)
    page = page_of(folder)
    charts = charts_of(page)
    heat = charts["Who holds what"]
    assert len(heat["counts"]) == len(heat["rows"]) == CLIENTS_SHOWN
    assert f"Only {CLIENTS_SHOWN} of the 1,000 clients are shown" in page
    assert len(by_name(charts["Accuracy"])["global test set"]["x"]) == 50
    answered = by_name(charts["Participation by round"])["answered"]["y"]
    assert answered[:2] == [999, 999] and max(answered) == 1000
    assert "72 skipped" in page and "and 64 more" in page
    assert len(page) < 1_000_000


def test_the_page_of_thousands_of_rounds_is_small(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 6000, trouble=True, targets="[]")
    text = write_report(folder).read_text(encoding="utf-8")
    assert len(text) < 1_500_000
    charts = charts_of(text)
    line = by_name(charts["Accuracy"])["global test set"]
    assert (len(line["x"]), line["x"][0], line["x"][-1]) == (500, 1, 6000)
    assert "500 of the rounds are drawn" in text and "The last 500 rounds" in text
    assert "skipped round" not in by_name(charts["Accuracy"])  # so many would hide the line
    bars = charts["Participation by round"]
    assert len(bars["at"]) == 500 and bars["y"]["label"] == "clients, mean of 12 rounds"


def test_what_was_lost_is_said_above_the_sections(tmp_path: Path) -> None:
    assert "Not every answer" not in page_of(make_run(tmp_path / "run"))
    page = page_of(make_run(tmp_path / "bad", 10, trouble=True))
    warning = page.split("<section")[0].split('class="warning"')[1]
    assert "5 answers lost; 4 answers rejected; 2 rounds skipped" in warning
    assert "dropped before the round" in warning


def test_stages_are_marked(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[1]["stage"] = lines[2]["stage"] = "contrast"
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    charts = charts_of(page_of(folder))
    by_round, by_bytes, _ = charts["Accuracy"]["views"]
    names = [lines[0]["stage"], "contrast"]
    assert [mark["text"] for mark in by_round["marks"]] == names
    assert by_round["marks"] == charts["Loss"]["marks"]
    assert [mark["at"] for mark in by_round["marks"]] == [1, 1.5]
    assert [mark["at"] for mark in by_bytes["marks"]] == [3.0, 3.0]


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", trouble=True, **{EVIL: 1.0})
    split = json.loads((folder / "partition.json").read_text())
    split["dataset"] = split["digest"] = split["clients"][0]["name"] = EVIL
    split["heterogeneity"] = {EVIL: 1.0}
    (folder / "partition.json").write_text(json.dumps(split))
    with (folder / "config.toml").open("a") as file:
        file.write(f"[cohort]\nnote = '{EVIL}'\n")
    page = page_of(folder)
    assert "<img" not in page and "<b>&" not in page
    assert html.escape(EVIL) in page
    assert page.count("<script") == page.count("</script>")
    assert charts_of(page)["Who holds what"]["rows"][0] == EVIL  # the browser puts it in as text


def test_a_run_without_accuracy_is_about_what_it_has(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", accuracy=False, knn=0.5))
    assert "kNN accuracy 0.500 at the end" in page
    assert by_name(charts_of(page)["kNN accuracy"])["global test set"]["y"] == [0.5] * 3
    empty = page_of(make_run(tmp_path / "empty", accuracy=False))
    assert "nothing was measured on test data" in empty and "No accuracy" not in empty


def test_other_metric_can_be_the_main_one(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", linear_accuracy=0.5)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config + "metric = 'linear_accuracy'\n")
    page = page_of(folder)
    assert "linear accuracy at the end" in page and "0.5000" in page
    assert "Linear accuracy" in charts_of(page) and "accuracy" in charts_of(page)


def test_clients_and_classes_are_drawn_and_a_client_can_be_chosen(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", classes=2)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    lines[-1] |= {
        "clients": {"site 1": {"accuracy": 0.75, "loss": 1.0}, "site 2": {"accuracy": 0.5}},
        "unseen": ["site 1"],
        "confusion": [[3, 1], [0, 4]],
        "recall": {"0": 0.75, "1": 1.0},
        "client_confusion": {"site 1": [[1, 1], [0, 2]]},
    }
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    page = page_of(folder)
    assert sections_of(page)[:4] == ["Course", "Clients", "Classes", "Partition"]
    charts = charts_of(page)
    assert charts["Accuracy by client"]["labels"] == ["site 2", "site 1"]
    assert charts["Accuracy by client"]["marked"] == [1] and "never trained" in page
    assert charts["Recall by class"]["values"] == [0.75, 1.0]
    views = {view["name"]: view["counts"] for view in charts["Confusion"]["views"]}
    assert views == {"all": [[3, 1], [0, 4]], "client site 1": [[1, 1], [0, 2]]}


def test_written_whole_and_where_asked(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    out = tmp_path / "new" / "page.html"
    assert write_report(folder, out) == out and out.exists()
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
    page = out.read_text(encoding="utf-8")
    assert "connect-src" not in page and "fetch(" not in page  # a file asks for nothing
    assert "connect-src 'self'" in make_page(folder, live=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*file: File exists"):
        write_report(folder, tmp_path / "file" / "page.html")


def test_report_does_not_import_torch() -> None:
    imported = "import sys, coterie.report, coterie.report.comparison_page, coterie.cli.report"
    code = f"{imported}; sys.exit('torch' in sys.modules or 'plotly' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
