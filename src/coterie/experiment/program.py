"""A trained network as a program that other software runs, with its normalisation inside.

It takes `x`, float32 of any batch size; images in [0, 1] if the run was on bytes. It returns
`logits`; without a classifier `h` and `z`; an encoder `h`.
"""

import io
import json
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from coterie.core.errors import ConfigError
from coterie.experiment.model_file import InputDescription
from coterie.nets.heads import Network
from coterie.nets.norm import find_peers
from coterie.nets.sensor import Sensed

DESCRIPTION = "coterie.json"  # the name of the description within a file
_ANY_BATCH = {"x": {0: Dim("batch", min=1)}}
_SAMPLES = 3  # of the batch that is traced; a batch of one would be taken for a fixed size


class Program(nn.Module):
    """A network behind its normalisation, with outputs by name."""

    mean: Tensor
    std: Tensor

    def __init__(self, net: nn.Module, given: InputDescription) -> None:
        super().__init__()
        self.network, self.normalises = net, bool(given.mean)
        shape = (-1,) + (1,) * (len(given.shape) - 1)
        self.register_buffer("mean", torch.tensor(given.mean).reshape(shape))
        self.register_buffer("std", torch.tensor(given.std).reshape(shape))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        """(n, *shape) -> the outputs, each (n, width)."""
        outputs = self.network((x - self.mean) / self.std if self.normalises else x)
        if not isinstance(self.network, Network):
            return {"h": outputs}
        if outputs.logits is not None:
            return {"logits": outputs.logits}
        return {"h": outputs.h, "z": outputs.z}


def name_outputs(net: nn.Module) -> list[str]:
    """List the outputs of a network's program."""
    if not isinstance(net, Network):
        return ["h"]
    return ["h", "z"] if net.classifier is None else ["logits"]


def save_weights(net: nn.Module, description: Mapping[str, Any]) -> bytes:
    """Write the bare weights as safetensors."""
    weights = {name: tensor.clone().contiguous() for name, tensor in net.state_dict().items()}
    metadata = {"format": "pt", DESCRIPTION: json.dumps(description)}
    return _sort_header(save(weights, metadata=metadata))


def _sort_header(data: bytes) -> bytes:
    """Write the JSON header of a safetensors file in order, so that equal weights give equal files.

    The library writes metadata in a random order; `net.weights_sha256` compares whole files.
    """
    end = 8 + int.from_bytes(data[:8], "little")
    header = json.dumps(json.loads(data[8:end]), sort_keys=True, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return len(header).to_bytes(8, "little") + header + data[end:]


def save_pt2(net: nn.Module, given: InputDescription, description: Mapping[str, Any]) -> bytes:
    """Write a program for `torch.export.load`."""
    stream = io.BytesIO()
    with _quietly("pt2; use safetensors"):
        extra = {DESCRIPTION: json.dumps(description)}
        torch.export.save(_trace(net, given), stream, extra_files=extra)
    return stream.getvalue()


def save_onnx(net: nn.Module, given: InputDescription, description: Mapping[str, Any]) -> bytes:
    """Write a program as ONNX, with all weights inside."""
    with _quietly("onnx; use pt2 or safetensors"):
        converted = torch.onnx.export(
            _trace(net, given),
            input_names=["x"],
            output_names=name_outputs(net),
            dynamic_shapes=_ANY_BATCH,  # for the name of the axis
            dynamo=True,
            verbose=False,
        )
        assert converted is not None  # it is if `dynamo` is true
        model = converted.model_proto
        entry = model.metadata_props.add()
        entry.key, entry.value = DESCRIPTION, json.dumps(description)
        data: bytes = model.SerializeToString()
    return data


def _trace(net: nn.Module, given: InputDescription) -> ExportedProgram:
    """Record a network and its normalisation as a program for batches of any size."""
    if any(isinstance(m, Sensed) and m.block and find_peers(m) for m in net.modules()):
        raise ConfigError(
            "what it gives for an image depends on the other images of its batch: train it with "
            "method.upload_peers = 'none'"
        )
    with torch.no_grad():
        program = torch.export.export(
            Program(net, given).eval(),
            (torch.zeros(_SAMPLES, *given.shape),),
            dynamic_shapes=_ANY_BATCH,
        )
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


@contextmanager
def _quietly(format: str) -> Iterator[None]:
    """Hide torch's remarks about its own internals; say in one line what it cannot convert."""
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            with redirect_stderr(io.StringIO()):
                yield
    except Exception as error:  # whatever a user's own backbone or torch's converter raises
        reason = f"{type(error).__name__}: {error}".strip().splitlines()[0]
        raise ConfigError(f"this network cannot be exported as {format} ({reason})") from error
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
