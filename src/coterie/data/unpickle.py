"""A safe reader of pickles, for the official CIFAR files, which exist in no other format.

A pickle is a program, and `pickle.load` runs it. Here no name in the file is ever imported: the
few that a numpy array needs are replaced by stand-ins, which record shape, type and bytes; numpy
is called only at the end, with a type from a fixed list. Every other name is rejected, and so is
any value that is not an array, dict, list, tuple, string, bytes or number.
"""

import io
import math
import pickle
import pickletools
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_DEEPEST = 8
_LARGEST_MEMO = 2**20  # an official file uses some ten thousand entries
_CODE = re.compile(r"(b1|[iu][1248]|f[248])")
_ORDERS = ("<", ">", "|", "=")


class Refused(Exception):
    """The file is not a complete pickle of plain data."""


def loads(data: bytes) -> Any:
    """Read the plain data of a pickle of Python 2 or 3; strings of Python 2 stay bytes."""
    try:
        _check_memo(data)
        return _plain(_Reader(io.BytesIO(data), encoding="bytes").load(), 0)
    except Refused:
        raise
    # A damaged pickle can raise any exception of the unpickler; callers need not tell them apart.
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


def _check_memo(data: bytes) -> None:
    """Reject a memo index so large that the memo alone would exhaust memory."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > _LARGEST_MEMO:
            raise Refused(f"it has the memo index {argument}")


class _Reader(pickle.Unpickler):
    """An unpickler that resolves names to stand-ins only."""

    def find_class(self, module: str, name: str) -> "_Call":
        stand_in = _ADMITTED.get((module, name))
        if stand_in is None:
            raise Refused(f"it asks for {module}.{name}")
        return _Call(stand_in)

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("it refers to something outside the file")


class _Call:
    """A callable stand-in; it rejects any state by which a pickle might change it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise Refused("it alters a name")


class _Type:
    """Stands for `numpy.dtype`: a type code, with the byte order as its state."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = _text(code), "|"
        if not _CODE.fullmatch(self.code):
            raise Refused(f"it holds an array of type {self.code!r}")

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])
        if self.order not in _ORDERS or any(part is not None for part in state[2:5]):
            raise Refused("it holds an array of a compound type")


class _Array:
    """Stands for an array that is created empty and receives its contents as state."""

    __slots__ = ("value",)

    def __init__(self, *_: Any) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        self.value = _array(data, kind, shape, "F" if fortran else "C")


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> _Array:
    stand_in = _Array()
    stand_in.value = _array(data, kind, shape, _text(order))
    return stand_in


def _scalar(kind: Any, data: Any) -> Any:
    return _array(data, kind, (), "C").item()


def _array(data: Any, kind: Any, shape: Sequence[Any], order: str) -> np.ndarray:
    if not isinstance(kind, _Type) or not isinstance(data, bytes | bytearray):
        raise Refused("it holds an array that is not of numbers")
    sizes = tuple(int(size) for size in shape)
    real = np.dtype(kind.order + kind.code)
    if min(sizes, default=0) < 0 or math.prod(sizes) * real.itemsize != len(data):
        raise Refused(f"it holds an array of shape {sizes} with {len(data)} bytes")
    flat = np.frombuffer(data, real)
    return flat.reshape(sizes, order="F" if order == "F" else "C")


def _encode(text: Any, encoding: Any) -> bytes:
    """Encode as Latin-1: Python 3 writes bytes so if the protocol has no bytes."""
    if _text(encoding) not in ("latin1", "latin-1"):
        raise Refused(f"it encodes text as {encoding!r}")
    return _text(text).encode("latin-1")


def _empty(*arguments: Any) -> bytes:
    if arguments:
        raise Refused("it calls bytes with arguments")
    return b""


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise Refused(f"it has a {type(value).__name__} instead of text")
    return value


def _plain(value: Any, depth: int) -> Any:
    """Replace stand-ins by their arrays; reject anything that is not plain data."""
    if depth > _DEEPEST:
        raise Refused("it is nested too deeply")
    if isinstance(value, _Array) and value.value is not None:
        return value.value
    if isinstance(value, dict):
        return {_leaf(key): _plain(entry, depth + 1) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(entry, depth + 1) for entry in value)
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if value is None or isinstance(value, str | bytes | bytearray | bool | int | float):
        return value
    raise Refused(f"it holds a {type(value).__name__.lstrip('_')}")


_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty,
    ("builtins", "bytes"): _empty,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _Array),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}
