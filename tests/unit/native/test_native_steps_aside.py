"""Kernels step aside: every shipped backbone can be traced, exported, transformed and listened to.

Each test runs with kernels off, as networks are outside a run, and on.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from native_reference import needs_kernels
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.func import functional_call, grad, jvp, vmap
from torch.utils.flop_counter import FlopCounterMode

import bfloat16
from coterie.core import registry, seeds
from coterie.core.settings import NetSettings
from coterie.kit.losses import model_contrast
from coterie.native.switch import kernels
from coterie.nets.backbones.simple_cnn import SimpleCNN
from coterie.nets.build import make_backbone
from coterie.nets.heads import Network, moon_projector
from coterie.nets.norm import PeerNorm

# torch deprecates tracing, and itself calls what it deprecates; users trace all the same
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.*deprecated:DeprecationWarning")

# without resnet18, which has the blocks of resnet8; those of resnet50 are others
BACKBONES = [name for name in registry.names("nets/backbones") if name != "resnet18"]
LARGE = "simple-cnn, large"  # without padding, so that it is one call in training too
SHAPES = {"conv1d": (2, 20), "mlp": (7,), LARGE: (1, 20, 20)}


@pytest.fixture(autouse=True, params=[False, pytest.param(True, marks=needs_kernels)])
def on(request: pytest.FixtureRequest) -> Iterator[None]:
    """With kernels off, then on; their values need not be those of torch to the last bit."""
    with kernels(request.param):
        yield


@pytest.fixture(scope="module", params=[*BACKBONES, LARGE])
def net(request: pytest.FixtureRequest) -> Network:
    """A network with a projector and a classifier on each backbone, in eval mode."""
    with seeds.scoped(1):
        backbone = make_backbone(NetSettings(request.param.split(",")[0]), shape_of(request.param))
        projector = moon_projector(backbone.width, 8)
        made = Network(backbone, projector=projector, classifier=nn.Linear(8, 3))
    made.name = request.param
    return made.eval()


def shape_of(name: Any) -> tuple[int, ...]:
    return SHAPES.get(str(name), (1, 8, 8))


def batch(net: Network, samples: int = 4) -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randn((samples, *shape_of(net.name)), generator=generator)


def plainly(work: Callable[[], Any]) -> Any:
    with kernels(False):
        return work()


def close(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-3, atol=1e-4)


@pytest.mark.filterwarnings("error::torch.jit.TracerWarning")
def test_an_encoder_can_be_traced(net: Network) -> None:
    more = batch(net, 7)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            # the checker compares with what kernels compute, if they are on
            traced = torch.jit.trace(net.backbone, batch(net), check_tolerance=1e-3)
        assert close(traced(more), plainly(lambda: net.encode(more)))


def test_a_network_can_be_exported(net: Network) -> None:
    sizes = {"x": {0: torch.export.Dim("samples", min=1)}}
    program = torch.export.export(net, (batch(net),), dynamic_shapes=sizes).module()
    for samples in (1, 2, 7):
        x = batch(net, samples)
        assert close(program(x).logits, plainly(lambda x=x: net(x).logits))


def test_shapes_can_be_found_without_numbers(net: Network) -> None:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        fake = mode.from_tensor(batch(net))
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                assert net(fake).logits.shape == (4, 3)
                assert net(batch(net)).h.shape == (4, net.backbone.width)


def test_operations_can_be_counted(net: Network) -> None:
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        net(batch(net))
    expected = FlopCounterMode(display=False)
    with torch.no_grad(), expected:
        plainly(lambda: net(batch(net)))
    assert counter.get_total_flops() == expected.get_total_flops() > 0


def loss_of(net: Network) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        outputs = functional_call(net, weights, (x,))
        total: Tensor = outputs.logits.square().sum()
        return total

    return loss


def test_a_network_is_a_function_of_its_weights(net: Network) -> None:
    loss, x = loss_of(net), batch(net)
    doubled = {name: 2 * weight for name, weight in net.named_parameters()}
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert close(loss(doubled, x), plainly(lambda: loss(doubled, x)))
    assert not close(loss(doubled, x), loss(dict(net.named_parameters()), x))


def test_gradients_of_every_sample_by_torch_func(net: Network) -> None:
    loss, x = loss_of(net), batch(net)
    weights = {name: weight.detach() for name, weight in net.named_parameters()}
    each = vmap(grad(loss), in_dims=(None, 0))(weights, x[:, None])
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    whole = torch.autograd.grad(loss(leaves, x), list(leaves.values()))
    for name, slope in zip(weights, whole, strict=True):
        assert close(each[name].sum(dim=0), slope), name


def test_directional_derivatives(net: Network) -> None:
    x, direction = batch(net), batch(net).flip(0)
    _, expected = plainly(lambda: jvp(net.encode, (x,), (direction,)))
    assert close(jvp(net.encode, (x,), (direction,))[1], expected)
    for gradients in (True, False):
        with forward_ad.dual_level(), torch.set_grad_enabled(gradients):
            found = forward_ad.unpack_dual(net.encode(forward_ad.make_dual(x, direction)))
        assert found.tangent is not None and close(found.tangent, expected)


def test_a_network_can_be_differentiated_twice(net: Network) -> None:
    def second() -> Tensor:
        x = batch(net).requires_grad_()
        (slope,) = torch.autograd.grad(net(x).logits.square().sum(), x, create_graph=True)
        (again,) = torch.autograd.grad(slope.square().sum(), x)
        return again

    found, expected = second(), plainly(second)
    assert bool(found.any())
    assert torch.allclose(found, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_lower_precision_is_that_of_torch(net: Network) -> None:
    if bfloat16.is_deadly():
        return
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        found = net(batch(net)).logits
        assert found.dtype == torch.bfloat16
        assert torch.equal(found, plainly(lambda: net(batch(net)).logits))


# ---- hooks


@pytest.mark.parametrize("gradients", [True, False])
def test_hooks_of_inner_layers_are_called(net: Network, gradients: bool) -> None:
    hooked = copy.deepcopy(net)
    with torch.set_grad_enabled(gradients):
        hooked(batch(net))  # what was planned before may not be used any more
    heard: list[str] = []
    leaves = [m for m in hooked.modules() if not list(m.children())]
    reached = [leaf for leaf in leaves if not isinstance(leaf, nn.Identity)]
    for place, leaf in enumerate(reached):
        leaf.register_forward_pre_hook(lambda *_, at=place: heard.append(f"before {at}"))
        leaf.register_forward_hook(lambda *_, at=place: heard.append(f"after {at}"))
    with torch.set_grad_enabled(gradients):
        outputs = hooked(batch(net))
    for place in range(len(reached)):
        assert f"before {place}" in heard and f"after {place}" in heard, reached[place]
    assert close(outputs.logits, plainly(lambda: net(batch(net)).logits))


@pytest.mark.parametrize("part", ["backbone", "projector", "classifier"])
def test_hooks_of_parts_may_change_what_they_give(net: Network, part: str) -> None:
    hooked = copy.deepcopy(net)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            hooked(batch(net))
            handle = getattr(hooked, part).register_forward_hook(lambda *given: 0 * given[2])
            zeros = hooked(batch(net))
            handle.remove()
            assert not zeros[{"backbone": 0, "projector": 1, "classifier": 3}[part]].any()
            assert hooked(batch(net)).logits.any()


@pytest.mark.parametrize("gradients", [True, False])
def test_hooks_of_all_modules_are_called(net: Network, gradients: bool) -> None:
    heard = set()
    register = nn.modules.module.register_module_forward_hook
    handle = register(lambda module, *_: heard.add(module))
    try:
        with torch.set_grad_enabled(gradients):
            net(batch(net))
    finally:
        handle.remove()
    assert set(net.backbone.modules()) - heard <= {
        m for m in net.modules() if isinstance(m, nn.Identity | nn.Sequential | SimpleCNN)
    }
    assert {net.backbone, net.classifier} <= heard


def test_backward_hooks_are_called(net: Network) -> None:
    hooked = copy.deepcopy(net)
    heard = []
    for module in hooked.modules():
        if isinstance(module, nn.Conv2d | nn.Conv1d | nn.Linear):
            module.register_full_backward_hook(lambda module, *_: heard.append(module))
    hooked(batch(net).requires_grad_()).logits.sum().backward()
    assert len(set(heard)) == sum(
        isinstance(m, nn.Conv2d | nn.Conv1d | nn.Linear) for m in hooked.modules()
    )


# ---- layers that only look like those that kernels know


class Halved(nn.ReLU):
    """Not what its base class does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


