"""Environments for the peers: each has its own, made once, with Coterie's version of torch.

They lie in `.venvs/` of the project and hold about a gigabyte each. torch comes first, by the
project's constraints, so that no packages for GPUs follow it.
"""

import subprocess
import sys
import venv
from pathlib import Path

PROJECT = Path(__file__).parents[3]
FOLDER = PROJECT / ".venvs"
PACKAGES = {"pfl": "pfl[pytorch]==0.6.*", "flower": "flwr[simulation]==1.41.*"}
SHARED = ("torch", "numpy")
_VERSIONS = """
import importlib.metadata as m, json, platform, sys
print(json.dumps({"python": platform.python_version(), **{n: m.version(n) for n in sys.argv[1:]}}))
"""


def pins(constraints: str) -> list[str]:
    """The lines that say which torch and numpy; a peer has its own wishes for all else."""
    lines = (line.strip() for line in constraints.splitlines())
    return [line for line in lines if line.split("==")[0] in SHARED]


def environment(name: str) -> Path:
    """The Python of a peer's environment, which is made if it is not there as it should be."""
    place = FOLDER / name
    python, stamp = place / "bin" / "python", place / ".installed"
    chosen = pins((PROJECT / "constraints.txt").read_text())
    wanted = "\n".join([*chosen, PACKAGES[name]])
    if not (stamp.is_file() and stamp.read_text() == wanted):
        print(f"installing {PACKAGES[name]} in {place}", flush=True)
        venv.create(place, with_pip=True, clear=True)
        pinned = place / "constraints.txt"
        pinned.write_text("\n".join(chosen) + "\n")
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for packages in (SHARED, (PACKAGES[name],)):
            if subprocess.run([*install, "-c", str(pinned), *packages]).returncode:
                sys.exit(f"{PACKAGES[name]} could not be installed in {place}")
        stamp.write_text(wanted)
    return python


def versions(python: Path, *packages: str) -> str:
    """The versions of Python and some packages there, as JSON."""
    command = [str(python), "-c", _VERSIONS, *packages]
    return subprocess.run(command, capture_output=True, check=True, text=True).stdout
