"""Coterie: federated contrastive learning on skewed, often unlabelled data.

The public names are loaded on first use, so that `import coterie` does not import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coterie.core.bundle import Blob, Bundle
    from coterie.core.errors import CoterieError
    from coterie.experiment.run import Result, fit, run
    from coterie.kit.method import Method
    from coterie.kit.objective import Objective

__version__ = "0.1.0"

_HOMES = {
    "Blob": "coterie.core.bundle",
    "Bundle": "coterie.core.bundle",
    "CoterieError": "coterie.core.errors",
    "Method": "coterie.kit.method",
    "Objective": "coterie.kit.objective",
    "Result": "coterie.experiment.run",
    "fit": "coterie.experiment.run",
    "run": "coterie.experiment.run",
}

__all__ = [
    "Blob",
    "Bundle",
    "CoterieError",
    "Method",
    "Objective",
    "Result",
    "__version__",
    "fit",
    "run",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'coterie' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
