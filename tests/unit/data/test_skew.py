"""Features and labels that differ by client: what is drawn, what it does, how it travels."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch.nn.functional import affine_grid, grid_sample

from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.data.batches import DataShard
from coterie.data.datasets import Dataset
from coterie.data.partition import Partition, divide, load_class
from coterie.data.partitions.iid import IID
from coterie.data.skew import Shift, draw_noise, restyle, rotate

LABELS = np.arange(600) % 6
IMAGES = np.random.default_rng(0).integers(0, 256, (600, 3, 9, 9)).astype(np.uint8)


def made(seed: int = 0, **settings: Any) -> Partition:
    return divide(IID(clients=5, **settings), LABELS, LABELS[:60], 6, seed)


def dataset(images: np.ndarray = IMAGES) -> Dataset:
    known: dict[str, Any] = {
        **{"name": "made", "path": Path(), "fingerprint": "", "classes": 6, "mean": (), "std": ()},
        **{"x_train": images, "y_train": LABELS, "x_test": images[:60], "y_test": LABELS[:60]},
    }
    return Dataset(**{f.name: known[f.name] for f in fields(Dataset) if f.name in known})


def test_all_kinds_have_the_keys_and_none_is_the_default() -> None:
    for kind in registry.names("data/partitions"):
        names = {field.name for field in fields(load_class(kind))}  # type: ignore[arg-type]
        assert {"skew", "strength", "label_swap", "min_samples"} <= names
    assert made().shifts == {}
    plain, shifted = made(), made(skew="noise", strength=0.1)
    assert set(shifted.pack()) - set(plain.pack()) == {"shifts"}
    assert all(np.array_equal(plain.train[c], shifted.train[c]) for c in plain.clients)


def test_noise_grows_with_the_rank() -> None:
    shifts = made(skew="noise", strength=0.5).shifts
    assert [shift.noise for shift in shifts.values()] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5])
    assert len({shift.seed for shift in shifts.values()}) == 5
    assert shifts[0].seed != made(seed=1, skew="noise", strength=0.5).shifts[0].seed


def test_noise_is_the_sample_s_own() -> None:
    rows = np.array([5, 2, 9])
    together = draw_noise(7, rows, False, (3, 9, 9))
    for place, row in enumerate(rows):
        assert np.array_equal(draw_noise(7, np.array([row]), False, (3, 9, 9))[0], together[place])
    assert not np.array_equal(draw_noise(7, rows, True, (3, 9, 9)), together)
    assert not np.array_equal(draw_noise(8, rows, False, (3, 9, 9)), together)
    many = draw_noise(7, np.arange(400), False, (250,))
    assert abs(many.mean()) < 0.01 and abs(many.std() - 1) < 0.01


def test_noise_on_bytes_is_clipped_and_on_floats_is_not() -> None:
    shift, rows = Shift(noise=0.5, seed=3), np.arange(600)
    noisy = shift.change_images(IMAGES, rows, False)
    clean = IMAGES.astype(np.float32) / 255
    expected = np.clip(clean + 0.5 * draw_noise(3, rows, False, (3, 9, 9)), 0, 1)
    assert noisy.dtype == np.float32 and np.allclose(noisy, expected, atol=1e-6)
    vectors = np.zeros((600, 4), np.float32)
    assert shift.change_images(vectors, rows, False).min() < -1 and not vectors.any()


def test_angles_are_spread_evenly() -> None:
    shifts = made(skew="rotation", strength=40.0).shifts
    assert {c: shift.angle for c, shift in shifts.items()} == {0: -40, 1: -20, 3: 20, 4: 40}
    alone = divide(IID(1, skew="rotation", strength=40.0), LABELS, LABELS, 6, 0)
    assert alone.shifts == {}


@pytest.mark.parametrize("angle", [-170.0, -45.0, 10.0, 30.0, 90.0])
def test_rotation_is_that_of_torch(angle: float) -> None:
    images = IMAGES[:4].astype(np.float32)
    turn = np.radians(angle)
    matrix = [[np.cos(turn), -np.sin(turn), 0.0], [np.sin(turn), np.cos(turn), 0.0]]
    grid = affine_grid(torch.tensor([matrix] * 4).float(), [4, 3, 9, 9], align_corners=False)
    expected = grid_sample(torch.from_numpy(images), grid, align_corners=False)
    assert np.allclose(rotate(images, angle), expected.numpy(), atol=0.01)


def test_quarter_turns_are_exact() -> None:
    images = IMAGES[:4, :, :, :8].astype(np.float32)
    assert np.allclose(rotate(images, 180.0), images[..., ::-1, ::-1], atol=1e-3)
    square = IMAGES[:4].astype(np.float32)
    assert np.allclose(rotate(square, 90.0), np.rot90(square, axes=(-2, -1)), atol=1e-3)


def test_styles_are_drawn_once_per_client() -> None:
    shifts = made(skew="style", strength=0.5).shifts
    assert len({shift.style for shift in shifts.values()}) == 5
    assert shifts == made(skew="style", strength=0.5).shifts
    for shift in shifts.values():
        brightness, *factors = shift.style
        assert abs(brightness) <= 0.25 and all(0.5 <= factor <= 1.5 for factor in factors)
    pixel = np.full((1, 3, 1, 1), 0.7, np.float32)
    found = restyle(pixel, (0.1, 1.2, 1.0, 0.5, 2.0, 9.0)).ravel()
    toned = 1.2 * (0.7 - 0.5) + 0.5
    assert found.tolist() == pytest.approx([toned + 0.1, toned / 2 + 0.1, 2 * toned + 0.1])


@pytest.mark.parametrize(("share", "clients"), [(0.0, 0), (0.01, 1), (0.4, 2), (0.5, 3), (1.0, 5)])
def test_labels_are_swapped_for_a_share_of_clients(share: float, clients: int) -> None:
    shifts = made(label_swap=share).shifts
    assert len(shifts) == clients
    for shift in shifts.values():
        names = np.array(shift.classes)
        assert np.array_equal(names[names], np.arange(6)) and not (names == np.arange(6)).any()
    assert clients < 5 or len({shift.classes for shift in shifts.values()}) > 1


def test_an_odd_class_keeps_its_name() -> None:
    shifts = IID(4, label_swap=1.0).draw_shifts(range(4), 7, seed=0)
    assert all((np.array(s.classes) == np.arange(7)).sum() == 1 for s in shifts.values())


def test_shifts_travel_and_are_in_the_digest() -> None:
    whole = made(skew="style", strength=0.3, label_swap=0.4)
    packed = whole.pack()
    assert torch.from_numpy(packed["shifts"]).dtype == torch.uint8
    back = Partition.unpack(packed, whole.names)
    assert back.shifts == whole.shifts and back.digest() == whole.digest()
    digests = {
        made(**settings).digest()
        for settings in (
            {},
            {"label_swap": 0.4},
            {"skew": "noise", "strength": 0.3},
            {"skew": "noise", "strength": 0.4},
        )
    }
    assert len(digests | {whole.digest()}) == 5
    assert whole.pooled().shifts == {}
    with pytest.raises(ValueError, match=r"shifts of \[9\]"):
        replace(whole, shifts={9: Shift()})


def test_a_shard_is_shifted_in_both_parts() -> None:
    data, rows, tests = dataset(), np.array([7, 3, 500]), np.array([1, 8])
    shift = Shift(noise=0.2, seed=5, classes=(1, 0, 3, 2, 5, 4))
    shard = DataShard(data, rows, tests, shift=shift)
    for test, own, source in ((False, rows, IMAGES), (True, tests, IMAGES[:60])):
        batches = list(shard.sweep(2, test))
        images = torch.cat([batch.views[0] for batch in batches]).numpy()
        assert np.allclose(images, shift.change_images(source[own], own, test), atol=1e-6)
        labels = torch.cat([batch.y for batch in batches]).numpy()
        assert labels.tolist() == shift.change_labels(LABELS[own]).tolist() != LABELS[own].tolist()
    plain = DataShard(data, rows, tests)
    unshifted = DataShard(data, rows, tests, shift=Shift())
    assert torch.equal(next(plain.sweep()).views[0], next(unshifted.sweep()).views[0])
    assert plain.labels.tolist() == LABELS[rows].tolist()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"skew": "noise"}, r"partition\.strength = 0\.0 .*use e\.g\. partition\.strength=0\.1"),
        ({"skew": "rotation", "strength": 200.0}, r"at most 180; use e\.g\. .*=45"),
        ({"skew": "style", "strength": 1.5}, r"at most 1; .* partition\.skew=none"),
        ({"skew": "noise", "strength": float("inf")}, r"partition\.strength = inf"),
        ({"skew": "noise", "strength": float("nan")}, r"partition\.strength = nan"),
    ],
)
def test_strengths_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IID(**settings)


def test_ranges_and_shapes() -> None:
    for bad in ({"skew": "blur"}, {"strength": -1.0}, {"label_swap": 1.5}):
        with pytest.raises(ValidationError):
            TypeAdapter(IID).validate_python(bad)
    turned = IID(2, skew="rotation", strength=9.0)
    with pytest.raises(ConfigError, match=r"skew = 'rotation' is for images .* shape \(64,\)"):
        divide(turned, LABELS, LABELS, 6, 0, shape=(64,))
    assert divide(turned, LABELS, LABELS, 6, 0, shape=(3, 9, 9)).shifts
