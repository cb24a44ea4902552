"""net.precision: bfloat16 inside networks, float32 outside, refused where it is emulated."""

import pytest
import torch

from coterie.core import seeds
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.native.switch import kernels
from coterie.nets import precision
from coterie.nets.build import make_backbone
from coterie.nets.heads import Network, mlp_head
from coterie.nets.precision import bf16


def make_net() -> Network:
    with seeds.scoped(1):
        backbone = make_backbone(NetSettings("resnet8"), (3, 8, 8))
        return Network(backbone, projector=mlp_head((64, 32, 16)), predictor=mlp_head((16, 8, 16)))


def test_outputs_gradients_and_statistics_are_float32_and_near_those_of_float32() -> None:
    x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(2))
    nets = [make_net(), make_net()]
    outputs = []
    for net, on in zip(nets, (False, True), strict=True):
        with kernels(True), bf16(on):
            outputs.append(net(x))
        outputs[-1].p.square().mean().backward()
    for one, other in zip(*outputs, strict=True):
        if one is not None:
            assert other.dtype is torch.float32
            assert not torch.equal(one, other) and torch.allclose(one, other, atol=0.2, rtol=0.1)
    assert all(weight.grad.dtype is torch.float32 for weight in nets[1].parameters())
    assert all(one.dtype in (torch.float32, torch.int64) for one in nets[1].buffers())


def test_frozen_networks_compute_in_bfloat16_too() -> None:
    net, x = make_net().eval(), torch.ones(2, 3, 8, 8)
    with torch.no_grad(), kernels(True):
        plain = net(x).z
        with bf16(True):
            assert not torch.equal(net(x).z, plain)
        assert torch.equal(net(x).z, plain)


def test_a_processor_that_emulates_bfloat16_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    with pytest.raises(ConfigError, match="no instructions for bfloat16"):
        precision.check_bf16("cpu")
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    precision.check_bf16("cpu")
