"""Pretrained weights: which files are taken, what must fit, and where a run starts from them."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import coterie
import own_parts
import toy
from coterie.core import seeds
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.core.task import METHOD
from coterie.experiment.config import resolve
from coterie.experiment.prepare import prepare
from coterie.kit import Builder, Network, Objective, TargetNetwork
from coterie.nets.build import make_backbone
from coterie.nets.weights import fingerprint, pin
from coterie.objectives.byol import BYOL
from coterie.objectives.simsiam import SimSiam
from coterie.objectives.supervised import Supervised

SHAPE = (6,)
Tensors = dict[str, Tensor]


def build(path: Path | str = "", objective: Objective | None = None, **changes: Any) -> Network:
    """A network as a run builds it, from another seed than `source` if there is no file."""
    own = changes.pop("own", None)
    settings = NetSettings("mlp", projection=8, weights=str(path), **changes)
    with seeds.scoped(2):
        return Builder(objective or Supervised(), settings, SHAPE, 3, own)()


def source(objective: Objective | None = None, norm: Any = "bn") -> Network:
    """A network with weights that no other has."""
    with seeds.scoped(1):
        backbone = make_backbone(NetSettings("mlp", norm=norm), SHAPE)
        return (objective or Supervised()).build(backbone, 3, 8)


def write(path: Path, tensors: Tensors) -> Path:
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, path)
    return path


def encoder(net: Network) -> Tensors:
    return dict(net.backbone.state_dict())


def same(one: Tensors, two: Tensors) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


# ---- files


@pytest.mark.parametrize("form", ["safetensors", "torch", "state_dict", "model", "old"])
@pytest.mark.parametrize("prefix", ["", "backbone."])
def test_every_form_of_file_starts_the_backbone_and_leaves_heads_fresh(
    form: str, prefix: str, tmp_path: Path
) -> None:
    net, path = source(), tmp_path / "weights.bin"
    tensors = {f"{prefix}{name}": tensor for name, tensor in encoder(net).items()}
    if form == "safetensors":
        write(path, tensors)
    else:
        state = {form: tensors, "epoch": 3} if form in ("state_dict", "model") else tensors
        torch.save(state, path, _use_new_zipfile_serialization=form != "old")
    started, fresh = build(path), build()
    assert same(encoder(started), encoder(net)) and not same(encoder(fresh), encoder(net))
    assert started.classifier is not None and fresh.classifier is not None
    assert same(started.classifier.state_dict(), fresh.classifier.state_dict())


def test_heads_in_the_file_are_loaded_too(tmp_path: Path) -> None:
    net = source()
    assert same(build(write(tmp_path / "all", net.state_dict())).state_dict(), net.state_dict())


def test_other_floats_are_converted(tmp_path: Path) -> None:
    halves = {n: t.half() if t.is_floating_point() else t for n, t in encoder(source()).items()}
    started = encoder(build(write(tmp_path / "half", halves)))
    assert all(t.dtype == torch.float32 for n, t in started.items() if "num_batches" not in n)
    assert torch.equal(started["layers.1.weight"], halves["layers.1.weight"].float())


def test_a_target_network_starts_as_the_online_one(tmp_path: Path) -> None:
    net = source(BYOL())
    online = {n: t for n, t in net.state_dict().items() if not n.startswith("target.")}
    for tensors in (encoder(net), online):
        started = build(write(tmp_path / "online", tensors), BYOL())
        assert isinstance(started, TargetNetwork)
        assert same(started.target.backbone.state_dict(), encoder(net))
        own = started.state_dict()
        assert same(started.target.state_dict(), {n: own[n] for n in started.target.state_dict()})


def test_backbones_of_ones_own_start_from_a_file(tmp_path: Path) -> None:
    with seeds.scoped(1):
        net = own_parts.Net(SHAPE)
    path = write(tmp_path / "own", net.state_dict())
    assert same(encoder(build(path, own=own_parts.Net)), net.state_dict())
    assert same(encoder(build(path, own=own_parts.Net(SHAPE))), net.state_dict())


class Wrapped(nn.Module):
    """A backbone whose own names begin as the names of a network do."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        h: Tensor = self.backbone(x)
        return h


@pytest.mark.parametrize("prefix", ["", "backbone."])
def test_a_part_called_backbone_is_not_mistaken_for_the_prefix(prefix: str, tmp_path: Path) -> None:
    net = Wrapped()
    path = write(tmp_path / "own", {f"{prefix}{n}": t for n, t in net.state_dict().items()})
    assert same(encoder(build(path, own=Wrapped)), net.state_dict())


# ---- what is refused


