"""Random views against slow references of one image at a time, and what they are drawn from."""

import colorsys
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor
from torch.nn import functional as F

from coterie.data.augment import AUGMENTS
from coterie.data.augment_colour import kernel_size
from coterie.data.augment_views import RandomView, Table, resize

NAMES = [
    "simsiam",
    "simclr",
    "simclr-sharp",
    "byol",
    "orchestra",
    "orchestra-second",
    "resized-crop",
]
SHAPES = [(3, 32, 32), (1, 8, 8), (3, 9, 14), (1, 28, 28), (3, 45, 21)]
STRONG = RandomView(jitter=1.0, strengths=(0.8, 0.8, 0.8, 0.5), grey=0.3, blur=0.5, solarise=0.5)
LUMA = (0.2989, 0.587, 0.114)
NOT_BY_CHANCE = 1e-3  # a seeded test below it would be a wrong distribution


def pictures(count: int, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Random pixels, with black, white, grey and saturated ones among them."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.rand(count, *shape, generator=generator)
    found[0], found[1] = 0.0, 1.0
    found[2] = found[2, :1]
    found[3] = (found[3] > 0.5).float()
    return found


def drawn(transform: RandomView, samples: int = 20_000, seed: int = 0) -> Table:
    return transform.draw(samples, np.random.default_rng(seed))


def uniform(values: np.ndarray, low: float, high: float) -> bool:
    if values.min() < low or values.max() > high:
        return False
    found = stats.kstest(values, stats.uniform(low, high - low).cdf).pvalue
    return bool(found > NOT_BY_CHANCE)


# ---- what is drawn


@pytest.mark.parametrize("name", NAMES)
def test_areas_are_uniform_and_ratios_uniform_in_the_logarithm(name: str) -> None:
    transform = AUGMENTS[name]()
    assert isinstance(transform, RandomView)
    table = drawn(transform)
    assert table["areas"].shape == table["ratios"].shape == (20_000, 10)
    for attempt in (0, 9):
        assert uniform(table["areas"][:, attempt].numpy(), *transform.scale)
        logarithms = table["ratios"][:, attempt].log().numpy()
        bound = math.log(4 / 3) + 1e-12
        assert uniform(logarithms, -bound, bound)
    assert uniform(table["positions"].flatten().numpy(), 0.0, 1.0)


def test_factors_are_uniform_between_their_bounds() -> None:
    table = drawn(RandomView(strengths=(0.4, 1.5, 0.2, 0.1)))
    bounds = [(0.6, 1.4), (0.0, 2.5), (0.8, 1.2), (-0.1, 0.1)]
    for kind, (low, high) in enumerate(bounds):
        assert uniform(table["factors"][:, kind].numpy(), low, high)
    correlations = np.corrcoef(table["factors"].numpy(), rowvar=False) - np.eye(4)
    assert np.abs(correlations).max() < 0.03


def test_every_order_of_the_jitter_is_as_likely() -> None:
    counts = Counter(map(tuple, drawn(RandomView(), 24_000)["order"].tolist()))
    assert len(counts) == 24 and all(sorted(order) == [0, 1, 2, 3] for order in counts)
    assert stats.chisquare(list(counts.values())).pvalue > NOT_BY_CHANCE


def test_sigmas_are_uniform() -> None:
    assert uniform(drawn(RandomView())["sigmas"].numpy(), 0.1, 2.0)


@pytest.mark.parametrize("name", NAMES)
def test_chances_are_those_of_the_name(name: str) -> None:
    wanted = {
        "simsiam": (0.5, 0.8, 0.2, 0.0, 0.0),
        "simclr": (0.5, 0.8, 0.2, 0.5, 0.0),
        "simclr-sharp": (0.5, 0.8, 0.2, 0.0, 0.0),
        "byol": (0.5, 0.8, 0.2, 0.5, 0.1),
        "orchestra": (0.5, 0.8, 0.2, 0.5, 0.0),
        "orchestra-second": (0.5, 0.8, 0.2, 0.1, 0.2),
        "resized-crop": (0.0, 0.0, 0.0, 0.0, 0.0),
    }[name]
    table = AUGMENTS[name]().draw(20_000, np.random.default_rng(0))
    for operation, chance in zip(
        ("flip", "jitter", "grey", "blur", "solarise"), wanted, strict=True
    ):
        deviation = math.sqrt(chance * (1 - chance) / 20_000)
        assert abs(float(table[operation].double().mean()) - chance) <= 4 * deviation, operation


def test_a_chance_of_zero_never_and_of_one_always_happens() -> None:
    never = drawn(RandomView(flip=0.0))
    always = drawn(RandomView(flip=1.0, jitter=1.0, grey=1.0, blur=1.0, solarise=1.0))
    for name in ("flip", "jitter", "grey", "blur", "solarise"):
        assert not never[name].any() and always[name].all()


def test_the_chances_do_not_shift_the_other_draws() -> None:
    one, other = drawn(RandomView()), drawn(RandomView(flip=0.1, grey=0.7, blur=1.0))
    for name in ("areas", "ratios", "positions", "order", "sigmas"):
        assert torch.equal(one[name], other[name])


def slow_box(
    transform: RandomView, height: int, width: int, generator: np.random.Generator
) -> tuple[int, int, int, int]:
    """As torchvision documents it: try, and try again."""
    low, high = transform.ratio
    for _ in range(10):
        area = height * width * generator.uniform(*transform.scale)
        ratio = math.exp(generator.uniform(math.log(low), math.log(high)))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top = int(generator.integers(0, height - tall + 1))
            return top, int(generator.integers(0, width - wide + 1)), tall, wide
    wide, tall = width, height
    if width / height < low:
        tall = round(width / low)
    elif width / height > high:
        wide = round(height * high)
    return (height - tall) // 2, (width - wide) // 2, tall, wide


@pytest.mark.parametrize("size", [(32, 32), (8, 8), (20, 33), (64, 12)])
@pytest.mark.parametrize("scale", [(0.08, 1.0), (0.2, 1.0), (0.9, 1.0)])
def test_boxes_are_distributed_as_with_one_try_after_the_other(
    size: tuple[int, int], scale: tuple[float, float]
) -> None:
    transform, generator = RandomView(scale=scale), np.random.default_rng(1)
    found = transform.boxes(drawn(transform, 4000), *size)
    expected = np.array([slow_box(transform, *size, generator) for _ in range(4000)])
    top, left, tall, wide = found.T
    assert (found[:, :2] >= 0).all() and (found[:, 2:] >= 1).all()
    assert (top + tall <= size[0]).all() and (left + wide <= size[1]).all()
    columns = [*zip(found.T, expected.T, strict=True), (tall * wide, expected[:, 2:].prod(axis=1))]
    for mine, theirs in columns:
        assert stats.ks_2samp(mine, theirs, method="asymp").pvalue > NOT_BY_CHANCE


@pytest.mark.parametrize(
    "size, middle",
    [((40, 8), (14, 0, 11, 8)), ((8, 40), (0, 14, 8, 11)), ((10, 10), (0, 0, 10, 10))],
)
def test_where_no_try_fits_the_box_is_in_the_middle(
    size: tuple[int, int], middle: tuple[int, ...]
) -> None:
    table = dict(drawn(RandomView(), 3))
    table["areas"] = torch.full_like(table["areas"], 2.0)  # larger than the image
    assert RandomView().boxes(table, *size).tolist() == [list(middle)] * 3


def test_the_first_try_that_fits_is_taken() -> None:
    table = dict(drawn(RandomView(), 1))
    table["areas"][0] = torch.tensor([2.0, 3.0, 0.25, 1.0, *[0.5] * 6], dtype=torch.float64)
    table["ratios"] = torch.ones_like(table["ratios"])
    assert RandomView().boxes(table, 20, 20)[0, 2:].tolist() == [10, 10]


# ---- what is done with it


def slow_grey(image: np.ndarray) -> np.ndarray:
    if len(image) == 1:
        return image[0]
    return sum(weight * plane for weight, plane in zip(LUMA, image, strict=True))


def slow_jitter(image: np.ndarray, kind: int, factor: float) -> np.ndarray:
    if kind == 0:
        return np.clip(factor * image, 0, 1)
    if kind == 1:
        return np.clip(factor * image + (1 - factor) * slow_grey(image).mean(), 0, 1)
    if len(image) == 1:
        return image
    if kind == 2:
        return np.clip(factor * image + (1 - factor) * slow_grey(image), 0, 1)
    turned = np.empty_like(image)
    for place in np.ndindex(*image.shape[1:]):
        hue, saturation, value = colorsys.rgb_to_hsv(*image[(slice(None), *place)].tolist())
        turned[(slice(None), *place)] = colorsys.hsv_to_rgb((hue + factor) % 1, saturation, value)
    return turned


def slow_blur(image: np.ndarray, sigma: float) -> np.ndarray:
    size = kernel_size(*image.shape[1:])
    half = size // 2
    line = [math.exp(-(d**2) / (2 * sigma**2)) for d in range(-half, half + 1)]
    kernel = torch.tensor([[a * b for a in line] for b in line]) / sum(line) ** 2
    padded = F.pad(torch.from_numpy(image)[:, None], (half,) * 4, mode="reflect")
    return F.conv2d(padded, kernel[None, None].double())[:, 0].numpy()


def slow_crop(image: Tensor, box: list[int], mirrored: bool) -> np.ndarray:
    top, left, tall, wide = box
    cut = image[None, :, top : top + tall, left : left + wide].double()
    found = F.interpolate(cut, size=image.shape[1:], mode="bilinear", align_corners=False)[0]
    return (found.flip(2) if mirrored else found).numpy()


def slow_view(transform: RandomView, image: Tensor, row: int, table: Table) -> np.ndarray:
    one = {name: column[row : row + 1] for name, column in table.items()}
    box = transform.boxes(one, *image.shape[1:])[0].tolist()
    found = slow_crop(image, box, bool(one["flip"]))
    if one["jitter"]:
        for kind in one["order"][0].tolist():
            found = slow_jitter(found, kind, float(one["factors"][0, kind]))
    if one["grey"]:
        found = np.stack([slow_grey(found)] * len(found))
    if one["blur"]:
        found = slow_blur(found, float(one["sigmas"]))
    if one["solarise"]:
        found = np.where(found >= 0.5, 1 - found, found)
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*NAMES, "strong"])
def test_views_equal_a_loop_over_images(name: str, shape: tuple[int, ...]) -> None:
    transform = STRONG if name == "strong" else AUGMENTS[name]()
    assert isinstance(transform, RandomView)
    x = pictures(24, shape)
    table = drawn(transform, 30, seed=5)
    rows = torch.from_numpy(np.random.default_rng(2).permutation(30)[:24])
    found = transform(x, rows, table)
    assert found.shape == x.shape and found.dtype == torch.float32
    for k, row in enumerate(rows.tolist()):
        expected = slow_view(transform, x[k], row, table)
        if table["solarise"][row]:  # a value at the threshold may fall on either side of it
            near = np.abs(expected - 0.5) < 1e-5
            expected = np.where(near, found[k].numpy(), expected)
        np.testing.assert_allclose(found[k].numpy(), expected, atol=1e-5, err_msg=f"row {row}")


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("channels", [1, 3])
def test_each_kind_of_jitter_alone(kind: int, channels: int) -> None:
    strengths = [0.0] * 4
    strengths[kind] = 0.5
    transform = RandomView(
        scale=(1.0, 1.0), ratio=(1.0, 1.0), flip=0.0, jitter=1.0, strengths=tuple(strengths)
    )
    x = pictures(8, (channels, 9, 9))
    table = drawn(transform, 8)
    found = transform(x, torch.arange(8), table)
    for k, image in enumerate(x.double().numpy()):
        expected = slow_jitter(image, kind, float(table["factors"][k, kind]))
        np.testing.assert_allclose(found[k].numpy(), expected, atol=1e-5)
    if channels == 1 and kind >= 2:
        torch.testing.assert_close(found, x, atol=1e-6, rtol=0)


