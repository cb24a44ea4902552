"""Live progress on a terminal, plain lines elsewhere."""

import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from coterie.core.formatting import counted, escape_controls, format_bytes
from coterie.engine.record import (
    ClientEvent,
    Event,
    NoteEvent,
    Recorder,
    RoundEvent,
    StartEvent,
)

_ROOM_FOR_BAR = 100  # columns
_BAR = 16
_BYTES, _OTHER, _CLIENTS, _LEFT, _METRIC = range(5)  # how important a part of the line is
Part = tuple[int, str]  # of the line, with its importance
_SHOWN = (
    ("loss", "train_loss"),
    ("loss", "server_loss"),
    ("accuracy", "accuracy"),
    ("epsilon", "epsilon"),
)


def clock(seconds: float) -> str:
    """Write seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def fit_parts(parts: Sequence[Part], room: int) -> str:
    """Join the parts that fit into a number of columns; the least important ones are left out."""
    kept = list(parts)
    while len(kept) > 1 and len(_join(kept)) > room:
        kept.remove(min(kept))
    return _join(kept)


def _join(parts: Sequence[Part]) -> str:
    return "  ".join(text for _, text in parts)


class LastingConsole(Console):
    """A console that falls silent when nobody reads its output, instead of ending the program."""

    def on_broken_pipe(self) -> None:
        """Print nothing more."""
        self.quiet = True


class StatusColumn(ProgressColumn):
    """The clients that are done and what the last round gave, as far as the terminal has room."""

    def __init__(self, console: Console, bar: bool) -> None:
        super().__init__()
        self._console, self._bar = console, bar

    def render(self, task: Task) -> Text:
        """Write the parts that fit beside the number of the round."""
        before = len(f"round {task.total or 0:.0f}/{task.total or 0:.0f} ") + self._bar * (_BAR + 1)
        parts = [(_CLIENTS, task.fields["clients"]), *task.fields["status"]]
        return Text(fit_parts(parts, self._console.width - before), no_wrap=True)


class Display:
    """A recorder that shows round, loss, accuracy, clients done, bytes sent and time left."""

    def __init__(self, console: Console, opening: Sequence[str] = (), debug: bool = False) -> None:
        self._console, self._opening, self._debug = console, list(opening), debug
        self._shown = list(_SHOWN)
        self._live = console.is_terminal
        self._sent, self._seconds, self._total = 0, list[float](), 0
        self._metric = "accuracy"
        bar = [BarColumn(bar_width=_BAR)] if console.width >= _ROOM_FOR_BAR else []
        self._progress = Progress(
            TextColumn("round"),
            MofNCompleteColumn(),
            *bar,
            StatusColumn(console, bool(bar)),
            console=console,
            transient=True,
        )
        self._bar = self._progress.add_task("", total=None, clients="preparing", status=())

    def __enter__(self) -> "Display":
        if self._live:
            self._progress.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._live:
            self._progress.stop()

    def __call__(self, event: Event) -> None:
        """Handle one event of the run."""
        while self._opening:
            self._say(self._opening.pop(0))
        if isinstance(event, ClientEvent):
            self._total = event.total
            if self._live:
                clients = f"{event.done}/{event.cohort} clients"
                self._progress.update(self._bar, total=event.total, clients=clients)
        elif isinstance(event, StartEvent):
            self._start(event)
        elif isinstance(event, NoteEvent):
            self._say(f"note: {event.text}", style="yellow")
            if self._debug and event.details.get("trace"):
                self._say(event.details["trace"])
        else:
            self._round(event)

    def tell_data(self, data: str) -> None:
        """Have the first line say what the data were taken for."""
        if self._opening:
            self._opening[0] = f"{self._opening[0]}: {data}"

    def tell(self, activity: str) -> None:
        """Show what is done before the first round."""
        self._progress.update(self._bar, clients=activity)

    def _say(self, text: str, style: str = "") -> None:
        """Print text literally: brackets in it are not markup. A terminal's lines end at words.

        A run continues if it cannot be printed, on a full disk for example.
        """
        soft, shown = not self._live, escape_controls(text)  # a log keeps its lines
        try:
            self._console.print(shown, style=style, highlight=False, markup=False, soft_wrap=soft)
        except OSError:
            self._console.quiet = True

    def _start(self, event: StartEvent) -> None:
        self._total, self._metric = event.total, event.metric
        self._progress.update(self._bar, completed=event.first, total=event.total)
        if event.metric not in (key for _, key in _SHOWN):
            self._shown.append((event.metric, event.metric))
        rounds = f"from round {event.first + 1}" if event.first else counted(event.total, "round")
        clients = counted(event.clients, "client")
        self._say(f"{clients}, {rounds} -> {event.folder}")
        if event.baseline:
            self._say(f"before training: {event.baseline}")
        self.tell("waiting for the first client")

    def _round(self, event: RoundEvent) -> None:
        self._sent += event.bytes_up + event.bytes_down
        self._seconds.append(event.seconds)
        total = max(self._total, event.round + 1)
        # the first round includes the start of the workers
        usual = statistics.mean(self._seconds[1:] or self._seconds)
        left = usual * (total - event.round - 1)
        parts = [
            (_METRIC if key == self._metric else _OTHER, f"{label} {event.metrics[key]:.3f}")
            for label, key in self._shown
            if key in event.metrics
        ]
        parts += [(_BYTES, format_bytes(self._sent)), (_LEFT, f"{clock(left)} left")]
        if self._live:
            self._progress.update(self._bar, completed=event.round + 1, total=total, status=parts)
        else:
            missing = len(event.lost) + len(event.rejected)
            clients = f"{len(event.cohort) - missing}/{len(event.cohort)} clients"
            if not event.cohort:
                clients = "clients not told" if "epsilon" in event.metrics else "the server alone"
            self._say(f"round {event.round + 1}/{total}  {_join(parts)}  {clients}")
        for client, reason in {**event.lost, **event.rejected}.items():
            if not reason.startswith(("dropped", "its upload")):
                self._say(f"note: round {event.round + 1}, client {client}: {reason}")
        if event.skipped:
            self._say(f"note: round {event.round + 1} was skipped")


def announce(recorders: Sequence[Recorder], activity: str) -> None:
    """Have the displays among the recorders say what is done before the first round."""
    for recorder in recorders:
        if isinstance(recorder, Display):
            recorder.tell(activity)


def announce_data(recorders: Sequence[Recorder], data: str) -> None:
    """Have the displays among the recorders say what the data were taken for."""
    for recorder in recorders:
        if isinstance(recorder, Display):
            recorder.tell_data(data)


@contextmanager
def show_progress(wanted: bool | None, opening: Sequence[str] = ()) -> Iterator[list[Recorder]]:
    """Show the progress of a run; None: on a terminal, and as plain lines in a notebook."""
    notebook = is_notebook()
    terminal = sys.stdout is not None and sys.stdout.isatty()
    if wanted is False or (wanted is None and not notebook and not terminal):
        yield []
        return
    # rich would redraw a widget for every event of a notebook, which stays in the saved file
    console = LastingConsole(soft_wrap=True, force_jupyter=False)
    with Display(console, opening) as display:
        yield [display]


def is_notebook() -> bool:
    """Whether this is the kernel of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"
