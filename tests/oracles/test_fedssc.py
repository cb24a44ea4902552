"""FedSSC against Algorithm 1 and Eq. 2 to 5: local training, reports, payloads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import (
    CLASSES,
    COUNTS,
    WIDTH,
    Federation,
    Tables,
    assert_near,
    fedavg,
    normal,
    others,
    same,
)
from fedssc_loss import EVERY, addressed, by_hand, fedssc

from coterie.core.bundle import Bundle
from coterie.methods.fedssc import FedSSC, Warmup, weight_at

WARMUPS: tuple[Warmup, ...] = ("hold", "ramp", "off")

# -- the weight of the shared representations


def test_the_weight_is_held_and_then_falls_to_its_end() -> None:
    """mu_i = mu_s - (i - T0)/(T - T0) (mu_s - mu_e): the paper's formula with the round put in."""
    found = {step: weight_at(step, 100, "hold", 5, 1.0, 1e-4) for step in (*range(6), 52, 99, 100)}
    assert [found[step] for step in range(6)] == [1.0] * 6
    assert found[52] == pytest.approx(0.505313, abs=5e-7)
    assert found[99] == pytest.approx(0.010625, abs=5e-7)
    assert found[100] == pytest.approx(1e-4)
    assert weight_at(30, 100, "hold", 20, 4.0, 2.0) == pytest.approx(4.0 - 10 / 80 * 2.0)


def test_other_readings_of_the_warm_up_ramp_the_weight_or_leave_it_out() -> None:
    """ "The number of warmup rounds" T0 = 5 of T = 100: rounds of a rise, or no rounds at all."""
    ramp = [weight_at(step, 100, "ramp", 5, 2.0, 0.1) for step in range(101)]
    assert ramp[:6] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0, 2.0])
    held = [weight_at(step, 100, "hold", 5, 2.0, 0.1) for step in range(101)]
    assert ramp[5:] == held[5:]
    off = [weight_at(step, 100, "off", 5, 2.0, 0.1) for step in range(101)]
    assert off == pytest.approx([2.0 - 1.9 * step / 100 for step in range(101)])
    assert all(weight_at(3, 8, kind, 0, 1.0, 0.2) == 0.7 for kind in WARMUPS)


def test_a_run_shorter_than_the_hold_keeps_the_weight() -> None:
    for steps in (1, 3, 5):
        found = [weight_at(step, steps, "hold", 5, 0.5, 1e-4) for step in range(steps)]
        assert found == [0.5] * steps


@pytest.mark.parametrize(
    ("fields", "step", "before", "weight"),
    [
        ({}, 3, 0, 1.0),
        ({}, 5, 0, 1.0),
        ({}, 7, 0, 1.0 - 2 / 5 * (1.0 - 1e-4)),
        ({"hold": 0, "mu_glob": 2.0, "mu_glob_end": 1.0}, 5, 0, 1.5),
        ({"init_with": "extract"}, 7, 1, 1.0 - 2 / 5 * (1.0 - 1e-4)),
        ({"mu_moon": 0.0}, 3, 0, 1.0),
        ({"mu_moon": 1.0, "tau": 0.2}, 3, 0, 1.0),
        ({"mu_moon": 1.0, "tau": 0.4, "tau_glob": 0.1}, 3, 0, 1.0),
        ({"local_pairs": True, "tau_glob": 0.2}, 3, 0, 1.0),
        ({"warmup": "ramp"}, 3, 0, 0.8),
        ({"warmup": "off"}, 3, 0, 1.0 - 3 / 10 * (1.0 - 1e-4)),
        ({"local_pairs": True}, 3, 0, 1.0),
        ({"norm": "bn"}, 3, 0, 1.0),
    ],
)
def test_local_training_follows_algorithm_1(
    fields: dict[str, Any], step: int, before: int, weight: float, tmp_path: Path
) -> None:
    """Defaults mu_moon 5, mu_glob 1 to 1e-4, tau 0.5 for both terms."""
    tables: Tables = {"net": {"norm": fields.get("norm", "none")}}
    chosen = {name: value for name, value in fields.items() if name != "norm"}
    fed = fedssc(tmp_path, tables, **chosen)
    server, place, zs = fed.start(), fed.place(step, before=before), normal(1, CLASSES, WIDTH)
    (previous,) = others(fed, 6)
    expected, value = by_hand(
        fed, 2, place, server["model"], mu_glob=weight, zs=zs, previous=previous
    )
    answer = fed.update(
        2,
        place,
        fed.broadcast(server, place),
        Bundle({"previous": previous}),
        addressed(zs),
    )
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    assert answer.metrics["mu_glob"] == pytest.approx(weight)
    if fields.get("mu_moon") != 0:
        assert answer.state is not None
        assert same(answer.state["previous"], answer.up["model"])  # as trained, before averaging


