"""`net.unit_projection` against the network of FedProc's authors, written out naively.

    v = projector(h),   z = v / |v|,   logits = output(z)

The loss, the reference networks and the prototypes all see z. Under torch's layers everything is in
double precision, and differences are measured by the largest entry of what is compared; the kernels
train in single precision, where numbers up to 1 are rounded by up to 6e-8.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import CLASSES, WIDTH, Federation, Tables, contrast, normal, others
from fedproc_loss import gpc, knowing
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import Bundle, ServerState, Tensors
from coterie.core.errors import ConfigError
from coterie.core.task import Round
from coterie.experiment.config import load
from coterie.kit.networks import References
from coterie.native.library import Missing, library
from coterie.native.switch import kernels
from coterie.nets.heads import Network

NEAR = 1e-7
ROUNDED = 2.5e-7  # sums and lengths of 32 numbers in single precision
EVERY = tuple(range(CLASSES))
STEPS = pytest.mark.parametrize("steps", [1, 5])
KERNELS = pytest.mark.parametrize("kernel", ["torch", "native"])


def unit(net: Network, x: Tensor) -> tuple[Tensor, Tensor]:
    """z and the logits, layer by layer and row by row."""
    assert isinstance(net.projector, nn.Sequential) and isinstance(net.classifier, nn.Linear)
    first, last = (layer for layer in net.projector if isinstance(layer, nn.Linear))
    inside = F.linear(net.backbone(x.double()), first.weight, first.bias).clamp(min=0)
    rows = F.linear(inside, last.weight, last.bias)
    z = torch.stack([row / row.square().sum().sqrt() for row in rows])
    return z, F.linear(z, net.classifier.weight, net.classifier.bias)


def federation(folder: Path, method: str, kernel: str, steps: int, **fields: Any) -> Federation:
    """Batches of eight, none shorter; in double precision unless the kernels compute."""
    if kernel == "native" and isinstance(found := library(), Missing):
        pytest.skip(found.reason)
    tables: Tables = {
        "net": {"unit_projection": True, "kernel": kernel},
        "local": {"steps": steps, "drop_last": True},
    }
    shape: tuple[int, ...] = (6,)
    if kernel == "native":
        tables["net"]["backbone"], shape = "simple-cnn", (1, 12, 12)
    fed = Federation(folder, method, tables=tables, shape=shape, **fields)
    if kernel == "torch":
        for net in fed.nets.values():
            net.double().register_forward_pre_hook(lambda _, given: (given[0].double(),))
    return fed


def update(fed: Federation, place: Round, server: ServerState, state: Bundle | None = None) -> Any:
    with kernels(fed.config.net.kernel == "native"):
        return fed.update(2, place, fed.broadcast(server, place), state)


def trained(
    fed: Federation, place: Round, start: Tensors, loss: Callable[[Network, Batch], Tensor]
) -> Tensors:
    """SGD on the naive loss; every batch is whole."""
    assert {len(batch) for batch in fed.batches(2, place)} == {8}
    return fed.trained(2, place, start, loss)[0]


def assert_moved_alike(fed: Federation, start: Tensors, found: Tensors, expected: Tensors) -> None:
    """Compare how far all weights moved; in double precision by the largest entry of each."""
    for name, begin in start.items():
        way, right = (one[name].double() - begin.double() for one in (found, expected))
        longest = max(float(right.abs().max()), 1e-3)
        near = NEAR * (longest if fed.config.net.kernel == "torch" else 1.0)
        np.testing.assert_allclose(way, right, rtol=0, atol=near, err_msg=name)


def near_for(kernel: str) -> float:
    """How near unit vectors and their means are, by the precision that a kernel computes in."""
    return NEAR if kernel == "torch" else ROUNDED


@STEPS
@KERNELS
def test_fedavg_descends_cross_entropy_of_unit_z(kernel: str, steps: int, tmp_path: Path) -> None:
    fed = federation(tmp_path, "fedavg", kernel, steps)
    server, place = fed.start(), fed.place(3)

    def loss(net: Network, batch: Batch) -> Tensor:
        return F.cross_entropy(unit(net, batch.x)[1], batch.y)

    expected = trained(fed, place, server["model"], loss)
    found = update(fed, place, server).up["model"]
    assert_moved_alike(fed, server["model"], found, expected)


@STEPS
@KERNELS
def test_moon_contrasts_unit_z_of_all_networks(kernel: str, steps: int, tmp_path: Path) -> None:
    fed = federation(tmp_path, "moon", kernel, steps, mu=2.0)
    server, place = fed.start(), fed.place(3)
    (previous,) = others(fed, 5)
    glob, prev = (fed.network(weights).eval() for weights in (server["model"], previous))

    def loss(net: Network, batch: Batch) -> Tensor:
        z, logits = unit(net, batch.x)
        z_glob, z_prev = (unit(one, batch.x)[0].detach() for one in (glob, prev))
        return F.cross_entropy(logits, batch.y) + 2.0 * contrast(z, z_glob, [z_prev], 0.5)

    expected = trained(fed, place, server["model"], loss)
    found = update(fed, place, server, Bundle({"previous_0": previous})).up["model"]
    assert_moved_alike(fed, server["model"], found, expected)


@KERNELS
def test_reference_networks_give_unit_z(kernel: str, tmp_path: Path) -> None:
    """A cosine would not show it: z_glob and z_prev themselves, alone and in one call."""
    fed = federation(tmp_path, "moon", kernel, 3)
    models = [fed.start()["model"], *others(fed, 5)]
    frozen = [fed.nets.frozen("model", weights, {}) for weights in models]
    together = References(frozen)
    for batch in fed.batches(2, fed.place(3)):
        alone = replace(batch, stretch=None, plain=False)
        with kernels(kernel == "native"):
            found = [*together(batch), *together(alone), *(one(batch).z for one in frozen)]
        expected = [unit(fed.network(weights), batch.x)[0].detach() for weights in models]
        for z, right in zip(found, 3 * expected, strict=True):
            np.testing.assert_allclose(z, right, rtol=0, atol=near_for(kernel))
            np.testing.assert_allclose(z.norm(dim=1), 1.0, rtol=1e-6)


@STEPS
@KERNELS
@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_fedproc_follows_the_authors_rules(
    similarity: str, kernel: str, steps: int, tmp_path: Path
) -> None:
    """(1 - a) CE of s = z . c / |c| + a CE, a = t/100: their alpha is the share of cross-entropy.

    z is of length 1 already, so that the cosine and the dot product are the same loss.
    """
    official = {"similarity": similarity, "alpha_horizon": 100, "proto_transform": "train"}
    fed = federation(tmp_path, "fedproc", kernel, steps, **official)
    c = normal(1, CLASSES, WIDTH)
    server = knowing(fed.start(), c.double() if kernel == "torch" else c, EVERY)
    place, share = fed.place(7), 7 / 100

    def loss(net: Network, batch: Batch) -> Tensor:
        z, logits = unit(net, batch.x)
        prototypes = gpc(z, batch.y, c.double(), EVERY, 1.0, dot=True)
        return share * F.cross_entropy(logits, batch.y) + (1 - share) * prototypes

    expected = trained(fed, place, server["model"], loss)
    up = update(fed, place, server).up
    assert_moved_alike(fed, server["model"], up["model"], expected)
    sums, counts = summed(fed, place, expected)
    owned = torch.tensor(counts).clamp(min=1)[:, None]
    found = up["class_sums"]["c"] / owned
    np.testing.assert_allclose(found, sums / owned, rtol=0, atol=near_for(kernel))
    assert up["class_counts"]["n"].tolist() == counts and sum(counts) == 16  # of 21 samples


def summed(fed: Federation, place: Round, weights: Tensors) -> tuple[Tensor, list[int]]:
    """The authors' pass for prototypes: one more shuffled epoch, without a short last batch."""
    once = replace(fed.parts.local, epochs=1, steps=0, drop_last=True)
    batches = fed.shard(2).batches(
        once, ("train",), lambda what: place.generator(f"represent/{what}", 2)
    )
    net, sums, counts = fed.network(weights), torch.zeros(CLASSES, WIDTH).double(), [0] * CLASSES
    for batch in batches:
        for z, label in zip(unit(net, batch.x)[0].detach(), batch.y.tolist(), strict=True):
            sums[label] += z
            counts[label] += 1
    return sums, counts


