"""Tells a Ctrl-C of the user from a `KeyboardInterrupt` that a client's own code raises."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_Handler = Callable[[int, FrameType | None], object]


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
