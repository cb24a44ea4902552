from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_run import make_run

from coterie.data.heterogeneity import measure
from coterie.report import make_headline
from coterie.report.client_charts import list_classes, list_clients
from coterie.report.read import read_run
from coterie.report.summary import describe_result, describe_unseen, rank_clients
from coterie.report.words import explain_measures, explain_metric, name_metric


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
    assert [one.describe() for one in ranked] == ["0.5000 (south, unseen)", "0.7500 (north)"]
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
    run = read_run(make_run(tmp_path / "run", 2))
    measured = {f"site {i}": {"accuracy": i / 100} for i in range(50)}
    last = replace(run.history[-1], clients=measured)
    text = "".join(list_clients(replace(run, history=(last,)), "accuracy"))
    assert "30 clients between these are left out" in text
    assert "site 0<" in text and "site 49<" in text and "site 25<" not in text
    assert not "".join(list_clients(run, "accuracy"))


def test_recall_and_confusion_are_drawn_by_class(tmp_path: Path) -> None:
    *_, last = read_run(make_run(tmp_path / "run", 2)).history
    seen = replace(last, confusion=[[1]], recall={"<ill>": 0.5})
    text = "".join(list_classes([seen], ["<ill>"]))
    assert "<ill>" not in text and "ill>" in text and "Confusion" in text
    assert not "".join(list_classes([last], ["<ill>"]))


def test_tables_of_confusion_are_bounded(tmp_path: Path) -> None:
    *_, last = read_run(make_run(tmp_path / "run", 2)).history
    table = [[1] * 100 for _ in range(100)]
    names = [str(i) for i in range(100)]
    own = {f"site {i}": table for i in range(50)}
    seen = replace(last, confusion=table, recall=dict.fromkeys(names, 1.0), client_confusion=own)
    text = "".join(list_classes([seen], names))
    assert "only the first 5 are here" in text and len(text) < 200_000
    assert "Only the 10 worst and the 10 best of 100 classes." in text


@pytest.mark.parametrize(
    ("metric", "title"),
    [
        ("knn", "kNN accuracy"),
        ("client_accuracy_mean", "mean accuracy of the clients"),
        ("train_feature_std", "train feature std"),
        ("odd_thing", "odd thing"),
    ],
)
def test_metrics_are_named_in_plain_words(metric: str, title: str) -> None:
    assert name_metric(metric) == title


def test_metrics_of_personal_models_are_explained_as_such() -> None:
    text = explain_metric("train_personal_feature_std")
    assert text.startswith("1: features are spread out")
    assert text.endswith("From: training of the clients' own models.")


def test_the_result_is_said_in_a_sentence(tmp_path: Path) -> None:
    history = read_run(make_run(tmp_path / "run", 3)).history
    head = replace(make_headline(history, []), final=(0.95, 29), best=(0.969, 25), rounds=30)
    assert describe_result(head, "MOON on digits", 10, {"untrained": 0.103}) == (
        "MOON on digits, 10 clients, 30 rounds: accuracy 0.950 at the end, 0.969 at best (round "
        "26); an untrained network has 0.103."
    )
    assert "which is the best." in describe_result(replace(head, final=(0.969, 25)), "M", 1, {})
    growing = replace(head, finished=False)
    assert describe_result(growing, "MOON on digits", 10, {}) == (
        "MOON on digits, 10 clients, 30 rounds so far: accuracy 0.950 after round 30, 0.969 at "
        "best (round 26)."
    )


@pytest.mark.parametrize(
    ("dataset", "classes", "measures"), [(5.0, 10, 7), (1.0, 0, 1)], ids=["labels", "sizes only"]
)
def test_every_measure_of_heterogeneity_is_explained(
    dataset: float, classes: int, measures: int
) -> None:
    table = np.full((4, classes), dataset) if classes else np.zeros((4, 0))
    values = measure(table, sizes=[5, 6, 7, 8])
    known, unknown = explain_measures(values, 4, classes)
    assert len(known) == measures and not unknown
    assert all(one.low <= one.value <= one.high and one.meaning for one in known)
