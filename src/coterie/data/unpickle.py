"""The one place that reads pickles: the official CIFAR files are written in no other format.

A pickle is a program, and `pickle.load` runs it. Here no name of the file is ever imported: the
few that a numpy array needs are answered by stand-ins of our own, which note shape, type and
bytes; numpy itself is called at the end only, with a type from a fixed table. Every other name is
refused, and so is whatever is not an array, a dict, list, tuple, text, bytes or a number.
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
_MOST_NOTES = 2**20  # an official file makes some ten thousand
_CODE = re.compile(r"(b1|[iu][1248]|f[248])")
_ORDERS = ("<", ">", "|", "=")


class Refused(Exception):
    """The file holds something that is not plain data, or is no whole pickle."""


def loads(data: bytes) -> Any:
    """The plain data of a pickle of Python 2 or 3; text that Python 2 wrote stays bytes."""
    try:
        _check_notes(data)
        return _plain(_Reader(io.BytesIO(data), encoding="bytes").load(), 0)
    except Refused:
        raise
    # A damaged pickle can raise anything that a stack machine can: it is all the same to a reader.
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error


def _check_notes(data: bytes) -> None:
    """Refuse a number so large that the table of notes alone would fill the memory."""
    for opcode, argument, _ in pickletools.genops(data):
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > _MOST_NOTES:
            raise Refused(f"it makes note number {argument}")


class _Reader(pickle.Unpickler):
    """An unpickler that resolves names to the stand-ins, and no others."""

    def find_class(self, module: str, name: str) -> "_Call":
        stand_in = _ADMITTED.get((module, name))
        if stand_in is None:
            raise Refused(f"it asks for {module}.{name}")
        return _Call(stand_in)

    def persistent_load(self, pid: Any) -> Any:
        raise Refused("it refers to something outside the file")


class _Call:
    """A stand-in to be called. It takes no state, which a pickle might set to alter it."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise Refused("it alters a name")


class _Type:
    """Stands for `numpy.dtype`: a code of the table, and the order of bytes as its state."""

    __slots__ = ("code", "order")

    def __init__(self, code: Any, *_: Any) -> None:
        self.code, self.order = _text(code), "|"
        if not _CODE.fullmatch(self.code):
            raise Refused(f"it holds an array of type {self.code!r}")

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])
        if self.order not in _ORDERS or any(part is not None for part in state[2:5]):
            raise Refused("it holds an array of a compound type")

    def real(self) -> "np.dtype[Any]":
        return np.dtype(self.order + self.code)


class _Array:
    """Stands for an array that is made empty first, and given its contents as state."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        self.value = _array(data, kind, shape, "F" if fortran else "C")


def _reconstruct(*_: Any) -> _Array:
    return _Array()


def _from_buffer(data: Any, kind: Any, shape: Any, order: Any) -> _Array:
    made = _Array()
    made.value = _array(data, kind, shape, _text(order))
    return made


def _scalar(kind: Any, data: Any) -> Any:
    return _array(data, kind, (), "C").item()


def _array(data: Any, kind: Any, shape: Sequence[Any], order: str) -> np.ndarray:
    if not isinstance(kind, _Type) or not isinstance(data, bytes | bytearray):
        raise Refused("it holds an array that is not of numbers")
    sizes = tuple(int(size) for size in shape)
    real = kind.real()
    if min(sizes, default=0) < 0 or math.prod(sizes) * real.itemsize != len(data):
        raise Refused(f"it holds an array of shape {sizes} with {len(data)} bytes")
    flat = np.frombuffer(data, real)
    return flat.reshape(sizes, order="F" if order == "F" else "C")


def _encode(text: Any, encoding: Any) -> bytes:
    """Python 3 writes bytes as Latin-1 text where the protocol has no bytes."""
    if _text(encoding) not in ("latin1", "latin-1"):
        raise Refused(f"it encodes text as {encoding!r}")
    return _text(text).encode("latin-1")


def _empty(*arguments: Any) -> bytes:
    if arguments:
        raise Refused("it makes bytes of something")
    return b""


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("ascii")
    if not isinstance(value, str):
        raise Refused(f"it has a {type(value).__name__} in the place of text")
    return value


def _plain(value: Any, depth: int) -> Any:
    """The value with arrays in the place of their stand-ins; what is no data is refused."""
    if depth > _DEEPEST:
        raise Refused("it is nested too deeply")
    if isinstance(value, _Array) and value.value is not None:
        return value.value
    if isinstance(value, dict):
        return {_leaf(key): _plain(one, depth + 1) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one, depth + 1) for one in value]
    if isinstance(value, tuple):
        return tuple(_plain(one, depth + 1) for one in value)
    return _leaf(value)


def _leaf(value: Any) -> Any:
    if value is None or isinstance(value, str | bytes | bytearray | bool | int | float):
        return value
    raise Refused(f"it holds a {type(value).__name__.lstrip('_')}")


_ADMITTED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy", "ndarray"): _reconstruct,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _encode,
    ("__builtin__", "bytes"): _empty,
    ("builtins", "bytes"): _empty,
    **{
        (f"numpy.{core}.{module}", name): stand_in
        for core in ("core", "_core")
        for module, name, stand_in in (
            ("multiarray", "_reconstruct", _reconstruct),
            ("multiarray", "scalar", _scalar),
            ("numeric", "_frombuffer", _from_buffer),
        )
    },
}
