import html
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from made_run import EVIL, by_name, charts_of, make_run, page_of

from coterie.core.errors import CheckpointError
from coterie.report import write_report
from coterie.report.partition_chart import CLIENTS_SHOWN, chart_partition
from coterie.report.read import Holder


def test_small_run(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run"))
    assert "<h1>fedavg on digits</h1>" in page
    charts = charts_of(page)
    assert {"Accuracy by round", "Loss by round", "Accuracy by data sent", "Who holds what"} < {
        *charts
    }
    assert "Participation by round" not in charts
    assert "train_steps" in charts
    sent = by_name(charts["Accuracy by data sent"])["global test set"]
    assert sent["x"] == [3.0, 6.0, 9.0]
    assert by_name(charts["Accuracy by round"])["± standard deviation"]["fill"] == "tonexty"
    assert "method" in page and "options.mu" in page and "ab" * 32 in page and "label_skew" in page
    # every colour that a chart names is one of the style sheet
    assert {*re.findall(r'"@(\w+)"', page)} <= {*re.findall(r"--(\w+):", page)}


def test_page_asks_nothing_of_the_network(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run"))
    assert not re.search(r"https?://|@import|url\(|<link|\ssrc=", page)
    assert "default-src 'none'" in page


def test_one_round_shows_markers(tmp_path: Path) -> None:
    charts = charts_of(page_of(make_run(tmp_path / "run", rounds=1, clients=1, classes=2)))
    traces = charts["Accuracy by round"]["data"] + charts["Loss by round"]["data"]
    assert {trace["mode"] for trace in traces} == {"markers"}
    mean = by_name(charts["Accuracy by round"])["clients' own test data, mean"]
    assert mean["error_y"]["array"] == [0.2]


def test_large_run(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", 500, 1000, 100, every=10, trouble=True)
    page = page_of(folder)
    charts = charts_of(page)
    heat = charts["Who holds what"]["data"][0]
    assert len(heat["z"]) == CLIENTS_SHOWN
    assert f"Only {CLIENTS_SHOWN} of the 1,000 clients are shown" in page
    assert len(by_name(charts["Accuracy by round"])["global test set"]["x"]) == 50
    answered = by_name(charts["Participation by round"])["answered"]["y"]
    assert answered[:2] == [999, 999] and max(answered) == 1000
    assert "72 skipped" in page and "and 64 more" in page
    assert len(page) < 1_000_000


def test_text_from_files_is_escaped(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", trouble=True, **{EVIL: 1.0})
    split = json.loads((folder / "partition.json").read_text())
    split["dataset"] = split["digest"] = split["clients"][0]["name"] = EVIL
    split["heterogeneity"] = {EVIL: 1.0}
    (folder / "partition.json").write_text(json.dumps(split))
    with (folder / "config.toml").open("a") as file:
        file.write(f"[cohort]\nnote = '{EVIL}'\n")
    page = page_of(folder)
    assert "<img" not in page and "<b>" not in page
    assert html.escape(EVIL) in page
    assert page.count("<script") == page.count("</script>")
    tick = charts_of(page)["Who holds what"]["layout"]["yaxis"]["ticktext"][0]
    assert tick.startswith("&lt;img")


@pytest.mark.parametrize(
    ("names", "ticks", "angle"),
    [
        (["0", "1", "2"], None, None),  # numbered from 0: no names are needed
        (["3", "5", "8"], ["3", "5", "8"], 0),
        ([f"a kind of animal {i}" for i in range(12)], ["a kind of anima…"] * 12, -40),
        ([f"kind {i:03}" for i in range(100)], [f"kind {i:03}" for i in range(0, 100, 3)], -40),
    ],
)
def test_classes_of_the_heat_map_are_named_as_far_as_there_is_room(
    names: list[str], ticks: list[str] | None, angle: int | None
) -> None:
    held = Holder("north", 9, 1, tuple(range(len(names))))
    chart = chart_partition([held], names)
    assert chart is not None
    axis = chart.layout["xaxis"]
    assert (axis.get("ticktext"), axis.get("tickangle")) == (ticks, angle)
    hovered = chart.data[0]["customdata"][0]
    assert [cell[2] for cell in hovered] == names


def test_run_without_accuracy_or_evaluation(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", accuracy=False, knn_accuracy=0.5))
    charts = charts_of(page)
    assert "No accuracy was measured" in page and "not measured" in page
    assert "Accuracy by round" not in charts and "Accuracy by data sent" not in charts
    assert charts["knn_accuracy"]["layout"]["yaxis"]["title"]["text"] == "knn_accuracy (share)"


def test_other_metric_can_be_the_main_one(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", accuracy=False, linear_accuracy=0.5)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config + "metric = 'linear_accuracy'\n")
    page = page_of(folder)
    assert "Final linear_accuracy" in page and "0.5000" in page
    assert "linear_accuracy" in by_name(charts_of(page)["Accuracy by round"])


def test_written_whole_and_where_asked(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    out = tmp_path / "new" / "page.html"
    assert write_report(folder, out) == out and out.exists()
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
    assert 'http-equiv="refresh"' not in out.read_text(encoding="utf-8")
    again = write_report(folder, out, refresh=5).read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="5">' in again
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*file: File exists"):
        write_report(folder, tmp_path / "file" / "page.html")


def test_report_does_not_import_torch() -> None:
    code = "import sys, coterie.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
