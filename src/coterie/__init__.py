"""Coterie: federated contrastive learning on skewed, often unlabelled data.

The public names are loaded on first use, so that `import coterie` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie import kit
    from coterie.core.bundle import Blob, Bundle
    from coterie.core.errors import CoterieError
    from coterie.engine.record import ClientEvent, NoteEvent, Recorder, RoundEvent, StartEvent
    from coterie.experiment.run import Result, fit, run
    from coterie.kit import losses
    from coterie.kit.evaluator import Evaluator
    from coterie.kit.method import FederatedEvaluator, Method
    from coterie.kit.objective import Objective

__version__ = "0.1.0"

_HOMES = {
    "Blob": "coterie.core.bundle",
    "Bundle": "coterie.core.bundle",
    "ClientEvent": "coterie.engine.record",
    "CoterieError": "coterie.core.errors",
    "Evaluator": "coterie.kit.evaluator",
    "FederatedEvaluator": "coterie.kit.method",
    "Method": "coterie.kit.method",
    "NoteEvent": "coterie.engine.record",
    "Objective": "coterie.kit.objective",
    "Recorder": "coterie.engine.record",
    "Result": "coterie.experiment.run",
    "RoundEvent": "coterie.engine.record",
    "StartEvent": "coterie.engine.record",
    "fit": "coterie.experiment.run",
    "kit": "coterie",
    "losses": "coterie.kit",
    "run": "coterie.experiment.run",
}

__all__ = [
    "Blob",
    "Bundle",
    "ClientEvent",
    "CoterieError",
    "Evaluator",
    "FederatedEvaluator",
    "Method",
    "NoteEvent",
    "Objective",
    "Recorder",
    "Result",
    "RoundEvent",
    "StartEvent",
    "__version__",
    "fit",
    "kit",
    "losses",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    if name in ("kit", "losses"):
        return import_module(f"{_HOMES[name]}.{name}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
