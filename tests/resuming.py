"""Runs that are resumed: what their folders hold, and how they are half done or older."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import toy

Run = Callable[..., str]
Reference = tuple[Path, str]  # the folder of a finished run, and its configuration

STATEFUL: dict[str, Any] = {"method": {"name": "toy_methods:TwoModels"}}
ATTEMPT = (".lock", ".attempt")  # tell of the last start, not of the run


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a run but those that tell of its last start."""
    found = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(p.relative_to(folder)): p.read_bytes() for p in found if p.name not in ATTEMPT}


def results(folder: Path) -> tuple[Any, ...]:
    """The rounds and the models of a run."""
    return toy.trace(folder), toy.outputs(folder)


def half_done(toy_data: Path, folder: Path, **changes: Any) -> None:
    """A run that was killed after its third round; the second is committed."""
    stop = toy.StopAfter(2, toy.Killed)
    with pytest.raises(toy.Killed):
        toy.run(toy_data, folder, recorders=[stop], **STATEFUL, **changes)


def rewrite_states(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change what the checkpoints of a run say, with manifests that fit."""
    for state in folder.glob("checkpoints/*/state.json"):
        values = json.loads(state.read_text())
        change(values)
        state.write_text(json.dumps(values))
        manifest = state.with_name("manifest.json")
        sums = json.loads(manifest.read_text())
        sums["state.json"] = hashlib.sha256(state.read_bytes()).hexdigest()
        manifest.write_text(json.dumps(sums))
