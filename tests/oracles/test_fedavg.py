"""FedAvg against the formula: w = sum_{k in S} (n_k / sum_{j in S} n_j) w_k."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from coterie.core.bundle import Bundle
from coterie.core.settings import Cohort, Local, ServerSettings
from coterie.core.task import ClientInfo, Reply, Round
from coterie.engine import cohort
from coterie.kit import Stage
from coterie.kit.context import ServerContext
from coterie.kit.networks import Nets
from coterie.methods.fedavg import FedAvg
from coterie.nets.heads import Network
from coterie.objectives.supervised import Supervised

COUNTER = "backbone.1.num_batches_tracked"
FEDERATION = 100


def network(seed: int) -> Network:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network(
            nn.Sequential(nn.Linear(5, 7), nn.BatchNorm1d(7)), classifier=nn.Linear(7, 3)
        )


def trained(client: int) -> dict[str, Tensor]:
    """Weights as a client could send them, BatchNorm statistics included."""
    net = network(client).train()
    with torch.no_grad():
        for step in range(client + 1):
            net(torch.randn(8, 5, generator=torch.Generator().manual_seed(100 * client + step)))
    return dict(net.state_dict())


def aggregate(uploads: Mapping[int, tuple[int, dict[str, Tensor]]]) -> dict[str, Tensor]:
    """One server update of FedAvg over (samples, weights) by client."""
    nets = Nets({"model": network(0)})
    ctx = ServerContext(
        round=Round(3, 10, "train", 3, 10, FEDERATION, seed=0),
        objective=Supervised(),
        local=Local(),
        nets=nets,
        rules=FedAvg.reduce,
        optimizer=ServerSettings(),
        folder=Path("unused"),
    )
    replies = (Reply(k, Bundle({"model": w}), n) for k, (n, w) in uploads.items())
    method = FedAvg()
    server = method.server_update(ctx, method.init(nets), replies)
    return method.model(server)


def naive(uploads: Mapping[int, tuple[int, dict[str, Tensor]]], name: str) -> np.ndarray:
    total = sum(n for n, _ in uploads.values())
    found = np.zeros(next(iter(uploads.values()))[1][name].shape, np.float64)
    for n, weights in uploads.values():
        found += (n / total) * weights[name].numpy().astype(np.float64)
    return found


@pytest.mark.parametrize("sizes", [{0: 10}, {0: 10, 1: 30}, {7: 501, 2: 77, 4: 13, 9: 1}])
def test_the_weighted_mean(sizes: dict[int, int]) -> None:
    uploads = {client: (n, trained(client)) for client, n in sizes.items()}
    found = aggregate(uploads)
    assert set(found) == set(network(0).state_dict())
    for name, tensor in found.items():
        if name != COUNTER:
            expected = naive(uploads, name).astype(np.float32)
            assert np.allclose(tensor.numpy(), expected, rtol=2e-7, atol=1e-12), name
            assert tensor.dtype == torch.float32


def test_batch_norm_statistics_are_averaged_and_counters_take_the_largest() -> None:
    uploads = {client: (client + 1, trained(client)) for client in (4, 0, 2)}
    found = aggregate(uploads)
    for name in ("backbone.1.running_mean", "backbone.1.running_var"):
        assert np.allclose(found[name].numpy(), naive(uploads, name), rtol=2e-7, atol=1e-8)
    assert found[COUNTER].item() == 5
    assert found[COUNTER].dtype == torch.int64


@pytest.mark.parametrize("sizes", [[1], [3, 3, 3], [501, 77, 13, 1], [10_007, 99_991, 3, 1, 7]])
def test_identical_models_give_identical_bits(sizes: list[int]) -> None:
    same = trained(3)
    found = aggregate({client: (n, same) for client, n in enumerate(sizes)})
    for name, tensor in found.items():
        assert torch.equal(tensor, same[name]), name


def test_the_denominator_is_the_data_of_those_who_answered() -> None:
    """A federation of 100 of which few answer: the weights still sum to one."""
    ones = {name: torch.ones_like(tensor) for name, tensor in trained(0).items()}
    found = aggregate({11: (3, ones), 90: (7, ones), 42: (5, ones)})
    assert all(torch.equal(found[name], ones[name]) for name in ones)


def test_weights_sum_to_one_under_sampling_and_dropouts() -> None:
    clients = [ClientInfo(k, f"client-{k}", 10 + 13 * k % 29) for k in range(FEDERATION)]
    settings = Cohort(fraction=0.1, drop_before=0.3, drop_after=0.2)
    stage = Stage("train", 20)
    ones = {name: torch.ones_like(tensor) for name, tensor in trained(0).items()}
    for round in range(20):
        invited = cohort.invite(clients, stage, settings, 5, round)
        answered = [k for k in invited.clients if k not in invited.lost]
        uploads = {k: (clients[k].examples, ones) for k in answered}
        assert 0 < len(uploads) <= 10
        assert all(torch.equal(t, ones[name]) for name, t in aggregate(uploads).items())


def test_twice_the_samples_count_twice() -> None:
    low, high = trained(1), trained(2)
    found = aggregate({1: (20, low), 2: (10, high)})
    again = aggregate({1: (10, low), 2: (10, high), 3: (10, low)})
    for name in found:
        assert torch.allclose(found[name].double(), again[name].double(), rtol=2e-7, atol=1e-12)


def test_the_broadcast_is_the_model_and_nothing_else() -> None:
    method, nets = FedAvg(), Nets({"model": network(0)})
    server = method.init(nets)
    down = method.broadcast(server, Round(0, 1, "train", 0, 1, 1, seed=0))
    assert set(down.tensors) == {"model"}
    assert down.nbytes() == sum(t.nbytes for t in network(0).state_dict().values())