def test_a_box_of_the_whole_image_leaves_it_and_a_mirror_turns_it() -> None:
    x = pictures(4, (3, 16, 24))
    whole = np.array([[0, 0, 16, 24]] * 4)
    mirrored = torch.tensor([False, True, False, True])
    found = resize(x, whole, mirrored)
    expected = torch.where(mirrored[:, None, None, None], x.flip(3), x)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=0)


def test_a_crop_sees_nothing_outside_its_box() -> None:
    x = torch.ones(2, 3, 12, 12)
    x[:, :, 4:8, 3:9] = 0.25
    found = resize(x, np.array([[4, 3, 4, 6]] * 2), torch.tensor([False, True]))
    torch.testing.assert_close(found, torch.full_like(found, 0.25))


def test_grey_does_nothing_to_one_channel() -> None:
    x, rows = pictures(8, (1, 10, 10)), torch.arange(8)
    plain, grey = RandomView(solarise=1.0), RandomView(solarise=1.0, grey=1.0)
    table = drawn(plain, 8)
    always = {**table, "grey": torch.ones(8, dtype=torch.bool)}
    assert torch.equal(plain(x, rows, table), grey(x, rows, always))


@pytest.mark.parametrize(
    "sides, size", [((8, 8), 3), ((32, 32), 3), ((64, 80), 7), ((224, 224), 23)]
)
def test_the_blur_is_about_a_tenth_of_the_image(sides: tuple[int, int], size: int) -> None:
    assert kernel_size(*sides) == size


