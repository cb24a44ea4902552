"""Connects to a Ray cluster, or starts one on the loopback interface that ends with this process.

Whoever may talk to a Ray cluster may run code on it. So a cluster of our own listens on 127.0.0.1
only and asks for a token that nobody else can read, and one of others must ask for a token too.
"""

import importlib.util
import os
import secrets
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from coterie.core.errors import ConfigError, RunFailed

LOOPBACK = "127.0.0.1"
_LONGEST_FOLDER = 40  # characters: paths of sockets are short
_REACH_SECONDS = 5.0
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else every worker without a GPU warns
}
AS_PROCESSES = {"RAY_worker_niceness": "0"}  # Ray would run actors with the lowest priority


def check_installed() -> None:
    """Raise before the run starts if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError("executor.kind = 'ray' needs the package ray: pip install 'coterie[ray]'")


@dataclass(frozen=True)
class Connection:
    """A connection of this process to a cluster; `folder` is that of a cluster of our own."""

    folder: Path | None = None
    borrowed: bool = False  # the caller's program had called ray.init

    def close(self) -> None:
        """Disconnect, and end the cluster if it is our own; safe to call twice."""
        import ray

        if not self.borrowed:
            ray.shutdown()
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def connect(address: str, insecure: bool, cpus: int, gpus: int | None) -> Connection:
    """Connect to the cluster at `address`; without one, start a cluster on this machine."""
    import ray

    if not address:
        if ray.is_initialized():
            raise ConfigError(
                "Ray is connected to a cluster in this process: call ray.shutdown() first, or set "
                "executor.address = 'auto' to use that cluster"
            )
        return _start_local(cpus, gpus)
    has_token = find_token() is not None
    if not has_token and not insecure:
        raise ConfigError(
            f"executor.address = {address!r} without a token: anyone who reaches such a cluster "
            "can run code on it; set RAY_AUTH_TOKEN_PATH to the cluster's token file, or "
            "executor.insecure = true for a cluster without one"
        )
    if ray.is_initialized():
        return Connection(borrowed=True)
    _check_address(address)
    with _environment({**_QUIET, "RAY_AUTH_MODE": "token" if has_token else "disabled"}):
        try:
            _init(address=address)
        except (ray.exceptions.RayError, ConnectionError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise RunFailed(f"executor.address = {address!r}: {reason}") from error
    return Connection()


def find_token() -> str | None:
    """Find the token where Ray looks for it; None if there is none, or `RAY_AUTH_MODE` is off."""
    if os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return None
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    path = os.environ.get("RAY_AUTH_TOKEN_PATH")
    try:
        return Path(path or Path.home() / ".ray" / "auth_token").read_text().strip() or None
    except OSError:
        return None


def _start_local(cpus: int, gpus: int | None) -> Connection:
    """Start a cluster that only this user can reach, from this machine."""
    parent = tempfile.gettempdir()
    folder = Path(
        tempfile.mkdtemp(
            prefix="coterie-ray-", dir=parent if len(parent) <= _LONGEST_FOLDER else "/tmp"
        )
    )
    try:
        token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(write_token(folder))}
        with _environment({**_QUIET, **AS_PROCESSES, **token}):
            _init(
                address="local",
                num_cpus=cpus,
                num_gpus=gpus,
                include_dashboard=False,
                _node_ip_address=LOOPBACK,
                _temp_dir=str(folder),
            )
    except BaseException as error:
        Connection(folder).close()
        if isinstance(error, Exception):
            reason = str(error).strip().splitlines()[0]
            raise RunFailed(f"a Ray cluster cannot be started here: {reason}") from error
        raise
    return Connection(folder)


def write_token(folder: Path) -> Path:
    """Write a new token to a file that only this user can read."""
    path = folder / "token"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secrets.token_hex(32))
    return path


def _check_address(address: str) -> None:
    """Refuse what is no address, and one where nobody answers: Ray itself waits for minutes."""
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdigit():
        raise ConfigError(
            f"executor.address = {address!r} is not HOST:PORT of the cluster's head node (port "
            "6379 unless it was started with another), nor 'auto'"
        )
    try:
        socket.create_connection((host.strip("[]"), int(port)), _REACH_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise ConfigError(f"executor.address = {address!r} cannot be reached: {error}") from error


def _init(**options: Any) -> None:
    """Call `ray.init` quietly, with our environment, addresses and signal handlers."""
    import ray

    main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    with as_given():
        try:
            ray.init(**options, log_to_driver=False, logging_level="error")
        finally:
            if main:  # Ray's C++ part has set one of its own, which Python does not know of
                signal.signal(signal.SIGTERM, handler)


@contextmanager
def as_given() -> Iterator[None]:
    """Have Ray use loopback addresses and handlers as they are, and read the token's variables.

    `ray.init` replaces 127.0.0.1 by the machine's outer address, on which the cluster would then
    listen, and keeps the token of an earlier cluster of this process. Its handler of SIGTERM would
    end the process before the last round is committed. All of these are internals of Ray.
    """
    services: Any = import_module("ray._private.services")
    utils: Any = import_module("ray._private.utils")
    raylet: Any = import_module("ray._raylet")
    resolve = services.resolve_ip_for_localhost
    set_handler = utils.set_sigterm_handler
    services.resolve_ip_for_localhost = lambda host: host
    utils.set_sigterm_handler = lambda handler: None
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()
    try:
        yield
    finally:
        services.resolve_ip_for_localhost = resolve
        utils.set_sigterm_handler = set_handler


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables inside a `with` block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
