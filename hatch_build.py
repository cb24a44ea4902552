"""Compiles the native kernels while Coterie is installed; goes on where no C compiler is."""

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = Path("src/coterie/native")


def builder(root: Path) -> ModuleType:
    """`coterie.native.build`, without importing the package: torch may not be there."""
    spec = importlib.util.spec_from_file_location("native_build", root / NATIVE / "build.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class KernelsHook(BuildHookInterface[Any]):
    """Runs before files are collected for a wheel or an editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library; the wheel is then for this platform alone."""
        if self.target_name == "wheel" and builder(Path(self.root)).build_or_explain():
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{platform}"
