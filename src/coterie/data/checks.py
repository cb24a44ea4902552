"""Checks of arrays and names before anything runs.

Every message is one line with the array, the row, the value and the remedy.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING
from unicodedata import category

import numpy as np

from coterie.core.errors import ConfigError, DataError
from coterie.core.formatting import quote
from coterie.data import labels
from coterie.data.labels import ClassNames
from coterie.data.table import parse_number

if TYPE_CHECKING:
    from coterie.data.datasets import Groups, Raw

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
NOBODY = -1  # the group of a test sample that belongs to no client
GROUP_ARRAYS = ("group_train", "group_test")
CHANNELS = (1, 3, 4)

_PIXEL_MAX = 255
_LONGEST_NAME = 1000  # characters
_CONTROLS, _SURROGATE = {"Cc", "Zl", "Zp"}, "Cs"  # kinds of characters in Unicode
_VECTOR_AXES, _SIGNAL_AXES, _IMAGE_AXES = 2, 3, 4


def check(origin: str, raw: "Raw") -> tuple[dict[str, np.ndarray], ClassNames]:
    """Check arrays and groups; return them in the dtypes of a data set, and the classes.

    Every message starts with `origin`, a data set or a file.
    """
    arrays = {name: np.asanyarray(getattr(raw, name)) for name in ("x_train", "x_test")}
    try:
        for part in ("train", "test"):
            x, y = arrays[f"x_{part}"], getattr(raw, f"y_{part}")
            check_axes(f"x_{part}", x)
            arrays[f"y_{part}"] = labels.clean(y, len(x), f"y_{part}")
            arrays[f"x_{part}"] = convert_samples(f"x_{part}", x)
        names: ClassNames
        if raw.classes:
            names = raw.class_names or tuple(range(raw.classes))
            for part in ("y_train", "y_test"):
                _check_numbers(part, arrays[part], raw.classes)
        else:
            *encoded, names = labels.encode(arrays["y_train"], arrays["y_test"])
            arrays["y_train"], arrays["y_test"] = encoded
        _check_alike(arrays["x_train"], arrays["x_test"])
        _check_statistics(arrays["x_train"].shape[1], raw.mean, raw.std)
        _check_names("class", names)
        if raw.groups is not None:
            _check_names("group", raw.groups.names)
            for part in ("train", "test"):
                samples = len(arrays[f"y_{part}"])
                arrays[f"group_{part}"] = _check_groups(part, raw.groups, samples)
    except DataError as error:
        raise DataError(f"{origin}: {error}") from None
    # in the order that fingerprints of data sets have been computed in
    return {name: arrays[name] for name in (*ARRAYS, *GROUP_ARRAYS) if name in arrays}, names


def check_resize(name: str, resize: int, images: bool) -> None:
    """Reject a `data.resize` that is negative or not for image files."""
    if resize < 0:
        raise ConfigError(f"data.resize={resize} is not a size; give pixels, or 0 for no resizing")
    if resize and not images:
        raise ConfigError(
            f"data.resize={resize} is for image files, and the data set {name!r} is not made of "
            "them; leave data.resize out"
        )


def _check_names(what: str, names: Sequence[int | str]) -> None:
    """Check that names can be written to files and shown: a folder's may have any bytes."""
    for name in map(str, names):
        if len(name) > _LONGEST_NAME:
            raise DataError(
                f"the {what} {quote(name)} has a name of {len(name):,} characters, and it may have "
                f"{_LONGEST_NAME:,}; shorten it"
            )
        kinds = set(map(category, name))
        if kinds & _CONTROLS:
            raise DataError(
                f"the {what} {quote(name)} has a name with control characters; rename it"
            )
        if _SURROGATE in kinds:
            raise DataError(f"the {what} {quote(name)} has a name that is no UTF-8; rename it")


def _check_groups(part: str, groups: "Groups", samples: int) -> np.ndarray:
    """Check the groups of training or test samples; return them as int64 indices into the names."""
    is_test, values, names = part == "test", np.asarray(getattr(groups, part)), groups.names
    if values.shape != (samples,) and not (is_test and values.size == 0):
        raise DataError(
            f"group_{part} has shape {values.shape}, and there are {samples} {part} samples; "
            "give every sample one group"
        )
    outside = np.flatnonzero((values < (NOBODY if is_test else 0)) | (values >= len(names)))
    if outside.size:
        row = outside[0]
        raise DataError(
            f"group_{part}[{row}] is {values[row]}, and there are {len(names)} names of groups; "
            "number the groups from 0 and name all of them"
        )
    return values.reshape(-1).astype(np.int64)


