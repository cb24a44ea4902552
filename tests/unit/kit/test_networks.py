"""Networks in the pool: who keeps which names, and that nothing sticks to a reused network."""

import pytest
import torch
from torch import Tensor, nn

from coterie.core.batch import Batch
from coterie.kit.networks import Nets
from coterie.nets.heads import Network
from coterie.nets.norm import batch_norm_buffers

BUFFERS = {f"backbone.1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")}


def tiny_network(seed: int = 0) -> Network:
    """A backbone with BatchNorm, a frozen predictor and a classifier."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = Network(
            nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)),
            predictor=nn.Linear(4, 4),
            classifier=nn.Linear(4, 2),
        )
    net.predictor.requires_grad_(False)
    return net


def images(count: int = 5) -> Tensor:
    return torch.arange(3.0 * count).reshape(count, 3) / 7


def test_initial_weights_are_copies() -> None:
    nets = Nets({"model": tiny_network()})
    first = nets.weights()
    first["classifier.bias"].fill_(9.0)
    assert not torch.equal(nets.weights()["classifier.bias"], first["classifier.bias"])
    assert set(first) == set(tiny_network().state_dict())


def test_nets_is_a_mapping_of_the_initial_networks() -> None:
    nets = Nets({"model": tiny_network(), "sensor": tiny_network(1)})
    assert list(nets) == ["model", "sensor"]
    assert len(nets) == 2
    assert nets["sensor"].predictor is not None
    assert not nets["model"].training


def test_parameters_are_not_buffers() -> None:
    found = Nets({"model": tiny_network()}).parameters()
    assert found == {name for name, _ in tiny_network().named_parameters()}
    assert not found & BUFFERS


@pytest.mark.parametrize(
    ("private", "local_buffers", "kept"),
    [
        ((), False, set()),
        (("predictor.",), False, {"predictor.weight", "predictor.bias"}),
        ((), True, BUFFERS),
        (("predictor.", "classifier."), True, BUFFERS | {"predictor.weight", "classifier.bias"}),
    ],
)
def test_kept_names_are_never_shared(
    private: tuple[str, ...], local_buffers: bool, kept: set[str]
) -> None:
    nets = Nets({"model": tiny_network()}, private=private, local_buffers=local_buffers)
    everything = set(tiny_network().state_dict())
    shared, own = nets.split("model", tiny_network(1))
    assert set(shared) | set(own) == everything
    assert not set(shared) & set(own)
    assert kept <= set(own)
    assert set(nets.weights()) == set(shared)


def test_the_buffers_of_batch_norm_are_found_by_layer() -> None:
    assert batch_norm_buffers(tiny_network()) == BUFFERS
    assert batch_norm_buffers(nn.BatchNorm2d(1)) >= {"running_mean"}
    assert batch_norm_buffers(nn.Linear(1, 1)) == frozenset()


def test_split_gives_copies() -> None:
    nets = Nets({"model": tiny_network()}, private=("predictor",))
    net = tiny_network(1)
    for part in nets.split("model", net):
        for tensor in part.values():
            assert not tensor.requires_grad
            tensor.fill_(0)
    assert all(parameter.abs().sum() > 0 for parameter in net.classifier.parameters())


def test_weights_and_kept_parts_are_laid_in() -> None:
    nets = Nets({"model": tiny_network()}, private=("predictor",), local_buffers=True)
    shared, kept = nets.split("model", tiny_network(1))
    kept["backbone.1.running_mean"] = torch.full((4,), 3.0)
    state = nets.net("model", "local", shared, kept).state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in (shared | kept).items())


def test_kept_parts_that_a_client_does_not_have_yet_start_from_the_initial_ones() -> None:
    nets = Nets({"model": tiny_network()}, private=("predictor",), local_buffers=True)
    shared, kept = nets.split("model", tiny_network(1))
    kept["backbone.1.running_mean"].fill_(3.0)
    nets.net("model", "local", shared, kept)
    state = nets.net("model", "local", shared, {}).state_dict()
    start = tiny_network().state_dict()
    assert all(torch.equal(state[name], start[name]) for name in kept)


def test_full_weights_win_over_kept_parts() -> None:
    nets = Nets({"model": tiny_network()}, private=("predictor",))
    personal = {name: torch.ones_like(t) for name, t in tiny_network().state_dict().items()}
    _, kept = nets.split("model", tiny_network(1))
    state = nets.net("model", "local", personal, kept).state_dict()
    assert torch.equal(state["predictor.bias"], torch.ones(4))


def test_a_scratch_network_is_reused_as_new() -> None:
    nets = Nets({"model": tiny_network()})
    net = nets.net("model", "local", nets.weights(), {})
    net(images()).logits.sum().backward()
    net.requires_grad_(False)
    net.predictor.requires_grad_(True)
    net.eval()
    again = nets.net("model", "local", nets.weights(), {})
    assert again is net
    assert all(module.training for module in again.modules())
    for name, parameter in again.named_parameters():
        assert parameter.requires_grad is not name.startswith("predictor"), name
        assert parameter.grad is None
    assert all(torch.equal(t, again.state_dict()[name]) for name, t in nets.weights().items())


def test_slots_and_keys_are_different_networks() -> None:
    nets = Nets({"model": tiny_network(), "sensor": tiny_network(1)})
    found = {
        id(nets.net(key, slot, nets.weights(key), {}))
        for key in ("model", "sensor")
        for slot in ("local", "other")
    }
    assert len(found) == 4
    assert id(nets["model"]) not in found


def test_training_a_scratch_network_does_not_touch_the_initial_one() -> None:
    nets = Nets({"model": tiny_network()})
    net = nets.net("model", "local", nets.weights(), {})
    with torch.no_grad():
        net.classifier.bias.fill_(9.0)
    assert torch.equal(nets.weights()["classifier.bias"], tiny_network().classifier.bias)
    assert torch.equal(nets["model"].classifier.bias, tiny_network().classifier.bias)


def test_frozen_networks_compute_without_gradients_in_eval_mode() -> None:
    nets = Nets({"model": tiny_network()})
    frozen = nets.frozen("model", nets.weights(), {})
    before = frozen.net.state_dict()["backbone.1.running_mean"].clone()
    outputs = frozen(images())
    batch = Batch((images(), images() + 1), torch.zeros(5), torch.arange(5))
    assert torch.equal(frozen(batch).h, outputs.h)
    assert torch.equal(frozen.encode(images()), outputs.h)
    assert not outputs.logits.requires_grad
    assert not any(parameter.requires_grad for parameter in frozen.net.parameters())
    assert torch.equal(frozen.net.state_dict()["backbone.1.running_mean"], before)


def test_frozen_networks_are_distinct_until_released_and_then_reused() -> None:
    nets = Nets({"model": tiny_network()})
    others = nets.split("model", tiny_network(1))[0]
    first, second = nets.frozen("model", nets.weights(), {}), nets.frozen("model", others, {})
    assert first.net is not second.net
    assert not torch.equal(first(images()).h, second(images()).h)
    nets.release()
    first.net.train()
    again = nets.frozen("model", others, {})
    assert again.net is first.net
    assert not again.net.training
    assert torch.equal(again(images()).h, second(images()).h)
    assert nets.frozen("model", others, {}).net is second.net
    assert nets.frozen("model", others, {}).net not in (first.net, second.net)


def test_batch_statistics_where_no_shared_ones_exist() -> None:
    nets = Nets({"model": tiny_network()}, local_buffers=True)
    by_initial = nets.frozen("model", nets.weights(), {}).encode(images())
    frozen = nets.frozen_on_server("model", nets.weights())
    h = frozen.encode(images())
    assert torch.allclose(h.mean(dim=0), torch.zeros(4), atol=1e-5)
    assert torch.equal(frozen.net.state_dict()["backbone.1.running_mean"], torch.zeros(4))
    nets.release()
    assert torch.equal(nets.frozen("model", nets.weights(), {}).encode(images()), by_initial)


def test_what_only_the_server_trains_is_kept_by_nobody() -> None:
    net = tiny_network()
    net.central = ("backbone.",)
    nets = Nets({"model": net}, private=("backbone",), local_buffers=True)
    names = {name for name in tiny_network().state_dict() if name.startswith("backbone.")}
    assert names <= nets.weights().keys()
    frozen = nets.frozen_on_server("model", nets.weights())
    assert not any(module.training for module in frozen.net.backbone.modules())


def test_shared_statistics_are_left_alone() -> None:
    nets = Nets({"model": tiny_network()})
    frozen = nets.frozen_on_server("model", nets.weights())
    assert not any(module.training for module in frozen.net.modules())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"classifier.bias": None}, "network 'model' misses 'classifier.bias'"),
        ({"classifier.scale": torch.ones(1)}, "network 'model' has an unknown 'classifier.scale'"),
    ],
)
def test_wrong_names_are_named(change: dict[str, Tensor | None], message: str) -> None:
    nets = Nets({"model": tiny_network()})
    weights = {name: t for name, t in (nets.weights() | change).items() if t is not None}
    for lay in (
        lambda: nets.net("model", "local", weights, {}),
        lambda: nets.frozen("model", weights, {}),
    ):
        with pytest.raises(KeyError, match=message):
            lay()


def test_a_wrong_shape_is_named() -> None:
    nets = Nets({"model": tiny_network()})
    with pytest.raises(RuntimeError, match=r"size mismatch for classifier\.bias"):
        nets.net("model", "local", nets.weights() | {"classifier.bias": torch.ones(3)}, {})
