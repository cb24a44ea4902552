"""CCVR: moments of the union against numpy on all features in one place."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import toy
from coterie.core import seeds
from coterie.core.bundle import Bundle, Tensors
from coterie.core.errors import Interrupted
from coterie.core.task import METHOD, Reply, Round
from coterie.engine.site import Site
from coterie.evaluate.ccvr import CCVR, draw_virtual, gaussians, moments
from coterie.evaluate.shared.features import features
from coterie.evaluate.shared.head import count_right, fresh_head, train_head
from coterie.kit import Sum
from coterie.kit.aggregate import reduce
from coterie.kit.context import ServerContext

WIDTH, CLASSES = 5, 4
Clients = list[tuple[Tensor, Tensor]]


def unit(h: np.ndarray) -> Tensor:
    return torch.from_numpy(h / np.linalg.norm(h, axis=1, keepdims=True)).float()


def drawn(counts: np.ndarray, seed: int = 0, width: int = WIDTH) -> Clients:
    """Features of clients with so many samples of each class, around centres that they share."""
    random = np.random.default_rng(seed)
    centres = 2.0 * random.normal(size=(counts.shape[1], width))
    clients = []
    for row in counts:
        y = random.permutation(np.repeat(np.arange(len(row)), row))
        h = centres[y] + random.normal(size=(len(y), width)) + random.normal(size=width)
        clients.append((unit(h), torch.from_numpy(y)))
    return clients


def together(clients: Clients, classes: int = CLASSES) -> Tensors:
    """What the server adds up of what the clients send."""
    uploads = [Bundle({"moments": moments(h, y, classes)}) for h, y in clients]
    replies = (Reply(k, up, len(clients[k][1])) for k, up in enumerate(uploads))
    return reduce(iter(replies), {"moments": Sum()})["moments"]


def from_means_and_covariances(clients: Clients, label: int) -> tuple[np.ndarray, np.ndarray]:
    """The formula of the specification, from each client's own mean and unbiased covariance."""
    own = [h[y == label].double().numpy() for h, y in clients]
    counts = [len(rows) for rows in own]
    n = sum(counts)
    means = [rows.mean(axis=0) if len(rows) else np.zeros(WIDTH) for rows in own]
    mean = sum(c * m for c, m in zip(counts, means, strict=True)) / n
    total = -n / (n - 1) * np.outer(mean, mean)
    for count, rows, centre in zip(counts, own, means, strict=True):
        if count > 1:
            total = total + (count - 1) / (n - 1) * np.cov(rows.T)
        total = total + count / (n - 1) * np.outer(centre, centre)
    return mean, total


