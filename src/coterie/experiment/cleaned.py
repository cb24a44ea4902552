"""`cleaned.json`: a summary of a finished run, written when its checkpoints are removed.

Checkpoints know the configuration, the data and the rounds of a run. Without them this file does:
the configuration, the digest of the data, and the hashes of the run's files, so that a cleaned run
that was changed is refused instead of being taken for another one.
"""

import json
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coterie.core.errors import CheckpointError
from coterie.core.files import replace_durably
from coterie.engine import rundir
from coterie.engine.checkpoints import CheckpointStore, Origin, Position
from coterie.experiment.model_file import MODEL_FILE, hash_values

CLEANED = "cleaned.json"
_METRICS, _HASH = "metrics.jsonl", "sha256"  # _HASH: the key with the hash of all others


def write(folder: Path) -> None:
    """Write what the newest checkpoint says of a finished run, and the hashes of its files."""
    store = CheckpointStore(folder, has_states=False)  # a summary needs none; sites keep their own
    try:
        loaded = store.load_newest()
    except CheckpointError:  # all are damaged
        with suppress(CheckpointError):
            if _read(folder) is not None:
                return  # it is from when one was whole
        position = Position(max(store.rounds()), finished=True)
    else:
        if loaded is None:
            return  # it was cleaned before
        position = loaded[1]
    values = {
        "round": position.round,
        "origin": asdict(position.origin) if position.origin else None,
        "files": {name: rundir.hash_file(folder / name) for name in (_METRICS, MODEL_FILE)},
    }
    text = json.dumps({**values, _HASH: hash_values(values)}, indent=1) + "\n"
    replace_durably(folder / CLEANED, text.encode())


def read(folder: Path) -> Position | None:
    """Read the configuration and the data of a cleaned run; None where nothing says them."""
    if (values := _read(folder)) is None or values["origin"] is None:
        return None
    origin = Origin(**values["origin"])
    return Position(round=values["round"], finished=True, origin=origin)


def find_change(folder: Path) -> str | None:
    """Name the first file of a cleaned run that does not match its hash any more."""
    if (values := _read(folder)) is None:
        return None  # earlier versions wrote none
    for name, sha256 in values["files"].items():
        if not rundir.has_hash(sha256, folder / name):
            return f"{folder / name} is missing, or not the file that {CLEANED} names"
    return None


def _read(folder: Path) -> dict[str, Any] | None:
    """Read the file, if it is there; raise `CheckpointError` if it was changed."""
    path = folder / CLEANED
    try:
        values = json.loads(path.read_bytes())
        written = values.pop(_HASH)
        if written == hash_values(values):
            return dict(values)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        pass
    raise CheckpointError(
        f"{path} is damaged or was changed, and {folder} has no checkpoints; put back a copy"
    )
