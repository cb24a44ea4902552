"""Checks of arrays and names before anything runs.

Every message is one line with the array, the row, the value and the remedy.
"""

from typing import TYPE_CHECKING

import numpy as np

from coterie.core.errors import ConfigError, DataError

if TYPE_CHECKING:
    from coterie.data.datasets import Groups, Raw

ARRAYS = ("x_train", "y_train", "x_test", "y_test")
NOBODY = -1  # the group of a test sample that belongs to no client
GROUP_ARRAYS = ("group_train", "group_test")
CHANNELS = (1, 3, 4)

_PIXEL_MAX = 255
_VECTOR_AXES, _IMAGE_AXES = 2, 4


def check(origin: str, raw: "Raw") -> tuple[dict[str, np.ndarray], int]:
    """Check arrays and groups; return them in the dtypes of a data set, and the number of classes.

    Every message starts with `origin`, a data set or a file. With `raw.classes` 0 the number of
    classes is one more than the greatest training label.
    """
    arrays = {name: np.asanyarray(getattr(raw, name)) for name in ARRAYS}
    try:
        for part in ("train", "test"):
            check_part(f"_{part}", arrays[f"x_{part}"], arrays[f"y_{part}"])
        classes = _check_labels(arrays["y_train"], arrays["y_test"], raw.classes)
        for part in ("train", "test"):
            arrays[f"x_{part}"] = _convert_samples(f"x_{part}", arrays[f"x_{part}"])
            arrays[f"y_{part}"] = arrays[f"y_{part}"].astype(np.int64)
        _check_alike(arrays["x_train"], arrays["x_test"])
        _check_statistics(arrays["x_train"].shape[1], raw.mean, raw.std)
        if raw.groups is not None:
            for part in ("train", "test"):
                samples = len(arrays[f"y_{part}"])
                arrays[f"group_{part}"] = _check_groups(part, raw.groups, samples)
    except DataError as error:
        raise DataError(f"{origin}: {error}") from None
    return arrays, classes


def check_resize(name: str, resize: int, images: bool) -> None:
    """Reject a `data.resize` that is negative or not for image files."""
    if resize < 0:
        raise ConfigError(f"data.resize={resize} is not a size; give pixels, or 0 for no resizing")
    if resize and not images:
        raise ConfigError(
            f"data.resize={resize} is for image files, and the data set {name!r} is not made of "
            "them; leave data.resize out"
        )


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


def check_part(part: str, x: np.ndarray, y: np.ndarray) -> None:
    """Check the axes of samples and labels, their equal number, and that labels are integers."""
    if x.ndim not in (_VECTOR_AXES, _IMAGE_AXES):
        raise DataError(
            f"x{part} has shape {x.shape}; reshape it to (N, channels, height, width) for images "
            "or (N, features) for vectors"
        )
    if y.ndim != 1:
        remedy = "use .ravel()" if y.size == len(x) else "use .argmax(axis=1) on one-hot labels"
        raise DataError(f"y{part} has shape {y.shape} instead of (N,); {remedy}")
    if len(x) != len(y):
        raise DataError(
            f"x{part} has {len(x)} rows and y{part} has {len(y)}; give every sample one label"
        )
    if x.size == 0:
        raise DataError(f"x{part} is empty (shape {x.shape}); give at least one sample")
    if y.dtype.kind not in "iu":
        raise DataError(
            f"y{part}[0] is {y[0]!r}: labels must be integers, not {y.dtype}; "
            f"number the classes from 0 and cast with y{part}.astype('int64')"
        )
    row = int(y.argmin())
    if y[row] < 0:
        raise DataError(
            f"y{part}[{row}] is {y[row]}, a negative label; "
            "number the classes from 0 and drop samples without a class"
        )


def _check_labels(train: np.ndarray, test: np.ndarray, classes: int) -> int:
    """Check that all labels are 0..K-1, and return K."""
    top, distinct = int(train.max()), len(np.unique(train))
    if distinct <= 1:
        raise DataError(f"y_train holds the one class {top}; give samples of two classes or more")
    if not classes and min(int(train.min()), int(test.min())) == 1 and top == distinct:
        raise DataError(
            f"y_train and y_test count from 1 (labels 1..{top}); subtract 1, so that they are "
            f"0..{top - 1}"
        )
    row = int(train.argmax())
    if classes and top >= classes:
        raise DataError(
            f"y_train[{row}] is {top}, but there are {classes} classes (0..{classes - 1}); "
            "correct the label or the number of classes"
        )
    if not classes and top >= len(train):
        raise DataError(
            f"y_train[{row}] is {top}, more than there are samples ({len(train)}); "
            "number the classes 0, 1, 2, ... without gaps"
        )
    row = int(test.argmax())
    # If the number of classes is given, a class may be in the test set only.
    last = classes - 1 if classes else top
    if test[row] > last:
        raise DataError(
            f"y_test[{row}] is {test[row]}, but the training labels end at {last}; "
            "give training samples of that class or drop it from the test set"
        )
    return classes or top + 1


def _convert_samples(name: str, x: np.ndarray) -> np.ndarray:
    """Convert to uint8 or float32 images, or float32 vectors, with finite values only."""
    if x.ndim == _IMAGE_AXES and x.shape[1] not in CHANNELS:
        last = x.shape[3] in CHANNELS
        remedy = "move them first with .transpose(0, 3, 1, 2)" if last else "convert the images"
        raise DataError(
            f"{name} has {x.shape[1]} channels (shape {x.shape}); "
            f"images (N, channels, height, width) have 1, 3 or 4: {remedy}"
        )
    if x.dtype.kind == "f":
        return _convert_floats(name, x)
    if x.dtype.kind not in "iu":
        raise DataError(
            f"{name} is of dtype {x.dtype}; cast it to uint8 (values 0..255) or float32"
        )
    if x.ndim == _VECTOR_AXES:
        return x.astype(np.float32)
    if x.dtype == np.uint8:
        return x
    for index in (int(x.argmin()), int(x.argmax())):
        value = x.reshape(-1)[index]
        if not 0 <= value <= _PIXEL_MAX:
            raise DataError(
                f"{name}[{_row(x, index)}] holds {value}, outside 0..255, as {x.dtype}; "
                "scale the images to 0..255 as uint8, or cast them to float32"
            )
    return x.astype(np.uint8, copy=False)


def _convert_floats(name: str, x: np.ndarray) -> np.ndarray:
    """Cast floats to float32; reject values that are NaN or infinite there."""
    with np.errstate(over="ignore", invalid="ignore"):
        cast = x.astype(np.float32, copy=False)
        # Two reductions show NaN and infinity without a mask as large as the data.
        if np.isfinite(cast.min()) and np.isfinite(cast.max()):
            return cast
    index = int(np.isfinite(cast).reshape(-1).argmin())
    raise DataError(
        f"{name}[{_row(x, index)}] holds {x.reshape(-1)[index]}, not a finite float32; "
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
