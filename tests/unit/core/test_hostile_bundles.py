"""Malformed payloads: only `CodecError` comes out, soon and with little memory."""

import gzip
import json
import pickle
import struct
import time
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from coterie.core import codec
from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import CodecError
from coterie.core.schema import Schema

COUNT = 2000
MANY = 100_000  # tensors of a header
MIB = 2**20
FORM = Schema({"model": {"w": ("float32", (8, 4)), "n": ("int64", ())}})

Draw = np.random.Generator
Damage = Callable[[bytes, Draw], bytes]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sent") / "rows"
    model = {"w": torch.arange(32.0).reshape(8, 4), "n": torch.tensor(3)}
    blob = Blob.write(path, [np.arange(24, dtype=np.float32).reshape(6, 4)])
    return codec.pack(Bundle({"model": model}, {"steps": 4, "name": "é"}, {"rows": blob}))


def flip(data: bytes, draw: Draw) -> bytes:
    changed = bytearray(data)
    for _ in range(draw.integers(1, 9)):
        changed[draw.integers(len(changed))] ^= 1 << draw.integers(8)
    return bytes(changed)


def cut(data: bytes, draw: Draw) -> bytes:
    return data[: draw.integers(len(data))]


def lengthen(data: bytes, draw: Draw) -> bytes:
    return data + draw.bytes(int(draw.integers(1, 99)))


def lie_about_a_length(data: bytes, draw: Draw) -> bytes:
    place = 8 * int(draw.integers(1, 3))
    lies = (0, 1, len(data), 2**31, 2**63, 2**64 - 1)
    return data[:place] + struct.pack("<Q", lies[draw.integers(len(lies))]) + data[place + 8 :]


def change_a_number(data: bytes, draw: Draw) -> bytes:
    digits = [k for k, byte in enumerate(data) if chr(byte).isdigit()]
    place = int(draw.choice(digits))
    return data[:place] + str(draw.integers(10)).encode() + data[place + 1 :]


def write_a_key_twice(data: bytes, draw: Draw) -> bytes:
    twice = b'{"__metadata__":{"bundle":"{}"},"__metadata__":{"bundle":"{}"}}'
    return frame(twice)


def pickle_it(data: bytes, draw: Draw) -> bytes:
    return pickle.dumps({"model": draw.random(4)}) if draw.random() < 0.5 else b"\x80\x04" + data


def compress_it(data: bytes, draw: Draw) -> bytes:
    bomb = bytes(int(draw.integers(1, MIB)))
    return gzip.compress(bomb) if draw.random() < 0.5 else frame(zlib.compress(bomb))


def nest_it(data: bytes, draw: Draw) -> bytes:
    depth = int(draw.integers(1, 50_000))
    return frame(b"[" * depth if draw.random() < 0.5 else b'{"a":' * depth)


def replace_a_piece(data: bytes, draw: Draw) -> bytes:
    start, size = int(draw.integers(len(data))), int(draw.integers(1, 60))
    return data[:start] + draw.bytes(size) + data[start + size :]


DAMAGES: list[Damage] = [
    flip,
    cut,
    lengthen,
    lie_about_a_length,
    change_a_number,
    write_a_key_twice,
    pickle_it,
    compress_it,
    nest_it,
    replace_a_piece,
]


def frame(header: bytes, body: bytes = b"") -> bytes:
    """Put the frame of a packed bundle around any header."""
    encoded = struct.pack("<Q", len(header)) + header + body
    return b"coterie\x01" + struct.pack("<Q", len(encoded)) + encoded


def malformed(packed: bytes) -> Iterator[bytes]:
    draw = np.random.default_rng(18)
    for number in range(COUNT):
        yield DAMAGES[number % len(DAMAGES)](packed, draw)


