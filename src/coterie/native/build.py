"""Compiles the kernels: `python -m coterie.native.build`, and what an installation does.

It needs a C compiler and Python's own library, nothing else. Every source is compiled once for each
kind of vectors that the processor family has and each precision; which of them runs is decided when
they are loaded. One more variant, `plain`, is made of the loops that say what a kernel computes.
A record beside the library has its size and SHA-256: to load a file that is cut off is deadly.
"""

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = FOLDER / "kernels.so"
REASON = FOLDER / "kernels.txt"  # why there is no library, where building it failed
_COMMON = ("-O3", "-std=gnu11", "-fPIC", "-fvisibility=hidden", "-fno-math-errno", "-Wno-psabi")
_EXACT = "-ffp-contract=off"  # operations that must be rounded as torch rounds them

# name: precisions in bits, flags
_SOURCES: dict[str, tuple[tuple[int, ...], tuple[str, ...]]] = {
    "kernels.c": ((32, 64), ()),
    "turn.c": ((32, 64), ()),
    "images.c": ((32,), (_EXACT,)),
    "sgd.c": ((32,), (_EXACT,)),
}

_AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mprefer-vector-width=512")
_FUSED = ("-mavx2", "-mfma")

# name: bytes of a vector, sums that fit into registers, flags
_PLAIN = {"plain": (16, 12, ("-DPLAIN",))}
_X86 = {
    "avx512": (64, 30, (*_FUSED, *_AVX512)),
    "avx2": (32, 12, _FUSED),
    "generic": (16, 12, ()),
} | _PLAIN
_OTHERS = {"generic": (16, 30, ())} | _PLAIN


class CannotBuild(Exception):
    """Why there will be no kernels."""


def fingerprint() -> str:
    """What a library was built from."""
    digest = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")]):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def record_of(library: Path) -> Path:
    """Return the path of the record of a library."""
    return library.with_suffix(".json")


def describe(library: bytes) -> dict[str, int | str]:
    """Describe a library by what its record keeps."""
    return {"bytes": len(library), "sha256": hashlib.sha256(library).hexdigest()}


def compiler() -> list[str]:
    """The C compiler: `$CC`, else the first of the usual names."""
    if named := os.environ.get("CC", "").split():
        if shutil.which(named[0]) is None:
            raise CannotBuild(f"CC = {' '.join(named)} is not there")
        return named
    for name in ("cc", "gcc", "clang"):
        if shutil.which(name):
            return [name]
    raise CannotBuild("there is no C compiler")


def build(library: Path = LIBRARY, flags: Sequence[str] = ()) -> None:
    """Compile everything into one library, which is put in its place when it is whole."""
    command = compiler()
    variants = _X86 if platform.machine() in ("x86_64", "AMD64") else _OTHERS
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = [folder / "dispatch.o"]
        named = f'-DSOURCES="{fingerprint()}"'
        _call([*command, *_COMMON, *flags, named, "-c", FOLDER / "dispatch.c"], objects[0])
        for variant, (size, sums, vectors) in variants.items():
            given = (f"-DVARIANT={variant}", f"-DVECTOR_BYTES={size}", f"-DMOST_SUMS={sums}")
            for source, (precisions, exact) in _SOURCES.items():
                for bits in precisions:
                    objects.append(folder / f"{variant}-{bits}-{source}.o")
                    options = [*_COMMON, *vectors, *exact, *flags, *given, f"-DPRECISION={bits}"]
                    _call([*command, *options, "-c", FOLDER / source], objects[-1])
        whole = folder / "kernels.so"
        _call([*command, "-shared", *flags, *objects, "-lm"], whole)
        made = whole.read_bytes()
    for name in ("coterie_sources", "coterie_variants", *(f"_f32_{one}" for one in variants)):
        if name.encode() not in made:
            raise CannotBuild(f"{command[0]} made a library without the symbol {name}")
    record = json.dumps(describe(made)).encode()
    for path, content in ((record_of(library), record), (library, made)):
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_bytes(content)
        beside.replace(path)


def build_or_explain() -> bool:
    """Build the library, or leave a note of why there is none; whether there is one."""
    REASON.unlink(missing_ok=True)
    try:
        build(LIBRARY)
    except CannotBuild as error:
        for path in (LIBRARY, record_of(LIBRARY)):
            path.unlink(missing_ok=True)
        REASON.write_text(f"{error}\n")
        return False
    return True


def _call(command: Sequence[str | Path], output: Path) -> None:
    """Run the compiler, which has to write the file `output`."""
    words = [str(word) for word in (*command, "-o", output)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise CannotBuild(f"{words[0]} cannot be run: {error.strerror or error}") from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        said = next((line for line in lines if "error" in line), lines[0])
        raise CannotBuild(f"{words[0]} failed: {said}")
    if not output.is_file() or not output.stat().st_size:
        raise CannotBuild(f"{words[0]} succeeded, but wrote no {output.name}")


if __name__ == "__main__":
    try:
        build(flags=sys.argv[1:])
    except CannotBuild as error:
        sys.exit(f"no kernels: {error}")
    print(LIBRARY)
