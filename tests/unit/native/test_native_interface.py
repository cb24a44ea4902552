"""One list of entries: what Python passes is what C declares, and every header stands by itself."""

import ctypes
import subprocess
from pathlib import Path

import pytest
import torch
from native_reference import FOUND, VARIANTS, needs_kernels

from coterie.native import interface
from coterie.native.build import FOLDER, CannotBuild, compiler
from coterie.native.library import Library

STRUCTURES = interface._STRUCTURES
HEADERS = sorted(path.name for path in FOLDER.glob("*.h"))
SOURCES = sorted(path.name for path in FOLDER.glob("*.c"))
GIVEN = ["-DVARIANT=alone", "-DVECTOR_BYTES=16", "-DMOST_SUMS=12", '-DSOURCES="none"']
STRICT = ["-std=gnu11", "-fsyntax-only", "-Wno-psabi", "-Werror=implicit-function-declaration"]


def compiled(*arguments: str | Path, text: str = "") -> subprocess.CompletedProcess[str]:
    try:
        command = compiler()
    except CannotBuild as error:
        pytest.skip(str(error))
    given = [*command, "-x", "c", *map(str, arguments), f"-I{FOLDER}", "-"]
    return subprocess.run(given, input=text, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", [*HEADERS, *SOURCES])
def test_every_file_compiles_by_itself(name: str) -> None:
    precisions = (32,) if name in ("images.c", "sgd.c") else (32, 64)
    for precision in precisions:
        for more in ([], ["-DPLAIN"]):
            given = [*STRICT, *GIVEN, f"-DPRECISION={precision}", *more]
            done = compiled(*given, text=f'#include "{name}"\n')
            assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [*HEADERS, *SOURCES])
def test_a_file_says_what_it_needs(name: str) -> None:
    """And without that it does not compile; the list of entries needs nothing."""
    done = compiled(*STRICT, text=f'#include "{name}"\n')
    if name == "interface.h":
        assert done.returncode == 0, done.stderr
        return
    assert "#error" in done.stderr and " needs " in done.stderr
    opening = (FOLDER / name).read_text().split("*/")[0]
    assert " Needs" in opening


def test_structures_are_those_of_the_compiler(tmp_path: Path) -> None:
    lines = ['#include "interface.h"', "#include <stdio.h>", "int main(void) {"]
    expected = []
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("%zu\\n", sizeof(struct {name}));')
        expected.append(ctypes.sizeof(structure))
        for member, kind in structure._fields_:  # type: ignore[misc]
            size = f"sizeof(((struct {name} *)0)->{member})"
            lines.append(f'printf("%zu\\n%zu\\n", offsetof(struct {name}, {member}), {size});')
            expected += [getattr(structure, member).offset, ctypes.sizeof(kind)]
    done = compiled("-o", tmp_path / "sizes", text="\n".join([*lines, "}"]))
    assert done.returncode == 0, done.stderr
    printed = subprocess.run([tmp_path / "sizes"], capture_output=True, text=True, check=True)
    assert [int(line) for line in printed.stdout.split()] == expected


def test_every_entry_has_the_arguments_of_its_prototype() -> None:
    of_bfloat16 = {f"{name}_bf16" for name in interface.BOTH if name.startswith(("mom", "norm"))}
    assert set(interface.SINGLE) == {"gather", "sgd", *of_bfloat16} and len(of_bfloat16) == 4
    assert not set(interface.SINGLE) & set(interface.BOTH)
    pointer, size = ctypes.c_void_p, ctypes.c_ssize_t
    assert interface.BOTH["turn"] == (pointer, pointer, size, size, size)
    assert interface.BOTH["networks"] == (
        pointer,
        ctypes.POINTER(interface.Layer),
        ctypes.POINTER(interface.Batch),
    )
    last = ctypes.POINTER(interface.Convolution)
    assert interface.BOTH["forward"] == (*(pointer,) * 5, last)


def test_a_member_that_c_does_not_have_is_an_error() -> None:
    assert interface.Convolution(lanes=16, k=5).k == 5
    with pytest.raises(AttributeError):
        interface.Convolution(rows=3)
    with pytest.raises(AttributeError):
        interface.Layer().stride = 2  # type: ignore[attr-defined]


@needs_kernels
@pytest.mark.parametrize("name", [*VARIANTS, "plain"])
def test_a_call_with_other_arguments_is_an_error(name: str) -> None:
    assert isinstance(FOUND, Library)
    library = Library(FOUND.path, name)
    with pytest.raises(TypeError):
        library.call("turn", torch.float32, None, None, 1, 16)
    with pytest.raises(ctypes.ArgumentError):
        shape = interface.Images()
        library.call("frozen", torch.float32, None, None, None, None, shape)
