"""A signal to stop is told from a `KeyboardInterrupt` that is only raised."""

import importlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from coterie.core import interrupts


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Set back what tests do to the handlers."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    hook = sys.unraisablehook
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    sys.unraisablehook = hook
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_is_noted_and_does_what_it_did_before() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.watch() as seen:
        os.kill(os.getpid(), signal.SIGINT)
    assert seen.came
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_exception_alone_is_no_signal() -> None:
    with pytest.raises(KeyboardInterrupt), interrupts.watch() as seen:
        raise KeyboardInterrupt
    assert not seen.came


def test_a_handler_that_replaced_itself_stays_replaced() -> None:
    def stop(number: int, frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    with pytest.raises(KeyboardInterrupt), interrupts.watch() as seen:
        os.kill(os.getpid(), signal.SIGTERM)
    assert seen.came
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interrupts.watch() as seen:
        os.kill(os.getpid(), signal.SIGINT)
    assert not seen.came


def test_other_threads_leave_the_handlers_alone() -> None:
    found: list[object] = []

    def work() -> None:
        with interrupts.watch():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


SIGNALS = (signal.SIGINT, signal.SIGTERM)
# interrupted in the midst of its import, which turns every exception into another
RUDE = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000): pass
except BaseException as error:
    raise ImportError("it has no part of that name")
whole = True
"""


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_interrupts_once_and_later_ones_are_ignored(number: signal.Signals) -> None:
    interrupts.install()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), number)
    for known in SIGNALS:
        os.kill(os.getpid(), known)
        assert signal.getsignal(known) is signal.SIG_IGN


def test_a_signal_waits_for_the_end_of_an_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert torch.__version__  # with it loaded, a run may be under way
    (tmp_path / "rude_module.py").write_text(RUDE)
    monkeypatch.syspath_prepend(tmp_path)
    interrupts.install()
    came = threading.Event()
    try:
        importlib.import_module("rude_module")
        came.wait(60)  # the signal comes now
    except KeyboardInterrupt:
        came.set()
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert came.is_set() and sys.modules.pop("rude_module").whole


class Finalised:
    """Gets a signal, or raises an exception, where Python can only print an exception."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def __del__(self) -> None:
        if self.error is not None:
            raise self.error
        os.kill(os.getpid(), signal.SIGTERM)
        for _ in range(1000):
            pass


def test_a_signal_in_a_finaliser_interrupts_soon_after(capsys: pytest.CaptureFixture[str]) -> None:
    interrupts.install()
    try:
        with pytest.raises(KeyboardInterrupt):
            Finalised()
            time.sleep(60)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert capsys.readouterr().err == ""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN


def test_other_exceptions_in_a_finaliser_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    interrupts.install()
    Finalised(ValueError("no such file"))
    assert "ValueError: no such file" in capsys.readouterr().err


def test_an_interrupt_that_no_signal_raised_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    interrupts.install()
    Finalised(KeyboardInterrupt())
    assert "KeyboardInterrupt" in capsys.readouterr().err
    time.sleep(0.1)  # longer than it takes until a signal is raised again


def test_a_signal_at_the_end_is_ignored() -> None:
    interrupts.install()
    interrupts.ignore()
    for known in SIGNALS:
        os.kill(os.getpid(), known)
    assert sys.unraisablehook is sys.__unraisablehook__


@pytest.mark.parametrize("end", [interrupts.ignore, interrupts.settle])
def test_a_signal_that_was_to_be_raised_again_is_not_at_the_end(end: Callable[[], None]) -> None:
    interrupts.install()
    with interrupts.watch() as seen:
        Finalised()
    end()
    assert seen.came and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    for known in SIGNALS:
        os.kill(os.getpid(), known)


def test_settling_leaves_the_handlers_of_other_programs_alone() -> None:
    interrupts.settle()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_postponed_signal_comes_after_the_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts.postpone():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        done.append(1)
    assert done == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_postponed_signal_comes_after_an_error_and_from_an_inner_block() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt) as raised, interrupts.postpone():
        with interrupts.postpone():
            os.kill(os.getpid(), signal.SIGINT)
        done.append(1)
        raise ValueError("a full disk")
    assert done == [1] and isinstance(raised.value.__context__, ValueError)


def test_another_thread_postpones_nothing() -> None:
    done = []

    @interrupts.postpone()
    def work() -> None:
        done.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [signal.default_int_handler]
