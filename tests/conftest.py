"""What every test shares: a cache of its own, the toy data, one torch thread, files in memory."""

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import toy
from coterie.evaluate.shared import head

_MEMORY = Path("/dev/shm")  # a file system in memory: runs wait for no disk there
_ENOUGH = 4 * 2**30  # bytes; the files of tests that pass are removed as they end

if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > _ENOUGH:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("COTERIE_CACHE")
    os.environ["COTERIE_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["COTERIE_CACHE"]
    else:
        os.environ["COTERIE_CACHE"] = before


# not those that are found: a shell starts programs in the background with SIGINT ignored
_HANDLERS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def _restore_signals() -> None:
    for number, handler in _HANDLERS.items():
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """Restore the handlers of signals, which a command that is called in this process changes."""
    _restore_signals()  # a fixture of a whole module may have called one before
    yield
    _restore_signals()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def short_probes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Linear classifiers get a twentieth of their steps, in this process: for serial runs."""
    monkeypatch.setattr(head, "STEPS", head.STEPS // 20)
    monkeypatch.setattr(head, "EPOCHS", head.EPOCHS // 20)


@pytest.fixture(scope="session")
def toy_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An .npz file of three well-separated clouds in six dimensions."""
    return toy.write_data(tmp_path_factory.mktemp("toy") / "toy.npz")
