from dataclasses import replace
from pathlib import Path

import pytest
from made_run import make_run

from coterie.report import make_headline
from coterie.report.read import read_run
from coterie.report.summary import describe_unseen, rank_clients
from coterie.report.tables import list_classes, list_clients


def test_headline(tmp_path: Path) -> None:
    history = read_run(make_run(tmp_path / "run", 20, every=5)).history
    head = make_headline(history, [0.3, 0.99])
    assert head.final == head.best == (history[-1].metrics["accuracy"], 19)
    hit = next(row for row in history if row.metrics.get("accuracy", 0) >= 0.3)
    assert (head.targets[0].rounds, head.targets[0].bytes) == (
        hit.round + 1,
        3_000_000 * (hit.round + 1),
    )
    assert head.targets[1].rounds is None
    assert (head.bytes_up, head.bytes_down, head.seconds) == (20_000_000, 40_000_000, 30.0)
    assert make_headline(history, [0.5], "absent").final is None


@pytest.mark.parametrize("metric", ["knn", "client_knn_mean", "feature_std"])
def test_clients_are_ranked_by_the_metric_of_the_run_or_by_one_that_they_have(
    metric: str, tmp_path: Path
) -> None:
    *_, last = read_run(make_run(tmp_path / "run", 2)).history
    measured = {"north": {"knn": 0.75}, "south": {"knn": 0.5}, "west": {}}
    name, ranked = rank_clients([replace(last, clients=measured, unseen=["south"]), last], metric)
    assert name == "knn"
    assert [one.describe() for one in ranked] == ["0.5000 south (unseen)", "0.7500 north"]
    assert rank_clients([last], metric) == ("", [])


def test_unseen_clients_have_a_mean_and_their_names(tmp_path: Path) -> None:
    *_, last = read_run(make_run(tmp_path / "run", 2)).history
    measured = {"north": {"knn": 0.75}, "south": {"knn": 0.5}}
    metrics = {**last.metrics, "unseen_knn_mean": 0.5}
    event = replace(last, clients=measured, unseen=["south"], metrics=metrics)
    rows = [("unseen_knn_mean", "0.5000"), ("unseen clients", "south")]
    assert describe_unseen([event, last], "knn") == rows
    assert describe_unseen([replace(event, unseen=[])], "knn") == describe_unseen([last]) == []


def test_of_many_clients_the_worst_and_the_best_are_listed(tmp_path: Path) -> None:
    *_, last = read_run(make_run(tmp_path / "run", 2)).history
    measured = {f"site {i}": {"accuracy": i / 100} for i in range(50)}
    text = "".join(list_clients([replace(last, clients=measured)], "accuracy"))
    assert "30 clients between these are left out" in text
    assert "site 0<" in text and "site 49<" in text and "site 25<" not in text
    assert not "".join(list_clients([last], "accuracy"))


def test_recall_is_listed_by_class(tmp_path: Path) -> None:
    *_, last = read_run(make_run(tmp_path / "run", 2)).history
    text = "".join(list_classes([replace(last, confusion=[[1]], recall={"<ill>": 0.5})]))
    assert "&lt;ill&gt;" in text and "0.5000" in text
    assert not "".join(list_classes([last]))
