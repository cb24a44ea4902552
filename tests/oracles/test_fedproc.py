"""FedProc against Algorithm 1 and Eq. 2 to 5: local training, prototypes, payloads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import (
    CLASSES,
    COUNTS,
    SIZES,
    WIDTH,
    Tables,
    assert_near,
    cosine,
    fedavg,
    normal,
    same,
)
from fedproc_loss import by_hand, extracted, fedproc, fedproc_on_images, knowing
from torch import Tensor

from coterie.core.bundle import Bundle, Payload, ServerState
from coterie.methods.fedproc import FedProc, alpha_at


def upload(server: ServerState, sums: list[Tensor], counts: list[int]) -> Payload:
    return Bundle(
        {
            "model": server["model"],
            "class_sums": {"c": torch.stack(sums)},
            "class_counts": {"n": torch.tensor(counts)},
        }
    )


# -- the weight of the two losses


def test_alpha_falls_linearly_from_one() -> None:
    """alpha = 1 - t/T; past the horizon there is cross-entropy alone."""
    assert alpha_at(0, 100) == 1.0
    assert alpha_at(50, 100) == pytest.approx(0.5)
    assert alpha_at(99, 100) == pytest.approx(0.01)
    assert [alpha_at(step, 100) for step in (100, 101, 499)] == [0.0] * 3


@pytest.mark.parametrize(
    ("fields", "step", "alpha"),
    [
        ({}, 3, 0.7),
        ({}, 9, 0.1),
        ({"alpha_horizon": 100}, 3, 0.97),
        ({"alpha_horizon": 4}, 3, 0.25),
        ({"alpha_horizon": 3}, 3, 0.0),
        ({"alpha_horizon": 2}, 9, 0.0),
        ({"schedule": "fixed"}, 3, 0.5),
        ({"schedule": "fixed", "alpha": 0.2}, 9, 0.2),
        ({"similarity": "dot"}, 3, 0.7),
        ({"tau": 0.3}, 3, 0.7),
        ({"ce_through": "classifier"}, 3, 0.7),
        ({"round0": "gpc_init"}, 3, 0.7),
        ({"round0": "gpc_init"}, 0, 1.0),
    ],
)
def test_local_training_follows_algorithm_1(
    fields: dict[str, Any], step: int, alpha: float, tmp_path: Path
) -> None:
    fed = fedproc(tmp_path, **fields)
    # t counts training rounds: a round of extraction before them does not shift alpha
    place = fed.place(step, before=int(fields.get("round0") == "gpc_init"))
    server = knowing(fed.start(), normal(1, CLASSES, WIDTH), (0, 1, 2))
    expected, value = by_hand(fed, 2, place, server, alpha)
    answer = fed.update(2, place, fed.broadcast(server, place))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    assert answer.metrics["alpha"] == pytest.approx(alpha)
    assert answer.state is None or not answer.state.tensors


@pytest.mark.parametrize("known", [(0, 1), (2,), (0, 2)])
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_class_never_seen_is_left_out_of_the_softmax(
    similarity: str, known: tuple[int, ...], tmp_path: Path
) -> None:
    """Whatever stands in its row; a sample of it adds nothing to l_gpc."""
    fed = fedproc(tmp_path, similarity=similarity)
    place, c = fed.place(2), normal(1, CLASSES, WIDTH)
    server = knowing(fed.start(), c, known)
    expected, value = by_hand(fed, 2, place, server, 0.8, known)
    answer = fed.update(2, place, fed.broadcast(server, place))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    rows = [c[k] if k in known else 1e3 * normal(9, WIDTH) for k in range(CLASSES)]
    odd = knowing(server, torch.stack(rows), known)
    again = fed.update(2, place, fed.broadcast(odd, place))
    assert same(again.up["model"], answer.up["model"])


def test_cross_entropy_through_the_classifier_leaves_the_features_alone(tmp_path: Path) -> None:
    """Eq. 3 read literally: l_ce(w_c), with alpha = 0 the feature network does not move."""
    fed = fedproc(tmp_path, ce_through="classifier", schedule="fixed", alpha=0.0)
    place, start = fed.place(4), fed.start()
    server = knowing(start, normal(1, CLASSES, WIDTH), (0, 1, 2))
    found = fed.update(0, place, fed.broadcast(server, place)).up["model"]
    for prefix in ("backbone", "projector"):
        assert same(found, start["model"], prefix)
    assert not same(found, start["model"], "classifier")


def test_the_prototypes_move_no_output_layer(tmp_path: Path) -> None:
    """l_gpc(w_e): with alpha = 1 the output layer stays."""
    fed = fedproc(tmp_path, schedule="fixed", alpha=1.0)
    place, start = fed.place(4), fed.start()
    server = knowing(start, normal(1, CLASSES, WIDTH), (0, 1, 2))
    found = fed.update(0, place, fed.broadcast(server, place)).up["model"]
    assert same(found, start["model"], "classifier")
    assert not same(found, start["model"], "projector")


@pytest.mark.parametrize("fields", [{"round0": "gpc_init"}, {"schedule": "two-stage"}])
def test_a_client_of_unknown_classes_only_does_not_fail(
    fields: dict[str, Any], tmp_path: Path
) -> None:
    """alpha = 1 and not one prototype for its samples: there is nothing to descend."""
    fed = fedproc(tmp_path, **fields)
    place = fed.place(0, stage="train" if "round0" in fields else "features", before=1)
    server = knowing(fed.start(), normal(1, CLASSES, WIDTH), (2,))
    answer = fed.update(0, place, fed.broadcast(server, place))
    assert same(answer.up["model"], server["model"])
    assert answer.up["class_counts"]["n"].tolist() == list(COUNTS[0])


@pytest.mark.parametrize("fields", [{}, {"schedule": "fixed"}, {"alpha_horizon": 100}])
@pytest.mark.parametrize("norm", ["none", "bn"])
def test_round_0_trains_as_fedavg(norm: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """No prototypes exist: cross-entropy with its full weight; extraction moves no statistics."""
    tables: Tables = {"net": {"norm": norm}}
    fed, plain = fedproc(tmp_path, tables, **fields), fedavg(tmp_path, tables)
    server, place = fed.start(), fed.place(0)
    assert not server["known"]["valid"].any()
    for client in range(len(COUNTS)):
        found = fed.update(client, place, fed.broadcast(server, place))
        expected = plain.update(client, place, Bundle({"model": server["model"]}))
        assert same(found.up["model"], expected.up["model"])


def test_a_fixed_alpha_of_zero_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    tables: Tables = {"run": {"rounds": 4}, "local": {"momentum": 0.9, "weight_decay": 1e-5}}
    fed = fedproc(tmp_path / "fedproc", tables, schedule="fixed", alpha=0.0)
    plain = fedavg(tmp_path / "fedavg", tables)
    for one in (fed, plain):
        one.run()
    for mine, expected in zip(fed.servers(), plain.servers(), strict=True):
        assert same(mine["model"], expected["model"])


# -- prototypes


@pytest.mark.parametrize("norm", ["none", "bn"])
def test_prototypes_are_means_over_all_samples_of_the_owners(norm: str, tmp_path: Path) -> None:
    """Eq. 5 with each client's model as trained, put together by numbers of samples."""
    fed = fedproc(tmp_path, {"net": {"norm": norm}})
    server = fed.start()
    for step in range(2):
        place = fed.place(step)
        down = fed.broadcast(server, place)
        assert torch.equal(down["prototypes"]["c"], server["prototypes"]["c"])
        uploads = {k: (SIZES[k], fed.update(k, place, down).up) for k in range(len(COUNTS))}
        total, owned = np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES)
        for client, (_, up) in uploads.items():
            sums, counts = extracted(fed, client, up["model"])
            assert counts == list(COUNTS[client])
            assert up["class_counts"]["n"].tolist() == counts
            assert up["class_counts"]["n"].dtype == torch.int64
            np.testing.assert_allclose(up["class_sums"]["c"], sums, rtol=1e-4, atol=1e-5)
            total, owned = total + sums, owned + counts
        server = fed.collect(server, place, uploads)
        np.testing.assert_allclose(
            server["prototypes"]["c"], total / owned[:, None], rtol=1e-4, atol=1e-5
        )
        assert server["known"]["valid"].tolist() == [True] * CLASSES