@pytest.mark.parametrize("local_pairs", [False, True])
@pytest.mark.parametrize("known", [(0, 1), (2,)])
def test_a_class_without_a_vector_is_left_out_of_the_softmax(
    known: tuple[int, ...], local_pairs: bool, tmp_path: Path
) -> None:
    """Whatever stands in its row; its samples add nothing, the mean is over the others."""
    fed = fedssc(tmp_path, local_pairs=local_pairs)
    server, place, zs = fed.start(), fed.place(3), normal(1, CLASSES, WIDTH)
    expected, value = by_hand(fed, 2, place, server["model"], mu_glob=1.0, zs=zs, known=known)
    down = fed.broadcast(server, place)
    answer = fed.update(2, place, down, own=addressed(zs, known))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    rows = [zs[k] if k in known else 1e3 * normal(9, WIDTH) for k in EVERY]
    again = fed.update(2, place, down, own=addressed(torch.stack(rows), known))
    assert same(again.up["model"], answer.up["model"])


@pytest.mark.parametrize("norm", ["none", "bn"])
def test_round_0_is_fedavg(norm: str, tmp_path: Path) -> None:
    """No vector has been shared and no client has a previous model."""
    tables: Tables = {"net": {"norm": norm}}
    fed, plain = fedssc(tmp_path, tables), fedavg(tmp_path, tables)
    server, place = fed.start(), fed.place(0)
    for client in range(len(COUNTS)):
        own = fed.address(server, place, client)
        found = fed.update(client, place, fed.broadcast(server, place), own=own)
        expected = plain.update(client, place, Bundle({"model": server["model"]}))
        assert same(found.up["model"], expected.up["model"])


def test_no_weight_on_both_terms_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    tables: Tables = {"run": {"rounds": 4}, "local": {"momentum": 0.9, "weight_decay": 1e-5}}
    fed = fedssc(tmp_path / "fedssc", tables, mu_moon=0.0, mu_glob=0.0)
    plain = fedavg(tmp_path / "fedavg", tables)
    for one in (fed, plain):
        one.run()
    for mine, expected in zip(fed.servers(), plain.servers(), strict=True):
        assert same(mine["model"], expected["model"])


@pytest.mark.parametrize("fields", [{"mu_glob": 0.0}, {"k_shared": 0}, {"min_count": 1000}])
def test_nothing_shared_is_moon(fields: dict[str, Any], tmp_path: Path) -> None:
    tables: Tables = {"run": {"rounds": 3}}
    fed = fedssc(tmp_path / "fedssc", tables, **fields)
    moon = Federation(tmp_path / "moon", "moon", tables=tables)
    for one in (fed, moon):
        one.run()
    for mine, expected in zip(fed.servers(), moon.servers(), strict=True):
        assert_near(mine["model"], expected["model"], atol=1e-5)


# -- what a client reports


