"""Labels: from what users have (integers, whole floats, booleans, text) to numbers 0..K-1.

A sample without a label has None, NaN, -1 or an empty text; inside Coterie its number is -1.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coterie.core.errors import DataError
from coterie.core.formatting import quote
from coterie.data.formats.locate import sort_names

MISSING = -1
_NO_TEXT = ""
_ONE_HOT_AXES = 2
_REGRESSION = (
    "classes are integers or text, one a sample; amounts (regression), several labels a sample and "
    "segmentation are not supported"
)

ClassNames = tuple[int | str, ...]  # as the labels were given, in the order of their numbers


Locate = Callable[[int], str]  # names the label of a row, as errors do


def clean(
    values: Any, samples: int, name: str = "the labels", locate: Locate | None = None
) -> np.ndarray:
    """Bring the labels of `samples` samples to int64 with -1, or to text with "", for missing ones.

    Errors begin with `name`, those about a row with `locate(row)`, or with name and row. With
    `values` None all labels are missing.
    """
    where = locate or (lambda row: f"{name}, row {row}")
    has = "have" if name.endswith("labels") else "has"
    if values is None:
        return np.full(samples, MISSING, np.int64)
    given = np.asarray(values, dtype=object) if isinstance(values, list) else np.asarray(values)
    if given.ndim != 1:
        remedy = "use .argmax(axis=1) if it is one-hot; several labels a sample are not supported"
        if given.ndim > _ONE_HOT_AXES:
            remedy = "labels of every pixel (segmentation) are not supported"
        if given.size == samples:
            remedy = "use .ravel()"
        remedy = remedy if given.ndim else "give an array or a list"
        raise DataError(f"{name} {has} shape {given.shape} instead of ({samples},); {remedy}")
    if len(given) != samples:
        raise DataError(
            f"{name} {has} {len(given)} entries for {samples} samples; give every sample one label"
        )
    if given.dtype.kind in "OTSV":
        return _clean_objects(given, where)
    if given.dtype.kind == "U":
        return np.where(np.char.strip(given) == _NO_TEXT, _NO_TEXT, given)
    if given.dtype.kind == "b":
        return given.astype(np.int64)
    if given.dtype.kind == "f":
        return _clean_floats(given, where)
    if given.dtype.kind not in "iu":
        raise DataError(f"{name} {has} the dtype {given.dtype}; {_REGRESSION}")
    return _check_range(given, where).astype(np.int64)


def _clean_floats(given: np.ndarray, where: Locate) -> np.ndarray:
    known = ~np.isnan(given)
    broken = np.flatnonzero(known & (given != np.floor(given)))
    if broken.size:
        raise DataError(
            f"{where(int(broken[0]))}: the label is {given[broken[0]]:g}; {_REGRESSION}"
        )
    whole = np.where(known, given, MISSING)
    return _check_range(whole, where).astype(np.int64)


def _check_range(given: np.ndarray, where: Locate) -> np.ndarray:
    """Reject integers below -1, which are neither a class nor a missing label."""
    if given.size and (given.min() < MISSING or given.max() > np.iinfo(np.int64).max):
        row = int(given.argmin() if given.min() < MISSING else given.argmax())
        raise DataError(
            f"{where(row)}: the label is {given[row]}; number classes from 0, and write -1 "
            "where there is none"
        )
    return given


def _clean_objects(given: np.ndarray, where: Locate) -> np.ndarray:
    """Clean labels of mixed types, one by one."""
    entries: list[int | str | None] = []
    for row, value in enumerate(given.tolist()):
        if isinstance(value, bytes):
            value = value.decode(errors="replace")
        if is_missing(value):
            entries.append(None)
        elif isinstance(value, str):
            entries.append(value)
        elif isinstance(value, int | float | np.number) and _is_whole(value):
            entries.append(int(value))
        else:
            raise DataError(f"{where(row)}: the label is {quote(value)}; {_REGRESSION}")
    texts = [isinstance(entry, str) for entry in entries if entry is not None]
    if any(texts) and not all(texts):
        row = next(r for r, entry in enumerate(entries) if isinstance(entry, int))
        raise DataError(
            f"{where(row)}: the label is the number {entries[row]!r} among text; write all "
            "labels as numbers or all as text"
        )
    if any(texts):
        return np.array([_NO_TEXT if e is None else e for e in entries], dtype=np.str_)
    whole = np.array([MISSING if e is None else e for e in entries], dtype=np.int64)
    return _check_range(whole, where)


def _is_whole(value: Any) -> bool:
    """Whether a number is an integer that int64 can hold."""
    return bool(abs(value) < np.iinfo(np.int64).max and value == int(value))


def known(labels: np.ndarray) -> np.ndarray:
    """Which of cleaned labels are there."""
    return np.asarray(labels != (_NO_TEXT if labels.dtype.kind == "U" else MISSING))


def is_missing(label: Any) -> bool:
    """Whether a single label says that there is none."""
    if label is None or type(label).__name__ in ("NAType", "NaTType"):  # pandas' NA compares as NA
        return True
    if isinstance(label, str):
        return not label.strip()
    return bool(label != label or label == MISSING)


def join(parts: Mapping[str, np.ndarray]) -> np.ndarray:
    """Concatenate cleaned labels, by where they come from; a part without labels fits any other."""
    labelled = {origin: part for origin, part in parts.items() if known(part).any()}
    kinds = {part.dtype.kind: origin for origin, part in labelled.items()}
    if len(kinds) > 1:
        raise DataError(
            f"{kinds['U']} has text for labels and {kinds['i']} numbers; write all labels as "
            "numbers or all as text"
        )
    empty = _NO_TEXT if "U" in kinds else MISSING
    filled = [part if o in labelled else np.full(len(part), empty) for o, part in parts.items()]
    return np.concatenate(filled)


def encode(train: np.ndarray, test: np.ndarray) -> tuple[np.ndarray, np.ndarray, ClassNames]:
    """Number the classes of cleaned labels in their order; return both parts and the classes.

    The classes are those of the training labels. Without any, they are those of the test labels.
    """
    seen = train[known(train)]
    names = _sort(seen if seen.size else test[known(test)])
    return number(train, names, "y_train"), number(test, names, "y_test"), names


def _sort(labels: np.ndarray) -> ClassNames:
    distinct = np.unique(labels).tolist()
    return tuple(sort_names(distinct) if labels.dtype.kind == "U" else distinct)


def number(labels: np.ndarray, names: ClassNames, name: str = "the labels") -> np.ndarray:
    """Number cleaned labels by known classes; a label of another class is refused."""
    numbers = np.full(len(labels), MISSING, np.int64)
    rows = np.flatnonzero(known(labels))
    if not rows.size:
        return numbers
    classes = np.array(names or [_NO_TEXT])
    if classes.dtype.kind != labels.dtype.kind:
        raise _unknown(labels, rows[0], names, name)
    order = np.argsort(classes)
    slots = np.searchsorted(classes, labels[rows], sorter=order)
    numbers[rows] = order[np.minimum(slots, len(order) - 1)]
    strange = rows[classes[numbers[rows]] != labels[rows]]
    if strange.size:
        raise _unknown(labels, strange[0], names, name)
    return numbers


def _unknown(labels: np.ndarray, row: int, names: ClassNames, name: str) -> DataError:
    shown = ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")
    return DataError(
        f"{name}, row {row}: the label is {quote(labels[row].item())}, and the classes of the "
        f"training data are: {shown or 'none'}; give training samples of that class or drop it"
    )
