"""`cifar100`: 60,000 photographs of 32 x 32 pixels with the hundred fine labels."""

from coterie.data.formats import cifar

_BINARY = cifar.Layout(
    "cifar-100-binary", "cifar-100-binary.tar.gz", ("train.bin", "test.bin"), label_bytes=2
)  # the labels are coarse, then fine
_PYTHON = cifar.Layout(
    "cifar-100-python", "cifar-100-python.tar.gz", ("train", "test"), key="fine_labels"
)
_MEAN = (0.5071, 0.4865, 0.4409)
_STD = (0.2673, 0.2564, 0.2762)
_SOURCE = cifar.Cifar("cifar100", (_BINARY, _PYTHON), 100, _MEAN, _STD)
files, read = _SOURCE.files, _SOURCE.read
