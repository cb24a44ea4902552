"""The switch: kernels are off by default, and never see tensors that hold no numbers."""

from collections.abc import Callable

import pytest
import torch
from native_reference import needs_kernels
from torch import Tensor, nn

from coterie.kit.losses import model_contrast
from coterie.native.library import loaded
from coterie.native.switch import kernels, kernels_on, records_graph, takes
from coterie.nets.backbones.simple_cnn import HalvingPool, SimpleCNN
from coterie.nets.heads import Network, moon_projector

# torch deprecates tracing, and itself calls what it deprecates; users trace all the same
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")

SHAPE = (1, 12, 12)


def network() -> Network:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        heads = {"projector": moon_projector(84, 8), "predictor": nn.Linear(8, 8)}
        return Network(SimpleCNN(*SHAPE), **heads, classifier=nn.Linear(8, 3)).eval()


def batch(samples: int = 4) -> Tensor:
    return torch.randn((samples, *SHAPE), generator=torch.Generator().manual_seed(2))


def test_kernels_are_off_until_they_are_switched_on() -> None:
    assert not kernels_on()
    with kernels(True):
        assert kernels_on()
        with kernels(False):
            assert not kernels_on()
        assert kernels_on()
    assert not kernels_on()
    with pytest.raises(ZeroDivisionError), kernels(True):
        _ = 1 / 0
    assert not kernels_on()


class Marked(Tensor):
    """A tensor of somebody else's kind."""


def test_only_plain_dense_tensors_are_taken() -> None:
    x = batch()
    assert takes() and takes(x) and takes(x, nn.Parameter(x), x.transpose(2, 3))
    assert not takes(x.as_subclass(Marked)) and not takes(x, x.to_sparse())
    assert not takes(x.to("meta"))
    with torch._subclasses.FakeTensorMode() as mode:
        assert not takes(mode.from_tensor(x))


def test_nothing_is_taken_under_transforms() -> None:
    seen = []

    def note(x: Tensor) -> Tensor:
        seen.append((takes(x), takes(torch.zeros(1))))
        return x.sum()

    torch.func.vmap(note)(batch())
    torch.func.grad(note)(batch())
    torch.func.jvp(note, (batch(),), (batch(),))
    assert seen == [(False, False)] * 3
    assert takes(batch())


def test_nothing_is_taken_while_a_graph_is_recorded() -> None:
    seen = []

    class Noting(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            seen.append((takes(x), records_graph()))
            return x * 2

    torch.jit.trace(Noting(), batch(), check_trace=False)
    assert seen == [(False, True)]
    torch.export.export(Noting(), (batch(),), strict=False)
    assert len(seen) > 1 and set(seen) == {(False, True)}
    assert not records_graph()


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize("on", [False, pytest.param(True, marks=needs_kernels)])
def test_a_trace_is_the_network_in_torch(on: bool) -> None:
    """The checker of a trace repeats it without gradients, and fails where that takes another way.

    A trace cannot return None: the network has all of its heads.
    """
    net, x, more = network(), batch(), batch(9)
    with kernels(on):
        whole, encoder = torch.jit.trace(net, x), torch.jit.trace(net.backbone, x)
    with torch.no_grad():
        for output, expected in zip(whole(more), net(more), strict=True):
            assert torch.equal(output, expected)
        assert torch.equal(encoder(more), net.encode(more))


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
@pytest.mark.parametrize("ceil_mode", [False, True])
def test_a_trace_of_the_pool_is_max_pooling_with_and_without_gradients(ceil_mode: bool) -> None:
    x = torch.randn(2, 3, 6, 8)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            traced = torch.jit.trace(HalvingPool(ceil_mode), x)
        odd = torch.randn(2, 3, 7, 5)
        assert torch.equal(traced(odd), nn.functional.max_pool2d(odd, 2, ceil_mode=ceil_mode))


@pytest.mark.parametrize("on", [False, pytest.param(True, marks=needs_kernels)])
def test_networks_can_be_exported_and_transformed(on: bool) -> None:
    net, x = network(), batch()
    weights = dict(net.named_parameters())

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        logits: Tensor = torch.func.functional_call(net, weights, (x,)).logits
        return logits.square().sum()

    expected = torch.autograd.grad(loss(weights, x), list(weights.values()), allow_unused=True)
    with kernels(on):
        program = torch.export.export(net.backbone, (x,)).module()
        slopes = torch.func.grad(loss)(weights, x)
        each = torch.func.vmap(loss, in_dims=(None, 0))(weights, x[:, None])
    assert torch.allclose(program(x), net.encode(x))
    for name, slope in zip(weights, expected, strict=True):
        if slope is not None:
            assert torch.allclose(slopes[name], slope, rtol=1e-5, atol=1e-6), name
    assert torch.allclose(each.sum(), loss(weights, x), rtol=1e-5)


def test_outside_a_run_networks_can_be_differentiated_twice() -> None:
    net, x = network(), batch().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).logits.square().sum(), x, create_graph=True)
    slope.square().sum().backward()
    assert x.grad is not None and bool(x.grad.any())


@needs_kernels
@pytest.mark.parametrize(
    "work",
    [
        lambda: network()(batch()).h,
        lambda: torch.no_grad()(network())(batch()).h,
        lambda: model_contrast(batch()[0, 0], batch()[1, 0], [batch()[2, 0]], 0.5).loss,
    ],
    ids=["trained", "frozen", "loss"],
)
def test_the_choice_is_made_at_the_call(
    work: Callable[[], Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []
    call = loaded().call

    def noted(name: str, *rest: object) -> None:
        calls.append(name)
        call(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(loaded(), "call", noted)
    expected = work()
    assert not calls
    with kernels(True):
        found = work()
    assert calls and torch.allclose(found, expected, rtol=1e-4, atol=1e-6)