class Shifted(nn.Sequential):
    """Not what its base class does."""

    def forward(self, x: Tensor) -> Tensor:
        shifted: Tensor = super().forward(x) + 1
        return shifted


class Derived(SimpleCNN):
    """Not what its base class does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) - 1


def look_alikes() -> Iterator[nn.Module]:
    with seeds.scoped(3):
        layers = (nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 4))
        convolution, pool, flat, linear = layers
        yield nn.Sequential(convolution, Halved(), pool, flat, linear)
        yield nn.Sequential(convolution, nn.ReLU(), pool, flat, linear, Halved())
        yield Shifted(convolution, nn.ReLU(), pool, flat, linear)
        yield nn.Sequential(Shifted(convolution, nn.ReLU(), pool), flat, linear)
        yield Derived(1, 8, 8)
        patched = nn.Sequential(convolution, nn.ReLU(), pool, flat, nn.Linear(18, 4))
        patched[4].forward = lambda x: x[:, :4]
        yield patched
        normed = nn.Sequential(*copy.deepcopy(layers[:1]), nn.ReLU(), pool, flat, linear)
        nn.utils.parametrizations.weight_norm(normed[0])
        yield normed


def test_classes_that_only_derive_from_known_ones_are_called() -> None:
    x = torch.randn((3, 1, 8, 8), generator=torch.Generator().manual_seed(0))
    for module in look_alikes():
        net = Network(module)
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                expected = plainly(lambda net=net: net(x).h)
                assert close(net(x).h, expected), module


def test_weights_in_another_order_in_memory_are_seen_to_change() -> None:
    with seeds.scoped(3), torch.no_grad():
        net = Network(SimpleCNN(3, 8, 8).to(memory_format=torch.channels_last)).eval()
        x = torch.randn(4, 3, 8, 8)
        net(x)
        for parameter in net.parameters():
            parameter.mul_(1.5)
        assert close(net(x).h, plainly(lambda: net(x).h))


# ---- a loss and a norm with gradients of their own


def test_the_contrast_of_models_can_be_transformed_and_differentiated_twice() -> None:
    generator = torch.Generator().manual_seed(0)
    z, near, far = torch.randn((3, 5, 4), generator=generator, dtype=torch.float64)

    def loss(z: Tensor) -> Tensor:
        return model_contrast(z, near, [far], 0.5).loss

    (expected,) = torch.autograd.grad(loss(leaf := z.clone().requires_grad_()), leaf)
    assert torch.allclose(grad(loss)(z), expected)
    assert torch.autograd.gradgradcheck(loss, z.clone().requires_grad_())
    assert torch.allclose(jvp(loss, (z,), (far,))[1], (expected * far).sum())


@pytest.mark.parametrize("var", ["pooled", "average"])
def test_peer_normalization_can_be_transformed_and_differentiated_twice(var: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((4, 4, 3), generator=generator, dtype=torch.float64)
    layer = PeerNorm(4, groups=2, views=2, var=var).double()

    def norm(x: Tensor) -> Tensor:
        y: Tensor = layer(x)
        return y.pow(3).sum()

    (expected,) = torch.autograd.grad(norm(leaf := x.clone().requires_grad_()), leaf)
    assert torch.allclose(grad(norm)(x), expected)
    assert torch.autograd.gradgradcheck(norm, x.clone().requires_grad_())
    weights = dict(layer.named_parameters())
    slopes = grad(lambda w: functional_call(layer, w, (x,)).pow(3).sum())(weights)
    layer.zero_grad()
    norm(x).backward()
    assert layer.weight.grad is not None and torch.allclose(slopes["weight"], layer.weight.grad)