@KERNELS
def test_prototypes_are_means_of_unit_vectors_by_count(kernel: str, tmp_path: Path) -> None:
    fed = federation(tmp_path, "fedproc", kernel, 2)
    server, place = fed.start(), fed.place(0)
    total, owned, uploads = torch.zeros(CLASSES, WIDTH).double(), [0] * CLASSES, {}
    for client in range(3):
        with kernels(kernel == "native"):
            up = fed.update(client, place, fed.broadcast(server, place)).up
        net, samples = fed.network(up["model"]).eval(), fed.shard(client)
        uploads[client] = (len(samples), up)
        for batch in samples.sweep():
            for z, label in zip(unit(net, batch.x)[0].detach(), batch.y.tolist(), strict=True):
                total[label] += z
                owned[label] += 1
    found = fed.collect(server, place, uploads)["prototypes"]["c"]
    expected = total / torch.tensor(owned)[:, None]
    np.testing.assert_allclose(found, expected, rtol=0, atol=near_for(kernel))
    assert float(found.norm(dim=1).max()) < 1.0


@pytest.mark.parametrize("dataset", ["digits", "fashion-mnist", "cifar10"])
def test_the_official_configuration_has_the_authors_network_and_batches(dataset: str) -> None:
    official, plain = (load(f"{dataset}/{name}") for name in ("fedproc-official", "fedproc"))
    assert official.net == replace(plain.net, unit_projection=True)
    assert official.local == replace(plain.local, drop_last=True)
    assert dataset != "cifar10" or official.local.lr == 0.01


@pytest.mark.parametrize("projection", [0, 1])
def test_it_is_refused_where_there_is_no_direction(projection: int) -> None:
    given = {"net.unit_projection": True, "net.projection": projection}
    with pytest.raises(ConfigError, match=r"net.unit_projection = true needs .* net.projection"):
        load("digits/fedavg", given)
