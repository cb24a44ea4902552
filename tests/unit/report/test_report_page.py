import html
import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import plotly.graph_objects as go
import pytest

from coterie.core.errors import CheckpointError, DataError
from coterie.report import headline, write_report
from coterie.report.figures import CLIENTS_SHOWN, Row
from coterie.report.page import read_run

EVIL = '<img src=x onerror="alert(1)"></script><b>&'


def make_run(
    folder: Path,
    rounds: int = 3,
    clients: int = 4,
    classes: int = 10,
    *,
    every: int = 1,
    accuracy: bool = True,
    trouble: bool = False,
    targets: str = "[0.3, 0.99]",
    **extra: float,
) -> Path:
    """A run directory with a smooth, made-up course."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.toml").write_text(
        '[run]\nseed = 1\n[data]\nname = "digits"\n[partition]\nkind = "dirichlet"\n'
        f"alpha = 0.3\nclients = {clients}\n[net]\nbackbone = 'mlp'\n[method]\nname = 'fedavg'\n"
        f"[method.options]\nmu = 0.1\n[evaluate]\nevery = {every}\ntargets = {targets}\n"
    )
    held = [[(7 * i + 3 * k * i) % 23 for k in range(classes)] for i in range(clients)]
    split = {
        "dataset": "digits",
        "digest": "ab" * 32,
        "classes": classes,
        "clients": [
            {"name": f"site {i}", "train": sum(row), "test": i, "classes": row}
            for i, row in enumerate(held)
        ],
        "heterogeneity": {"label_skew": 0.41},
    }
    (folder / "partition.json").write_text(json.dumps(split))
    lines = []
    for i in range(rounds):
        rise = 1 - math.exp(-3 * (i + 1) / max(10, rounds))
        metrics = {"train_loss": 2.3 - 2 * rise, "train_steps": 5.0}
        if (i + 1) % every == 0 or i + 1 == rounds:
            metrics |= {"loss": 2.4 - 1.8 * rise, **extra}
            if accuracy:
                metrics |= {
                    "accuracy": 0.1 + 0.8 * rise,
                    "client_accuracy_mean": 0.1 + 0.7 * rise,
                    "client_accuracy_std": 0.2,
                    "client_accuracy_worst_decile": 0.4 * rise,
                    "client_loss_mean": 2.5 - 1.7 * rise,
                }
        lines.append(
            json.dumps(
                {
                    "round": i,
                    "stage": "train",
                    "cohort": list(range(clients)),
                    "lost": {"1": "dropped before the round"} if trouble and i % 2 else {},
                    "rejected": {"2": f"error: {EVIL}"} if trouble and i % 3 == 0 else {},
                    "skipped": trouble and i % 7 == 1,
                    "metrics": metrics,
                    "bytes_up": 1_000_000,
                    "bytes_down": 2_000_000,
                    "evaluation_bytes_up": 0,
                    "evaluation_bytes_down": 500_000,
                    "seconds": 1.5,
                    "digest": f"{i:064x}",
                    "states": "cd" * 32,
                }
            )
        )
    (folder / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def page_of(folder: Path) -> str:
    """The page without the library that is inlined in it."""
    text = write_report(folder).read_text(encoding="utf-8")
    assert text.count("plotly.js v") == 1
    return re.sub(r"<script>.*?</script>", "", text, count=1, flags=re.DOTALL)


def charts_of(page: str) -> dict[str, dict[str, Any]]:
    """The charts by title; Plotly checks every property, with one colour for all."""
    found = {}
    pattern = r'<h3>([^<]*)</h3>.*?<script type="application/json">(.*?)</script>'
    for title, text in re.findall(pattern, page, flags=re.DOTALL):
        assert "NaN" not in text and "Infinity" not in text
        figure = json.loads(text)
        go.Figure(json.loads(re.sub(r'"@\w+"', '"#123456"', text)))
        axes = [v for k, v in figure["layout"].items() if k[1:].startswith("axis")]
        assert axes and all(axis["title"]["text"] for axis in axes)
        found[html.unescape(title)] = figure
    return found


def by_name(figure: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {trace.get("name", ""): trace for trace in figure["data"]}


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


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", grad=math.nan, peak=math.inf))
    assert "6 values that are not finite numbers were left out." in page
    assert "grad" not in charts_of(page)


def test_partition_without_heterogeneity_or_classes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    split = {"dataset": "d", "digest": "e", "classes": 0, "clients": []}
    (folder / "partition.json").write_text(json.dumps(split))
    assert "No client holds a labelled class" in page_of(folder)


def test_headline_counts_as_the_engine_does(tmp_path: Path) -> None:
    history = read_run(make_run(tmp_path / "run", 20, every=5)).history
    head = headline(history, [0.3, 0.99])
    assert head.final == head.best == (history[-1].metrics["accuracy"], 19)
    hit = next(row for row in history if row.metrics.get("accuracy", 0) >= 0.3)
    assert (head.targets[0].rounds, head.targets[0].bytes) == (
        hit.round + 1,
        3_000_000 * (hit.round + 1),
    )
    assert head.targets[1].rounds is None
    assert (head.bytes_up, head.bytes_down, head.seconds) == (20_000_000, 40_000_000, 30.0)
    assert headline(history, [0.5], "absent").final is None


def test_row_mirrors_the_engines_event() -> None:
    record = pytest.importorskip("coterie.engine.record")
    assert [*Row.__dataclass_fields__] == [*record.RoundEvent.__dataclass_fields__]


@pytest.mark.parametrize("name", ["config.toml", "partition.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [None, "{ broken", '{"round": 1}\n', b"\xff\xfe"])
def test_broken_files_are_named(tmp_path: Path, name: str, content: str | bytes | None) -> None:
    folder = make_run(tmp_path / "run")
    (folder / name).unlink()
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    with pytest.raises((CheckpointError, DataError)) as caught:
        write_report(folder)
    assert name in str(caught.value) and "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()


def test_empty_and_half_written_metrics(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(whole + '{"round": 3, "sta')
    assert "The last line of metrics.jsonl is incomplete" in page_of(folder)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="no finished round"):
        write_report(folder)


@pytest.mark.parametrize("key", ["round", "lost", "cohort", "bytes_up", "seconds", "metrics"])
def test_a_value_of_the_wrong_kind_is_named(tmp_path: Path, key: str) -> None:
    path = make_run(tmp_path / "run", rounds=1) / "metrics.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "x"}) + "\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl .* line 1"):
        write_report(path.parent)


def test_written_whole_and_where_asked(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    out = tmp_path / "new" / "page.html"
    assert write_report(folder, out) == out and out.exists()
    assert [path.name for path in out.parent.iterdir()] == ["page.html"]
    assert 'http-equiv="refresh"' not in out.read_text(encoding="utf-8")
    again = write_report(folder, out, refresh=5).read_text(encoding="utf-8")
    assert '<meta http-equiv="refresh" content="5">' in again
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot write .*page\.html"):
        write_report(folder, tmp_path / "file" / "page.html")


def test_report_does_not_import_torch() -> None:
    code = "import sys, coterie.report; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
