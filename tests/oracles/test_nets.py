"""Networks against their published sizes, and on every image size that is promised."""

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.bundle import Bundle
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings, NormKind
from coterie.kit.networks import Nets
from coterie.nets.build import make_backbone
from coterie.nets.heads import Network, moon_projector
from coterie.objectives.supervised import Supervised

SIZES = [(4, 4), (5, 5), (7, 7), (8, 8), (12, 12), (16, 16), (19, 19), (20, 20), (21, 21)]
SIZES += [(28, 28), (32, 32), (48, 48), (64, 64), (8, 64), (64, 4), (19, 32), (33, 20)]


def count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def moon_network(classes: int = 10) -> Network:
    return Supervised().build(
        make_backbone(NetSettings("simple-cnn", norm="bn"), (3, 32, 32)), classes, 256
    )


def test_the_published_numbers_of_parameters() -> None:
    net = moon_network()
    assert count(net.backbone) == 61_156
    assert count(net.projector) == 28_900
    assert count(net.classifier) == 2_570
    assert count(net) == 92_626
    assert count(moon_network(classes=100)) == 92_626 + 90 * 257


def test_the_published_number_of_bytes() -> None:
    assert Bundle({"model": Nets({"model": moon_network()}).weights()}).nbytes() == 370_504


def test_the_published_layers() -> None:
    shapes = {name: tuple(t.shape) for name, t in moon_network().state_dict().items()}
    assert {shape for name, shape in shapes.items() if name.endswith("weight")} == {
        (6, 3, 5, 5),
        (16, 6, 5, 5),
        (120, 400),
        (84, 120),
        (84, 84),
        (256, 84),
        (10, 256),
    }


def test_simple_cnn_has_no_normalisation_and_says_so_where_one_is_chosen() -> None:
    kinds: list[NormKind] = ["bn", "none"]
    for kind in kinds:
        backbone = make_backbone(NetSettings("simple-cnn", norm=kind), (1, 28, 28))
        assert not list(backbone.buffers())
    others: list[NormKind] = ["gn", "pn"]
    for kind in others:
        with pytest.raises(ConfigError, match=rf"net\.norm = '{kind}' .* 'simple-cnn' has none"):
            make_backbone(NetSettings("simple-cnn", norm=kind), (1, 28, 28))


