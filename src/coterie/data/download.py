"""Downloads of official files, on request only, checked against a pinned SHA-256."""

import contextlib
import hashlib
import http.client
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from coterie.core import files, registry
from coterie.core.errors import ConfigError, DataError
from coterie.core.formatting import format_bytes
from coterie.data import datasets
from coterie.data.formats import idx

_CHUNK = 2**20
_TIMEOUT = 30


@dataclass(frozen=True, slots=True)
class Remote:
    """A file at its official URL; `folder` is the subfolder of the root it belongs in."""

    address: str
    size: int
    sha256: str
    folder: str = ""

    @property
    def name(self) -> str:
        """The official file name."""
        return self.address.rsplit("/", 1)[-1]


_CIFAR = "https://www.cs.toronto.edu/~kriz/"
# SHA-256: keras/datasets/cifar10.py and cifar100.py; the MD5 sums of the official page are
# c58f30108f718f92721af3b95e74349a and eb9058c3a382ffc7106e4002c42a8d85.
_CIFAR10_SHA256 = "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce"
_CIFAR100_SHA256 = "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7"


def _idx_files(base: str, folder: str, *pinned: tuple[int, str]) -> tuple[Remote, ...]:
    """Describe the four files of an IDX data set by their sizes and SHA-256."""
    return tuple(
        Remote(f"{base}{name}-ubyte.gz", length, sha256, folder)
        for name, (length, sha256) in zip(idx.NAMES, pinned, strict=True)
    )


REMOTES: dict[str, tuple[Remote, ...]] = {
    "cifar10": (Remote(f"{_CIFAR}cifar-10-python.tar.gz", 170498071, _CIFAR10_SHA256),),
    "cifar100": (Remote(f"{_CIFAR}cifar-100-python.tar.gz", 169001437, _CIFAR100_SHA256),),
    # SHA-256 and sizes: tensorflow/datasets, url_checksums/mnist.txt
    "mnist": _idx_files(
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "mnist",
        (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
    # SHA-256 and sizes: tensorflow/datasets, url_checksums/fashion_mnist.txt
    "fashion-mnist": _idx_files(
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "fashion-mnist",
        (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
}


def fetch(dataset: str, root: Path, say: Callable[[str], object]) -> None:
    """Download the official files of a data set to `root`, reporting every step."""
    registry.check_known("the data set", dataset, datasets.names())
    if dataset == "digits":
        say("digits comes with scikit-learn: there is nothing to download")
        return
    if dataset not in REMOTES:
        raise ConfigError(
            f"the data set {dataset!r} is made of your own files and cannot be downloaded; "
            f"there are: {', '.join(REMOTES)}"
        )
    for remote in REMOTES[dataset]:
        _fetch_file(remote, root / remote.folder / remote.name, say)
    say(f"set data.name={dataset} data.root={root}")


def _fetch_file(remote: Remote, target: Path, say: Callable[[str], object]) -> None:
    if target.exists():
        _check_existing(remote, target)
        say(f"{target} is already there, with the right SHA-256")
        return
    say(f"{remote.address} ({format_bytes(remote.size)}) -> {target}")
    temporary = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        files.mkdir(target.parent)
        with files.open_to_write(temporary) as file:
            for chunk in _read_chunks(remote, temporary.parent):
                files.write(file, chunk)
                if file.tell() > remote.size:  # not the right file: do not fill the disk
                    break
        digest = _hash(temporary)
        if digest != remote.sha256:
            raise DataError(
                f"{remote.address} gave {temporary.stat().st_size} of {remote.size} bytes with "
                f"SHA-256 {digest}, not {remote.sha256}; the file was removed: try again"
            )
        files.rename(temporary, target)
    except OSError as error:
        raise DataError(
            f"{target} cannot be written ({error.strerror or error}); give another --root"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            files.remove_file(temporary)


def _check_existing(remote: Remote, target: Path) -> None:
    """Refuse a different file of that name: it is the user's, so it is not replaced."""
    try:
        digest = _hash(target)
    except OSError as error:
        raise DataError(f"{target} cannot be read ({error.strerror}); move it away") from error
    if digest != remote.sha256:
        raise DataError(
            f"{target} is there with SHA-256 {digest}, not {remote.sha256}; delete it and "
            "download it again"
        )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _read_chunks(remote: Remote, folder: Path) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(remote.address, timeout=_TIMEOUT) as response:
            while chunk := response.read(_CHUNK):
                yield chunk
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        reason = getattr(error, "reason", "") or str(error) or type(error).__name__
        raise DataError(
            f"{remote.address} cannot be fetched ({reason}); where there is no internet, copy "
            f"{remote.name} to {folder} by hand"
        ) from error
