"""Bundles between machines: blobs travel as bytes, and land under names that we choose."""

import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.core import codec
from coterie.core.bundle import Blob, Bundle
from coterie.core.codec import Limits, Mismatch
from coterie.core.errors import CheckpointError, CodecError
from coterie.core.schema import Rows, Schema

ROWS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    blobs = {
        "pairs": Blob.write(tmp_path / "sent" / "pairs", [ROWS]),
        "labels": Blob.write(tmp_path / "sent" / "labels", [np.arange(4)]),
        "none": Blob.write(tmp_path / "sent" / "none", [ROWS[:0]]),
    }
    return Bundle({"g": {"x": torch.ones(2)}}, {"n": 3}, blobs)


def change(data: bytes, old: bytes, new: bytes) -> bytes:
    assert len(old) == len(new) and data.count(old) == 1
    return data.replace(old, new)


def test_blobs_travel_as_bytes_under_names_of_ours(bundle: Bundle, tmp_path: Path) -> None:
    data = codec.pack(bundle)
    assert str(tmp_path).encode() not in data
    found = codec.unpack(data, tmp_path / "got")
    assert found.digest() == bundle.digest()
    assert np.array_equal(found.blobs["pairs"].open(), ROWS)
    names = {hashlib.sha256(blob.open().tobytes()).hexdigest() for blob in found.blobs.values()}
    assert {path.name for path in (tmp_path / "got").iterdir()} == names
    assert all(blob.is_intact() for blob in found.blobs.values())


def test_packed_bytes_do_not_depend_on_where_blobs_lie(bundle: Bundle, tmp_path: Path) -> None:
    again = codec.unpack(codec.pack(bundle), tmp_path / "elsewhere")
    assert codec.pack(again) == codec.pack(bundle)


def test_a_bundle_without_blobs_writes_no_folder(tmp_path: Path) -> None:
    found = codec.unpack(codec.pack(Bundle(scalars={"n": 1})), tmp_path / "got")
    assert found.scalars == {"n": 1}
    assert not (tmp_path / "got").exists()


def test_changed_contents_are_refused_and_leave_no_file(bundle: Bundle, tmp_path: Path) -> None:
    data = bytearray(codec.pack(bundle))
    data[-1] ^= 1
    with pytest.raises(CodecError, match="'pairs' does not have its checksum"):
        codec.unpack(data, tmp_path / "got")
    left = {path.name for path in (tmp_path / "got").iterdir()}
    assert bundle.blobs["pairs"].sha256 not in left
    assert not any(name.endswith(".tmp") for name in left)


@pytest.mark.parametrize("shape", [b"[9, 3]", b"[4, 9]", b"[0, 3]"])
def test_a_lying_shape_is_refused_before_anything_is_written(
    shape: bytes, bundle: Bundle, tmp_path: Path
) -> None:
    data = change(codec.pack(bundle), b"[4, 3]", shape)
    with pytest.raises(CodecError, match="its blobs do not have"):
        codec.unpack(data, tmp_path / "got")
    assert not (tmp_path / "got").exists()


def test_a_path_from_another_machine_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    body = codec.encode(Bundle(blobs={"pairs": bundle.blobs["pairs"]}))
    data = struct.pack("<8sQ", b"coterie\x01", len(body)) + body + ROWS.tobytes()
    with pytest.raises(CodecError, match="has no path"):
        codec.unpack(data, tmp_path / "got")


def test_every_truncation_of_a_packed_bundle_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    data = codec.pack(bundle)
    for size in range(0, len(data), 7):
        with pytest.raises(CodecError):
            codec.unpack(data[:size], tmp_path / "got")
    with pytest.raises(CodecError):
        codec.unpack(data + b"\0", tmp_path / "got")


def test_a_blob_that_is_not_there_cannot_be_packed(bundle: Bundle) -> None:
    bundle.blobs["pairs"].path.write_bytes(b"short")
    with pytest.raises(CodecError, match="does not have its size"):
        codec.pack(bundle)
    bundle.blobs["pairs"].path.unlink()
    with pytest.raises(CodecError, match="cannot be read"):
        codec.pack(bundle)


def test_a_disk_that_fails_is_not_the_sender_s_fault(bundle: Bundle, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError):
        codec.unpack(codec.pack(bundle), tmp_path / "file")


def test_limits_come_before_everything(bundle: Bundle, tmp_path: Path) -> None:
    data = codec.pack(bundle)
    for limits in (Limits(total=100), Limits(header=100), Limits(tensors=0), Limits(blobs=2)):
        with pytest.raises(CodecError, match="not a bundle"):
            codec.unpack(data, tmp_path / "got", limits)
    assert not (tmp_path / "got").exists()


def test_the_schema_comes_before_tensors_and_blobs(bundle: Bundle, tmp_path: Path) -> None:
    groups = {"g": {"x": ("float32", (2,))}}
    blobs = {"pairs": Rows("float32", (3,), 4), "labels": Rows("int64", (), 4)}
    right = Schema(groups, {**blobs, "none": Rows("float32", (3,), 0)})
    data = codec.pack(bundle)
    assert codec.unpack(data, tmp_path / "right", expected=right).digest() == bundle.digest()
    wrong = {
        "the array 'none'": Schema(groups, blobs),
        "4 rows, at most 3": Schema(groups, {**right.blobs, "pairs": Rows("float32", (3,), 3)}),
        r"not rows of float64 \[3\]": Schema(
            groups, {**right.blobs, "pairs": Rows("float64", (3,), 4)}
        ),
        r"g/x is float32 \[2\], not float32 \[3\]": Schema(
            {"g": {"x": ("float32", (3,))}}, right.blobs
        ),
        "group 'g'": Schema({}, right.blobs),
    }
    for reason, schema in wrong.items():
        with pytest.raises(Mismatch, match=reason):
            codec.unpack(data, tmp_path / "wrong", expected=schema)
    assert not (tmp_path / "wrong").exists()
