"""`digits`: the 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from coterie.data.datasets import Raw

INSTALLED = True  # there are no files of the user's
_CLASSES = 10
_TEST_SHARE = 0.2
_SPLIT_SEED = 0
_BRIGHTEN = 15  # scales the values 0..16 to bytes, 0..240


def files(root: str) -> tuple[Path, ...]:
    """Find the file inside scikit-learn without importing it."""
    spec = find_spec("sklearn")
    package = Path(spec.origin).parent if spec and spec.origin else Path()
    return (package / "datasets" / "data" / "digits.csv.gz",)


def read(root: str) -> Raw:
    """Read the digits, with a stratified 80/20 split that is the same in every run."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    values, labels = load_digits(return_X_y=True)
    images = (values.reshape(-1, 1, 8, 8) * _BRIGHTEN).astype(np.uint8)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=_TEST_SHARE, stratify=labels, random_state=_SPLIT_SEED
    )
    return Raw(x_train, y_train, x_test, y_test, _CLASSES, mean=(0.5,), std=(0.5,))
