"""The codec: what goes in comes out, the bytes are deterministic, and bad bytes are one error."""

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core import codec
from coterie.core.bundle import Blob, Bundle
from coterie.core.errors import CodecError

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
]
seeded = settings(max_examples=300, deadline=None, derandomize=True, database=None)


def sample() -> Bundle:
    w = torch.arange(6.0).reshape(2, 3)
    return Bundle(
        {
            "model": {"w": w, "n": torch.tensor(3), "flags": torch.tensor([True, False])},
            "half": {"w": w.bfloat16(), "nothing": torch.empty(0, 4)},
            "no tensors": {},
        },
        {"steps": 4, "share": 0.1, "name": "pré\u2028\x1f", "done": True, "big": 2**70},
        {"features": Blob(Path("/somewhere/features"), "float32", (2, 3), "ab" * 32)},
    )


SAMPLE = codec.encode(sample())


def through(bundle: Bundle) -> Bundle:
    return codec.decode(codec.encode(bundle))


def crafted(head: Any, tensors: dict[str, Any] | None = None, body: bytes = b"") -> bytes:
    """Bytes with a well-formed frame around any content."""
    header = {"__metadata__": {"bundle": json.dumps(head)}, **(tensors or {})}
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def head(**changes: Any) -> dict[str, Any]:
    return {"groups": [], "scalars": {}, "blobs": {}} | changes


def exercise(data: bytes) -> None:
    """Decode; what comes out must be a bundle that every consumer can use."""
    try:
        bundle = codec.decode(data)
    except CodecError:
        return
    assert bundle.nbytes() >= 0
    assert through(bundle).digest() == bundle.digest()
    assert all(isinstance(group, str) for group in bundle.tensors)
    assert all(isinstance(value, int | float | str) for value in bundle.scalars.values())


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    count = torch.Size(shape).numel()
    tensor = (torch.arange(count) % 2 if dtype is torch.bool else torch.arange(count)).to(dtype)
    found = through(Bundle({"g": {"x": tensor.reshape(shape)}}))["g"]["x"]
    assert (found.dtype, found.shape) == (dtype, shape)
    assert torch.equal(found, tensor.reshape(shape))


def test_special_values_keep_their_bits() -> None:
    bits = torch.tensor([0x7FC00001, -0x80000000, 0x7F800000, 1], dtype=torch.int32)
    found = through(Bundle({"g": {"x": bits.view(torch.float32)}}))["g"]["x"]
    assert torch.equal(found.view(torch.int32), bits)


def test_everything_comes_back() -> None:
    found = codec.decode(SAMPLE)
    assert found.digest() == sample().digest()
    assert set(found.tensors) == {"model", "half", "no tensors"}
    assert found.scalars == sample().scalars
    assert found.blobs == sample().blobs
    assert [type(value) for value in found.scalars.values()] == [int, bool, str, float, int]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), -0.0, 1e-320, "", "\x00"])
def test_unusual_scalars(value: float | str) -> None:
    assert repr(through(Bundle(scalars={"x": value})).scalars["x"]) == repr(value)


def test_shared_memory_and_views() -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "base": base,
        "again": base,
        "transposed": base.T,
        "row": base[1],
        "column": base[:, 1],
        "none": base[:0],
        "expanded": base[0].expand(2, 4),
        "other type": base.view(torch.int32),
        "parameter": torch.nn.Parameter(base),
    }
    found = through(Bundle({"a": tensors, "b": {"base": base}}))
    for name, tensor in tensors.items():
        assert torch.equal(found["a"][name], tensor), name
    assert torch.equal(found["b"]["base"], base)
    found["a"]["base"].zero_()
    assert torch.equal(found["a"]["again"], base)


def test_decoded_tensors_do_not_share_the_bytes() -> None:
    data = bytearray(SAMPLE)
    found = codec.decode(data)
    data[:] = bytes(len(data))
    assert found.digest() == sample().digest()
    assert codec.decode(memoryview(SAMPLE)).digest() == sample().digest()


def test_bytes_are_deterministic() -> None:
    w, v = torch.arange(3.0), torch.ones(2, dtype=torch.float64)
    one = Bundle({"a": {"w": w, "v": v}, "b": {"v": w, "w": v}}, {"x": 1, "y": "z"})
    other = Bundle({"b": {"w": v, "v": w}, "a": {"v": v.clone(), "w": w}}, {"y": "z", "x": 1})
    assert codec.encode(one) == codec.encode(other)
    assert codec.encode(sample()) == SAMPLE == codec.encode(codec.decode(SAMPLE))


@pytest.mark.parametrize("names", [("a\x1fb", "x"), ("a", "x\x1fy")])
def test_names_may_not_hold_the_separator(names: tuple[str, str]) -> None:
    group, name = names
    with pytest.raises(CodecError, match=r"U\+001F"):
        codec.encode(Bundle({group: {name: torch.ones(1)}}))


