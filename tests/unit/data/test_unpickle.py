"""The unpickler of CIFAR files: what Python 2 and 3 write is read, whatever else is refused."""

import contextlib
import io
import os
import pickle
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coterie.data import unpickle


def python2(x: np.ndarray, **lists: list[int]) -> bytes:
    """A dictionary of one uint8 array and lists, byte for byte as Python 2 pickles it."""

    def text(value: bytes) -> bytes:
        return b"U" + bytes([len(value)]) + value

    out = b"\x80\x02}q\x01(" + text(b"data")
    out += b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85"
    out += text(b"b") + b"\x87Rq\x04(K\x01"
    out += b"".join(b"J" + struct.pack("<i", size) for size in x.shape) + b"\x86"
    out += b"cnumpy\ndtype\nq\x05" + text(b"u1") + b"K\x00K\x01\x87Rq\x06(K\x03" + text(b"|")
    out += b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89"
    out += b"T" + struct.pack("<i", x.size) + x.tobytes() + b"tb"
    for key, values in lists.items():
        out += text(key.encode()) + b"](" + b"".join(b"K" + bytes([v]) for v in values) + b"e"
    return out + b"u."


X = np.random.default_rng(0).integers(256, size=(4, 12)).astype(np.uint8)


def test_what_python_2_wrote() -> None:
    found = unpickle.loads(python2(X, labels=[3, 1, 4, 1]))
    assert found.keys() == {b"data", b"labels"}
    assert np.array_equal(found[b"data"], X)
    assert found[b"labels"] == [3, 1, 4, 1]


@pytest.mark.parametrize("protocol", range(6))
def test_what_python_3_writes(protocol: int) -> None:
    given = {
        "data": X,
        "fortran": np.asfortranarray(X),
        "labels": [3, 1, 4],
        "wide": np.arange(3, dtype=">i4"),
        "scalar": np.int64(7),
        "floats": np.array(1.5),
        "empty": b"",
        "blob": b"\x00\xff",
        "nested": ({"a": None}, [True, 2.5, "text"]),
    }
    found = unpickle.loads(pickle.dumps(given, protocol))
    assert np.array_equal(found["data"], X)
    assert np.array_equal(found["fortran"], X)
    assert found["wide"].tolist() == [0, 1, 2]
    assert (found["scalar"], found["floats"]) == (7, np.array(1.5))
    for key in ("labels", "empty", "blob", "nested"):
        assert found[key] == given[key]


class Calls:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


MARK = Path("unpickle-was-here")


def persistent() -> bytes:
    stream = io.BytesIO()
    pickler = pickle.Pickler(stream, 2)
    pickler.persistent_id = lambda _: "outside"  # type: ignore[method-assign]
    pickler.dump([1])
    return stream.getvalue()


def looped() -> bytes:
    loop: list[Any] = []
    loop.append(loop)
    return pickle.dumps(loop)


def deep() -> bytes:
    value: Any = 1
    for _ in range(30):
        value = [value]
    return pickle.dumps(value)


RECONSTRUCT = b"cnumpy.core.multiarray\n_reconstruct\n"
MALICIOUS: dict[str, bytes] = {
    "system": pickle.dumps(Calls(os.system, f"touch {MARK}")),
    "system inside": pickle.dumps({"data": [Calls(os.system, f"touch {MARK}")]}),
    "eval": pickle.dumps(Calls(eval, "1"), 2),
    "python 2 eval": b"c__builtin__\neval\n(U\x011tR.",
    "old instance": b"(S'touch unpickle-was-here'\nios\nsystem\n.",
    "object opcode": b"(cos\nsystem\nS'true'\no.",
    "load of a pickle": pickle.dumps(Calls(np.load, "x.npy", None, True)),
    "getattr": pickle.dumps(Calls(getattr, "a", "format")),
    "attribute path": b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.__dict__\x93.",
    "other encoding": b"\x80\x02c_codecs\nencode\nX\x01\x00\x00\x00aX\x05\x00\x00\x00rot13\x86R.",
    "bytes of a size": b"\x80\x02c__builtin__\nbytes\nJ\xff\xff\xff\x7f\x85R.",
    "altered name": b"\x80\x02" + RECONSTRUCT + b"}X\x04\x00\x00\x00nameK\x01sb.",
    "altered slots": b"\x80\x02" + RECONSTRUCT + b"N}X\x09\x00\x00\x00_functionK\x01s\x86b.",
    "name as a value": b"\x80\x02" + RECONSTRUCT + b".",
    "new object": b"\x80\x02cnumpy\ndtype\n)\x81.",
    "array without contents": b"\x80\x02cnumpy\nndarray\nK\x05\x85R.",
    "objects": pickle.dumps(np.array([{}, []], dtype=object)),
    "records": pickle.dumps(np.zeros(2, [("a", "u1"), ("b", "f4")])),
    "dates": pickle.dumps(np.array(["2020"], "M8[Y]")),
    "text array": pickle.dumps(np.array(["ab"])),
    "shape of more": python2(X).replace(struct.pack("<i", 12), struct.pack("<i", 2**31 - 1), 1),
    "negative shape": python2(X).replace(struct.pack("<i", 4), struct.pack("<i", -4), 1),
    "set": pickle.dumps({1, 2}, 4),
    "path": pickle.dumps(Path("x")),
    "complex": pickle.dumps(1j),
    "extension": b"\x80\x02\x82\x01.",
    "persistent": persistent(),
    "loop": looped(),
    "deep": deep(),
    "long text": b"\x80\x04\x8e" + struct.pack("<Q", 2**62) + b"abc.",
    "key that cannot be one": b"\x80\x02}]K\x01s.",
    "note far away": b"\x80\x02]r\xff\xff\xff\x7f.",
    "nothing": b"",
    "no pickle": b"\x1f\x8b\x08\x00",
    "cut": python2(X)[:-20],
}


@pytest.mark.parametrize("case", MALICIOUS)
def test_whatever_is_not_plain_data_is_refused(case: str) -> None:
    with pytest.raises(unpickle.Refused):
        unpickle.loads(MALICIOUS[case])
    assert not MARK.exists()


def test_a_refused_name_does_not_alter_the_reader() -> None:
    for data in MALICIOUS.values():
        with pytest.raises(unpickle.Refused):
            unpickle.loads(data)
    assert np.array_equal(unpickle.loads(python2(X))[b"data"], X)


def test_no_flipped_byte_raises_anything_else() -> None:
    dice = random.Random(0)
    for whole in (python2(X, labels=[3, 1]), pickle.dumps({"data": X, "labels": [3]}, 2)):
        for _ in range(1000):
            flipped = bytearray(whole)
            flipped[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
            with contextlib.suppress(unpickle.Refused):
                unpickle.loads(bytes(flipped))
