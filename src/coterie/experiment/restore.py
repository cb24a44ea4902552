"""Builds the network that `model.json` describes and loads weights into it, strictly.

Its layers are those of torch, without kernels, on the CPU and in eval mode.
"""

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import nn

from coterie.core import registry, seeds
from coterie.core.bundle import Tensors
from coterie.core.errors import ConfigError, DataError
from coterie.core.settings import NetSettings
from coterie.experiment.model_file import MODEL_FILE, ModelFile, WeightsFile
from coterie.experiment.schema import validate
from coterie.kit.builder import Builder
from coterie.kit.method import Method
from coterie.kit.objective import Objective
from coterie.nets.heads import Network
from coterie.nets.norm import BATCH_NORMS

_BASES: dict[str, type[Any]] = {"method": Method, "objective": Objective}


def restore(
    folder: Path,
    described: ModelFile,
    saved: WeightsFile,
    objects: Mapping[str, Any],
    kept: Collection[str] = (),
) -> Network:
    """Build the network of a run and load a file of weights that has every name but the kept ones.

    `objects` has the parts that only this process has, by table.
    """
    settings = _read_settings(described)
    objective: Objective = _build_part(folder, "objective", described.objective, objects)
    own = _find_backbone(folder, settings.backbone, objects)
    shape, classes = described.input.shape, len(described.classes)
    build = Builder(objective, settings, tuple(shape), classes, own, objects.get("sensor"))
    with seeds.scoped(0):  # initial weights are replaced, and the caller's generators stay as is
        if described.own_nets:
            method: Method = _build_part(folder, "method", described.method, objects)
            net = method.nets(build)["model"]
        else:
            net = build()
    weights = read_weights(folder / saved.file, saved.sha256)
    expected = net.state_dict()
    if difference := find_difference(expected, weights, kept):
        raise DataError(
            f"{folder / saved.file} is not of the network in {folder / MODEL_FILE}: {difference}"
        )
    net.load_state_dict({**expected, **weights})
    if any(name.startswith(objective.private) for name in kept):
        objective.after_load(net, True)
    if settings.bn_buffers == "local":
        forget_statistics(net, kept)
    return net.eval()


def find_difference(expected: Tensors, weights: Tensors, kept: Collection[str]) -> str | None:
    """Describe the first name, shape or dtype of a network that the weights do not have."""
    for name, tensor in expected.items():
        if name not in weights and name not in kept:
            return f"it lacks {name!r}"
        if name in weights and name not in kept:
            there, here = (f"{list(t.shape)} of {t.dtype}" for t in (weights[name], tensor))
            if there != here:
                return f"{name!r} is {there} there and {here} in the network"
    unknown = [name for name in weights if name not in expected or name in kept]
    return f"it has {unknown[0]!r}, which the network has not" if unknown else None


def forget_statistics(net: Network, kept: Collection[str]) -> None:
    """Make BatchNorm layers whose statistics clients keep use those of each batch instead."""
    for path, module in net.named_modules():
        if isinstance(module, BATCH_NORMS) and f"{path}.running_mean" in kept:
            module.running_mean = module.running_var = module.num_batches_tracked = None
            module.track_running_stats = False


def uses_batch_statistics(net: nn.Module) -> bool:
    """Whether the output for a sample depends on the other samples of its batch."""
    return any(
        isinstance(module, BATCH_NORMS) and module.running_mean is None for module in net.modules()
    )


def _read_settings(described: ModelFile) -> NetSettings:
    settings: NetSettings = validate("net", "net", NetSettings, described.net)
    return NetSettings(**{**vars(settings), "kernel": "torch", "precision": "fp32"})


def _build_part(
    folder: Path, table: str, values: Mapping[str, Any], objects: Mapping[str, Any]
) -> Any:
    """Build the method or objective that a table names, or take this process's own."""
    if table in objects:
        return objects[table]
    name = str(values["name"])
    if name.startswith(f"{registry.OBJECT}:"):
        raise ConfigError(
            f"{table}.name = {name!r} of {folder} was an object of another Python program: put its "
            "class in a module, and train with that"
        )
    kind = registry.find(f"{table}s", name, _BASES[table], f"{table}.name")
    given = {key: value for key, value in values.items() if key != "name"}
    return validate(table, name, kind, given, main=("name",))


def _find_backbone(folder: Path, name: str, objects: Mapping[str, Any]) -> Any:
    """Find a user's own backbone; None for a shipped one."""
    own = objects.get("net")
    if ":" not in name:
        if own is not None:
            raise ConfigError(
                f"net = {own!r} is for runs with a backbone of one's own; that of {folder} is "
                f"{name!r}"
            )
        return None
    if own is not None:
        return own
    remedy = f"pass it: coterie.load({str(folder)!r}, net={name.rpartition(':')[2]})"
    if name.startswith(f"{registry.OBJECT}:"):
        raise ConfigError(f"net.backbone = {name!r} was an object of a Python program: {remedy}")
    try:
        return registry.import_own(name, "net.backbone")
    except ConfigError as error:
        raise ConfigError(f"{error}; {remedy}") from error


def read_weights(path: Path, sha256: str) -> Tensors:
    """Read a file of weights; refuse one with another SHA-256."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing: copy it with {MODEL_FILE}") from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise DataError(
            f"{path} is not the file that {MODEL_FILE} describes (its SHA-256 is another): it is "
            "damaged or belongs to another run; copy both from the same run directory"
        )
    try:
        weights: Tensors = load(data)
    except SafetensorError as error:
        raise DataError(f"{path} is not a safetensors file: {error}") from error
    return weights
