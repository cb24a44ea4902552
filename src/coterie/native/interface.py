"""The structures and entries of the kernels, read from interface.h: they cannot differ from C's."""

import ctypes
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_TEXT = (Path(__file__).parent / "interface.h").read_text()
_SOURCE = re.sub(r"/\*.*?\*/|\\\n", " ", _TEXT, flags=re.DOTALL)  # no comments, no broken lines
_NUMBERS: dict[str, type[Any]] = {
    "ptrdiff_t": ctypes.c_ssize_t,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
    "double": ctypes.c_double,
}


def _members(body: str) -> Iterator[tuple[str, type[Any]]]:
    """The members of a structure, which have names in rows: `ptrdiff_t lanes, channels;`."""
    for line in re.findall(r"(?:const )?(\w+) ([^;]+);", body):
        for name in line[1].split(","):
            kind = ctypes.c_void_p if "*" in name else _NUMBERS[line[0]]
            yield name.strip(" *"), kind


# without `__dict__` a member that C does not have is an error
_STRUCTURES: dict[str, type[ctypes.Structure]] = {
    name: type(name, (ctypes.Structure,), {"__slots__": (), "_fields_": list(_members(body))})
    for name, body in re.findall(r"struct (\w+) \{(.*?)\};", _SOURCE, re.DOTALL)
}


def _argument(declaration: str) -> type[Any]:
    if named := re.search(r"struct (\w+) \*", declaration):
        return ctypes.POINTER(_STRUCTURES[named[1]])
    return ctypes.c_void_p if "*" in declaration else _NUMBERS[declaration.split()[0]]


def _entries(macro: str) -> dict[str, tuple[type[Any], ...]]:
    """The entries of a list in interface.h, with the types of their arguments."""
    (listed,) = re.findall(rf"#define {macro}\(ENTRY\)(.*)", _SOURCE)
    return {
        name: tuple(_argument(one.strip()) for one in arguments.split(","))
        for name, arguments in re.findall(r"ENTRY\((\w+), ([^)]*)\)", listed)
    }


SINGLE = _entries("SINGLE_KERNELS")  # in single precision alone
BOTH = _entries("KERNELS")  # in single and in double precision

Convolution = _STRUCTURES["convolution"]
Layer = _STRUCTURES["layer"]
Trained = _STRUCTURES["trained"]
Batch = _STRUCTURES["batch"]
Contrast = _STRUCTURES["contrast"]
Tiles = _STRUCTURES["tiles"]
Images = _STRUCTURES["images"]
Descent = _STRUCTURES["descent"]