@pytest.mark.parametrize("norm", ["none", "bn"])
@pytest.mark.parametrize(
    ("min_count", "client", "counts"),
    [
        (10, 0, [14, 0, 0]),
        (10, 1, [0, 10, 12]),  # ten are enough
        (11, 1, [0, 0, 12]),
        (1, 0, [14, 8, 0]),  # a class that it does not have is never sent
        (100, 2, [0, 0, 0]),
    ],
)
def test_classes_with_enough_samples_are_reported(
    min_count: int, client: int, counts: list[int], norm: str, tmp_path: Path
) -> None:
    """Eq. 4: the mean of z over all local data of a class, by the model after the last epoch."""
    fed = fedssc(tmp_path, {"net": {"norm": norm}}, min_count=min_count)
    server, place = fed.start(), fed.place(0)
    up = fed.update(client, place, fed.broadcast(server, place)).up
    assert up["class_counts"]["n"].tolist() == counts
    z_of = fed.reference(up["model"])
    (batch,) = fed.shard(client).sweep()
    z, expected = z_of(batch), torch.zeros(CLASSES, WIDTH, dtype=torch.float64)
    for k, count in enumerate(counts):
        if count:
            for i in range(len(batch)):
                expected[k] += z[i] / count if batch.y[i] == k else 0.0
    np.testing.assert_allclose(up["class_means"]["zs"], expected, rtol=1e-4, atol=1e-5)


# -- payload and record


def test_payloads_of_the_papers_network(tmp_path: Path) -> None:
    """Simple-cnn, K = 10: 10,240 bytes beside 370,504 of model, 2.8 percent more each way."""
    tables: Tables = {"net": {"backbone": "simple-cnn", "projection": 256}}
    counts = [[2] * 10, [1] * 10]
    fed = Federation(tmp_path, "fedssc", counts, tables, (3, 32, 32), min_count=1)
    server, place = fed.start(), fed.place(0)
    down = fed.broadcast(server, place)
    assert down.nbytes() == 370_504
    uploads = {client: (10, fed.update(client, place, down).up) for client in range(2)}
    up = uploads[0][1]
    sizes = {group: Bundle({group: up[group]}).nbytes() for group in up.tensors}
    assert sizes == {"model": 370_504, "class_means": 10_240, "class_counts": 80}
    server = fed.collect(server, place, uploads)
    own = fed.address(server, fed.place(1), 0)
    assert own is not None
    sizes = {group: Bundle({group: own[group]}).nbytes() for group in own.tensors}
    assert sizes == {"representations": 10_240, "known": 10}
    assert own.nbytes() / down.nbytes() == pytest.approx(0.028, abs=5e-4)


def test_a_run_counts_what_it_addresses_and_records_its_terms(tmp_path: Path) -> None:
    tables: Tables = {"run": {"rounds": 3}}
    mine = fedssc(tmp_path / "fedssc", tables, min_count=5).run()
    plain = fedavg(tmp_path / "fedavg", tables).run().history
    clients, vectors = len(COUNTS), CLASSES * WIDTH * 4
    for one, other in zip(mine.history[1:], plain[1:], strict=True):
        assert one.bytes_down - other.bytes_down == clients * (vectors + CLASSES)
        assert one.bytes_up - other.bytes_up == clients * (vectors + 8 * CLASSES)
    metrics = mine.metrics
    for name in ("loss_class", "loss_contrast", "loss_shared", "feature_std", "mu_glob"):
        assert metrics[f"train_{name}"] > 0
    for name in ("train_cos_glob", "train_cos_prev"):
        assert -1 <= metrics[name] <= 1


def test_the_defaults_are_those_of_the_paper() -> None:
    method = FedSSC()
    assert (method.mu_moon, method.mu_glob, method.mu_glob_end) == (5.0, 1.0, 1e-4)
    assert (method.hold, method.tau, method.k_shared, method.min_count) == (5, 0.5, 1, 10)
    assert (method.exclude_self, method.shared_draw, method.stale) == (None, True, "keep")
    assert (method.warmup, method.tau_glob) == ("hold", None)
    assert (method.init_with, method.negative, method.stage1) == ("none", "previous", "glob")
    assert (method.two_stage, method.stage1_fraction, method.local_pairs) == (False, 0.9, False)
