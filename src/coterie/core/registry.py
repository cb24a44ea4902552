"""Finds parts by name: every file of a folder such as `methods` is a name users can choose."""

import difflib
import pkgutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast

from coterie.core.errors import ConfigError
from coterie.core.formatting import quote

OBJECT = "object"  # instead of a module: a part that only this process has
_PACKAGE = Path(__file__).parent.parent
T = TypeVar("T")


def names(folder: str) -> tuple[str, ...]:
    """List the names that a folder such as `methods` or `nets/backbones` offers; imports none."""
    stems = _list_stems(_PACKAGE / folder)
    return tuple(sorted(stem.replace("_", "-") for stem in stems)) if "/" in folder else stems


@cache  # every resolved configuration asks for them dozens of times
def _list_stems(folder: Path) -> tuple[str, ...]:
    stems = (file.stem for file in folder.glob("*.py"))
    return tuple(sorted(stem for stem in stems if not stem.startswith("_")))


def nearest(name: str, known: Iterable[str]) -> str:
    """Suggest the closest known name for a misspelt one, or return an empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_known(key: str, name: str, known: Iterable[str]) -> None:
    """Refuse a name that is not known, with the nearest one that is."""
    known = tuple(known)
    if name not in known:
        hint = nearest(name, known) or f"; it is one of: {', '.join(known)}"
        raise ConfigError(f"{key} = {quote(name)} is not known{hint}")


def find(folder: str, name: str, base: type[T], key: str) -> type[T]:
    """Return the class of a name: a file of the folder, or a user's `"package.module:Class"`."""
    if ":" in name:
        own = import_own(name, key)
        if isinstance(own, type) and issubclass(own, base):
            return own
        article = "an" if base.__name__[0] in "AEIO" else "a"
        raise ConfigError(f"{key} = {quote(name)} is not {article} {base.__name__}")
    check_known(key, name, names(folder))
    module = import_module(f"coterie.{folder.replace('/', '.')}.{name.replace('-', '_')}")
    for value in vars(module).values():
        defined_here = isinstance(value, type) and value.__module__ == module.__name__
        if defined_here and issubclass(value, base):
            return cast(type[T], value)
    raise ConfigError(f"{module.__name__} defines no {base.__name__}")


def import_own(name: str, key: str) -> Any:
    """Import the user's own `"package.module:Name"`, also from the current folder."""
    module_name, _, attribute = name.partition(":")
    if module_name == "__main__":
        raise ConfigError(
            f"{key} = {quote(name)}: workers cannot import the main script; put the class in "
            "a module"
        )
    if module_name == OBJECT:
        raise ConfigError(
            f"{key} = {quote(name)} was an object of a Python program: pass it again from there"
        )
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.append("")  # workers take the import path over
    try:
        return getattr(import_module(module_name), attribute)
    except Exception as error:  # whatever the user's own module raises
        clear = isinstance(error, ImportError | AttributeError | TypeError | ValueError)
        reason = error if clear else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{key} = {quote(name)} cannot be imported: {reason}") from error


def import_name(part: Any) -> str | None:
    """The `"package.module:Name"` under which any process can import a class or function."""
    module, name = getattr(part, "__module__", None), getattr(part, "__qualname__", "")
    if module is None or module == "__main__" or not name.isidentifier():
        return None
    known = sys.modules.get(module)
    return f"{module}:{name}" if known and getattr(known, name, None) is part else None


@dataclass(frozen=True)
class Component:
    """A dataclass instance as plain data, so that another process can rebuild it."""

    target: str
    fields: dict[str, Any]

    @classmethod
    def of(cls, instance: Any) -> "Component":
        """Describe a dataclass instance."""
        kind = type(instance)
        return cls(f"{kind.__module__}:{kind.__qualname__}", asdict(instance))

    def build(self) -> Any:
        """Rebuild the instance; lists, which JSON made of tuples, become tuples again."""
        kind = pkgutil.resolve_name(self.target)
        return kind(**{key: _to_tuples(value) for key, value in self.fields.items()})


def _to_tuples(value: Any) -> Any:
    return tuple(map(_to_tuples, value)) if isinstance(value, list) else value
