"""Logistic regression: the inputs themselves, and two classes that are one logit."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.nets.build import make_backbone
from coterie.nets.heads import make_classifier


def test_the_representation_is_the_input() -> None:
    backbone = make_backbone(NetSettings(backbone="logistic"), (2, 3))
    x = torch.randn(4, 2, 3)
    assert backbone.width == 6 and torch.equal(backbone(x), x.flatten(1))
    assert not list(backbone.parameters())


def test_a_norm_is_refused() -> None:
    with pytest.raises(ConfigError, match="'logistic' has none"):
        make_backbone(NetSettings(backbone="logistic", norm="gn"), (3,))


def test_two_classes_train_as_one_logit_at_twice_the_rate() -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randn(40, 3, generator=generator), torch.arange(40) % 2
    two, one = make_classifier(3, 2, one_logit=True), nn.Linear(3, 1)
    with torch.no_grad():
        for ours, theirs in zip(two.parameters(), one.parameters(), strict=True):
            theirs.copy_((ours[1] - ours[0]).reshape(theirs.shape))
    first, second = (torch.optim.SGD(net.parameters(), lr) for net, lr in ((two, 0.05), (one, 0.1)))
    for _ in range(10):
        for net, optimizer in ((two, first), (one, second)):
            optimizer.zero_grad()
            out = net(x)
            loss = (
                F.cross_entropy(out, y)
                if net is two
                else F.binary_cross_entropy_with_logits(out[:, 0], y.float())
            )
            loss.backward()
            optimizer.step()
    assert torch.allclose(two(x)[:, 1] - two(x)[:, 0], one(x)[:, 0], atol=1e-5)
    assert torch.allclose(two.weight[0], -two.weight[1])


def test_the_one_logit_begins_with_the_spread_of_a_layer_of_its_own() -> None:
    layer = make_classifier(13, 2, one_logit=True)
    assert (layer.weight[1] - layer.weight[0]).abs().max() <= 13**-0.5
    assert not torch.allclose(*make_classifier(13, 2).weight.abs())
