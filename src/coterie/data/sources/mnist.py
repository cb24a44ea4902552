"""`mnist`: 70,000 handwritten digits of 28 x 28 pixels, as IDX files."""

from coterie.data.formats import idx

_SOURCE = idx.IdxFiles("mnist", "MNIST", mean=0.1307, std=0.3081)
files, read = _SOURCE.files, _SOURCE.read