def test_unusual_names() -> None:
    tensors = {name: torch.ones(1) for name in ("", "__metadata__", "a.b/c", "é\n")}
    found = through(Bundle({"": tensors, "__metadata__": tensors}))
    assert set(found[""]) == set(found["__metadata__"]) == set(tensors)


FLOATS = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
MALFORMED = {
    "nothing": b"",
    "a cut length": b"\x01\x00",
    "a header that is not there": struct.pack("<Q", 10) + b"{}",
    "a huge header": struct.pack("<Q", 2**63) + b"{}",
    "a header that is no object": struct.pack("<Q", 2) + b"[]",
    "deep nesting": struct.pack("<Q", 99_999) + b"[" * 99_999,
    "no metadata": struct.pack("<Q", 2) + b"{}",
    "a head that is a list": crafted([]),
    "a head without groups": crafted({"scalars": {}, "blobs": {}}),
    "a tensor of no group": crafted(head(), {"g\x1fx": FLOATS}, bytes(8)),
    "a tensor without a separator": crafted(head(groups=["g"]), {"gx": FLOATS}, bytes(8)),
    "a short body": crafted(head(groups=["g"]), {"g\x1fx": FLOATS}, bytes(7)),
    "a long body": crafted(head(groups=["g"]), {"g\x1fx": FLOATS}, bytes(9)),
    "an unknown dtype": crafted(
        head(groups=["g"]), {"g\x1fx": FLOATS | {"dtype": "F8_E8M0"}}, bytes(8)
    ),
    "a huge shape": crafted(
        head(groups=["g"]), {"g\x1fx": FLOATS | {"shape": [0, 2**63], "data_offsets": [0, 0]}}
    ),
    "a group that is no text": crafted(head(groups=[5])),
    "groups that are no list": crafted(head(groups="ab")),
    "scalars that are no object": crafted(head(scalars=[["a", 1]])),
    "a scalar that is null": crafted(head(scalars={"a": None})),
    "a scalar that is a list": crafted(head(scalars={"a": [1]})),
    "a blob of two parts": crafted(head(blobs={"b": ["/x", "float32"]})),
    "a blob of an unknown dtype": crafted(head(blobs={"b": ["/x", "floau32", [2], "00"]})),
    "a blob of objects": crafted(head(blobs={"b": ["/x", "object", [2], "ab" * 32]})),
    "a blob of negative size": crafted(head(blobs={"b": ["/x", "float32", [-2], "ab" * 32]})),
    "a blob of no shape": crafted(head(blobs={"b": ["/x", "float32", "12", "ab" * 32]})),
    "a blob of half a row": crafted(head(blobs={"b": ["/x", "float32", [1.5], "ab" * 32]})),
    "a blob whose hash is a path": crafted(head(blobs={"b": ["/x", "int8", [1], "../../x"]})),
    "a blob whose path is a number": crafted(head(blobs={"b": [1, "int8", [1], "ab" * 32]})),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED)
def test_malformed_bytes(data: bytes) -> None:
    with pytest.raises(CodecError, match="not a bundle"):
        codec.decode(data)


def test_every_truncation_is_refused() -> None:
    for size in range(len(SAMPLE)):
        with pytest.raises(CodecError):
            codec.decode(SAMPLE[:size])


def test_every_bit_flip() -> None:
    for position in range(len(SAMPLE)):
        for bit in range(8):
            changed = bytearray(SAMPLE)
            changed[position] ^= 1 << bit
            exercise(bytes(changed))


@seeded
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.integers(0, 255)), max_size=8))
def test_changed_bytes(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SAMPLE)
    for position, value in changes:
        data[position] = value
    exercise(bytes(data))


@seeded
@given(st.binary(max_size=200))
def test_random_bytes(noise: bytes) -> None:
    exercise(noise)
    exercise(struct.pack("<Q", len(noise)) + noise)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)


@seeded
@given(ANYTHING, ANYTHING, ANYTHING)
def test_any_head(groups: Any, scalars: Any, blobs: Any) -> None:
    exercise(crafted(head(groups=groups)))
    exercise(crafted(head(scalars=scalars)))
    exercise(crafted(head(blobs={"b": blobs})))
    exercise(crafted(groups))


@seeded
@given(st.sampled_from(DTYPES), st.lists(st.integers(0, 4), max_size=3), st.integers(0, 99))
def test_any_tensor(dtype: torch.dtype, shape: list[int], seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 2, size=shape)
    tensor = torch.from_numpy(np.asarray(noise)).to(dtype)
    bundle = Bundle({"g": {"x": tensor, "same": tensor}})
    assert through(bundle).digest() == bundle.digest()
