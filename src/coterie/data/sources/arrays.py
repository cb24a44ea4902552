"""`arrays`: your own data, an .npz file with x_train, y_train, x_test, y_test; or with x alone."""

from pathlib import Path

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
    """Arrange samples, clean labels and split off test samples; errors begin with `origin`.

    uint8 images are normalised with mean 0.5 and deviation 0.5 per channel, floats are not.
    """
    where = f"{origin}: x{arrays.part}"
    x = npz.arrange(arrays.x, where, kind)
    checks.check_axes(where, x)
    y = labels.clean(arrays.y, len(x), f"{origin}: y{arrays.part}")
    x = checks.convert_samples(where, x)
    half = npz.default_statistics(x)
    if arrays.x_test is None:
        train, test = hold_out(y)
        return Raw(x[train], y[train], x[test], y[test], mean=half, std=half)
    x_test = npz.arrange(arrays.x_test, f"{origin}: x_test", kind)
    checks.check_axes(f"{origin}: x_test", x_test)
    y_test = labels.clean(arrays.y_test, len(x_test), f"{origin}: y_test")
    x_test = checks.convert_samples(f"{origin}: x_test", x_test)
    return Raw(x, y, x_test, y_test, mean=half, std=half)
