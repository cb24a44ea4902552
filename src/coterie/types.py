"""Types of the public functions' arguments, for annotations in your own code; loads no torch."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, Protocol, TypeAlias

PathLike: TypeAlias = str | os.PathLike[str]

Which: TypeAlias = Literal["last", "best"]  # the round whose weights are used
What: TypeAlias = Literal["model", "encoder", "personal"]  # the network that is exported
Format: TypeAlias = Literal["safetensors", "pt2", "onnx"]  # the format of an exported file
Layer: TypeAlias = Literal["h", "z"]  # representations behind the backbone or projector


class ArrayLike(Protocol):
    """What numpy can read: an array, a torch tensor, a data frame."""

    def __array__(self) -> Any:
        """Convert to a numpy array."""


class Indexed(Protocol):
    """What gives samples by their number, such as a torch `Dataset` of x or (x, y)."""

    def __getitem__(self, index: int, /) -> Any:
        """Return one sample."""


class DataFrame(Protocol):
    """A data frame of pandas, or of a library with the same methods."""

    @property
    def columns(self) -> Any:
        """The names of the columns."""

    def to_numpy(self) -> Any:
        """Convert to a numpy array."""


class WithFields(Protocol):
    """An instance of a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


_Inputs: TypeAlias = ArrayLike | Indexed | Sequence[Any] | PathLike
_Labels: TypeAlias = ArrayLike | Sequence[Any] | None

Samples: TypeAlias = _Inputs | tuple[_Inputs, _Labels]
"""x, (x, y) or (x, None): a tuple of two is x and y, a list is x. A path is read as in commands."""

Part: TypeAlias = str | Mapping[str, Any] | WithFields | Callable[..., Any]
"""A part of a run: a name, a table, an instance of a dataclass, a class, function or module."""
