"""The types of public arguments: importable without torch, and true of what users pass."""

import subprocess
import sys
import typing
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

from coterie import types
from coterie.methods.moon import MOON
from coterie.types import Format, Layer, Part, PathLike, Samples, What, Which


def test_types_are_there_without_torch() -> None:
    code = "import coterie.types, sys; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def given(
    samples: Samples,
    part: Part,
    path: PathLike,
    which: Which = "last",
    what: What = "model",
    format: Format = "pt2",
    layer: Layer = "h",
) -> None:
    """A function of a user's, annotated with the public types."""


def test_annotations_can_be_read_while_a_program_runs() -> None:
    hints = typing.get_type_hints(given)
    assert set(typing.get_args(hints["which"])) == {"last", "best"}
    assert set(typing.get_args(hints["what"])) == {"model", "encoder", "personal"}
    assert set(typing.get_args(hints["format"])) == {"safetensors", "pt2", "onnx"}
    assert set(typing.get_args(hints["layer"])) == {"h", "z"}
    assert all(vars(types)[name].__doc__ for name in ("ArrayLike", "Indexed", "WithFields"))


def test_what_users_pass_is_of_these_types() -> None:
    """`mypy --strict` accepts these calls."""
    x = np.zeros((4, 6), np.float32)
    y = [0, 1, 0, 1]
    for samples in (x, torch.zeros(4, 6), x.tolist(), (x, y), (x, None), (torch.zeros(4, 6), x)):
        given(samples, "moon", "a/path")
    given(TensorDataset(torch.zeros(4, 6)), MOON(mu=1.0), Path("a/path"))
    given("folder", {"name": "moon", "mu": 1}, "a/path")
    given(Path("folder"), MOON, "a/path")
    given(x, nn.Flatten(), "a/path")
    given(x, lambda shape: nn.Flatten(), "a/path", "best", "encoder", "onnx", "z")
