"""Export a network of a run to a file.

    .safetensors   the bare weights under the names of the network; of an encoder without the prefix
    .pt2           a program of torch, for `torch.export.load(FILE).module()`
    .onnx          a program as ONNX in a single file, and its description in FILE.json

`experiment/program.py` says what the programs take and return. Every file carries the same
description as JSON under the name `coterie.json`: shape, range, classes and where it is from.
No torch is imported before the choice has been checked.
"""

import importlib.util
import json
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coterie.core.errors import ConfigError
from coterie.core.files import replace_durably
from coterie.core.formatting import list_first
from coterie.experiment.model_file import ModelFile, read_model_file

if TYPE_CHECKING:
    from torch import nn

    from coterie.experiment.result import Result

FORMATS = ("safetensors", "pt2", "onnx")
_WHATS = ("model", "encoder", "personal")
_REMEDY = "; choose another file or free some space"


def export(
    result: "Result",
    path: str | PathLike[str],
    *,
    what: str = "model",
    client: str | None = None,
    which: Literal["last", "best"] = "last",
    format: str | None = None,
) -> Path:
    """Write a network of a run to a file and return its path.

    `what` is the model, its encoder (the backbone), or the personal model of a client; with
    `client` the first two are of that client's model too. The format is that of the file's ending
    unless it is given.
    """
    path, chosen = Path(path), choose_format(path, format)
    described = read_model_file(result.folder)
    check_choice(what, client, which, described.clients)
    _check_target(path, result.folder)

    from coterie.experiment import program

    if what == "encoder":
        net: nn.Module = result.encoder(which, client)
    else:
        net = result.model(which) if client is None else result.personal(client)
    description = describe(net, described, what, client, which)
    if chosen == "safetensors":
        data = program.save_weights(net, description)
    elif chosen == "pt2":
        data = program.save_pt2(net, described.input, description)
    else:
        data = program.save_onnx(net, described.input, description)
        beside = path.with_name(f"{path.name}.json")
        replace_durably(beside, f"{json.dumps(description, indent=1)}\n".encode(), _REMEDY)
    replace_durably(path, data, _REMEDY)
    return path


def choose_format(path: str | PathLike[str], format: str | None = None) -> str:
    """Return the format that is given, or that the file's ending says."""
    ending = Path(path).suffix.removeprefix(".").lower()
    chosen = format or ending
    if chosen not in FORMATS:
        given = f"format = {format!r}" if format else f"the ending of {path}"
        raise ConfigError(f"{given} is none of the formats {', '.join(FORMATS)}")
    if chosen != ending and ending in FORMATS:
        raise ConfigError(f"format = {format!r} does not go with the ending of {path}")
    if chosen == "onnx":
        for package in ("onnx", "onnxscript"):
            if importlib.util.find_spec(package) is None:
                raise ConfigError(
                    f"the format onnx needs the package {package}: pip install 'coterie[onnx]'"
                )
    return chosen


def check_choice(what: str, client: str | None, which: str, clients: Sequence[str]) -> None:
    """Check that there is such a network, apart from what only the run's files tell."""
    if what not in _WHATS:
        raise ConfigError(f"what = {what!r} is none of {', '.join(_WHATS)}")
    if what == "personal" and client is None:
        raise ConfigError(
            f"what = 'personal' is the model of one client: name it, one of "
            f"{list_first([*map(repr, clients)])}"
        )
    if client is not None and which != "last":
        raise ConfigError(
            f"which = {which!r} is of the global model, and clients have models of the last round "
            "only: leave out which, or the client"
        )


def _check_target(path: Path, folder: Path) -> None:
    """Refuse to overwrite files of the run itself, on which others rely."""
    target, run = path.resolve(), folder.resolve()
    if target.is_relative_to(run) and not target.is_relative_to(run / "export"):
        raise ConfigError(
            f"{path} is in the directory of the run itself; export to {folder / 'export'}, or "
            "somewhere else"
        )


def describe(
    net: "nn.Module", described: ModelFile, what: str, client: str | None, which: str
) -> dict[str, Any]:
    """Describe an exported network: what it takes, what it returns, where it is from."""
    from coterie.experiment.program import name_outputs
    from coterie.experiment.restore import uses_batch_statistics

    given, saved = described.input, described.weights
    entry = saved.best if which == "best" else saved.last
    return {
        "coterie": described.coterie,
        "what": what,
        "client": client,
        "round": entry.round if entry else None,
        "method": dict(described.method),
        "objective": dict(described.objective),
        "net": dict(described.net),
        "kind": given.kind,
        "shape": list(given.shape),
        "dtype": "float32",
        "range": [0.0, 1.0] if given.dtype == "uint8" else None,
        "mean": list(given.mean),
        "std": list(given.std),
        "resize": given.resize,
        "columns": list(given.columns),
        # BatchNorm without statistics of its own takes those of a batch, which one sample has not
        "smallest_batch": 2 if uses_batch_statistics(net) else 1,
        "outputs": name_outputs(net),
        "classes": list(described.classes),
    }
