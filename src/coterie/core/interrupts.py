"""Ctrl-C and SIGTERM: what they do to a command, and how they differ from a client's own exception.

A signal raises `KeyboardInterrupt` once, and later ones are ignored, so that nothing disturbs the
end. An import is never interrupted: it would leave half a module, and libraries turn the exception
into others. Before torch is loaded there is nothing to lose, and the process just ends; later the
signal waits until the import is done. In a finaliser or a hook Python only prints an exception, so
it is raised again soon after.
"""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERRUPTED = 130  # the exit code
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_IMPORT = "<frozen importlib._bootstrap>"
_PAUSE = 0.05  # seconds, until an import is looked at again, or an interrupt raised again
_Handler = Callable[[int, FrameType | None], object]


class _Stop(KeyboardInterrupt):
    """Raised by a signal, and by nobody's own code."""


def install() -> None:
    """Have the signals end a command; called before anything that takes time to import."""
    _install_handlers()
    sys.unraisablehook = _raise_again


def ignore() -> None:
    """Ignore the signals from here on: the command is done, and the process about to end."""
    _ignore_signals()
    sys.unraisablehook = sys.__unraisablehook__  # ours needs modules that the exit tears down


def settle() -> None:
    """Ignore further signals if `install` was called: the caller raises `KeyboardInterrupt` now."""
    if _stop in map(signal.getsignal, _SIGNALS):
        _ignore_signals()


def _install_handlers() -> None:
    for number in _SIGNALS:
        signal.signal(number, _stop)


def _ignore_signals() -> None:
    if signal.getsignal(signal.SIGALRM) is _repeat:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)


def _stop(number: int, frame: FrameType | None) -> None:
    if not _is_importing(frame):
        _ignore_signals()
        raise _Stop
    if not _has_torch():
        with contextlib.suppress(OSError):
            os.write(2, b"coterie: interrupted\n")
        os._exit(INTERRUPTED)
    _repeat_soon()


def _raise_again(unraisable: "sys.UnraisableHookArgs") -> None:
    """Raise a signal's interrupt again that Python could only print; print other exceptions."""
    main = threading.current_thread() is threading.main_thread()
    if main and issubclass(unraisable.exc_type, _Stop):
        _install_handlers()  # it may come in an import by then
        _repeat_soon()
    else:
        sys.__unraisablehook__(unraisable)


def _repeat_soon() -> None:
    """Have the main thread get the signal again after a moment, wherever it is by then."""
    signal.signal(signal.SIGALRM, _repeat)
    signal.setitimer(signal.ITIMER_REAL, _PAUSE)


def _repeat(number: int, frame: FrameType | None) -> None:
    signal.raise_signal(signal.SIGINT)


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_filename != _IMPORT:
        frame = frame.f_back
    return frame is not None


def _has_torch() -> bool:
    """Whether torch is imported, not only begun to be."""
    spec = getattr(sys.modules.get("torch"), "__spec__", None)
    return spec is not None and not getattr(spec, "_initializing", False)


class Interrupts:
    """Whether a signal to stop has come while it was watched for."""

    def __init__(self) -> None:
        self.came = False

    def wrap(self, handler: _Handler) -> _Handler:
        """Return a handler that notes the signal, then does what the given one does."""

        def note(number: int, frame: FrameType | None) -> object:
            self.came = True
            return handler(number, frame)

        return note


@contextmanager
def watch() -> Iterator[Interrupts]:
    """Note signals to stop inside a `with` block; what they do otherwise stays as it is.

    Python runs handlers of signals in the main thread alone, so that a `KeyboardInterrupt` in
    another thread is never the user's.
    """
    seen, wrapped = Interrupts(), dict[int, tuple[_Handler, _Handler]]()
    if threading.current_thread() is threading.main_thread():
        for watched in _SIGNALS:
            handler = signal.getsignal(watched)
            if callable(handler):
                wrapped[watched] = handler, seen.wrap(handler)
                signal.signal(watched, wrapped[watched][1])
    try:
        yield seen
    finally:
        for number, (before, ours) in wrapped.items():
            # a handler may have replaced itself, so that the next signal does not disturb the end
            if signal.getsignal(number) is ours:
                signal.signal(number, before)


@contextmanager
def postpone() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until a `with` block is done.

    A database transaction that is interrupted may keep its lock, and a later one wait for it.
    """
    came, before = list[int](), dict[int, _Handler]()
    if threading.current_thread() is threading.main_thread():
        for watched in _SIGNALS:
            handler = signal.getsignal(watched)
            if callable(handler):
                before[watched] = handler
                signal.signal(watched, lambda number, _: came.append(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            before[came[0]](came[0], None)
