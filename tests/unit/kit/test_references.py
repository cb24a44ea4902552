"""Reference networks: looked up or run ahead, they give what a plain forward pass gives."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from coterie.core.batch import Batch
from coterie.core.bundle import Bundle
from coterie.core.task import METHOD, Round, Task
from coterie.data.augment import AUGMENTS
from coterie.engine.site import Site
from coterie.experiment.config import load
from coterie.experiment.prepare import prepare
from coterie.kit.context import ClientContext
from coterie.kit.losses import model_contrast
from coterie.kit.networks import Frozen
from coterie.native.library import Missing, library
from coterie.native.switch import kernels_on
from coterie.nets.backbones.simple_cnn import HalvingPool


@pytest.fixture(params=["none", "crop-flip"])
def augment(request: pytest.FixtureRequest) -> str:
    assert request.param in AUGMENTS
    return str(request.param)


@pytest.fixture(params=["native", "torch"])
def ctx(request: pytest.FixtureRequest, augment: str, tmp_path: Path) -> Iterator[ClientContext]:
    """A client's context on the digits, with and without augmentation and kernels."""
    if request.param == "native" and isinstance(found := library(), Missing):
        pytest.skip(found.reason)
    changes = {
        "net.backbone": "simple-cnn",
        "net.kernel": request.param,
        "data.augment": augment,
        "local.epochs": 2,
        "local.batch_size": 8,
    }
    chosen = prepare(load("digits/moon", changes), tmp_path)
    site = Site(chosen.spec, chosen.partition)
    place = Round(1, 3, "train", 1, 3, len(chosen.partition.clients), chosen.spec.seed)
    client = chosen.partition.clients[0]
    weights = chosen.parts.nets(METHOD).weights()
    task = Task("update", client, place, Bundle({"model": weights}))
    with site.parts.arithmetic():
        yield site._context(task, site._shard(task), {})


def test_the_contrast_agrees_with_the_plain_form(ctx: ClientContext) -> None:
    glob, prev = ctx.fresh(), {name: tensor * 1.1 for name, tensor in ctx.fresh().items()}
    net = ctx.net(ctx.fresh())
    cached = ctx.frozen(glob), ctx.frozen(prev)
    plain = ctx.frozen(glob).net, ctx.frozen(prev).net
    batches = 0
    for batch in ctx.batches():
        z = net(batch.x).z
        with torch.no_grad():
            z_glob, z_prev = (one(batch.x).z for one in plain)
        ahead = [one(batch).z for one in cached]
        expected = model_contrast(z, z_glob, [z_prev], 0.5)
        found = model_contrast(z, ahead[0], ahead[1:], 0.5)
        for one, other in zip(found, expected, strict=True):
            assert abs(float(one.detach()) - float(other.detach())) < 1e-5
        batches += 1
    assert batches > 8  # more than one stretch in every epoch, where there are any


def counted(ctx: ClientContext, patch: pytest.MonkeyPatch) -> tuple[Frozen, list[int]]:
    """A reference network, and the sizes of the batches that go through it."""
    frozen, calls = ctx.frozen(ctx.fresh()), list[int]()
    forward = frozen._forward
    patch.setattr(frozen, "_forward", lambda x: (calls.append(len(x)), forward(x))[1])
    return frozen, calls


def test_forwards_of_a_reference_are_few(
    ctx: ClientContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    frozen, calls = counted(ctx, monkeypatch)
    batches = [len(frozen(batch).z) for batch in ctx.batches()]
    if ctx.data._augment == "none":  # type: ignore[attr-defined]
        assert sum(calls) == len(ctx.data)  # every image once for the whole task
    else:
        assert sum(calls) == sum(batches)  # every image once for every time that it is drawn
        if kernels_on():  # a kernel has its batches one by one, as they are laid out
            assert calls == batches
        else:  # stretches of several batches
            assert len(calls) <= len(batches) / 2


def test_few_steps_make_no_table(ctx: ClientContext, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx.local = replace(ctx.local, steps=1)
    frozen, calls = counted(ctx, monkeypatch)
    for batch in ctx.batches():
        frozen(batch)
    assert 0 < sum(calls) < len(ctx.data)


def test_references_are_their_networks(ctx: ClientContext) -> None:
    models = [{name: tensor * by for name, tensor in ctx.fresh().items()} for by in (1, 1.1, 0.9)]
    references, alone = ctx.references(models), [ctx.frozen(model) for model in models]
    for batch in ctx.batches():
        found = references(batch)
        for z, one in zip(found, alone, strict=True):
            assert not z.requires_grad
            assert torch.allclose(z, one(batch).z, rtol=1e-5, atol=1e-6)
    assert (references._one_call._plan is not None) == (kernels_on() and not batch.plain)


def test_batches_are_cut_from_their_stretch(ctx: ClientContext) -> None:
    for batch in ctx.batches():
        assert isinstance(batch, Batch)
        assert batch.stretch is not None
        cut = batch.stretch.views[0][batch.start : batch.start + len(batch)]
        assert torch.equal(cut, batch.x)


@pytest.mark.parametrize("shape", [(3, 6, 28, 28), (2, 5, 7, 9), (1, 1, 2, 3)])
def test_the_pool_without_gradients_has_the_values_of_max_pooling(shape: tuple[int, ...]) -> None:
    x = torch.from_numpy(np.random.default_rng(0).normal(size=shape)).float()
    with torch.no_grad():
        assert torch.equal(HalvingPool()(x), F.max_pool2d(x, 2))
    assert torch.equal(HalvingPool()(x), nn.MaxPool2d(2)(x))
