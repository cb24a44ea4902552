"""Who are peers under Peer Normalization: in the upload of MFCL, in its test, in FedSimCLR."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from modular import SIZES, Modular, pairs_of
from torch import Tensor, nn
from two_views import TwoViews

import coterie
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.experiment.config import load
from coterie.nets.build import make_backbone
from coterie.nets.heads import Network
from coterie.nets.norm import Norm, PeerNorm, groups_of, halved, match_halves, paired
from coterie.nets.sensor import build_sensor


def layer(**rest: Any) -> PeerNorm:
    """A layer in double precision whose scale and shift are those of no other channel."""
    torch.manual_seed(1)
    made = PeerNorm(8, 4, **rest).double()
    with torch.no_grad():
        made.weight.normal_()
        made.bias.normal_()
    return made


def by_hand(x: Tensor, pn: PeerNorm, block: int) -> Tensor:
    """Every block of rows: row i with row i + half of the block, an odd last one alone."""
    y = torch.zeros_like(x)
    for start in range(0, len(x), block or len(x)):
        rows = x[start : start + (block or len(x))]
        half = len(rows) // 2
        for i in range(half):
            with paired(pn, 2):
                both = pn(torch.stack([rows[i], rows[i + half]]))
            y[start + i], y[start + i + half] = both
        if len(rows) % 2:
            y[start + 2 * half] = pn(rows[-1:])[0]
    return y.detach()


@pytest.mark.parametrize("var", ["pooled", "average"])
@pytest.mark.parametrize("block", [0, 2, 4, 5, 32])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 9, 33, 70])
def test_halves_of_every_block_are_peers(count: int, block: int, var: Any) -> None:
    pn = layer(views=1, var=var)
    x = 2.0 * torch.randn(count, 8, 3, 3, dtype=torch.float64) + 1.0
    with halved(pn, block):
        found = pn(x).detach()
    torch.testing.assert_close(found, by_hand(x, pn, block), rtol=1e-9, atol=1e-9)
    assert torch.equal(pn(x), layer(views=1, var=var)(x))  # outside they are single views


def test_the_gradient_goes_to_both_halves() -> None:
    pn = layer(views=1)
    x = torch.randn(5, 8, 2, 2, dtype=torch.float64, requires_grad=True)

    def output(x: Tensor) -> Tensor:
        with halved(pn, 4):
            y: Tensor = pn(x)
        return y

    assert torch.autograd.gradcheck(output, (x,))


def test_rows_16_apart_are_peers_in_blocks_of_32() -> None:
    rows, single = match_halves(70, 32)
    first, second = rows.chunk(2)
    assert first.tolist() == [*range(16), *range(32, 48), 64, 65, 66]
    assert second.tolist() == [*range(16, 32), *range(48, 64), 67, 68, 69]
    assert not len(single) and match_halves(33, 32)[1].tolist() == [32]
    with pytest.raises(ValueError, match="not -1"), halved(nn.Identity(), -1):
        pass


def sent(fed: Modular, client: int) -> tuple[Tensor, list[tuple[Tensor, ...]]]:
    """What a client sends, and the views that it was made of, batch by batch."""
    server, place = fed.start(), fed.at("upload")
    up, ctx = fed.answer(client, place, server)
    batches = ctx.data.batches(
        ctx.local, ("train", "train"), lambda what: ctx.generator(f"upload/{what}")
    )
    return pairs_of(up), [batch.views for batch in batches]


def as_group_norm(sensor: nn.Module) -> nn.Module:
    """The sensor with GroupNorm layers of the same weights in place of PeerNorm."""
    changed = copy.deepcopy(sensor).eval()
    for module in list(changed.modules()):
        for name, child in module.named_children():
            if isinstance(child, PeerNorm):
                group = nn.GroupNorm(child.groups, child.channels, child.eps)
                group.load_state_dict(child.state_dict())
                setattr(module, name, group)
    return changed


def test_views_are_encoded_one_by_one_as_by_group_norm(tmp_path: Path) -> None:
    fed = Modular(tmp_path, precision="fp32", sensor_width=8, sensor_groups=4)
    rows, batches = sent(fed, 1)
    groups = as_group_norm(fed.nets["sensor"].backbone)
    with torch.no_grad():
        expected = [torch.stack([groups(view) for view in views], dim=1) for views in batches]
    assert torch.allclose(rows, torch.cat(expected), atol=1e-6)
    assert len(rows) == SIZES[1]


def test_both_views_together_have_the_bits_of_a_pass_with_pairs(tmp_path: Path) -> None:
    fed = Modular(tmp_path, precision="fp32", upload_peers="views")
    rows, batches = sent(fed, 1)
    sensor = copy.deepcopy(fed.nets["sensor"]).eval()
    for views in batches:
        with torch.no_grad(), paired(sensor, 2):
            first, second = sensor.encode(torch.cat(views)).chunk(2)
        here, rows = rows[: len(first)], rows[len(first) :]
        assert torch.equal(here[:, 0], first) and torch.equal(here[:, 1], second)


def test_images_of_one_view_are_peers_as_in_the_authors_run(tmp_path: Path) -> None:
    tables = {"local": {"batch_size": 70}}
    fed = Modular(tmp_path, tables=tables, precision="fp32", upload_peers="images")
    rows, batches = sent(fed, 1)
    sensor = copy.deepcopy(fed.nets["sensor"]).eval()

    def encode(view: Tensor) -> Tensor:
        """In pieces of 32, whose halves are peers."""
        parts = []
        for piece in view.split(32):
            even = len(piece) // 2 * 2
            with torch.no_grad(), paired(sensor, 2):
                parts.append(sensor.encode(piece[:even]))
            with torch.no_grad():
                parts.append(sensor.encode(piece[even:]) if len(piece) > even else parts[-1][:0])
        return torch.cat(parts)

    expected = [torch.stack([encode(view) for view in views], dim=1) for views in batches]
    assert torch.allclose(rows, torch.cat(expected), atol=1e-6)
    alone = Modular(tmp_path / "none", tables=tables, precision="fp32")
    assert not torch.allclose(rows, sent(alone, 1)[0], atol=1e-3)


@pytest.mark.parametrize("peers", ["none", "images", "views"])
def test_a_test_image_has_a_peer_only_with_images(tmp_path: Path, peers: str) -> None:
    fed = Modular(tmp_path, upload_peers=peers)
    server = fed.start()
    whole = fed.nets.frozen("model", fed.method.model(server) or {}, {})
    sensor = copy.deepcopy(fed.nets["sensor"]).eval()
    top = fed.nets.frozen("discriminator", server["discriminator"], {})
    x = fed.images(1, 6)
    with torch.no_grad(), halved(sensor, 32 if peers == "images" else 1):
        z = sensor.encode(x)  # a block of one row has no peer
    assert torch.allclose(whole(x).h, top(z).h, atol=1e-6)
    together, alone = whole(x).h[:2], torch.cat([whole(row).h for row in x[:2].split(1)])
    assert torch.allclose(together, alone, atol=1e-5) == (peers != "images")


@pytest.mark.parametrize("norm", ["gn", "bn", "none"])
def test_without_peer_norm_nobody_has_peers(tmp_path: Path, norm: str) -> None:
    found = [
        sent(Modular(tmp_path / p, sensor_norm=norm, precision="fp32", upload_peers=p), 0)[0]
        for p in ("none", "images", "views")
    ]
    assert torch.equal(found[0], found[2]) and torch.allclose(found[0], found[1], atol=1e-6)


@pytest.mark.parametrize(("groups", "expected"), [(16, 16), (8, 8), (1, 1), (12, 4), (65, 1)])
def test_groups_of_the_sensor_and_of_backbones_are_set(groups: int, expected: int) -> None:
    for kind in ("pn", "gn"):
        sensor = build_sensor("code", (3, 8, 8), Norm(kind, groups), 64)  # type: ignore[arg-type]
        settings = NetSettings("conv1d", norm=kind, groups=groups)  # type: ignore[arg-type]
        backbone = make_backbone(settings, (2, 9))
        assert count_groups(sensor) == [groups_of(64, groups)] * 4 == [expected] * 4
        assert count_groups(backbone) == [groups_of(width, groups) for width in (32, 64, 128)]


def count_groups(net: nn.Module) -> list[int]:
    """The number of groups of every PeerNorm and GroupNorm layer."""
    layers = [m for m in net.modules() if isinstance(m, PeerNorm | nn.GroupNorm)]
    return [m.groups if isinstance(m, PeerNorm) else m.num_groups for m in layers]


def test_a_network_with_images_as_peers_takes_each_view_by_itself() -> None:
    net = Network(make_backbone(NetSettings("resnet8", norm="pn", peers="images"), (1, 8, 8)))
    one, two = torch.rand(5, 1, 8, 8), torch.rand(5, 1, 8, 8)
    for view, outputs in zip((one, two), net.each((one, two)), strict=True):
        with paired(net, 2):
            pairs = net(view[:4]).h
        assert torch.allclose(outputs.h[:4], pairs, atol=1e-6)
        assert torch.allclose(outputs.h[4:], net(view[4:]).h, atol=1e-6)
    assert not torch.allclose(net.each((one, two))[0].h, net(one).h, atol=1e-4)


def test_fedsimclr_trains_with_either_kind_of_peers(tmp_path: Path) -> None:
    found = {}
    for peers in ("views", "images"):
        tables = {"net": {"norm": "pn", "peers": peers}}
        fed = TwoViews(tmp_path / peers, objective="simclr", tables=tables)
        net = fed.nets.net("model", "local", fed.start()["model"], {})
        batch = next(fed.batches(0, fed.place(0)))
        found[peers] = float(fed.parts.objective.loss(net, batch).total.detach())
    assert found["views"] != found["images"]


def test_nobody_as_a_peer_is_not_offered() -> None:
    with pytest.raises(ConfigError, match=r"net\.peers = 'none'.* 'views' or 'images'"):
        load("digits/simclr", {"net.norm": "pn", "net.peers": "none"})
    with pytest.raises(ValueError, match="'views' or 'images', not 'none'"):
        PeerNorm(8, peers="none")  # type: ignore[arg-type]


def test_a_network_whose_images_are_peers_is_no_program(tmp_path: Path) -> None:
    method = {"upload_peers": "images", "share_representations": True, "sense_rounds": 1}
    tables = {"method": method, "evaluate": "knn", "data": {"limit": 150}}
    result = coterie.run("digits/mfcl", out=tmp_path / "run", rounds=1, **tables)
    with pytest.raises(ConfigError, match="depends on the other images of its batch"):
        result.export(tmp_path / "model.pt2")
    assert result.export(tmp_path / "model.safetensors").is_file()
