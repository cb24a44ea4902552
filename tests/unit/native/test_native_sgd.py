"""SGD over a flat buffer makes the steps of torch's, on the bits where multiply-adds are fused."""

import pytest
import torch
from native_reference import needs_kernels, variant
from torch import nn

from coterie.core.settings import Local
from coterie.kit.optimizers import local_optimizer
from coterie.native.sgd import FlatSGD, takes
from coterie.native.switch import kernels

__all__ = ["variant"]  # a fixture

pytestmark = needs_kernels

SHAPES = [(7, 3, 5, 5), (1,), (33, 17), (16,), (0, 4), ()]
SETTINGS = [
    {"lr": 0.1},
    {"lr": 0.1, "weight_decay": 1e-3},
    {"lr": 0.01, "momentum": 0.9},
    {"lr": 0.01, "momentum": 0.9, "weight_decay": 1e-5},
    {"lr": 0.05, "momentum": 0.5, "weight_decay": 1e-2, "nesterov": True},
]


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_steps_are_those_of_torch(variant: str, setting: dict[str, float]) -> None:
    ours, theirs = parameters(), parameters()
    flat = FlatSGD(ours, **setting)  # type: ignore[arg-type]
    plain = torch.optim.SGD(theirs, **setting)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(1)
    for step in range(6):
        flat.zero_grad()
        plain.zero_grad()
        for place, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            if (step + place) % 4 == 0 or (place == 1 and step < 3):
                continue  # it gets no gradient this time, one of them not before the fourth
            gradient = torch.randn(one.shape, generator=generator)
            one.grad = gradient.T.contiguous().T if one.ndim == 2 else gradient
            other.grad = gradient.clone()
        flat.step()
        plain.step()
        for one, other in zip(ours, theirs, strict=True):
            if fused(variant):
                assert torch.equal(one, other)
            else:
                assert torch.allclose(one, other, rtol=1e-6, atol=1e-7)


def fused(variant: str) -> bool:
    """Whether both sides have fused multiply-adds."""
    return variant in ("avx512", "avx2") and "AVX" in torch.backends.cpu.get_cpu_capability()


@pytest.mark.usefixtures("variant")
def test_parameters_are_views_of_one_buffer_and_keep_their_values() -> None:
    ours, before = parameters(), parameters()
    FlatSGD(ours, lr=0.1)
    assert all(torch.equal(one, other) for one, other in zip(ours, before, strict=True))
    assert len({one.untyped_storage().data_ptr() for one in ours if one.numel()}) == 1
    first = ours[0].detach().clone()
    FlatSGD(ours, lr=0.1).step()  # a second one, and no gradients
    assert torch.equal(ours[0], first)


@pytest.mark.usefixtures("variant")
def test_a_network_learns_the_same_with_both() -> None:
    ends = []
    for native in (True, False):
        torch.manual_seed(3)
        net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        x, y = torch.randn(32, 6), torch.randint(0, 2, (32,))
        local = Local(momentum=0.9, weight_decay=1e-4)
        with kernels(native):
            optimizer = local_optimizer(local, list(net.parameters()), 0.1)
        assert isinstance(optimizer, FlatSGD) == native
        for _ in range(5):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            optimizer.step()
        ends.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.allclose(*ends, rtol=1e-5, atol=1e-6)


def test_what_it_does_not_take_is_left_to_torch() -> None:
    double = [nn.Parameter(torch.zeros(3, dtype=torch.float64))]
    assert takes(parameters()) and not takes(double)
    local = Local(momentum=0.9)
    with kernels(True):
        assert isinstance(local_optimizer(local, double, 0.1), torch.optim.SGD)
        adam = local_optimizer(Local(optimizer="adam"), parameters(), 0.1)
        assert isinstance(adam, torch.optim.Adam)
        assert isinstance(local_optimizer(local, [], 0.1), FlatSGD)
