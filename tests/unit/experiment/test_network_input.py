"""Samples as users have them: layouts, numbers, and what is refused."""

from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from coterie.core.errors import DataError
from coterie.data.augment import Normalise
from coterie.data.labels import is_missing
from coterie.experiment.model_file import InputDescription
from coterie.experiment.network_input import to_input

GREY = InputDescription("image", (1, 4, 5), "uint8", (0.4,), (0.2,))
COLOUR = InputDescription("image", (3, 4, 5), "uint8", (0.4, 0.5, 0.6), (0.2, 0.3, 0.4))
FLOATS = InputDescription("image", (1, 4, 5), "float32", (3.0,), (2.0,))
TABLE = InputDescription("table", (3,), "float32", (1.0, 2.0, 3.0), (1.0, 2.0, 4.0))
BYTES = np.random.default_rng(3).integers(0, 256, (6, 3, 4, 5), dtype=np.uint8)


def test_bytes_get_the_bits_of_training() -> None:
    normalise = Normalise(COLOUR.mean, COLOUR.std)
    expected = normalise(normalise.unit(torch.from_numpy(BYTES)))
    assert torch.equal(to_input(BYTES, COLOUR), expected)
    assert to_input(BYTES, COLOUR).dtype == torch.float32


@pytest.mark.parametrize(
    "given",
    [
        BYTES.tolist(),
        BYTES.astype(np.int64),
        torch.from_numpy(BYTES),
        list(torch.from_numpy(BYTES)),
        (BYTES, np.zeros(6)),
        (BYTES, None),
        np.moveaxis(BYTES, 1, -1),
        TensorDataset(torch.from_numpy(BYTES), torch.zeros(6)),
    ],
    ids=["list", "int64", "tensor", "tensors", "pair", "without y", "channels last", "dataset"],
)
def test_every_form_of_the_same_images_is_the_same_input(given: Any) -> None:
    assert torch.equal(to_input(given, COLOUR), to_input(BYTES, COLOUR))


def test_grey_images_need_no_axis_of_channels() -> None:
    grey = BYTES[:, 0]
    expected = to_input(grey[:, None], GREY)
    assert torch.equal(to_input(grey, GREY), expected)
    assert torch.equal(to_input(grey[..., None], GREY), expected)


def test_a_run_on_bytes_takes_floats_from_0_to_1() -> None:
    floats = BYTES.astype(np.float64) / 255
    assert torch.allclose(to_input(floats, COLOUR), to_input(BYTES, COLOUR), atol=1e-6)
    half = torch.from_numpy(floats).bfloat16()
    assert torch.allclose(to_input(half, COLOUR), to_input(BYTES, COLOUR), atol=0.05)


def test_integers_are_fine_in_a_table() -> None:
    assert to_input([[1, 2, 3], [2, 4, 7]], TABLE).tolist() == [[0, 0, 0], [1, 1, 1]]


@pytest.mark.parametrize(
    ("x", "wanted", "message"),
    [
        (BYTES, GREY, r"x has shape \(6, 3, 4, 5\), the run was trained on samples \(n, 1, 4, 5\)"),
        (BYTES[0], COLOUR, r"x has shape \(3, 4, 5\), .* \(n, 3, 4, 5\)"),
        (3, TABLE, "x is a int, not an array"),
        (np.zeros((0, 3)), TABLE, "x has no samples"),
        (BYTES / 1.0, COLOUR, "x has floats from 0 to 25., .* floats from 0 to 1"),
        (np.full((1, 1, 4, 5), np.nan), GREY, "x has floats from nan to nan"),
        (BYTES.astype(int) + 1, COLOUR, "x has integers from 1 to 256, .* bytes from 0 to 255"),
        (BYTES.astype(int) - 256, COLOUR, "x has integers from -256"),
        (BYTES[:, :1], FLOATS, "x has images of uint8, the run was trained on images of floats"),
        ([[1.0, 2.0, np.nan]], TABLE, "not finite in row 0"),
        ([["a", "b", "c"]], TABLE, "it must have numbers"),
        ([[1.0], [1.0, 2.0]], TABLE, r"x, row 1: the sample has shape \(2,\)"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(
    x: Any, wanted: InputDescription, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        to_input(x, wanted)


def test_a_missing_label_is_none_nan_or_minus_one() -> None:
    assert all(map(is_missing, (None, float("nan"), np.nan, -1, -1.0)))
    assert not any(map(is_missing, (0, 1, "a", "-1")))
