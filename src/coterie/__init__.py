"""Coterie: federated contrastive learning on skewed, often unlabelled data.

The public names are loaded on first use, so that `import coterie` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie import kit as kit
    from coterie.core.bundle import Blob as Blob
    from coterie.core.bundle import Bundle as Bundle
    from coterie.core.errors import CoterieError as CoterieError
    from coterie.engine.record import ClientEvent as ClientEvent
    from coterie.engine.record import NoteEvent as NoteEvent
    from coterie.engine.record import Recorder as Recorder
    from coterie.engine.record import RoundEvent as RoundEvent
    from coterie.engine.record import StartEvent as StartEvent
    from coterie.engine.sink import Sink as Sink
    from coterie.engine.sink import TrackedRun as TrackedRun
    from coterie.experiment.fit import fit as fit
    from coterie.experiment.history import History as History
    from coterie.experiment.result import Result as Result
    from coterie.experiment.result import load as load
    from coterie.experiment.run import run as run
    from coterie.kit import Evaluator as Evaluator
    from coterie.kit import FederatedEvaluator as FederatedEvaluator
    from coterie.kit import Method as Method
    from coterie.kit import Objective as Objective
    from coterie.kit import losses as losses

__version__ = "0.2.0"

_NAMES = {
    "core.bundle": ("Blob", "Bundle"),
    "core.errors": ("CoterieError",),
    "engine.record": ("ClientEvent", "NoteEvent", "Recorder", "RoundEvent", "StartEvent"),
    "engine.sink": ("Sink", "TrackedRun"),
    "experiment.fit": ("fit",),
    "experiment.history": ("History",),
    "experiment.result": ("Result", "load"),
    "experiment.run": ("run",),
    "kit": ("Evaluator", "FederatedEvaluator", "Method", "Objective", "losses"),
}
_HOMES = {name: f"coterie.{module}" for module, names in _NAMES.items() for name in names}

__all__ = sorted([*_HOMES, "__version__", "kit"])


def __getattr__(name: str) -> Any:
    if name == "kit":
        return import_module("coterie.kit")
    if name not in _HOMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
