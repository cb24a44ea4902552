"""`coterie list`: the names that a configuration may use; imports nothing that it lists."""

import ast
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from coterie.cli.options import Debug
from coterie.cli.terminal import echo_table
from coterie.core import registry
from coterie.core.errors import ConfigError
from coterie.evaluate import ALIASES

_PACKAGE = Path(__file__).parent.parent
_FOLDERS = {
    "methods": "methods",
    "objectives": "objectives",
    "nets": "nets/backbones",
    "datasets": "data/sources",
    "partitions": "data/partitions",
    "evaluators": "evaluate",
    "sinks": "sinks",
}
_KINDS = (*_FOLDERS, "configs", "recipes")


def complete_kind(incomplete: str) -> list[str]:
    """List the kinds that begin so, for the completion of a shell."""
    return [kind for kind in _KINDS if kind.startswith(incomplete)]


_KIND = typer.Argument(
    metavar="KIND",
    help=f"One of: {', '.join(_KINDS)}. Default: all.",
    autocompletion=complete_kind,
)


def entries(kind: str) -> dict[str, str]:
    """List the names of a kind with a line about each."""
    if kind in ("configs", "recipes"):
        root = _PACKAGE / kind
        files = {str(f.relative_to(root).with_suffix("")): f for f in root.rglob("*.toml")}
        firsts = {name: files[name].read_text().splitlines()[0] for name in sorted(files)}
        return {name: line.removeprefix("#").strip() for name, line in firsts.items()}
    folder = _FOLDERS[kind]
    lines = {}
    for name in registry.names(folder):
        tree = ast.parse((_PACKAGE / folder / f"{name.replace('-', '_')}.py").read_text())
        lines[name] = (ast.get_docstring(tree) or "").splitlines()[0]
    if kind == "evaluators":
        lines |= {name: _describe_alias(entry) for name, entry in ALIASES.items()}
    return dict(sorted(lines.items()))


def show(kind: Annotated[str | None, _KIND] = None, debug: Debug = False) -> None:
    """List methods, objectives, nets, datasets, partitions, evaluators, sinks, configs, recipes."""
    if kind is not None and kind not in _KINDS:
        hint = registry.nearest(kind, _KINDS) or f"; there are: {', '.join(_KINDS)}"
        raise ConfigError(f"there is nothing called {kind!r} to list{hint}")
    if kind and not sys.stdout.isatty():  # for programs
        typer.echo("\n".join(entries(kind)))
        return
    for category in [kind] if kind else _KINDS:
        typer.echo(category)
        echo_table(list(entries(category).items()))
        typer.echo()


def _describe_alias(entry: Mapping[str, Any]) -> str:
    options = [f"{key} = {json.dumps(value)}" for key, value in entry.items() if key != "name"]
    return f"Short for {entry['name']}{' with ' if options else ''}{', '.join(options)}."