tallies = st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60)
@given(tallies, st.integers(0, 99))
def test_the_covariance_is_that_of_the_union(rows: list[list[int]], seed: int) -> None:
    counts = np.array(rows)
    clients = [one for one in drawn(counts, seed) if len(one[1])]
    if not clients:
        return
    found = {label: (mean, cov) for label, mean, cov in gaussians(together(clients))}
    assert set(found) == set(np.flatnonzero(counts.sum(axis=0) >= 2))
    everything = torch.cat([h for h, _ in clients]).double().numpy()
    labels = torch.cat([y for _, y in clients]).numpy()
    for label, (mean, covariance) in found.items():
        of_class = everything[labels == label]
        np.testing.assert_allclose(mean, of_class.mean(axis=0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(covariance, np.cov(of_class.T), rtol=1e-9, atol=1e-12)
        by_formula = from_means_and_covariances(clients, label)
        np.testing.assert_allclose(mean, by_formula[0], atol=1e-12)
        np.testing.assert_allclose(covariance, by_formula[1], atol=1e-12)


def test_what_is_sent_is_a_count_a_vector_and_a_triangle_for_each_class() -> None:
    h, y = drawn(np.array([[3, 0, 1, 2]]))[0]
    sent = moments(h, y, CLASSES)
    size = WIDTH + WIDTH * (WIDTH + 1) // 2
    assert Bundle({"moments": sent}).nbytes() == 8 * CLASSES * (1 + size)
    assert sent["count"].tolist() == [3, 0, 1, 2]
    assert not sent["sum"][1].any() and not sent["square"][1].any()


def test_virtual_features_have_the_moments_of_the_union() -> None:
    clients = drawn(np.array([[40, 10, 1, 0], [5, 20, 0, 1], [0, 30, 0, 0]]), seed=1)
    sums, each = together(clients), 200_000
    h, y = draw_virtual(sums, each, np.random.default_rng(0))
    assert sorted(set(y.tolist())) == [0, 1]  # classes of one sample are left out
    for label, mean, covariance in gaussians(sums):
        own = h[y == label].double().numpy()
        assert len(own) == each
        np.testing.assert_allclose(own.mean(axis=0), mean, atol=5e-3)
        ridge = 1e-6 * np.eye(WIDTH)
        np.testing.assert_allclose(np.cov(own.T), covariance.numpy() + ridge, atol=3e-3)


def test_a_class_whose_samples_are_all_alike_is_drawn_from_the_ridge() -> None:
    h = unit(np.ones((6, WIDTH)))
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    found, labels = draw_virtual(moments(h, y, 2), 500, np.random.default_rng(0))
    assert found.isfinite().all() and labels.tolist() == [0] * 500 + [1] * 500
    assert float((found - h[0]).std()) == pytest.approx(1e-3, rel=0.1)


def test_draws_are_seeded() -> None:
    sums = together(drawn(np.full((2, 4), 9)))
    first, again, other = (draw_virtual(sums, 50, np.random.default_rng(s))[0] for s in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coterie.evaluate.shared.head.STEPS", 100)


def only(**more: Any) -> dict[str, Any]:
    return {"every": 0, "with": ["ccvr", *more.pop("also", [])], **more}


def test_a_run_is_what_was_done_by_hand(toy_data: Path, tmp_path: Path, short: None) -> None:
    result = toy.run(toy_data, tmp_path, run={"rounds": 2}, evaluate=only(also=["linear_probe"]))
    experiment = toy.prepared(toy_data, tmp_path)
    site, nets = Site(experiment.spec, experiment.partition), experiment.parts.nets(METHOD)
    net = nets.frozen("model", result.model().state_dict(), {})
    shards = [site._everything(client) for client in experiment.partition.clients]
    parts = experiment.partition
    h, y = features(net, shards[0])
    # the union of the clients' training samples is the training set
    sums = moments(h, y, shards[0].classes)
    last = result.history[-1].round
    seed = seeds.derive(experiment.spec.seed, "program/ccvr", last)
    place = Round(0, 2, "ccvr", 0, 2, len(parts.clients), seed)
    points, labels = draw_virtual(sums, CCVR().virtual, place.generator("virtual"))
    head = train_head(fresh_head(3, points), points, labels, place.generator("order"))
    right = 0
    for shard in shards:
        h_test, y_test = features(net, shard, test=True)
        right += count_right(head, h_test, y_test)
    tests = sum(shard.tests for shard in shards)
    assert result.metrics["ccvr"] == pytest.approx(right / tests, abs=0.02)
    assert result.metrics["ccvr_labels"] == result.metrics["probe_labels"] == 180
    assert result.metrics["ccvr"] == pytest.approx(result.metrics["probe"], abs=0.15)


def test_the_bytes_of_evaluation(toy_data: Path, tmp_path: Path, short: None) -> None:
    event = toy.run(toy_data, tmp_path, run={"rounds": 1}, evaluate=only()).history[-1]
    clients, classes, width = 6, 3, 200
    moments_up = 8 * classes * (1 + width + width * (width + 1) // 2)
    assert event.evaluation_bytes_up == clients * (moments_up + 2 * 8)


def test_without_test_samples_there_is_no_result() -> None:
    server = Bundle({"head": {}, "counts": {"labels": torch.tensor(5)}})
    replies = iter([Reply(0, Bundle({"counts": zeros()}), 5)])
    context: Any = Context("counts")
    server = CCVR().count(context, server, replies)
    assert np.isnan(CCVR().finish(context, server)["ccvr"])


def zeros() -> Tensors:
    return {"right": torch.tensor(0), "tests": torch.tensor(0)}


class Context(ServerContext):
    """Only what adds up."""

    def __init__(self, group: str) -> None:
        self.rules = {group: Sum()}

    def generator(self, purpose: str) -> np.random.Generator:
        return np.random.default_rng(0)


def test_no_class_with_two_samples_leaves_the_classifier_at_zero() -> None:
    clients = drawn(np.array([[1, 1, 0, 0], [0, 0, 1, 1]]))

    def replies() -> Iterator[Reply]:
        for k, (h, y) in enumerate(clients):
            yield Reply(k, Bundle({"moments": moments(h, y, CLASSES)}), len(y))

    server = CCVR().fit(Context("moments"), Bundle(), replies())
    assert not server["head"]["weight"].any() and server["head"]["weight"].shape == (4, WIDTH)


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "solo"}},
        {"method": {"name": "toy_methods:TwoModels"}},
        {"net": {"norm": "bn", "bn_buffers": "local"}},
    ],
    ids=["solo", "two-models", "local-buffers"],
)
def test_it_works_with_every_kind_of_method(
    changes: dict[str, Any], toy_data: Path, tmp_path: Path, short: None
) -> None:
    found = toy.run(toy_data, tmp_path, run={"rounds": 2}, evaluate=only(), **changes).metrics
    assert 0.3 < found["ccvr"] <= 1.0 and found["ccvr_labels"] == 180


@pytest.mark.slow
def test_two_workers_and_a_resumed_run_give_the_bits_of_a_serial_one(
    toy_data: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        "run": {"rounds": 2},
        "checkpoint": {"every": 1},
        "evaluate": {"every": 1, "with": ["ccvr"]},
    }
    toy.run(toy_data, tmp_path / "serial", **changes)
    changes["executor"] = {"kind": "processes", "workers": 2}
    with pytest.raises(Interrupted):
        stop = toy.StopAfter(0, KeyboardInterrupt)
        toy.run(toy_data, tmp_path / "two", **changes, recorders=[stop])
    toy.run(toy_data, tmp_path / "two", **changes, resume=True)
    assert toy.trace(tmp_path / "two") == toy.trace(tmp_path / "serial")