def test_the_mean_over_owners_sends_means(tmp_path: Path) -> None:
    fed = fedproc(tmp_path, proto_agg="mean")
    server, place = fed.start(), fed.place(0)
    up = fed.update(0, place, fed.broadcast(server, place)).up
    sums, counts = extracted(fed, 0, up["model"])
    means = [sums[k] / max(counts[k], 1) for k in range(CLASSES)]
    np.testing.assert_allclose(up["class_sums"]["c"], means, rtol=1e-4, atol=1e-6)
    assert up["class_counts"]["n"].tolist() == [1, 1, 0]


def test_owners_count_by_their_samples_or_alike(tmp_path: Path) -> None:
    """A has 2 samples with mean a, B has 1 with mean b: (2a + b)/3, or (a + b)/2."""
    a, b = normal(1, WIDTH), normal(2, WIDTH)
    zero = torch.zeros(WIDTH)
    for kind, first, counts, expected in (
        ("count", 2 * a, ([2, 0, 0], [1, 0, 0]), (2 * a + b) / 3),
        ("mean", a, ([1, 0, 0], [1, 0, 0]), (a + b) / 2),
    ):
        fed = fedproc(tmp_path, proto_agg=kind)
        server = fed.start()
        # numbers of samples in all must not weigh in: they belong to the models
        uploads = {
            0: (100, upload(server, [first, zero, zero], counts[0])),
            1: (7, upload(server, [b, zero, zero], counts[1])),
        }
        found = fed.collect(server, fed.place(0), uploads)
        np.testing.assert_allclose(found["prototypes"]["c"][0], expected, rtol=1e-6, atol=1e-7)
        assert found["known"]["valid"].tolist() == [True, False, False]
        # one that owns none of it changes nothing
        uploads[2] = (50, upload(server, [zero, zero, 3 * a], [0, 0, 3]))
        more = fed.collect(server, fed.place(0), uploads)
        assert torch.equal(more["prototypes"]["c"][0], found["prototypes"]["c"][0])
        assert more["known"]["valid"].tolist() == [True, False, True]


