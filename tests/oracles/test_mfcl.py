"""MFCL against its equations: the sensor, what is sent, and the server's epochs."""

import copy
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import COUNTS, UNCHANGED, assert_near, same
from modular import SIZES, Modular, pairs_of
from torch import nn
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.errors import ConfigError
from coterie.data.heterogeneity import class_imbalance
from coterie.kit.optimizers import LARS
from coterie.kit.pairs import PairPool, stratified
from coterie.kit.server_training import share_at
from coterie.nets.norm import Norm, paired
from coterie.nets.sensor import Autoencoder, build_sensor

SHAPES = [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 9, 7), (3, 5, 4)]
NORMS: list[Any] = ["none", "bn", "gn", "pn"]


@pytest.mark.parametrize("kind", ["code", "table5"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("norm", NORMS)
def test_a_reconstruction_has_the_shape_of_its_image(
    kind: Any, shape: tuple[int, ...], norm: Any
) -> None:
    net = build_sensor(kind, shape, Norm(norm), width=8)
    x = torch.rand(2, *shape)
    again = net.reconstruct(x).detach()
    assert again.shape == x.shape
    assert float(again.min()) >= 0.0 and float(again.max()) <= 1.0
    side = [-(-s // 2) if kind == "table5" else s for s in shape[1:]]
    assert net.encode(x).shape == (2, 8, *side) == (2, *net.code)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_representation_has_the_same_bits_with_and_without_gradients(shape: Any) -> None:
    net = build_sensor("table5", shape, Norm("gn"), width=8)
    x = torch.rand(2, *shape)
    with torch.no_grad():
        plain = net.encode(x)
    assert torch.equal(net.encode(x), plain)


@pytest.mark.parametrize(("kind", "count"), [("code", 114_691), ("table5", 77_853)])
def test_parameters_are_as_many_as_published(kind: Any, count: int) -> None:
    net = build_sensor(kind, (3, 32, 32), Norm("pn"))
    assert sum(p.numel() for p in net.parameters()) == count
    assert net.code == ((64, 32, 32) if kind == "code" else (64, 16, 16))


def test_vectors_and_floats_beyond_one_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes images"):
        Modular(tmp_path, shape=(6,), tables={"data": {"augment": UNCHANGED}})
    with pytest.raises(ConfigError, match="at least 4 x 4"):
        build_sensor("code", (1, 2, 8), Norm("gn"))


def test_clients_see_images_between_0_and_1(tmp_path: Path) -> None:
    fed = Modular(tmp_path)
    stored = fed.experiment.dataset.x_train[fed.experiment.partition.train[0][:6]]
    assert torch.equal(fed.images(0), torch.from_numpy(stored).float().mul(1.0 / 255.0))
    for batch in fed.context(0, fed.at("sense")).batches():
        assert len(batch.views) == 2
        for view in batch.views:
            assert float(view.min()) >= -1e-6 and float(view.max()) <= 1.0 + 1e-6


def test_the_losses_are_those_of_the_paper(tmp_path: Path) -> None:
    for loss in ("bce", "mse"):
        fed = Modular(tmp_path / loss, loss=loss, sensor_norm="gn")
        net = copy.deepcopy(fed.nets["sensor"])
        assert isinstance(net, Autoencoder)
        views = tuple(torch.rand(5, 1, 9, 9) for _ in range(2))
        batch = Batch(views, torch.zeros(5, dtype=torch.int64), torch.arange(5))
        found = fed.method._reconstruction(net, batch).total  # type: ignore[attr-defined]
        total, pixels = 0.0, 0
        for view in views:
            for x, again in zip(view, net.reconstruct(view).detach(), strict=True):
                for a, b in zip(x.flatten().tolist(), again.flatten().tolist(), strict=True):
                    cross = a * math.log(b) + (1 - a) * math.log(1 - b)
                    total += (a - b) ** 2 if loss == "mse" else -cross
                    pixels += 1
        assert float(found.detach()) == pytest.approx(total / pixels, rel=1e-5)


def test_the_sensors_are_averaged_by_numbers_of_samples(tmp_path: Path) -> None:
    fed, server = Modular(tmp_path), None
    server, place = fed.start(), fed.at("sense")
    ups = {client: fed.answer(client, place, server)[0] for client in range(3)}
    after, _ = fed.after(place, server, ups)
    for name, tensor in after["sensor"].items():
        parts = [n * ups[c]["sensor"][name].double() for c, n in enumerate(SIZES)]
        mean = torch.stack(parts).sum(0) / sum(SIZES)
        assert torch.allclose(tensor.double(), mean, atol=1e-7)
    assert same(after["discriminator"], server["discriminator"])
    assert set(ups[0].tensors) == {"sensor"} and not ups[0].blobs


@pytest.mark.parametrize("norm", NORMS)
def test_pairs_are_what_the_sensor_makes_of_two_views(tmp_path: Path, norm: Any) -> None:
    fed = Modular(tmp_path, sensor_norm=norm, precision="fp32", share_labels=True)
    server, place = fed.start(), fed.at("upload")
    up, ctx = fed.answer(1, place, server)
    sensor = copy.deepcopy(fed.nets["sensor"]).eval()
    rows, labels = pairs_of(up), np.array(up.blobs["labels"].open())
    draw = ctx.generator
    seen = 0
    for batch in ctx.data.batches(
        ctx.local, ("train", "train"), lambda what: draw(f"upload/{what}")
    ):
        with torch.no_grad():
            first, second = (sensor.encode(view) for view in batch.views)
        here = slice(seen, seen + len(batch))
        assert torch.allclose(rows[here, 0], first, atol=1e-6)
        assert torch.allclose(rows[here, 1], second, atol=1e-6)
        assert labels[here].tolist() == batch.y.tolist()
        seen += len(batch)
    assert rows.shape == (SIZES[1], 2, 4, 9, 9) and seen == SIZES[1]


def test_half_precision_is_the_same_rounded(tmp_path: Path) -> None:
    found = {}
    for precision in ("fp16", "fp32"):
        fed = Modular(tmp_path / precision, precision=precision)
        up, _ = fed.answer(0, fed.at("upload"), fed.start())
        found[precision] = pairs_of(up)
        assert up.nbytes() == SIZES[0] * 2 * 4 * 81 * (2 if precision == "fp16" else 4)
        assert set(up.blobs) == {"pairs"} and not up.tensors
    assert found["fp16"].dtype == torch.float16
    assert torch.equal(found["fp16"], found["fp32"].half())


def test_a_representation_beyond_half_precision_is_no_answer(tmp_path: Path) -> None:
    fed = Modular(tmp_path, sensor_norm="none")
    server = fed.start()
    weights = {name: t * 1e6 for name, t in server["sensor"].items()}
    with pytest.raises(Exception, match="not finite in fp16"):
        fed.answer(0, fed.at("upload"), server.replace(sensor=weights))


def test_a_client_encodes_with_the_encoder_alone(tmp_path: Path) -> None:
    fed = Modular(tmp_path)
    down = fed.broadcast(fed.start(), fed.at("upload"))
    assert {name.split(".")[0] for name in down["sensor"]} == {"backbone"}
    down = fed.broadcast(fed.start(), fed.at("sense"))
    assert {name.split(".")[0] for name in down["sensor"]} == {"backbone", "decoder"}


@pytest.mark.parametrize("joint", ["projection", "backbone"])
def test_the_tested_network_is_the_sensor_with_the_discriminator(
    tmp_path: Path, joint: str
) -> None:
    fed = Modular(tmp_path, joint=joint, share_labels=True)
    server, _ = fed.after(fed.at("contrast"), fed.uploaded())
    whole = fed.nets.frozen("model", fed.method.model(server) or {}, {})
    sensor = fed.nets.frozen("sensor", server["sensor"], {})
    top = fed.nets.frozen("discriminator", server["discriminator"], {})
    x = fed.images(0)
    found, expected = whole(x), top(sensor.encode(x))
    assert torch.allclose(found.h, expected.h, atol=1e-6)
    assert torch.allclose(found.z, expected.z, atol=1e-6)
    read = F.normalize(expected.z if joint == "projection" else expected.h, dim=1)
    logits = read @ server["head"]["weight"].T + server["head"]["bias"]
    assert found.logits is not None and torch.allclose(found.logits, logits, atol=1e-5)


def test_a_single_view_meets_group_norm(tmp_path: Path) -> None:
    peers, groups = (build_sensor("code", (1, 9, 9), Norm(kind), 16) for kind in NORMS[:1:-1])
    groups.load_state_dict(peers.state_dict())
    for module in groups.modules():
        if isinstance(module, nn.GroupNorm):
            module.eps = 1e-3
    x = torch.rand(4, 1, 9, 9)
    assert torch.allclose(peers.encode(x), groups.encode(x), atol=1e-6)
    with paired(peers, 2):
        pairs = peers.encode(torch.cat([x, x.flip(3)]))
    assert not torch.allclose(pairs[:4], groups.encode(x), atol=1e-3)


def test_ten_clients_of_one_size_have_32_pairs_each_in_a_batch() -> None:
    batches = stratified([500] * 10, 320, np.random.default_rng(0))
    assert [len(batch) for batch in batches] == [320] * 15 + [200]
    for batch in batches:
        assert len(set(np.bincount(batch[:, 0], minlength=10))) == 1
        assert (np.diff(batch[:, 0]) < 0).any()  # in a drawn order
    rows = np.concatenate(batches)
    assert len(np.unique(rows, axis=0)) == len(rows) == 5000


def test_batches_have_clients_in_proportion_and_no_pair_twice() -> None:
    sizes, size = [301, 50, 7, 643], 50
    batches = stratified(sizes, size, np.random.default_rng(1))
    for batch in batches[:-1]:
        counts = np.bincount(batch[:, 0], minlength=4)
        assert (abs(counts - size * np.array(sizes) / sum(sizes)) < 2.0).all()
    assert len(batches[-1]) == 51  # the one that is left over joins the last batch
    rows = np.concatenate(batches)
    assert len(np.unique(rows, axis=0)) == len(rows) == sum(sizes)


def test_the_rate_warms_up_and_follows_one_cosine() -> None:
    steps, warmup = 4000, 100
    shares = [share_at(step, steps, warmup) for step in range(steps)]
    assert shares[0] == 0.01 and shares[99] == 1.0 == shares[100]
    assert shares[100 + 1950] == pytest.approx(0.5)
    assert all(a >= b for a, b in pairwise(shares[100:]))
    assert shares[-1] == pytest.approx(0.0, abs=1e-6)


def naive_epochs(fed: Modular, server: Any, epochs: int) -> Any:
    """The server's epochs in one plain loop, with one optimiser."""
    net = copy.deepcopy(fed.nets["discriminator"])
    net.load_state_dict(server["discriminator"])
    net.train()
    optimizer = LARS([p for p in net.parameters() if p.requires_grad], 1.0, 0.9, 1e-4)
    blobs = {int(name.split("/")[1]): blob for name, blob in server.blobs.items()}
    held = {
        client: torch.from_numpy(np.array(blob.open())).float() for client, blob in blobs.items()
    }
    losses = []
    for epoch in range(epochs):
        order = fed.at("contrast", epoch).generator("order")
        plan = stratified([len(held[c]) for c in sorted(held)], 16, order)
        for step, rows in enumerate(plan):
            z = torch.stack([held[client][row] for client, row in rows.tolist()])
            z1, z2 = (F.normalize(net(z[:, view]).z, dim=1) for view in (0, 1))
            both = torch.cat([z1, z2])
            loss = torch.zeros(())
            for i in range(2 * len(rows)):
                others = [k for k in range(2 * len(rows)) if k != i]
                scores = both[i] @ both[others].T / 0.3
                partner = others.index((i + len(rows)) % (2 * len(rows)))
                loss = loss - scores.log_softmax(0)[partner] / (2 * len(rows))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            total = len(plan) * fed.config.run.rounds
            share = share_at(epoch * len(plan) + step, total, len(plan))
            optimizer.param_groups[0]["lr"] = share * 1.5 * 16 / 256
            optimizer.step()
            losses.append((epoch, float(loss.detach()), len(rows)))
    return net.state_dict(), losses


def test_the_server_descends_nt_xent_by_lars_through_all_epochs(tmp_path: Path) -> None:
    fed = Modular(tmp_path, precision="fp32")
    server = start = fed.uploaded()
    recorded = []
    for epoch in range(2):
        server, metrics = fed.after(fed.at("contrast", epoch), server)
        recorded.append(metrics["loss"])
    expected, losses = naive_epochs(fed, start, 2)
    assert_near(server["discriminator"], expected, atol=2e-5)
    for epoch in range(2):
        of = [(loss, n) for e, loss, n in losses if e == epoch]
        mean = sum(loss * n for loss, n in of) / sum(n for _, n in of)
        assert recorded[epoch] == pytest.approx(mean, rel=1e-4)
    assert same(server["sensor"], start["sensor"])


@pytest.mark.parametrize("name", ["simclr", "simsiam", "byol"])
def test_every_objective_of_the_server_learns(tmp_path: Path, name: str) -> None:
    heads = {"simclr": {"hidden": 16}, "simsiam": {"hidden": 16, "bottleneck": 4}}
    tables = {"objective": {"name": name, **heads.get(name, {"hidden": 16, "momentum": 0.5})}}
    fed = Modular(tmp_path, tables=tables, server_optimizer="sgd", server_lr=0.5)
    start = fed.uploaded()
    server, first = fed.after(fed.at("contrast"), start)
    server, second = fed.after(fed.at("contrast", 1), server)
    assert second["loss"] < first["loss"]
    if name == "byol":  # the target is the server's, whatever `target` says of clients
        moved = {n for n in server["discriminator"] if n.startswith("target.")}
        assert moved and not same(server["discriminator"], start["discriminator"], "target.")


def test_a_joint_classifier_leaves_the_discriminator_alone(tmp_path: Path) -> None:
    found = {}
    for joint in ("no", "projection", "backbone"):
        fed = Modular(tmp_path / joint, joint=joint, share_labels=True)
        found[joint], metrics = fed.after(fed.at("contrast"), fed.uploaded())
        assert ("joint_loss" in metrics) == (joint != "no")
    for joint in ("projection", "backbone"):
        assert same(found[joint]["discriminator"], found["no"]["discriminator"])
        assert float(found[joint]["head"]["weight"].abs().sum()) > 0


def test_class_imbalance_of_pool_and_batches_is_recorded_where_labels_are_sent(
    tmp_path: Path,
) -> None:
    fed = Modular(tmp_path / "told", share_labels=True)
    _, metrics = fed.after(fed.at("contrast"), fed.uploaded())
    counts = np.array(COUNTS).sum(0)
    p = counts / counts.sum()
    assert metrics["beta_cib_pool"] == pytest.approx(math.log2(3) + (p * np.log2(p)).sum())
    assert metrics["beta_cib_batch"] >= metrics["beta_cib_pool"]
    assert class_imbalance(np.array([5, 0, 0])) == pytest.approx(math.log2(3))
    assert class_imbalance(np.array([5, 5])) == 0.0
    fed = Modular(tmp_path / "untold")
    _, metrics = fed.after(fed.at("contrast"), fed.uploaded())
    assert not any(name.startswith("beta") for name in metrics)


def test_cached_pairs_take_turns(tmp_path: Path) -> None:
    fed = Modular(tmp_path, views_cached=2, precision="fp32")
    server = fed.uploaded()
    pool = PairPool({0: server.blobs["pairs/0"]}, {}, blocks=2)
    assert len(pool) == SIZES[0] and server.blobs["pairs/0"].shape[0] == 2 * SIZES[0]
    draws = [next(pool.batches(e, SIZES[0], np.random.default_rng(0))).first for e in range(3)]
    assert torch.equal(draws[0], draws[2]) and not torch.equal(draws[0], draws[1])
