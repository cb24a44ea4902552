"""The kernels' own tests with a library that watches every address and every undefined step.

    python tests/native/sanitize.py [arguments for pytest]

It builds the kernels with the address and undefined-behaviour sanitizers into a temporary folder
and runs tests/unit/native with them (COTERIE_KERNELS), every variant that this processor has.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from coterie.native.build import CannotBuild, build, compiler

TESTS = Path(__file__).parents[1] / "unit" / "native"
FLAGS = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
)
RUNTIMES = ("libasan.so", "libubsan.so", "libstdc++.so.6")  # the last: torch throws exceptions


def runtime(name: str) -> str:
    """Where the compiler has a library that must be loaded before all others."""
    command = [*compiler(), f"-print-file-name={name}"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if not Path(found).is_absolute():
        raise CannotBuild(f"{command[0]} has no {name}")
    return str(Path(found).resolve())


def main() -> int:
    """Build, run, and say which library was watched."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "kernels.so"
        try:
            build(library, FLAGS)
            before = " ".join(runtime(name) for name in RUNTIMES)
        except CannotBuild as error:
            print(f"cannot watch the kernels: {error}", file=sys.stderr)
            return 1
        watched = {
            "COTERIE_KERNELS": str(library),
            "LD_PRELOAD": before,
            "ASAN_OPTIONS": "detect_leaks=0:strict_string_checks=1",
            "UBSAN_OPTIONS": "print_stacktrace=1",
        }
        quick = [
            "-p",
            "no:cacheprovider",
            "-m",
            "not slow",
            "-k",
            "not another_process",
            str(TESTS),
            *sys.argv[1:],
        ]
        command = [sys.executable, "-m", "pytest", *quick]
        return subprocess.run(command, env={**os.environ, **watched}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
