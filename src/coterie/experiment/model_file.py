"""`model.json`: all that opening a trained model needs, beside its weights."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from coterie.core.errors import DataError
from coterie.core.files import replace_durably
from coterie.data.encoding import TableColumn, is_by_site, list_sites

MODEL_FILE = "model.json"
FORMAT = 1
_HASH = "sha256"  # the key with the hash of all others
_LISTS = ("shape", "mean", "std", "columns", "classes", "clients", "unseen", "kept")
_CHOICES = {"method": "name", "objective": "name", "net": "backbone"}


@dataclass(frozen=True)
class InputDescription:
    """What the network was trained on: the form of a sample, and its normalisation."""

    kind: str  # "image", "signal" or "table"
    shape: tuple[int, ...]  # of a sample
    dtype: str  # "uint8": images of bytes, which are divided by 255; or "float32"
    mean: tuple[float, ...] = ()  # per channel; empty: no normalisation
    std: tuple[float, ...] = ()
    resize: int = 0  # of image files: the shorter side; 0: they were left as they are
    columns: tuple[Mapping[str, Any], ...] = ()  # of a table: how each becomes inputs
    label: str = ""  # of a table: the column of labels, where the user named one

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites by which a table was standardised; empty where all share one mean."""
        return list_sites(map(TableColumn.from_plain, self.columns))

    @property
    def by_site(self) -> bool:
        """Whether a table was standardised for each site by itself."""
        return is_by_site(map(TableColumn.from_plain, self.columns))


@dataclass(frozen=True)
class WeightsFile:
    """A file with weights; the round that they are from counts from 0."""

    file: str  # relative to the run directory
    sha256: str
    round: int | None = None
    metric: str | None = None  # of the best round
    value: float | None = None


@dataclass(frozen=True)
class SavedWeights:
    """The weights that a run has left; none of them before its end."""

    last: WeightsFile | None = None
    best: WeightsFile | None = None
    personal: Mapping[str, WeightsFile] = field(default_factory=dict)  # by client

    def __bool__(self) -> bool:
        return self.last is not None or bool(self.personal)


@dataclass(frozen=True)
class ModelFile:
    """The contents of `model.json`."""

    coterie: str  # the version that wrote it
    method: Mapping[str, Any]  # the tables of the configuration
    objective: Mapping[str, Any]
    net: Mapping[str, Any]  # without what depends on a machine
    input: InputDescription
    classes: tuple[int | str, ...]
    clients: tuple[str, ...]
    unseen: tuple[str, ...] = ()  # those of `clients` that never trained
    kept: tuple[str, ...] = ()  # names of the network that never leave a client
    weights: SavedWeights = field(default_factory=SavedWeights)
    own_nets: bool = True  # whether the method builds networks itself, not the objective alone
    leaves: str = ""  # what leaves a client in training, in words

    def to_json(self) -> str:
        """Write it as JSON, with its own hash; what is not there is left out."""
        values = _without_none({"format": FORMAT, **asdict(self)})
        return json.dumps({**values, _HASH: hash_values(values)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> "ModelFile":
        """Parse what `to_json` wrote; raise `ValueError` or `TypeError` if that is not it."""
        values = json.loads(text)
        if not isinstance(values, dict):
            raise ValueError("it is not a JSON object")
        if (version := values.get("format")) != FORMAT:
            raise ValueError(f"format {version!r} is not {FORMAT}: another version wrote it")
        written = values.pop(_HASH, None)  # earlier versions wrote none
        if written is not None and written != hash_values(values):
            raise ValueError(f"it was changed after it was written ({_HASH}): put back a copy")
        for table, key in _CHOICES.items():
            if not isinstance(values.get(table), dict) or key not in values[table]:
                raise ValueError(f"the key {table}.{key} is missing")
        saved = values.get("weights", {})
        personal = {
            client: _make(WeightsFile, entry) for client, entry in saved.get("personal", {}).items()
        }
        files = {key: _make(WeightsFile, saved[key]) for key in ("last", "best") if key in saved}
        parts = {
            "input": _make(InputDescription, values.get("input", {})),
            "weights": SavedWeights(personal=personal, **files),
        }
        made: ModelFile = _make(cls, {**values, **parts})
        return made

    def write(self, folder: Path) -> None:
        """Write it to a run directory, atomically."""
        replace_durably(folder / MODEL_FILE, self.to_json().encode())


def read_model_file(folder: Path) -> ModelFile:
    """Read `model.json` of a run directory."""
    path = folder / MODEL_FILE
    try:
        return ModelFile.from_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{path} is missing: it describes the network of a run, copy it with the weights"
        ) from None
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, AttributeError) as error:
        raise DataError(f"{path} cannot be used: {error}") from error


def _make(kind: Any, values: Any) -> Any:
    """Make a dataclass of a JSON object; unknown keys, of later versions, are ignored."""
    if not isinstance(values, dict):
        raise ValueError(f"{values!r} is not a JSON object")
    given = {f.name: values[f.name] for f in fields(kind) if f.name in values}
    for f in fields(kind):
        optional = f.default is not MISSING or f.default_factory is not MISSING
        if f.name not in given and not optional:
            raise ValueError(f"the key {f.name!r} is missing")
        if f.name in given and f.name in _LISTS:
            if not isinstance(given[f.name], list):
                raise ValueError(f"{f.name} = {given[f.name]!r} is not a list")
            given[f.name] = tuple(given[f.name])
    return kind(**given)


def hash_values(values: Mapping[str, Any]) -> str:
    """Compute the SHA-256 of a JSON object, whatever its layout and the order of its keys."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(entry) for key, entry in value.items() if entry is not None}
    return value
