"""`arrays`: your own data, an .npz file with x_train, y_train, x_test, y_test; or with x alone."""

from pathlib import Path
from typing import Any

import numpy as np

from coterie.data import checks, labels
from coterie.data.datasets import AnyKind, Raw
from coterie.data.formats import locate, npz
from coterie.data.subset import hold_out


def files(root: str) -> tuple[Path, ...]:
    """Return the one file, with `~` expanded."""
    return (locate.expand_path(root),)


def read(root: str, kind: AnyKind = "auto") -> Raw:
    """Read the file; without test arrays a fifth of every class is held out."""
    path = locate.require_own("arrays", root, "file", "FILE.npz")
    return make_raw(str(path), npz.read(path), kind)


def make_raw(origin: str, arrays: npz.Arrays, kind: AnyKind = "auto") -> Raw:
    """Check samples and labels, and split off test samples; errors begin with `origin`.

    uint8 images are normalised with mean 0.5 and deviation 0.5 per channel, floats are not.
    """
    part = arrays.part
    x, y = arrange_labelled(arrays.x, arrays.y, f"{origin}: x{part}", f"{origin}: y{part}", kind)
    half = npz.default_statistics(x)
    if arrays.x_test is None:
        train, test = hold_out(y)
        return Raw(x[train], y[train], x[test], y[test], mean=half, std=half)
    names = (f"{origin}: x_test", f"{origin}: y_test")
    x_test, y_test = arrange_labelled(arrays.x_test, arrays.y_test, *names, kind)
    return Raw(x, y, x_test, y_test, mean=half, std=half)


def arrange_labelled(
    x: np.ndarray, y: Any, name: str, name_of_labels: str, kind: AnyKind
) -> tuple[np.ndarray, np.ndarray]:
    """Bring samples and labels to the form of a data set; errors begin with their names."""
    arranged = npz.arrange(x, name, kind)
    checks.check_axes(name, arranged)
    cleaned = labels.clean(y, len(arranged), name_of_labels)
    return checks.convert_samples(name, arranged), cleaned