def numpy_forward(x: np.ndarray, weights: dict[str, np.ndarray]) -> np.ndarray:
    """One image through simple-cnn, loop by loop."""
    for layer in ("features.0", "features.3"):
        w, b = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
        rows, columns = x.shape[1] - 4, x.shape[2] - 4
        out = np.zeros((len(w), rows, columns))
        for i in range(rows):
            for j in range(columns):
                out[:, i, j] = (w * x[:, i : i + 5, j : j + 5]).sum(axis=(1, 2, 3)) + b
        out = np.maximum(out, 0)
        pooled = out[:, : rows // 2 * 2, : columns // 2 * 2]
        x = pooled.reshape(len(w), rows // 2, 2, columns // 2, 2).max(axis=(2, 4))
    h = x.flatten()
    for layer in ("top.0", "top.2"):
        h = np.maximum(weights[f"{layer}.weight"] @ h + weights[f"{layer}.bias"], 0)
    return h


def test_simple_cnn_against_loops() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        backbone = make_backbone(NetSettings("simple-cnn", norm="bn"), (3, 32, 32)).double().eval()
        x = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    weights = {name: t.numpy() for name, t in backbone.state_dict().items()}
    with torch.no_grad():
        found = backbone(x).numpy()
    expected = [numpy_forward(image, weights) for image in x.numpy()]
    assert np.allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_simple_cnn_takes_every_size(size: tuple[int, int], channels: int) -> None:
    backbone = make_backbone(NetSettings("simple-cnn", norm="bn"), (channels, *size))
    h = backbone(torch.zeros(2, channels, *size))
    assert h.shape == (2, backbone.width) == (2, 84)


@pytest.mark.parametrize("shape", [(1, 3, 8), (1, 8, 3), (64,), (8, 8), (1, 2, 8, 8)])
def test_simple_cnn_refuses_what_is_no_image(shape: tuple[int, ...]) -> None:
    remedy = "conv1d" if len(shape) == 2 else "mlp"
    with pytest.raises(
        ConfigError, match=rf"at least 4 x 4 pixels.*try net\.backbone = '{remedy}'"
    ):
        make_backbone(NetSettings("simple-cnn", norm="bn"), shape)


@pytest.mark.parametrize("shape", [(64,), (1, 8, 8), (3, 2, 2), (1,)])
@pytest.mark.parametrize("norm", ["bn", "none"])
def test_mlp(shape: tuple[int, ...], norm: NormKind) -> None:
    backbone = make_backbone(NetSettings("mlp", norm=norm), shape)
    entries = int(np.prod(shape))
    layers = 200 * entries + 200 + 200 * 200 + 200
    assert count(backbone) == layers + (2 * 400 if norm == "bn" else 0)
    assert len(list(backbone.buffers())) == (6 if norm == "bn" else 0)
    assert backbone(torch.zeros(2, *shape)).shape == (2, backbone.width) == (2, 200)


def test_the_classifier_sits_on_z() -> None:
    net = moon_network().eval()
    outputs = net(torch.ones(2, 3, 32, 32))
    assert torch.equal(outputs.h, net.encode(torch.ones(2, 3, 32, 32)))
    assert torch.equal(outputs.z, net.projector(outputs.h))
    assert torch.equal(outputs.logits, net.classifier(outputs.z))
    assert outputs.p is None
    assert (outputs.h.shape[1], outputs.z.shape[1], outputs.logits.shape[1]) == (84, 256, 10)


def test_without_a_projector_z_is_h() -> None:
    net = Supervised().build(
        make_backbone(NetSettings("mlp", norm="none"), (4,)), classes=3, projection=0
    )
    outputs = net(torch.ones(2, 4))
    assert outputs.z is outputs.h
    assert net.classifier.in_features == 200


def test_heads_are_found_by_their_prefixes() -> None:
    net = Network(
        nn.Linear(2, 4),
        projector=moon_projector(4, 3),
        predictor=nn.Linear(3, 3),
        prototypes=nn.Linear(3, 5, bias=False),
        classifier=nn.Linear(3, 2),
    )
    prefixes = {"backbone", "projector", "predictor", "prototypes", "classifier"}
    assert {name.split(".")[0] for name in net.state_dict()} == prefixes
    outputs = net(torch.ones(2, 2))
    assert torch.equal(outputs.p, net.predictor(outputs.z))


@pytest.mark.parametrize(
    ("name", "parameters", "statistics", "width"),
    [
        ("resnet18", 11_168_832, 9_600, 512),
        ("resnet50", 23_500_352, 53_120, 2_048),
        ("resnet8", 77_392, 672, 64),
    ],
)
def test_residual_networks_have_the_published_sizes(
    name: str, parameters: int, statistics: int, width: int
) -> None:
    backbone = make_backbone(NetSettings(name), (3, 32, 32))
    assert sum(p.numel() for p in backbone.parameters()) == parameters
    floats = [t for t in backbone.buffers() if t.is_floating_point()]
    assert sum(t.numel() for t in floats) == statistics
    assert backbone.eval()(torch.zeros(1, 3, 32, 32)).shape == (1, width) == (1, backbone.width)


def test_resnet50_with_the_heads_of_moon_has_28_246_948_parameters() -> None:
    net = Supervised().build(make_backbone(NetSettings("resnet50"), (3, 32, 32)), 100, 256)
    assert sum(p.numel() for p in net.parameters()) == 28_246_948


@pytest.mark.parametrize("norm", ["bn", "gn", "none"])
@pytest.mark.parametrize("stem", ["cifar", "imagenet", "none"])
def test_residual_networks_take_every_norm_and_stem(norm: str, stem: str) -> None:
    size = 32 if stem == "imagenet" else 8
    backbone = make_backbone(NetSettings("resnet8", norm=norm, stem=stem), (1, size, size))
    assert backbone(torch.rand(2, 1, size, size)).isfinite().all()
    kinds = {type(m).__name__ for m in backbone.modules() if "Norm" in type(m).__name__}
    assert kinds == {"bn": {"BatchNorm2d"}, "gn": {"GroupNorm"}, "none": set()}[norm]


def test_without_a_stem_the_blocks_stand_on_the_input() -> None:
    whole = make_backbone(NetSettings("resnet18"), (3, 32, 32))
    bare = make_backbone(NetSettings("resnet18", stem="none"), (64, 32, 32))
    stem = 3 * 64 * 9 + 2 * 64
    assert sum(p.numel() for p in bare.parameters()) == 11_168_832 - stem
    bare.load_state_dict({n: t for n, t in whole.state_dict().items() if "stem" not in n})
    x = torch.rand(2, 3, 8, 8)
    assert isinstance(whole.stem, nn.Module)
    assert torch.equal(bare.eval()(whole.eval().stem(x)), whole(x))


def test_images_too_small_for_a_stem_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"resnet8.*imagenet.*32 x 32"):
        make_backbone(NetSettings("resnet8", stem="imagenet"), (3, 16, 16))
