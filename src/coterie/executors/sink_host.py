"""The process of a tracking tool: `python -m coterie.executors.sink_host`.

It reads a JSON line for every event from its input, and writes one if the tool fails. A tool cannot
disturb a run from here: neither with what it imports, draws at random or leaves in the environment,
nor by hanging. It ends with its input, so that it does not outlive the main process.
"""

import json
import os
import queue
import signal
import sys
import threading
import time
import tomllib
import traceback
from pathlib import Path
from typing import IO, Any

from coterie.core import registry
from coterie.core.formatting import one_line
from coterie.engine.record import MetricsFile, RoundEvent
from coterie.engine.sink import Sink, TrackedRun

KEY = "record.to"
_GRACE = 5.0  # seconds to store what there is, once the main process has ended
_CHUNK = 1 << 16  # bytes
Message = dict[str, Any]


def find_sink(name: str) -> type[Sink]:
    """Return the class of a name: a file of `coterie/sinks`, or a user's own class."""
    return registry.find("sinks", name, Sink, KEY)  # type: ignore[type-abstract]


def open_run(message: Message) -> TrackedRun:
    """Read what a tool is told at the start; only lines that were committed are its history."""
    folder, first = Path(message["folder"]), int(message["first"])
    config = tomllib.loads((folder / "config.toml").read_text(encoding="utf-8"))
    rounds = MetricsFile(folder / "metrics.jsonl").read(message["committed"])
    history = tuple(event for event in rounds if event.round < first)
    return TrackedRun(folder, config, history, first, message["total"], message["online"])


def tell(sink: Sink, message: Message) -> None:
    """Pass an event to a tool."""
    if message["kind"] == "start":
        run = open_run(message)
        for name, value in sink.environment(run).items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        sink.start(run)
    elif message["kind"] == "round":
        sink.round(RoundEvent.parse(message["line"]))
    else:
        sink.end(message["status"])


def serve(inbox: "queue.SimpleQueue[Message]", out: IO[str]) -> None:
    """Build the tool that the first message names, and pass all messages to it until the end."""
    message: Message = inbox.get()
    try:
        sys.path[:] = message["path"]
        sink = find_sink(message["name"])()
        tell(sink, message)
        while message["kind"] != "end":
            message = inbox.get()
            tell(sink, message)
    except Exception as error:
        reason = one_line(f"{type(error).__name__}: {error}")
        print(json.dumps({"failed": reason, "trace": traceback.format_exc()}), file=out, flush=True)


def _listen(source: int, inbox: "queue.SimpleQueue[Message]") -> None:
    rest = b""
    while chunk := os.read(source, _CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            inbox.put(json.loads(line))
    inbox.put({"kind": "end", "status": "interrupted"})
    time.sleep(_GRACE)
    os.killpg(0, signal.SIGKILL)


def main() -> None:
    """Use stdin and stdout for messages; what a tool prints is dropped."""
    source, out = os.dup(0), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()
    serve(inbox, out)


if __name__ == "__main__":
    main()