def without(name: str) -> Tensors:
    return {n: t for n, t in encoder(source()).items() if n != name}


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (without("layers.4.weight"), r"lacks 'layers\.4\.weight', which net\.backbone = 'mlp'"),
        ({"conv1.weight": torch.ones(2)}, r"lacks .*; its first name is 'conv1\.weight'"),
        (
            {**encoder(source()), "fc.bias": torch.ones(2)},
            r"has 'fc\.bias', the network has not; leave it out of the file",
        ),
        (
            dict(source(SimSiam()).state_dict()),
            r"has 'p\w+\.\d.*; keep the backbone alone: coterie export RUN --what encoder",
        ),
        (
            {**encoder(source()), "classifier.weight": torch.ones(5, 8)},
            r"'classifier\.weight' has the shape \(5, 8\), in the network it has \(3, 8\); keep",
        ),
        (
            {**encoder(source()), "layers.1.weight": torch.ones(200, 5)},
            r"'layers\.1\.weight' has the shape \(200, 5\), in the network it has \(200, 6\)$",
        ),
        (
            {**encoder(source()), "layers.1.weight": torch.ones(200, 6, dtype=torch.int64)},
            r"'layers\.1\.weight' is torch\.int64, not torch\.float32",
        ),
        (
            {**encoder(source()), "layers.1.bias": torch.full((200,), torch.nan)},
            r"'layers\.1\.bias' has entries that are not finite",
        ),
        ({}, r"lacks 'layers\.1\.weight'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_in_one_line(
    tensors: Tensors, message: str, tmp_path: Path
) -> None:
    path = write(tmp_path / "weights.safetensors", tensors)
    with pytest.raises(ConfigError, match=message) as error:
        build(path)
    said = str(error.value)
    assert said.startswith(f"net.weights = '{path}'") and "\n" not in said


def damage(path: Path, how: str) -> None:
    good = write(path, encoder(source())).read_bytes()
    match how:
        case "missing":
            path.unlink()
        case "folder":
            path.unlink()
            path.mkdir()
        case "empty":
            path.write_bytes(b"")
        case "short":
            path.write_bytes(good[: len(good) // 2])
        case "noise":
            path.write_bytes(b"these are no weights at all" * 40)
        case "short zip":
            torch.save(encoder(source()), path)
            path.write_bytes(path.read_bytes()[:-500])
        case "a module":
            torch.save(nn.Linear(2, 2), path)
        case "a list":
            torch.save([torch.ones(2)], path)
        case "no tensors":
            torch.save({"epoch": 3}, path)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", "cannot be read: No such file"),
        ("folder", "cannot be read: Is a directory"),
        ("empty", "is neither safetensors nor a state dict"),
        ("short", "is neither safetensors nor a state dict"),
        ("noise", "is neither safetensors nor a state dict"),
        ("short zip", "is neither safetensors nor a state dict"),
        ("a module", "is neither safetensors nor a state dict without code"),
        ("a list", "has a list where a state dict should be"),
        ("no tensors", r"'epoch' is a int, no tensor: save net\.state_dict\(\)"),
    ],
)
def test_files_that_are_no_weights_are_refused_in_one_line(
    how: str, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "weights"
    damage(path, how)
    with pytest.raises(ConfigError, match=message) as error:
        build(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_the_sha256_is_filled_in_and_another_file_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "weights", encoder(source()))
    settings = NetSettings("mlp", weights=str(path))
    pinned = pin(settings)
    assert re.fullmatch("[0-9a-f]{64}", pinned.weights_sha256)
    assert pinned.weights_sha256 == fingerprint(str(path)) and pin(pinned) == pinned
    assert pin(NetSettings()) == NetSettings()
    build(path, weights_sha256=pinned.weights_sha256)
    write(path, encoder(source(norm="bn")) | {"layers.1.bias": torch.ones(200)})
    for refuse in (lambda: pin(pinned), lambda: build(path, weights_sha256=pinned.weights_sha256)):
        with pytest.raises(ConfigError, match=r"net\.weights_sha256 is .*: it is another file"):
            refuse()
    with pytest.raises(ConfigError, match=r"net\.weights_sha256 needs net\.weights"):
        pin(NetSettings(weights_sha256="00"))


# ---- runs


@pytest.fixture(scope="module")
def exported(toy_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder of a finished run, as a file."""
    folder = tmp_path_factory.mktemp("exported")
    result = toy.run(toy_data, folder / "run", run={"rounds": 1})
    return write(folder / "encoder.safetensors", result.encoder().state_dict())


def test_a_run_begins_with_the_encoder_of_another(
    exported: Path, toy_data: Path, tmp_path: Path
) -> None:
    tables = toy.tables(toy_data, net={"weights": str(exported)}, run={"rounds": 1})
    parts = prepare(resolve(tables), tmp_path / "run").parts
    begun = parts.method.model(parts.start())
    assert begun is not None
    kept = build(exported, norm="none").backbone.state_dict()
    assert all(torch.equal(begun[f"backbone.{name}"], tensor) for name, tensor in kept.items())
    for kind in ("serial", "processes"):
        coterie.run(tables, out=tmp_path / kind, executor=kind)
    assert toy.trace(tmp_path / "serial") == toy.trace(tmp_path / "processes")


def test_alone_every_client_begins_with_it_under_heads_of_its_own(
    exported: Path, toy_data: Path, tmp_path: Path
) -> None:
    tables = toy.tables(toy_data, net={"weights": str(exported)}, method={"name": "solo"})
    parts = prepare(resolve(tables), tmp_path / "run").parts
    one, two = (parts.fresh(METHOD, client, "model") for client in (0, 1))
    for name in one:
        assert torch.equal(one[name], two[name]) == name.startswith("backbone."), name


def test_a_method_on_representations_refuses_weights_for_samples(
    exported: Path, tmp_path: Path
) -> None:
    changes = {"net.weights": str(exported), "method.share_representations": True}
    with pytest.raises(ConfigError, match="is for a network that takes the samples themselves"):
        coterie.run("digits/mfcl", out=tmp_path / "run", rounds=1, **changes)
