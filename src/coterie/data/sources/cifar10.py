"""`cifar10`: 60,000 photographs of 32 x 32 pixels in ten classes, in either official layout."""

from coterie.data.formats import cifar

_FILES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_BIN = tuple(f"{file}.bin" for file in _FILES)
_BINARY = cifar.Layout("cifar-10-batches-bin", "cifar-10-binary.tar.gz", _BIN, label_bytes=1)
_PYTHON = cifar.Layout("cifar-10-batches-py", "cifar-10-python.tar.gz", _FILES, key="labels")
_MEAN = (125.3 / 255, 123.0 / 255, 113.9 / 255)
_STD = (63.0 / 255, 62.1 / 255, 66.7 / 255)
_SOURCE = cifar.Cifar("cifar10", (_BINARY, _PYTHON), 10, _MEAN, _STD)
files, read = _SOURCE.files, _SOURCE.read
