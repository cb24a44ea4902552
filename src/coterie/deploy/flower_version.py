"""Check the installed Flower before it is imported, and switch off what it does unasked."""

import os
from importlib import metadata

from coterie.core.errors import ConfigError

FLOWER = "1.41"  # its internals are called, and they change with every release

_SETTINGS = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "FLWR_INTERNAL_GRPC_CONTROL_API": "0",  # "1" opens further ports, past our guard
    "FLWR_INTERNAL_GRPC_FLEET_API": "0",
}


def require_flower() -> None:
    """Refuse another version than the one we were written for; keep Flower from calling home.

    Flower reads these variables when it is imported, so this has to be called before.
    """
    try:
        version = metadata.version("flwr")
    except metadata.PackageNotFoundError as error:
        raise ConfigError(
            "federations of several sites need Flower: pip install 'coterie[flower]'"
        ) from error
    if version.split(".")[:2] != FLOWER.split("."):
        raise ConfigError(
            f"flwr {version} is installed, but Coterie works with flwr {FLOWER} only: "
            f"pip install 'flwr=={FLOWER}.*'"
        )
    os.environ.update(_SETTINGS)