# ---- what holds for every view


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*NAMES, "strong"])
def test_the_cut_of_the_batches_does_not_matter(name: str, shape: tuple[int, ...]) -> None:
    transform = STRONG if name == "strong" else AUGMENTS[name]()
    x = pictures(61, shape)
    table = transform.draw(61, np.random.default_rng(1))
    order = torch.from_numpy(np.random.default_rng(0).permutation(61))
    whole = transform(x[order], order, table)
    for size in (1, 2, 7, 32, 60):
        pieces = [transform(x[rows], rows, table) for rows in order.split(size)]
        assert torch.equal(whole, torch.cat(pieces)), size


@pytest.mark.parametrize("name", NAMES)
def test_equal_draws_give_equal_pixels_and_leave_the_images_alone(name: str) -> None:
    transform, rows = AUGMENTS[name](), torch.arange(40)
    x = pictures(40, (3, 16, 16))
    before = x.clone()
    first, again, other = (
        transform(x, rows, transform.draw(40, np.random.default_rng(seed))) for seed in (1, 1, 2)
    )
    assert torch.equal(first, again) and torch.equal(x, before)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", [*NAMES, "strong"])
def test_pixels_stay_between_zero_and_one(name: str, shape: tuple[int, ...]) -> None:
    transform = STRONG if name == "strong" else AUGMENTS[name]()
    found = transform(pictures(200, shape), torch.arange(200), drawn(STRONG, 200))
    slack = 1e-6 if name == "resized-crop" else 0.0  # a crop alone is not clamped
    assert float(found.min()) >= -slack and float(found.max()) <= 1.0 + slack
    assert torch.isfinite(found).all()
