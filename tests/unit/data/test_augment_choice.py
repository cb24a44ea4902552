"""Which views a name stands for, pairs of them, and which samples they take."""

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core.errors import ConfigError
from coterie.data import datasets
from coterie.data.augment import AUGMENTS, Kind, Normalise, choose_transform, choose_views
from coterie.data.augment_colour import kernel_size
from coterie.data.augment_views import RandomView
from coterie.data.batches import DataShard
from coterie.experiment.config import load
from coterie.experiment.prepare import prepare

RANDOM = [name for name, build in AUGMENTS.items() if isinstance(build(), RandomView)]
NO_IMAGES = ("mask-noise", "jitter-scale-crop")
SHAPES = [(3, 32, 32), (1, 8, 8), (3, 9, 14), (1, 28, 28), (3, 45, 21)]


# ---- pairs of transforms


def test_orchestra_has_a_pair_of_transforms_as_published() -> None:
    shared = {"scale": (0.5, 1.0), "jitter": 0.8, "strengths": (0.4, 0.4, 0.2, 0.1), "grey": 0.2}
    first, second = choose_transform("train", "orchestra"), choose_transform("second", "orchestra")
    assert first == RandomView(**shared, blur=0.5)  # type: ignore[arg-type]
    assert second == RandomView(**shared, blur=0.1, solarise=0.2)  # type: ignore[arg-type]
    assert kernel_size(32, 32) == 3


@pytest.mark.parametrize("name", [name for name in AUGMENTS if name != "orchestra"])
def test_elsewhere_both_views_are_drawn_alike(name: str) -> None:
    assert choose_transform("train", name) == choose_transform("second", name) == AUGMENTS[name]()
    # a view may name its transform itself
    assert choose_transform(name, "none") == AUGMENTS[name]()


def test_the_views_of_a_batch_are_those_of_the_pair() -> None:
    config = load("digits/orchestra", {"data": {"augment": "orchestra"}})
    dataset = datasets.load("digits")
    rows = np.arange(40)
    shard = DataShard(dataset, rows, rows, augment="orchestra")
    views = ("train", "second", "train")
    batch = next(
        shard.batches(config.local, views, lambda what: np.random.default_rng(len(what) * 7))
    )
    pixels = torch.from_numpy(dataset.x_train[:40].astype(np.float32) / 255)
    normalise = Normalise(dataset.mean, dataset.std)
    for view, place in zip(
        batch.views, ("orchestra", "orchestra-second", "orchestra"), strict=True
    ):
        transform = AUGMENTS[place]()
        table = transform.draw(40, np.random.default_rng(len("view/0/0") * 7))
        expected = normalise(transform(pixels[batch.index], batch.index, table))
        torch.testing.assert_close(view, expected)
    assert not torch.equal(batch.views[0], batch.views[1])


# ---- what it takes


@pytest.mark.parametrize("name", [name for name in RANDOM if name != "resized-crop"])
@pytest.mark.parametrize("shape", [(20,), (4, 32, 32), (3, 7, 32), (2, 32, 32)])
def test_other_shapes_are_refused(name: str, shape: tuple[int, ...]) -> None:
    said = AUGMENTS[name]().find_problem(np.zeros((2, *shape), np.uint8))
    assert said is not None and "1 or 3 channels" in said and str(shape) in said
    assert "\n" not in said


def test_a_crop_alone_takes_any_number_of_channels() -> None:
    crop = AUGMENTS["resized-crop"]()
    for shape in ((4, 32, 32), (2, 32, 32)):
        assert crop.find_problem(np.zeros((2, *shape), np.uint8)) is None
    for wrong in ((20,), (3, 7, 32)):
        said = crop.find_problem(np.zeros((2, *wrong), np.uint8))
        assert said is not None and said.startswith("takes images of at least 8 x 8 pixels")


@pytest.mark.parametrize("name", [name for name in AUGMENTS if name not in NO_IMAGES])
def test_usual_images_are_taken(name: str) -> None:
    for shape in SHAPES:
        for dtype in (np.uint8, np.float32):
            assert AUGMENTS[name]().find_problem(np.ones((2, *shape), dtype)) is None


def test_colours_need_floats_between_zero_and_one() -> None:
    samples = np.linspace(-2, 2, 2 * 3 * 64, dtype=np.float32).reshape(2, 3, 8, 8)
    assert "floats from -2 to 2" in (AUGMENTS["simclr"]().find_problem(samples) or "")
    assert AUGMENTS["resized-crop"]().find_problem(samples) is None


@pytest.mark.parametrize("name", ["crop-flip", "simsiam", "resized-crop"])
def test_a_run_on_samples_that_are_no_images_is_refused_in_one_line(
    name: str, tmp_path: Path
) -> None:
    file, labels = tmp_path / "vectors.npz", np.arange(200) % 4
    x = np.random.default_rng(0).random((200, 12), np.float32)
    np.savez(file, x_train=x, y_train=labels, x_test=x, y_test=labels)
    data = {"name": "arrays", "root": str(file), "augment": name}
    with pytest.raises(ConfigError) as error:
        prepare(load("digits/fedavg", {"data": data}), tmp_path)
    said = str(error.value)
    assert said.startswith(f"data.augment = '{name}' takes images") and "\n" not in said
    assert "(12,)" in said and said.endswith("use data.augment = 'none'")


def test_the_digits_can_be_cropped(tmp_path: Path) -> None:
    chosen = prepare(load("digits/fedavg", {"data": {"augment": "resized-crop"}}), tmp_path)
    assert chosen.spec.augment == "resized-crop"


# ---- what "auto" means

TWO = ("train", "train")


@pytest.mark.parametrize(
    ("kind", "shape", "views", "name"),
    [
        ("image", (3, 32, 32), ("train",), "none"),
        ("table", (12,), ("train",), "none"),
        ("image", (3, 32, 32), TWO, "simsiam"),
        ("image", (3, 64, 31), TWO, "resized-crop"),
        ("image", (1, 64, 64), TWO, "resized-crop"),
        ("image", (4, 64, 64), TWO, "resized-crop"),
        ("image", (3, 224, 224), ("train", "second"), "simsiam"),
        ("table", (12,), TWO, "mask-noise"),
        ("signal", (2, 100), TWO, "jitter-scale-crop"),
    ],
)
def test_views_are_chosen_by_kind_and_shape(
    kind: Kind, shape: tuple[int, ...], views: tuple[str, ...], name: str
) -> None:
    assert choose_views(kind, shape, views) == name
    assert AUGMENTS[name]().find_problem(np.zeros((2, *shape), np.float32)) is None
