"""The models in the folder of a site, opened there as those of any run: the trained one, its own.

`model.json` beside them has what samples become inputs by, also the statistics of a table that
never left the site.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load

from coterie.core.files import replace_durably
from coterie.core.task import METHOD
from coterie.deploy.handshake import Declined
from coterie.experiment.model_file import MODEL_FILE, SavedWeights, WeightsFile, read_model_file
from coterie.experiment.outputs import MODEL, PERSONAL, describe_model
from coterie.experiment.prepare import Experiment
from coterie.experiment.restore import find_difference


def keep_trained(
    experiment: Experiment, folder: Path, head: Mapping[str, Any], model: bytes
) -> None:
    """Write the trained model that a server handed out, if it is of this run's network."""
    round = head["round"]
    if type(round) is not int or not 0 <= round < 2**53:
        raise Declined("the server's model is of no round")
    try:
        weights = load(model)
    except SafetensorError as error:
        raise Declined(f"the server's model cannot be read: {error}") from error
    described = describe_model(experiment, weights)
    net = experiment.parts.nets(METHOD)["model"]
    if difference := find_difference(net.state_dict(), weights, described.kept):
        raise Declined(f"the server's model is of another network: {difference}")
    replace_durably(folder / MODEL, model)
    last = WeightsFile(MODEL, hashlib.sha256(model).hexdigest(), round)
    saved = SavedWeights(last, personal=_read_personal(folder))
    replace(described, weights=saved).write(folder)


def describe_personal(experiment: Experiment, folder: Path, name: str) -> None:
    """Write `model.json` beside the own model of a site, which has this name."""
    share, (client,) = experiment.partition, experiment.partition.clients
    file = f"{PERSONAL}/{share.file_name(client)}"
    with (folder / file).open("rb") as content:
        saved = WeightsFile(file, hashlib.file_digest(content, "sha256").hexdigest())
    weights = SavedWeights(personal={name: saved})
    replace(describe_model(experiment), weights=weights).write(folder)


def _read_personal(folder: Path) -> Mapping[str, WeightsFile]:
    if not (folder / MODEL_FILE).exists():
        return {}
    return read_model_file(folder).weights.personal
