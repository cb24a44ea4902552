"""Affine views against a slow reference of one pixel at a time, and what they are drawn from."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from coterie.data.augment import AUGMENTS
from coterie.data.augment_affine import Affine

NOT_BY_CHANCE = 1e-3  # a seeded test below it would be a wrong distribution
SHAPES = [(1, 8, 8), (3, 9, 14), (2, 5, 3)]


def table(angle: float, zoom: float, shear: float, shift: tuple[float, float]) -> dict[str, Tensor]:
    columns = {"angles": angle, "zooms": zoom, "shears": shear, "shifts": shift}
    return {name: torch.tensor([value], dtype=torch.float64) for name, value in columns.items()}


def read(image: Tensor, row: float, column: float) -> Tensor:
    """Interpolate between the four pixels around a point; those outside the image are 0."""
    value = torch.zeros(len(image))
    for y in (math.floor(row), math.floor(row) + 1):
        for x in (math.floor(column), math.floor(column) + 1):
            if 0 <= y < image.shape[1] and 0 <= x < image.shape[2]:
                value += (1 - abs(row - y)) * (1 - abs(column - x)) * image[:, y, x]
    return value


def slow(
    image: Tensor, angle: float, zoom: float, shear: float, shift: tuple[float, float]
) -> Tensor:
    """Undo shift, rotation, shear and zoom for every pixel, in pixels from the centre."""
    view, (height, width) = torch.zeros_like(image), image.shape[1:]
    a, s = math.radians(angle), math.tan(math.radians(shear))
    for row in range(height):
        for column in range(width):
            x = column - (width - 1) / 2 - shift[0] * width
            y = row - (height - 1) / 2 - shift[1] * height
            x, y = math.cos(a) * x - math.sin(a) * y, math.sin(a) * x + math.cos(a) * y
            x, y = (x + s * y) / zoom, y / zoom
            view[:, row, column] = read(image, y + (height - 1) / 2, x + (width - 1) / 2)
    return view


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    "parameters",
    [
        (30.0, 1.0, 0.0, (0.0, 0.0)),
        (0.0, 0.7, 0.0, (0.0, 0.0)),
        (0.0, 1.0, -20.0, (0.0, 0.0)),
        (0.0, 1.0, 0.0, (0.1, -0.2)),
        (-17.0, 1.3, 12.0, (-0.12, 0.07)),
    ],
)
def test_a_view_is_what_the_formula_reads(
    shape: tuple[int, ...], parameters: tuple[float, float, float, tuple[float, float]]
) -> None:
    images = torch.rand(1, *shape, generator=torch.Generator().manual_seed(1))
    view = Affine(noise=0.0)(images, torch.tensor([0]), table(*parameters))
    torch.testing.assert_close(view[0], slow(images[0], *parameters), atol=2e-5, rtol=0.0)


def test_directions_are_as_documented() -> None:
    images = torch.zeros(1, 1, 9, 9)
    images[0, 0, 4, 6] = 1.0  # two pixels to the right of the centre
    row = torch.tensor([0])

    def brightest(*parameters: object) -> tuple[int, int]:
        view = Affine(noise=0.0)(images, row, table(*parameters))[0, 0]  # type: ignore[arg-type]
        return divmod(int(view.argmax()), 9)

    assert brightest(0.0, 1.0, 0.0, (0.0, 0.0)) == (4, 6)
    assert brightest(90.0, 1.0, 0.0, (0.0, 0.0)) == (2, 4)  # counter-clockwise: up
    assert brightest(0.0, 2.0, 0.0, (0.0, 0.0)) == (4, 8)  # larger
    assert brightest(0.0, 1.0, 0.0, (1 / 9, -2 / 9)) == (2, 7)  # to the right, and up


def test_what_is_drawn_is_uniform_between_its_bounds() -> None:
    drawn = Affine(degrees=20.0, zoom=1.5, shear=10.0, shift=0.25).draw(
        20_000, np.random.default_rng(0)
    )
    bounds = {"angles": 20.0, "shears": 10.0, "shifts": 0.25, "zooms": math.log(1.5)}
    for name, bound in bounds.items():
        values = drawn[name].log() if name == "zooms" else drawn[name]
        flat = values.flatten().numpy()
        assert abs(flat).max() <= bound
        chance = stats.kstest(flat, stats.uniform(-bound, 2 * bound).cdf).pvalue
        assert chance > NOT_BY_CHANCE, name
    assert drawn["shifts"].shape == (20_000, 2)


def test_a_view_does_not_depend_on_its_batch() -> None:
    affine = AUGMENTS["affine"]()
    images = torch.rand(40, 1, 8, 8, generator=torch.Generator().manual_seed(2))
    drawn = affine.draw(40, np.random.default_rng(5))
    rows = torch.arange(40)
    whole = affine(images, rows, drawn)
    parts = [affine(images[part], part, drawn) for part in rows.split(7)]
    assert torch.equal(whole, torch.cat(parts))
    again = affine(images, rows, affine.draw(40, np.random.default_rng(5)))
    assert torch.equal(whole, again) and not torch.equal(whole, images)


def test_without_any_strength_an_image_stays_as_it_is() -> None:
    still = Affine(degrees=0.0, zoom=1.0, shear=0.0, shift=0.0, noise=0.0)
    images = torch.rand(3, 2, 8, 11)
    view = still(images, torch.arange(3), still.draw(3, np.random.default_rng(0)))
    torch.testing.assert_close(view, images, atol=1e-5, rtol=0.0)


def test_noise_has_its_deviation_and_differs_between_pixels_and_images() -> None:
    noisy = Affine(degrees=0.0, zoom=1.0, shear=0.0, shift=0.0, noise=0.2)
    images = torch.zeros(50, 1, 8, 8)
    view = noisy(images, torch.arange(50), noisy.draw(50, np.random.default_rng(0)))
    assert abs(float(view.std()) - 0.2) < 0.01 and abs(float(view.mean())) < 0.01
    assert len(view.unique()) > 0.9 * view.numel()


def test_only_images_are_taken() -> None:
    said = Affine().find_problem(np.zeros((2, 12), np.float32))
    assert said == "takes images, the data has samples of shape (12,)"
    assert Affine().find_problem(np.zeros((2, 4, 3, 5), np.float32)) is None
