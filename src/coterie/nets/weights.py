"""Pretrained weights as the start of a run: `net.weights` names a file of them.

The file is safetensors, or a state dict that `torch.save` wrote, also one under the key
`state_dict` or `model`. It has every name of the backbone, with or without the prefix `backbone.`.
It may have heads too; those it has must be whole and fit. Nothing else may be in it.
"""

import hashlib
import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as load_safetensors
from torch import Tensor, nn

from coterie.core import paths
from coterie.core.bundle import Tensors
from coterie.core.errors import ConfigError
from coterie.core.settings import NetSettings
from coterie.nets.heads import Network, TargetNetwork

PREFIX = "backbone."
_HEADS = ("projector", "predictor", "prototypes", "classifier", "target")
_NESTED = ("state_dict", "model")  # keys under which checkpoints keep a state dict
_ENCODER = "keep the backbone alone: coterie export RUN --what encoder"


def fingerprint(path: str) -> str:
    """Compute the SHA-256 of a file of weights; `ConfigError` if it cannot be read."""
    return hashlib.sha256(_read_bytes(path)).hexdigest()


def pin(settings: NetSettings) -> NetSettings:
    """Fill in the SHA-256 of `net.weights`; refuse a file that has another one than is stated."""
    if not settings.weights:
        if settings.weights_sha256:
            raise ConfigError("net.weights_sha256 needs net.weights, the file that it is of")
        return settings
    return replace(settings, weights_sha256=_check(settings, _read_bytes(settings.weights)))


def read(settings: NetSettings) -> Tensors:
    """Read the file that `net.weights` names, by name of tensor."""
    key, data = _key(settings), _read_bytes(settings.weights)
    _check(settings, data)
    try:
        if data[8:9] == b"{":  # safetensors: eight bytes of length, then JSON
            state: Any = load_safetensors(data)
        else:
            state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # whatever damaged bytes lead to
        raise ConfigError(
            f"{key} is neither safetensors nor a state dict without code "
            f"({type(error).__name__}): write it with safetensors, or torch.save(net.state_dict())"
        ) from error
    nested = [state[k] for k in _NESTED if isinstance(state, Mapping) and k in state]
    state = next((inner for inner in nested if isinstance(inner, Mapping)), state)
    if not isinstance(state, Mapping):
        raise ConfigError(f"{key} has a {type(state).__name__} where a state dict should be")
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):
            kind = type(tensor).__name__
            raise ConfigError(f"{key}: {name!r} is a {kind}, no tensor: save net.state_dict()")
    return dict(state)


def lay_backbone(backbone: nn.Module, tensors: Tensors, settings: NetSettings) -> Tensors:
    """Load the weights of a backbone, all of them; return what the file has beside them."""
    names = backbone.state_dict().keys()
    bare = names <= tensors.keys() or not any(name.startswith(PREFIX) for name in tensors)
    source = {name: name if bare else f"{PREFIX}{name}" for name in names}
    _lay(backbone, source, tensors, settings)
    used = set(source.values())
    return {name: tensor for name, tensor in tensors.items() if name not in used}


def lay_heads(net: Network, rest: Tensors, settings: NetSettings) -> None:
    """Load the heads that a file has beside the backbone; the others stay as they are."""
    names = net.state_dict().keys()
    for name in rest:
        if name not in names or name.startswith(PREFIX):
            is_head = name.split(".")[0] in _HEADS
            remedy = _ENCODER if is_head else "leave it out of the file"
            raise ConfigError(f"{_key(settings)} has {name!r}, the network has not; {remedy}")
    heads = {name.split(".")[0] for name in rest}
    _lay(net, {name: name for name in names if name.split(".")[0] in heads}, rest, settings)
    if isinstance(net, TargetNetwork) and "target" not in heads:
        net.restart()


def _lay(
    module: nn.Module, source: Mapping[str, str], tensors: Tensors, settings: NetSettings
) -> None:
    """Load tensors into the names of a module, each from its name in the file."""
    key, own = _key(settings), module.state_dict()
    for name, given in source.items():
        if given not in tensors:
            raise ConfigError(
                f"{key} lacks {given!r}, which net.backbone = {settings.backbone!r} or its heads "
                f"have; its first name is {next(iter(tensors), '')!r}"
            )
        tensor, shape = tensors[given], tuple(own[name].shape)
        if tuple(tensor.shape) != shape:
            remedy = f"; {_ENCODER}" if given.split(".")[0] in _HEADS else ""
            raise ConfigError(
                f"{key}: {given!r} has the shape {tuple(tensor.shape)}, in the network it has "
                f"{shape}{remedy}"
            )
        if tensor.is_floating_point() != own[name].is_floating_point():
            raise ConfigError(f"{key}: {given!r} is {tensor.dtype}, not {own[name].dtype}")
        if not bool(tensor.isfinite().all()):
            raise ConfigError(f"{key}: {given!r} has entries that are not finite")
    renamed = {name: tensors[given] for name, given in source.items()}
    module.load_state_dict(renamed, strict=False)


def _key(settings: NetSettings) -> str:
    return f"net.weights = {settings.weights!r}"


def _read_bytes(path: str) -> bytes:
    file = Path(path).expanduser()
    problem = paths.find_problem(file)
    if "\0" in path or problem not in (
        None,
        paths.ABSENT,
        paths.FOLDER,
    ):  # opening a pipe may block
        raise ConfigError(f"net.weights = {path!r} {problem}; give a file")
    try:
        return file.read_bytes()
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"net.weights = {path!r} cannot be read: {reason}") from error


def _check(settings: NetSettings, data: bytes) -> str:
    """Return the SHA-256 of a file; `ConfigError` if another one is stated."""
    found, stated = hashlib.sha256(data).hexdigest(), settings.weights_sha256
    if stated and found != stated.lower():
        raise ConfigError(
            f"{_key(settings)} has the SHA-256 {found}, and net.weights_sha256 is {stated}: it is "
            "another file; restore it, or start a new run without net.weights_sha256"
        )
    return found
