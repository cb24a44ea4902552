"""The cache of decoded data: verified by hash, keyed by the contents of the source."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_data_checks import images, with_value
from test_datasets import contents, save

from coterie.core.errors import DataError
from coterie.data import boot_record, cache_folder, checks, datasets
from coterie.data.datasets import load, open_cached
from coterie.data.sources import arrays as arrays_source


def flip(path: Path, position: int) -> None:
    """Change one bit, and set the times of the file back."""
    before = path.stat()
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_the_cache_follows_the_contents_of_the_source_and_not_its_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = save(tmp_path / "own.npz", **images())
    first = load("arrays", root, tmp_path / "cache")
    before = Path(root).stat()
    save(tmp_path / "own.npz", **with_value("y_train", 1, 2))
    os.utime(root, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert Path(root).stat().st_size == before.st_size
    changed = load("arrays", root, tmp_path / "cache")
    assert changed.y_train[1] == 2 and changed.fingerprint != first.fingerprint
    os.utime(root)
    monkeypatch.setattr(arrays_source, "read", None)
    assert load("arrays", root, tmp_path / "cache").fingerprint == changed.fingerprint


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("file", [*(f"{name}.npy" for name in checks.ARRAYS), "meta.json"])
def test_a_flipped_bit_is_never_used_and_said(
    file: str, settled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if settled:
        monkeypatch.setattr(boot_record, "_SETTLED", -(10**12))
    root = save(tmp_path / "own.npz", **images())
    good = load("arrays", root, tmp_path / "cache")
    assert load("arrays", root, tmp_path / "cache").notes == ()
    flip(good.path / file, -5 if file == "meta.json" else -1)
    again = load("arrays", root, tmp_path / "cache")
    (note,) = again.notes
    assert note == f"the data cache {good.path} was damaged; it was written again"
    assert contents(again) == [values.tobytes() for values in images().values()]
    assert load("arrays", root, tmp_path / "cache").notes == ()


def test_each_byte_is_hashed_once_a_boot_and_never_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = save(tmp_path / "own.npz", **images())
    folder = load("arrays", root, tmp_path / "cache").path
    monkeypatch.setattr(boot_record, "_SETTLED", -(10**12))
    hashed: list[object] = []
    for module, name in ((datasets, "hash_files"), (cache_folder, "_hash")):
        actual = getattr(module, name)

        def count(what: Any, do: Callable[[Any], str] = actual) -> str:
            hashed.append(what)
            return do(what)

        monkeypatch.setattr(module, name, count)
    open_cached(folder)
    assert not hashed
    for _ in range(3):
        load("arrays", root, tmp_path / "cache")
    assert len(hashed) == 2  # the source and the cache
    boot = tmp_path / "boot"
    boot.write_text("another start of the machine")
    monkeypatch.setattr(boot_record, "_BOOT", boot)
    load("arrays", root, tmp_path / "cache")
    assert len(hashed) == 4


def test_too_few_file_handles_are_called_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = save(tmp_path / "own.npz", **images())
    good = load("arrays", root, tmp_path / "cache")
    actual = np.load

    def fail(file: Path, *rest: Any, **options: Any) -> Any:
        if file.suffix == ".npy":
            raise OSError(errno.EMFILE, "Too many open files", str(file))
        return actual(file, *rest, **options)

    monkeypatch.setattr(np, "load", fail)
    monkeypatch.setattr(arrays_source, "read", None)  # it is not decoded again for that
    for call in (lambda: open_cached(good.path), lambda: load("arrays", root, tmp_path / "cache")):
        with pytest.raises(
            DataError, match=r"x_train\.npy cannot be opened: .* ulimit -n"
        ) as error:
            call()
        assert "damaged" not in str(error.value)
    assert good.path.is_dir()


def test_a_process_with_few_file_handles_says_so(tmp_path: Path) -> None:
    root = save(tmp_path / "own.npz", **images())
    folder = load("arrays", root, tmp_path / "cache").path
    code = (
        "import os, resource, sys; from pathlib import Path\n"
        "from coterie.data import datasets; from coterie.core.errors import DataError\n"
        "datasets.open_cached(Path(sys.argv[1]))\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))\n"
        "kept = []\n"
        "try:\n    while True: kept.append(os.open('/dev/null', os.O_RDONLY))\n"
        "except OSError: pass\n"
        "try: datasets.open_cached(Path(sys.argv[1]))\n"
        "except DataError as error: print(error)\n"
    )
    command = [sys.executable, "-c", code, str(folder)]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "has as many files open as it may" in said.stdout, said.stderr
    assert "damaged" not in said.stdout
