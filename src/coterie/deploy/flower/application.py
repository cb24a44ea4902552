"""SuperLink's application, set up to run no programs: sites and this process are all it knows."""

import secrets
import warnings
from pathlib import Path

from fastapi import FastAPI
from flwr.common.constant import ISOLATION_MODE_PROCESS, TRANSPORT_TYPE_GRPC_RERE
from flwr.supercore.protobuf.translation import ProtobufTranslationMiddleware
from flwr.superlink.auth_plugin import NoOpControlAuthnPlugin
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app
from flwr.superlink.routers.fleet.node_auth import NodeAuthMiddleware
from starlette.middleware.base import BaseHTTPMiddleware

# Translation of errors, of requests, and the check of signatures; the others serve what the guard
# keeps out, and take half of the time of a request
_NEEDED: tuple[object, ...] = (
    BaseHTTPMiddleware,
    ProtobufTranslationMiddleware,
    NodeAuthMiddleware,
)


def make_application(host: str, port: int, database: Path, secured: bool) -> FastAPI:
    """Make the application with its state in a database; `secured` if keys are registered."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Flower's own migrations
        app = create_app(_configure(host, port, database, secured), SuperLinkLifespan)
    app.user_middleware = [each for each in app.user_middleware if each.cls in _NEEDED]
    return app


def _configure(host: str, port: int, database: Path, secured: bool) -> SuperLinkLifespanConfig:
    """Fill in a configuration that starts no further process, port or plug-in."""
    return SuperLinkLifespanConfig(
        control_address="",
        health_server_address=None,
        host=host,
        port=port,
        insecure=not secured,
        certificates=None,
        superexec_auth_secret=secrets.token_bytes(32),
        authn_plugin=NoOpControlAuthnPlugin(),
        event_log_plugin=None,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=secured,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=None,
        ssl_certfile=None,
        ssl_keyfile=None,
        database=str(database),
        isolation=ISOLATION_MODE_PROCESS,  # the other value starts a process that runs apps
        runtime_dependency_install=False,
    )