def test_a_class_that_nobody_brought_keeps_its_prototype(tmp_path: Path) -> None:
    fed = fedproc(tmp_path)
    c, zero = normal(1, CLASSES, WIDTH), torch.zeros(WIDTH)
    server = knowing(fed.start(), c, (0, 1))
    fresh = normal(2, WIDTH)
    uploads = {1: (8, upload(server, [zero, 4 * fresh, zero], [0, 4, 0]))}
    found = fed.collect(server, fed.place(3), uploads)
    assert torch.equal(found["prototypes"]["c"][0], c[0])
    np.testing.assert_allclose(found["prototypes"]["c"][1], fresh, rtol=1e-6)
    assert found["known"]["valid"].tolist() == [True, True, False]


# -- payload and record


def test_payloads_of_the_papers_network(tmp_path: Path) -> None:
    """Simple-cnn, K = 10: 370,504 bytes of model and 10,240 of prototypes, each way."""
    fed = fedproc_on_images(tmp_path)
    server, place = fed.start(), fed.place(0)
    down = fed.broadcast(server, place)
    sizes = {group: Bundle({group: down[group]}).nbytes() for group in down.tensors}
    assert sizes == {"model": 370_504, "prototypes": 10_240, "known": 10}
    up = fed.update(1, place, down).up
    sizes = {group: Bundle({group: up[group]}).nbytes() for group in up.tensors}
    assert sizes == {"model": 370_504, "class_sums": 10_240, "class_counts": 80}
    assert down.nbytes() == 370_504 + 10_240 + 10 and up.nbytes() == 370_504 + 10_240 + 80


def test_the_record_shows_the_parts_of_the_loss(tmp_path: Path) -> None:
    tables: Tables = {"local": {"lr": 1e-12}}  # what is recorded is of the model as it came
    fed = fedproc(tmp_path, tables, schedule="fixed", alpha=0.5)
    server, place = knowing(fed.start(), normal(1, CLASSES, WIDTH), (0, 1, 2)), fed.place(3)
    metrics = fed.update(2, place, fed.broadcast(server, place)).metrics
    z_of, c = fed.reference(server["model"]), server["prototypes"]["c"].double()
    near = [
        float(cosine(z, c[label]))
        for batch in fed.shard(2).sweep()
        for z, label in zip(z_of(batch), batch.y.tolist(), strict=True)
    ]
    assert metrics["cos_prototype"] == pytest.approx(np.mean(near), rel=1e-4)
    assert metrics["loss_class"] > 0 and metrics["loss_prototype"] > 0
    assert metrics["alpha"] == 0.5


def test_the_defaults_are_those_of_the_equations() -> None:
    method = FedProc()
    assert (method.similarity, method.tau, method.schedule) == ("cosine", 1.0, "linear")
    assert (method.alpha, method.alpha_horizon, method.stage1_fraction) == (0.5, 0, 0.9)
    assert (method.proto_agg, method.round0, method.proto_transform) == ("count", "ce", "test")
    assert method.ce_through == "all"
