"""Networks that are trained in one call forward and one back."""

import copy
from collections.abc import Iterator

import pytest
import torch
from native_reference import laid_in_lanes, needs_kernels, plain_loops, variant
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from coterie.native.switch import kernels
from coterie.nets.backbones.simple_cnn import SimpleCNN
from coterie.nets.heads import Network, Outputs, make_unit, mlp_head, moon_projector

__all__ = ["variant"]  # a fixture

pytestmark = [needs_kernels, pytest.mark.usefixtures("variant")]

IN_ONE_CALL = "_TrainedNetworkBackward"


@pytest.fixture(autouse=True)
def same_weights() -> Iterator[None]:
    """Layers start with the same weights in every run of the tests."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        yield


def network(shape: tuple[int, int, int] = (3, 32, 32), head: str = "moon") -> Network:
    heads: dict[str, nn.Module] = {"classifier": nn.Linear(84 if head == "none" else 40, 7)}
    if head != "none":
        heads["projector"] = moon_projector(84, 40)
    net = Network(SimpleCNN(*shape), **heads)
    if head == "unit":
        make_unit(net)
    return net


def batch(samples: int, *shape: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(samples)
    x = torch.randn(samples, *(shape or (3, 32, 32)), generator=generator, dtype=dtype)
    return x, torch.randint(7, (samples,), generator=generator)


def measure(outputs: Outputs, y: Tensor, parts: str = "h z logits") -> Tensor:
    """A loss of the outputs that are named."""
    assert outputs.logits is not None
    terms = {"h": outputs.h.cos().mean(), "z": outputs.z.sin().mean()}
    terms["logits"] = F.cross_entropy(outputs.logits, y)
    return torch.stack([terms[part] for part in parts.split()]).sum()


def slopes(net: nn.Module) -> list[Tensor | None]:
    return [weight.grad for weight in net.parameters()]


def train(net: Network, x: Tensor, y: Tensor, on: bool, parts: str = "h z logits") -> Outputs:
    """Find the outputs and gradients, with kernels or without."""
    with kernels(on):
        outputs: Outputs = net(x)
        measure(outputs, y, parts).backward()  # type: ignore[no-untyped-call]
    return outputs


def in_one_call(outputs: Outputs) -> bool:
    return type(outputs.z.grad_fn).__name__ == IN_ONE_CALL


def close(found: Tensor | None, expected: Tensor | None, near: float = 1e-5) -> bool:
    if found is None or expected is None:
        return found is expected
    largest = expected.abs().max().clamp(min=1e-30)
    return bool((found.double() - expected.double()).abs().max() <= near * largest)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("samples", [1, 20, 64, 130])
@pytest.mark.parametrize(
    ("shape", "head"),
    [((3, 32, 32), "moon"), ((3, 32, 32), "unit"), ((1, 28, 28), "none"), ((2, 21, 23), "moon")],
)
def test_outputs_and_gradients_are_those_of_torch(
    shape: tuple[int, int, int], head: str, samples: int, dtype: torch.dtype
) -> None:
    net = network(shape, head).to(dtype)
    exact = copy.deepcopy(net).double()
    x, y = batch(samples, *shape, dtype=dtype)
    found, expected = train(net, x, y, on=True), train(exact, x.double(), y, on=False)
    near = 1e-5 if dtype == torch.float32 else 1e-12
    assert in_one_call(found) and not in_one_call(expected)
    for one, other in zip(found, expected, strict=True):
        assert close(one, other, near)
    for first, second in zip(slopes(net), slopes(exact), strict=True):
        assert first is not None and close(first, second, near)
    again = copy.deepcopy(net)
    again.zero_grad()
    train(again, laid_in_lanes(x), y, on=True)
    for first, second in zip(slopes(net), slopes(again), strict=True):
        assert first is not None and second is not None and torch.equal(first, second)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("head", ["moon", "unit"])
def test_the_kernels_compute_what_the_plain_loops_say(head: str, dtype: torch.dtype) -> None:
    net = network(head=head).to(dtype)
    plain = copy.deepcopy(net)
    x, y = batch(21, dtype=dtype)
    found = train(net, x, y, on=True)
    with plain_loops():
        expected = train(plain, x, y, on=True)
    near = 1e-5 if dtype == torch.float32 else 1e-12
    assert close(found.z, expected.z, near)
    for first, second in zip(slopes(net), slopes(plain), strict=True):
        assert close(first, second, near)


@pytest.mark.parametrize("parts", ["h", "z", "h z", "logits"])
def test_layers_behind_the_last_that_a_loss_uses_have_no_gradient(parts: str) -> None:
    net = network()
    other = copy.deepcopy(net)
    x, y = batch(16)
    assert in_one_call(train(net, x, y, on=True, parts=parts))
    train(other, x, y, on=False, parts=parts)
    assert [one is None for one in slopes(net)] == [one is None for one in slopes(other)]
    assert all(close(one, two) for one, two in zip(slopes(net), slopes(other), strict=True))


def test_outputs_have_the_bits_of_the_frozen_network() -> None:
    net = network(head="unit")
    x, y = batch(40)
    found = train(net, x, y, on=True)
    with kernels(True), torch.no_grad():
        expected = net(x)
    assert torch.equal(found.z, expected.z) and torch.equal(found.h, expected.h)


def test_several_batches_may_be_on_their_way() -> None:
    net, other = network(), network()
    other.load_state_dict(net.state_dict())
    batches = [batch(16), batch(40), batch(16)]
    for one, on in ((net, True), (other, False)):
        with kernels(on):
            losses = [measure(one(x), y) for x, y in batches]
        for loss in losses:
            loss.backward()  # type: ignore[no-untyped-call]
    assert all(close(one, two) for one, two in zip(slopes(net), slopes(other), strict=True))


def test_gradients_are_differentiable() -> None:
    results = []
    for on in (True, False):
        net = network().double()
        net.load_state_dict(network().double().state_dict() if not results else results[0][0])
        x, y = batch(8, dtype=torch.float64)
        with kernels(on):
            loss = measure(net(x), y)
            first = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
            torch.stack([one.square().sum() for one in first]).sum().backward()  # type: ignore[no-untyped-call]
        results.append((net.state_dict(), slopes(net)))
    for one, two in zip(results[0][1], results[1][1], strict=True):
        assert close(one, two, 1e-9)


def test_weights_that_moved_since_the_forward_pass_are_not_read_at_their_old_place() -> None:
    net, other = network(), network()
    other.load_state_dict(net.state_dict())
    x, y = batch(16)
    with kernels(True):
        loss = measure(net(x), y)
        for weight in net.parameters():
            weight.data = weight.data.clone()
        loss.backward()  # type: ignore[no-untyped-call]
        again = net(x)
    train(other, x, y, on=False)
    assert in_one_call(again)
    assert all(close(one, two) for one, two in zip(slopes(net), slopes(other), strict=True))


def test_weights_that_are_changed_in_between_are_an_error_as_in_torch() -> None:
    net = network()
    x, y = batch(16)
    with kernels(True):
        loss = measure(net(x), y)
        with torch.no_grad():
            net.classifier.weight.add_(1.0)  # type: ignore[union-attr, operator]
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()  # type: ignore[no-untyped-call]


def test_weights_that_stand_in_for_others_get_their_gradients() -> None:
    net = network()
    x, y = batch(16)
    found = []
    for on in (True, False):
        weights = {n: (p.detach() * 0.5).requires_grad_() for n, p in net.named_parameters()}
        with kernels(on):
            outputs = functional_call(net, weights, (x,))
            measure(outputs, y).backward()  # type: ignore[no-untyped-call]
        found.append([weight.grad for weight in weights.values()])
    assert all(close(one, two) for one, two in zip(*found, strict=True))
    assert all(weight.grad is None for weight in net.parameters())


def freeze(net: Network) -> None:
    net.backbone.requires_grad_(False)


def hook(net: Network) -> None:
    net.backbone.register_forward_hook(lambda *_: None)


def exchange_head(net: Network) -> None:
    net.projector = mlp_head((84, 30, 40))


def drop_bias(net: Network) -> None:
    net.classifier = nn.Linear(40, 7, bias=False)


@pytest.mark.parametrize("change", [freeze, hook, exchange_head, drop_bias])
def test_other_networks_are_left_to_torch(change: object) -> None:
    net = network()
    x, y = batch(16)
    assert in_one_call(train(net, x, y, on=True))
    net.zero_grad()
    assert callable(change)
    change(net)
    other = copy.deepcopy(net)
    assert not in_one_call(train(net, x, y, on=True))
    train(other, x, y, on=False)
    assert all(close(one, two) for one, two in zip(slopes(net), slopes(other), strict=True))


def test_small_images_whose_convolutions_are_padded_are_left_to_single_layers() -> None:
    net = network((1, 12, 12), "none")
    x, y = batch(16, 1, 12, 12)
    assert not in_one_call(train(net, x, y, on=True))
    assert all(one is not None for one in slopes(net))


def test_a_batch_whose_own_gradient_is_asked_for_gets_it() -> None:
    net = network()
    x, y = batch(16)
    x.requires_grad_()
    assert not in_one_call(train(net, x, y, on=True))
    assert x.grad is not None and bool(x.grad.abs().max() > 0)


def test_without_kernels_or_gradients_nothing_is_recorded() -> None:
    net = network()
    x, _ = batch(16)
    assert not in_one_call(net(x))
    with kernels(True), torch.no_grad():
        assert net(x).z.grad_fn is None
