"""Confusion, recall, balanced accuracy and AUROC, against scikit-learn."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn import metrics as oracle

import coterie
import toy
from coterie.evaluate.shared.classification import balance, count_confusion, measure_auroc
from coterie.evaluate.shared.clients import summarise_clients


@pytest.mark.parametrize("decimals", [0, 1, 9])
@pytest.mark.parametrize("share", [0.1, 0.5])
def test_the_area_under_the_curve_is_that_of_scikit_learn_with_and_without_ties(
    decimals: int, share: float
) -> None:
    draw = np.random.default_rng(decimals)
    for size in (3, 40, 501):
        positive = draw.random(size) < share
        positive[:2] = True, False
        scores = (draw.normal(size=size) + positive).round(decimals)
        expected = oracle.roc_auc_score(positive, scores)
        assert measure_auroc(scores, positive) == pytest.approx(expected, abs=1e-12)


def test_the_area_needs_samples_of_both_classes_and_finite_scores() -> None:
    scores = np.array([0.5, 1.0])
    assert measure_auroc(scores, np.array([True, True])) is None
    assert measure_auroc(scores, np.array([False, False])) is None
    area = measure_auroc(scores * np.inf, np.array([True, False]))
    assert area is not None and np.isnan(area)


def test_confusion_and_balanced_accuracy_are_those_of_scikit_learn() -> None:
    draw = torch.Generator().manual_seed(3)
    batches = []
    for size in (7, 50):
        y = torch.randint(0, 3, (size,), generator=draw)  # of four classes, the last has no sample
        batches.append((torch.randn(size, 4, generator=draw), y))
    logits, y = (torch.cat(column) for column in zip(*batches, strict=True))
    predicted = logits.argmax(dim=1)
    matrix = count_confusion(batches, 4)
    assert matrix.tolist() == oracle.confusion_matrix(y, predicted, labels=range(4)).tolist()
    expected = oracle.recall_score(y, predicted, labels=range(3), average="macro")
    assert balance(matrix) == pytest.approx(expected)


def test_a_mean_over_clients_is_taken_over_those_that_have_the_metric() -> None:
    scores = {0: {"accuracy": 0.5, "auroc": 0.75}, 1: {"accuracy": 1.0}}
    summary = summarise_clients(scores, "accuracy", {"mean_auroc": "auroc", "mean_f1": "f1"})
    assert summary["mean_auroc"] == 0.75 and "mean_f1" not in summary


@pytest.fixture(scope="module")
def two_classes(tmp_path_factory: pytest.TempPathFactory) -> coterie.Result:
    """A finished run on sites that tell the healthy from the ill."""
    draw = np.random.default_rng(0)
    sites = {}
    for name, size in (("north", 60), ("south", 40), ("west", 30)):
        y = np.where(draw.random(size) < 0.4, "ill", "healthy")
        x = draw.normal(size=(size, 5)) + (y == "ill")[:, None]
        sites[name] = (x.astype(np.float32), y)
    return coterie.fit(
        sites,
        out=tmp_path_factory.mktemp("two") / "run",
        rounds=3,
        local={"batch_size": 8, "lr": 0.1},
        executor="serial",
        progress=False,
    )


def test_with_two_classes_there_is_an_area_on_the_server_and_on_every_client(
    two_classes: coterie.Result,
) -> None:
    assert {"auroc", "balanced_accuracy", "client_auroc_mean"} <= two_classes.metrics.keys()
    assert all("auroc" in values for values in two_classes.per_client.values())
    mean = np.mean([values["auroc"] for values in two_classes.per_client.values()])
    assert two_classes.metrics["client_auroc_mean"] == pytest.approx(float(mean))


def test_the_last_line_counts_classes_and_the_result_names_them(
    two_classes: coterie.Result,
) -> None:
    *before, last = two_classes.history
    assert not any(event.confusion or event.recall for event in before)
    matrix = two_classes.confusion
    assert matrix.diagonal().sum() / matrix.sum() == pytest.approx(last.metrics["accuracy"])
    assert two_classes.recall.keys() == {"healthy", "ill"} == last.recall.keys()
    assert two_classes.recall["ill"] == matrix[1, 1] / matrix[1].sum()
    assert last.metrics["balanced_accuracy"] == pytest.approx(np.mean([*last.recall.values()]))
    parts = two_classes.client_confusion
    assert list(parts) == ["north", "south", "west"]
    assert (sum(parts.values()) == matrix).all()
    for name, own in parts.items():
        right = own.diagonal().sum() / own.sum()
        assert right == pytest.approx(two_classes.per_client[name]["accuracy"])


def test_without_a_global_model_the_counts_are_summed_over_the_clients_models(
    toy_data: Path, tmp_path: Path
) -> None:
    result = toy.run(toy_data, tmp_path / "run", method={"name": "solo"}, run={"rounds": 1})
    assert result.confusion.sum() == toy.CLIENTS * 60
    right = result.confusion.diagonal().sum() / result.confusion.sum()
    assert right == pytest.approx(result.metrics["accuracy"])


def test_a_run_that_classifies_nothing_has_no_confusion_matrix(
    toy_data: Path, tmp_path: Path
) -> None:
    only = {"with": ["geometry"], "metric": "effective_rank"}
    result = toy.run(toy_data, tmp_path / "run", run={"rounds": 1}, evaluate=only)
    with pytest.raises(coterie.CoterieError, match=r"no confusion matrix.*'accuracy'"):
        _ = result.confusion


def test_a_classifier_is_counted_before_neighbours(toy_data: Path, tmp_path: Path) -> None:
    both = {"with": ["knn", "accuracy"]}
    result = toy.run(toy_data, tmp_path / "run", run={"rounds": 1}, evaluate=both)
    right = result.confusion.diagonal().sum() / result.confusion.sum()
    assert right == pytest.approx(result.metrics["accuracy"])
