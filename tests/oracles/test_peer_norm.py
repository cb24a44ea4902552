"""Peer Normalization against sums over one pair at a time, written from Eq. 3 and 4."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from two_views import TwoViews, assert_no_label_is_used, assert_trained_as, distance

from coterie.core.batch import Batch
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.experiment.config import load
from coterie.nets.build import make_backbone
from coterie.nets.heads import Network, TargetNetwork
from coterie.nets.norm import (
    Norm,
    PeerNorm,
    Variance,
    find_peers,
    groups_of,
    paired,
)

EPS = 1e-3
KINDS: tuple[Variance, ...] = ("pooled", "average")
Shape = tuple[int, ...]


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def layer(channels: int, groups: int = 4, seed: int = 0, **rest: Any) -> PeerNorm:
    """A layer in double precision whose scale and shift are those of no other channel."""
    made = PeerNorm(channels, groups, **rest).double()
    with torch.no_grad():
        made.weight.copy_(normal(seed + 1, channels))
        made.bias.copy_(normal(seed + 2, channels))
    return made


def by_hand(x: Tensor, pn: PeerNorm, views: int, var: str) -> Tensor:
    """Sample by sample and group by group."""
    x, y = x.detach(), torch.zeros_like(x)
    weight, bias = pn.weight.detach(), pn.bias.detach()
    samples, each = len(x) // views, x.shape[1] // pn.groups
    for i in range(samples):
        rows = [i + view * samples for view in range(views)]
        for g in range(pn.groups):
            channels = range(g * each, (g + 1) * each)
            of_views = [
                np.concatenate([x[row, c].numpy().ravel() for c in channels]) for row in rows
            ]
            both = np.concatenate(of_views)
            variance = both.var() if var == "pooled" else np.mean([v.var() for v in of_views])
            for row in rows:
                for c in channels:
                    centred = (x[row, c] - both.mean()) / np.sqrt(variance + pn.eps)
                    y[row, c] = weight[c] * centred + bias[c]
    return y


shapes = st.tuples(
    *(st.integers(1, 4), st.integers(1, 3), st.sampled_from([1, 2, 3, 4, 6, 8])),
    st.lists(st.integers(1, 3), max_size=3),
    *(st.sampled_from([1, 2, 3, 4, 16]), st.sampled_from(KINDS), st.integers(0, 999)),
)


@settings(deadline=None, max_examples=150)
@given(shapes)
def test_every_shape_is_as_by_hand(drawn: tuple[int, int, int, list[int], int, Any, int]) -> None:
    views, samples, channels, rest, groups, var, seed = drawn
    if views == 1 and samples * channels * int(np.prod(rest)) == groups_of(channels, groups):
        return  # GroupNorm refuses a single value
    x = 3.0 * normal(seed, views * samples, channels, *rest) + 1.0
    pn = layer(channels, groups, seed, views=views, var=var)
    torch.testing.assert_close(pn(x), by_hand(x, pn, views, var), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("var", KINDS)
@pytest.mark.parametrize("shape", [(4, 8, 3, 5), (4, 8), (2, 8, 7)], ids=str)
def test_a_single_view_is_group_norm_to_the_bit(shape: Shape, var: Variance) -> None:
    x = normal(0, *shape).float()
    pn, gn = PeerNorm(8, 4, views=1, var=var), nn.GroupNorm(4, 8, eps=EPS)
    for each in (pn, gn):
        with torch.no_grad():
            each.weight.copy_(normal(1, 8))
            each.bias.copy_(normal(2, 8))
    assert torch.equal(pn(x), gn(x))


@pytest.mark.parametrize("var", KINDS)
@pytest.mark.parametrize("views", [2, 3])
def test_an_image_that_is_its_own_peer_is_group_norm(views: int, var: Variance) -> None:
    x = normal(0, 3, 8, 4, 4)
    pn = layer(8, views=views, var=var)
    alone = nn.functional.group_norm(x, 4, pn.weight, pn.bias, EPS)
    for part in pn(torch.cat([x] * views)).chunk(views):
        torch.testing.assert_close(part, alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("var", KINDS)
def test_views_may_be_swapped_and_pairs_permuted(var: Variance) -> None:
    one, two = normal(0, 5, 8, 3, 3), 2.0 + normal(1, 5, 8, 3, 3)
    pn, order = layer(8, var=var), [3, 0, 4, 1, 2]
    y1, y2 = pn(torch.cat([one, two])).chunk(2)
    swapped2, swapped1 = pn(torch.cat([two, one])).chunk(2)
    torch.testing.assert_close(swapped1, y1, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(swapped2, y2, rtol=1e-12, atol=1e-12)
    moved1, moved2 = pn(torch.cat([one[order], two[order]])).chunk(2)
    assert torch.equal(moved1, y1[order]) and torch.equal(moved2, y2[order])


@pytest.mark.parametrize("var", KINDS)
def test_a_pair_does_not_depend_on_the_others(var: Variance) -> None:
    one, two = normal(0, 4, 8, 3, 3), normal(1, 4, 8, 3, 3)
    pn = layer(8, var=var)
    whole = pn(torch.cat([one, two])).chunk(2)
    for i in range(4):
        alone = pn(torch.stack([one[i], two[i]]))
        assert torch.equal(alone[0], whole[0][i]) and torch.equal(alone[1], whole[1][i])
    other = torch.cat([one, 9.0 * two])
    other[[0, 4]] = torch.stack([one[0], two[0]])
    assert torch.equal(pn(other)[[0, 4]], torch.stack([whole[0][0], whole[1][0]]))


def test_the_views_of_a_pair_have_opposite_means_in_every_group() -> None:
    """They give each other away: one view's means are the other's with the sign changed."""
    torch.manual_seed(2)
    x = torch.randn(6, 8, 3, 3) * 2 + torch.randn(6, 8, 1, 1)
    one, two = PeerNorm(8, 4)(x).reshape(2, 3, 4, -1).mean(dim=3)
    assert torch.allclose(one, -two, atol=1e-6) and one.abs().min() > 1e-3


def test_the_pooled_variance_has_the_distance_of_the_means_more() -> None:
    """pooled = averaged + (mu_1 - mu_2)^2 / 4, read off the slope that each layer has in x."""
    one, two = normal(0, 1, 4, 3, 3), 2.0 * normal(1, 1, 4, 3, 3) + 5.0
    x = torch.cat([one, two])
    found = {}
    for var in KINDS:
        y = PeerNorm(4, 1, var=var).double()(x)
        slope = (y[0, 0, 0, 0] - y[0, 0, 0, 1]) / (x[0, 0, 0, 0] - x[0, 0, 0, 1])
        found[var] = float(slope.detach()) ** -2 - EPS
    gap = float(one.mean() - two.mean()) ** 2 / 4
    assert found["average"] == pytest.approx((one.var(correction=0) + two.var(correction=0)) / 2)
    assert found["pooled"] == pytest.approx(found["average"] + gap)
    assert gap > 1.0


@pytest.mark.parametrize("var", KINDS)
@pytest.mark.parametrize("shape", [(6, 4, 2, 3), (6, 4), (6, 4, 5)], ids=str)
@pytest.mark.parametrize("views", [2, 3])
def test_the_gradient_is_the_slope(views: int, shape: Shape, var: Variance) -> None:
    pn = layer(4, 2, views=views, var=var)
    x = normal(3, *shape).requires_grad_()

    def output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        found: Tensor = torch.func.functional_call(pn, {"weight": weight, "bias": bias}, (x,))
        return found

    assert torch.autograd.gradcheck(output, (x, pn.weight, pn.bias))


def test_a_constant_image_is_the_shift_and_has_a_finite_gradient() -> None:
    pn = layer(8)
    x = torch.full((2, 8, 3, 3), 7.0, dtype=torch.float64, requires_grad=True)
    y = pn(x)
    assert torch.equal(y, pn.bias[:, None, None].expand(2, 8, 3, 3))
    y.square().sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize(("views", "size"), [(2, 5), (3, 4), (2, 1)])
def test_a_batch_that_is_not_whole_groups_of_views_is_an_error(views: int, size: int) -> None:
    with pytest.raises(ValueError, match=f"{views} views of every sample.* a batch of {size}"):
        PeerNorm(8, views=views)(torch.zeros(size, 8, 2, 2))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"channels": 0}, "not 0, 16 and 2"),
        ({"channels": 8, "groups": 0}, "not 8, 0 and 2"),
        ({"channels": 8, "views": 0}, "not 8, 16 and 0"),
        ({"channels": 8, "var": "avg"}, "'pooled' or 'average', not 'avg'"),
    ],
)
def test_what_no_layer_can_be_is_refused(fields: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        PeerNorm(**fields)


def test_a_batch_of_other_channels_is_an_error() -> None:
    with pytest.raises(ValueError, match="has 8 channels, the batch 4"):
        PeerNorm(8)(torch.rand(4, 4, 6, 6))  # as many numbers as 8 channels of 3 x 6 pixels


@pytest.mark.parametrize(
    ("channels", "groups", "expected"),
    [(64, 16, 16), (3, 16, 1), (8, 16, 1), (24, 16, 8), (200, 16, 8), (17, 16, 1), (64, 32, 32)],
)
def test_the_number_of_groups(channels: int, groups: int, expected: int) -> None:
    assert PeerNorm(channels, groups).groups == groups_of(channels, groups) == expected
    assert channels % expected == 0


def test_there_are_no_running_statistics() -> None:
    pn = PeerNorm(8)
    x = normal(0, 4, 8, 3, 3).float()
    assert not list(pn.buffers()) and set(pn.state_dict()) == {"weight", "bias"}
    assert torch.equal(pn.train()(x), pn.eval()(x))


def test_paired_tells_all_layers_and_takes_it_back() -> None:
    net = nn.Sequential(Norm("pn").make_2d(4), nn.Sequential(nn.Flatten(), Norm("pn").make_1d(36)))
    x = normal(0, 2, 4, 3, 3).float()
    alone = net(x)
    with paired(net, views=2):
        assert not torch.equal(net(x), alone)
        with paired(net[1], views=1):
            assert [net[0].views, net[1][1].views] == [2, 1]
        assert [net[0].views, net[1][1].views] == [2, 2]
    assert torch.equal(net(x), alone)
    with pytest.raises(RuntimeError, match="lost"), paired(net, views=2):
        raise RuntimeError("lost")
    assert torch.equal(net(x), alone)
    with pytest.raises(ValueError, match="not 0"), paired(net, views=0):
        pass
    assert find_peers(net) == "views" and find_peers(nn.GroupNorm(1, 1)) is None


@pytest.mark.parametrize("name", ["resnet8", "resnet18", "mlp"])
def test_a_backbone_with_peer_norms_takes_test_images_as_group_norm(name: str) -> None:
    pn, gn = (make_backbone(NetSettings(name, norm=kind), (1, 8, 8)) for kind in ("pn", "gn"))
    gn.load_state_dict(pn.state_dict())
    for module in gn.modules():
        if isinstance(module, nn.GroupNorm):
            module.eps = EPS
    x = normal(0, 4, 1, 8, 8).float()
    assert torch.equal(pn(x), gn(x))
    one, two = Network(pn).each((x[:2], x[2:]))
    assert not torch.equal(torch.cat([one.h, two.h]), pn(x))


@pytest.mark.parametrize("backbone", ["resnet8", "resnet50"])
@pytest.mark.parametrize("stem", ["cifar", "imagenet"])
@pytest.mark.parametrize("first", ["pn", "gn", "none"])
def test_the_first_two_norms_may_be_others(backbone: str, stem: Any, first: Any) -> None:
    plain, other = (
        make_backbone(NetSettings(backbone, norm_first=kind, stem=stem), (3, 32, 32))
        for kind in ("", first)
    )
    kind = {"pn": PeerNorm, "gn": nn.GroupNorm, "none": nn.Identity}[first]
    before, after = (dict(net.named_modules()) for net in (plain, other))
    changed = [name for name, module in after.items() if type(module) is not type(before[name])]
    assert changed == ["stem.0.1", "stages.0.0.body.0.1"]
    assert all(type(after[name]) is kind for name in changed)
    biases = [name for name in changed if after[name[:-1] + "0"].bias is not None]
    assert biases == (changed if first == "none" else [])


@pytest.mark.parametrize("backbone", ["simple-cnn", "mlp"])
def test_other_backbones_have_no_first_norms(backbone: str) -> None:
    with pytest.raises(ConfigError, match=r"net\.norm_first = 'pn' is for residual networks"):
        make_backbone(NetSettings(backbone, norm_first="pn"), (1, 8, 8))


def test_the_setting_is_checked() -> None:
    assert load("digits/simclr", {"net.norm": "pn"}).net.norm == "pn"
    for key in ("norm", "norm_first"):
        with pytest.raises(ConfigError, match=f"net.{key} = 'ln'"):
            load("digits/simclr", {f"net.{key}": "ln"})


def together(net: Network, batch: Batch) -> tuple[Any, Any]:
    """Both views by hand: at once, every norm told that there are two."""
    with paired(net, 2):
        found = net(torch.cat([view.double() for view in batch.views]))
    size = len(batch)
    return tuple(
        type(found)(*(None if o is None else o[rows] for o in found))
        for rows in (slice(size), slice(size, 2 * size))
    )


def simsiam(net: Network, batch: Batch) -> Tensor:
    one, two = together(net, batch)
    return 0.5 * distance(one.p, two.z) + 0.5 * distance(two.p, one.z)


def byol(net: Network, batch: Batch) -> Tensor:
    assert isinstance(net, TargetNetwork)
    one, two = together(net, batch)
    with torch.no_grad():
        goal1, goal2 = together(net.target, batch)
    return 0.5 * distance(one.p, goal2.z) + 0.5 * distance(two.p, goal1.z)


def test_simsiam_trains_on_both_views_at_once(tmp_path: Path) -> None:
    assert_trained_as(TwoViews(tmp_path, tables={"net": {"norm": "pn"}}), simsiam)


def test_peers_meet_in_the_target_of_byol_too(tmp_path: Path) -> None:
    fed = TwoViews(tmp_path, objective="byol", tables={"net": {"norm": "pn"}})
    net, batch = fed.double(fed.moved()), next(fed.batches(0, fed.place(0)))
    batch = replace(batch, views=tuple(view.double() for view in batch.views))
    found = fed.parts.objective.loss(net, batch).total
    assert float(found.detach()) == pytest.approx(float(byol(net, batch).detach()), rel=1e-9)


@pytest.mark.parametrize("objective", ["simsiam", "simclr", "byol", "swav"])
def test_every_objective_lets_peers_meet(objective: str, tmp_path: Path) -> None:
    """In a network whose only norm is PN, training is another one than with GN."""
    found = {}
    for norm in ("pn", "gn"):
        fed = TwoViews(tmp_path / norm, objective=objective, tables={"net": {"norm": norm}})
        seen = list[int]()
        net = fed.nets.net("model", "local", fed.start()["model"], {})
        for module in net.modules():
            if isinstance(module, PeerNorm | nn.GroupNorm):
                module.eps = EPS
                module.register_forward_hook(lambda _, x, __, seen=seen: seen.append(len(x[0])))
        batch = next(fed.batches(0, fed.place(0)))
        found[norm] = float(fed.parts.objective.loss(net, batch).total.detach())
        assert set(seen) == {2 * len(batch) if norm == "pn" else len(batch)}
    assert found["pn"] != found["gn"]


def test_no_label_is_used(tmp_path: Path) -> None:
    assert_no_label_is_used(tmp_path, "fedavg", "simclr")