def check_axes(name: str, x: np.ndarray) -> None:
    """Check the number of axes of samples, and that there are any."""
    if x.ndim not in (_VECTOR_AXES, _SIGNAL_AXES, _IMAGE_AXES):
        raise DataError(
            f"{name} has shape {x.shape}; reshape it to (N, channels, height, width) for images, "
            "(N, channels, time) for signals or (N, features) for vectors"
        )
    if x.size == 0:
        raise DataError(f"{name} is empty (shape {x.shape}); give at least one sample")


def _check_numbers(name: str, y: np.ndarray, classes: int) -> None:
    """Check that labels are numbers of `classes` classes."""
    if y.dtype.kind != "i":
        raise DataError(
            f"{name}, row 0: the label is {y[0].item()!r}; it must be the number of a class"
        )
    if y.max() >= classes:
        row = int(y.argmax())
        raise DataError(
            f"{name}, row {row}: the label is {y[row]}, but there are {classes} classes "
            f"(0..{classes - 1}); correct the label or the number of classes"
        )


def convert_samples(name: str, x: np.ndarray) -> np.ndarray:
    """Convert to uint8 or float32 images, or float32 signals and vectors, finite values only."""
    if x.ndim == _IMAGE_AXES and x.shape[1] not in CHANNELS:
        last = x.shape[3] in CHANNELS
        remedy = "move them first with .transpose(0, 3, 1, 2)" if last else "convert the images"
        raise DataError(
            f"{name} has {x.shape[1]} channels (shape {x.shape}); "
            f"images (N, channels, height, width) have 1, 3 or 4: {remedy}"
        )
    if x.dtype.kind == "f":
        return _convert_floats(name, x)
    if x.dtype.kind in "SU":
        raise _describe_text(name, x)
    if x.dtype.kind not in "iu":
        raise DataError(
            f"{name} is of dtype {x.dtype}; cast it to uint8 (values 0..255) or float32"
        )
    if x.ndim != _IMAGE_AXES:
        return x.astype(np.float32)
    if x.dtype == np.uint8:
        return x
    for index in (int(x.argmin()), int(x.argmax())):
        value = x.reshape(-1)[index]
        if not 0 <= value <= _PIXEL_MAX:
            raise DataError(
                f"{name}, row {_row(x, index)}: it holds {value}, outside 0..255, as {x.dtype}; "
                "scale the images to 0..255 as uint8, or cast them to float32"
            )
    return x.astype(np.uint8, copy=False)


def _describe_text(name: str, x: np.ndarray) -> DataError:
    """Make the error that names the first text which is no number, or else the first text."""
    texts = [str(text) for text in x.reshape(-1).tolist()]
    index = next((i for i, text in enumerate(texts) if parse_number(text) is None), 0)
    return DataError(
        f"{name}, row {_row(x, index)}: it holds the text {quote(texts[index])}; give "
        "numbers, uint8 (values 0..255) or float32, or a table with named columns"
    )


def _convert_floats(name: str, x: np.ndarray) -> np.ndarray:
    """Cast floats to float32; reject values that are NaN or infinite there."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = x.astype(np.float32, copy=False)
        # Two reductions show NaN and infinity without a mask as large as the data.
        if np.isfinite(cast.min()) and np.isfinite(cast.max()):
            return cast
    index = int(np.isfinite(cast).reshape(-1).argmin())
    raise DataError(
        f"{name}, row {_row(x, index)}: it holds {x.reshape(-1)[index]}, not a finite float32; "
        "drop that row or fill in the value"
    )


def _row(x: np.ndarray, index: int) -> int:
    """Return the row of a flat index into an array."""
    return index // (x.size // len(x))


def _check_alike(train: np.ndarray, test: np.ndarray) -> None:
    """Check that training and test samples have the same shape and dtype."""
    if train.shape[1:] != test.shape[1:]:
        raise DataError(
            f"x_test[0] has shape {test.shape[1:]} and x_train[0] {train.shape[1:]}; "
            "give both the same channels and size"
        )
    if train.dtype != test.dtype:
        raise DataError(
            f"x_test is {test.dtype} and x_train {train.dtype}; give both the same dtype and scale"
        )


def _check_statistics(channels: int, mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    """Check for one mean and one positive deviation per channel, or none at all."""
    if not mean and not std:
        return
    if len(mean) != channels or len(std) != channels:
        raise DataError(
            f"mean has {len(mean)} values and std {len(std)}, but x_train has {channels} channels; "
            "give one of each per channel, or neither"
        )
    if not (np.isfinite(mean).all() and np.isfinite(std).all() and min(std) > 0):
        raise DataError(f"mean={mean} and std={std} must be finite, and every std above 0")
