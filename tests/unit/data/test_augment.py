"""Augmentation against slow per-image references, and its independence of the batches."""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from coterie.data.augment import AUGMENTS, CropFlip, CropFlipRotate, Normalise, rotate


def images(count: int = 7, channels: int = 3, height: int = 8, width: int = 10) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(count, channels, height, width, generator=generator)


@pytest.mark.parametrize("border", ["reflect", "constant"])
def test_crop_and_flip_equal_a_loop_over_images(border: str) -> None:
    x, transform = images(), CropFlip(border=border)  # type: ignore[arg-type]
    table = transform.draw(len(x), np.random.default_rng(3))
    found = transform(x, torch.arange(len(x)), table)
    for k, image in enumerate(x.numpy()):
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode=border)  # type: ignore[call-overload]
        top, left = table["starts"][k].tolist()
        expected = padded[:, top : top + 8, left : left + 10]
        if table["mirrored"][k]:
            expected = expected[:, :, ::-1]
        np.testing.assert_array_equal(found[k].numpy(), expected)


SHAPES = {"mask-noise": (9, 192), "jitter-scale-crop": (9, 3, 64)}


@pytest.mark.parametrize("name", [name for name in AUGMENTS if name != "none"])
def test_the_cut_of_the_batches_does_not_matter(name: str) -> None:
    x, transform = images(9, 3, 8, 8), AUGMENTS[name]()
    x = x.reshape(SHAPES.get(name, x.shape))
    table = transform.draw(len(x), np.random.default_rng(1))
    order = torch.tensor([4, 0, 8, 2, 6, 1, 3, 7, 5])
    whole = transform(x[order], order, table)
    pieces = [transform(x[rows], rows, table) for rows in order.split(2)]
    assert torch.equal(whole, torch.cat(pieces))


def test_windows_and_mirrors_are_drawn_evenly() -> None:
    table = CropFlip().draw(81_000, np.random.default_rng(0))
    counts = Counter(map(tuple, table["starts"].tolist()))
    assert set(counts) == {(a, b) for a in range(9) for b in range(9)}
    assert max(abs(count - 1000) for count in counts.values()) < 150  # nearly five deviations
    assert abs(float(table["mirrored"].double().mean()) - 0.5) < 0.01


def test_angles_are_drawn_evenly_between_the_limits() -> None:
    angles = CropFlipRotate().draw(20_000, np.random.default_rng(0))["angles"]
    assert -15.0 <= float(angles.min()) < -14.9 and 14.9 < float(angles.max()) <= 15.0
    assert abs(float(angles.mean())) < 0.3
    assert abs(float(angles.std()) - 30 / 12**0.5) < 0.1


@pytest.mark.parametrize("degrees", [90.0, -90.0, 180.0])
def test_right_angles_are_exact_and_counter_clockwise(degrees: float) -> None:
    x = images(2, 3, 8, 8)
    found = rotate(x, torch.full((2,), degrees), "nearest")
    assert torch.allclose(found, torch.rot90(x, int(degrees // 90), dims=(2, 3)))


@pytest.mark.parametrize("degrees", [-15.0, -7.0, 3.0, 12.0])
def test_rotation_agrees_with_pillow_but_for_ties(degrees: float) -> None:
    x = images(1, 1, 33, 33)
    expected = np.asarray(Image.fromarray(x[0, 0].numpy()).rotate(degrees))
    found = rotate(x, torch.tensor([degrees]), "nearest")[0, 0].numpy()
    assert np.mean(np.isclose(found, expected)) > 0.99


def test_normalisation_is_per_channel() -> None:
    raw = torch.randint(0, 256, (4, 3, 5, 5), dtype=torch.uint8)
    normalise = Normalise((0.1, 0.2, 0.3), (0.5, 0.25, 2.0))
    found = normalise(normalise.unit(raw))
    for channel, (mean, std) in enumerate(zip(normalise.mean, normalise.std, strict=True)):
        expected = (raw[:, channel].double() / 255 - mean) / std
        assert torch.allclose(found[:, channel].double(), expected, atol=1e-6)
