"""Hashes that are remembered until the next start of the machine."""

import os
from pathlib import Path

import pytest

from coterie.data import boot_record
from coterie.data.boot_record import hash_files, hash_once


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose starts a test can number, and whose files are settled at once."""
    (tmp_path / "boot").write_text("one\n")
    monkeypatch.setattr(boot_record, "_BOOT", tmp_path / "boot")
    monkeypatch.setattr(boot_record, "_SETTLED", -(10**12))
    return tmp_path / "boot"


class Hasher:
    """Hashes a file by way of a record, and counts how often it was read."""

    def __init__(self, folder: Path) -> None:
        self.file, self.record, self.read = folder / "file", folder / "cache" / "record", 0
        self.file.write_bytes(b"content")

    def __call__(self) -> str:
        def compute() -> str:
            self.read += 1
            return hash_files([self.file])

        return hash_once(self.record, [self.file], compute)


def test_a_file_is_read_once_a_boot(boot: Path, tmp_path: Path) -> None:
    hasher = Hasher(tmp_path)
    assert hasher() == hasher() == hash_files([hasher.file])
    assert hasher.read == 1
    boot.write_text("two\n")
    assert hasher() == hasher()
    assert hasher.read == 2


def test_a_file_that_changes_is_read_again_whatever_its_times_say(
    boot: Path, tmp_path: Path
) -> None:
    hasher = Hasher(tmp_path)
    first, before = hasher(), hasher.file.stat()
    hasher.file.write_bytes(b"CONTENT")
    os.utime(hasher.file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert hasher() != first
    other = tmp_path / "other"
    other.write_bytes(b"content")
    other.replace(hasher.file)
    assert hasher() == first
    assert hasher.read == 3


@pytest.mark.parametrize("damage", [b"", b"[]", b"{}", b"3", b"\xff", b'["one", "a", "b", "c"]'])
def test_a_damaged_record_is_not_believed(damage: bytes, boot: Path, tmp_path: Path) -> None:
    hasher = Hasher(tmp_path)
    first = hasher()
    hasher.record.write_bytes(damage)
    assert hasher() == first and hasher.read == 2


def test_any_flipped_bit_of_a_record_is_noticed(boot: Path, tmp_path: Path) -> None:
    hasher = Hasher(tmp_path)
    first, whole = hasher(), hasher.record.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        hasher.record.write_bytes(damaged)
        assert hasher() == first


def test_what_was_written_a_moment_ago_is_not_remembered(
    boot: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hasher = Hasher(tmp_path)
    monkeypatch.setattr(boot_record, "_SETTLED", 10**12)
    assert hasher() == hasher() and hasher.read == 2
    assert not hasher.record.exists()


def test_what_changes_while_it_is_read_is_not_remembered(boot: Path, tmp_path: Path) -> None:
    hasher = Hasher(tmp_path)

    def compute() -> str:
        hasher.file.write_bytes(b"content and more")
        return "of neither"

    assert hash_once(hasher.record, [hasher.file], compute) == "of neither"
    assert not hasher.record.exists()


def test_without_boots_or_a_writable_cache_every_call_reads(boot: Path, tmp_path: Path) -> None:
    hasher = Hasher(tmp_path)
    boot.unlink()
    assert hasher() == hasher() and hasher.read == 2
    boot.write_text("one\n")
    (tmp_path / "cache").write_text("a file in the way")
    assert hasher() == hasher() and hasher.read == 4


def test_a_pipe_is_not_read(boot: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        hash_once(tmp_path / "record", [tmp_path / "pipe"], lambda: "")