def test_only_codec_errors_escape(packed: bytes, tmp_path: Path) -> None:
    refused, start = 0, time.monotonic()
    for data in malformed(packed):
        for expected in (None, FORM):
            try:
                bundle = codec.unpack(data, tmp_path, expected=expected)
            except CodecError:
                refused += 1
            else:  # a changed number or name may still be a bundle: it must be a sound one
                assert bundle.nbytes() >= 0 and codec.pack(bundle)
            try:
                codec.decode(data[16:], codec.DEFAULT, expected)
            except CodecError:
                refused += 1
    assert refused > 3 * COUNT
    assert time.monotonic() - start < 120


def with_many_tensors(entry: dict[str, Any]) -> bytes:
    head = json.dumps({"groups": ["g"], "scalars": {}, "blobs": {}})
    tensors = {f"g\x1f{k}": entry for k in range(MANY)}
    return json.dumps({"__metadata__": {"bundle": head}, **tensors}).encode()


@pytest.mark.parametrize("expected", [None, FORM], ids=["no-schema", "schema"])
def test_a_hundred_thousand_empty_tensors_cost_nothing(
    expected: Schema | None, tmp_path: Path
) -> None:
    data = frame(with_many_tensors({"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}))
    tracemalloc.start()
    start = time.monotonic()
    try:
        with pytest.raises(CodecError, match="header has"):
            codec.unpack(data, tmp_path, expected=expected)
        seconds = time.monotonic() - start
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert seconds < 1.0
    assert most < 4 * MIB


def crafted(tensors: dict[str, Any], body: bytes = b"", **changes: Any) -> bytes:
    head = {"groups": ["g"], "scalars": {}, "blobs": {}} | changes
    header = {"__metadata__": {"bundle": json.dumps(head)}, **tensors}
    return frame(json.dumps(header).encode(), body)


EIGHT = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HOSTILE = {
    "complex numbers": crafted({"g\x1fx": EIGHT | {"dtype": "C64", "shape": [1]}}, bytes(8)),
    "8-bit floats": crafted({"g\x1fx": EIGHT | {"dtype": "F8_E4M3", "shape": [8]}}, bytes(8)),
    "a gap": crafted({"g\x1fx": EIGHT | {"data_offsets": [8, 16]}}, bytes(16)),
    "an overlap": crafted({"g\x1fx": EIGHT, "g\x1fy": EIGHT}, bytes(8)),
    "a truth value of 2": crafted(
        {"g\x1fx": {"dtype": "BOOL", "shape": [1], "data_offsets": [0, 1]}}, b"\x02"
    ),
    "an offset that is true": crafted({"g\x1fx": EIGHT | {"data_offsets": [False, 8]}}, bytes(8)),
    "33 dimensions": crafted({"g\x1fx": EIGHT | {"shape": [2] + [1] * 32}}, bytes(8)),
    "a shape that overflows": crafted(
        {"g\x1fx": {"dtype": "F32", "shape": [2**32, 2**32, 4], "data_offsets": [0, 0]}}
    ),
    "a blob that overflows": crafted({}, blobs={"b": ["", "int8", [2**62, 8], "ab" * 32]}),
    "a blob of complex numbers": crafted({}, blobs={"b": ["", "complex64", [1], "ab" * 32]}),
    "a blob of two fields": crafted({}, blobs={"b": ["", "float32,int8", [1], "ab" * 32]}),
    "an integer of 12,000 bits": crafted({}, scalars={"x": 1 << 12_000}),
    "half a character": crafted({}, scalars={"x": "\ud800"}),
    "a name of half a character": crafted({}, scalars={"\ud800": 1}),
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_hostile_headers(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(CodecError):
        codec.unpack(data, tmp_path / "got")
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e4m3fn])
def test_what_is_not_decoded_is_not_encoded_either(dtype: torch.dtype) -> None:
    bundle = Bundle({"g": {"x": torch.ones(2).to(dtype)}})
    with pytest.raises(CodecError, match=f"g/x is {str(dtype)[6:]}, not one of"):
        codec.encode(bundle)
