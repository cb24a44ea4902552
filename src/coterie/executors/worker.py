"""A worker process, controlled over pipes; started by the fork server or by `python -m`.

It inherits no locked lock and does not import the main script. It exits as soon as its input
closes, even during a task: the main process has ended then, and files are written atomically.
"""

import os
import queue
import sys
import threading
from contextlib import suppress
from typing import Any

from coterie.core import codec
from coterie.core.bundle import Bundle
from coterie.core.errors import CodecError
from coterie.core.exact import exact_arithmetic, keep_freed_memory, return_freed_memory
from coterie.core.task import Failure, Reply
from coterie.data.partition import Partition
from coterie.engine.site import Site
from coterie.engine.spec import Spec
from coterie.executors import wire

Message = tuple[dict[str, Any], bytes]


def _listen(descriptor: int, inbox: "queue.SimpleQueue[Message]") -> None:
    while True:
        try:
            message = wire.receive(descriptor, None, wire.HELLO_LIMIT, codec.OWN.total)
        except (wire.Closed, CodecError):
            os._exit(0)
        inbox.put(message)


def serve(source: int, sink: int) -> None:
    """Build the site that the first message specifies, then run tasks one by one."""
    inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(source, inbox), daemon=True).start()
    try:
        head, body = inbox.get()
        arrays = {name: tensor.numpy() for name, tensor in codec.decode(body)["partition"].items()}
        partition = Partition.unpack(arrays, tuple(head["names"]))
        site = Site(Spec.from_json(head["spec"]), partition)
    except Exception as error:
        wire.send(sink, {"kind": "failed", "reason": f"{type(error).__name__}: {error}"})
        return
    wire.send(sink, {"kind": "ready"})
    down = Bundle()
    while True:
        head, body = inbox.get()
        if head["kind"] == "down":  # once a round, and once an evaluation
            return_freed_memory()
            down = codec.decode(body)
            continue
        reply = site.run(wire.read_task(head, body, down))
        try:
            up = codec.encode(reply.up)
        except Exception as error:
            failure = Failure("failed", f"its upload cannot be sent: {error}")
            reply, up = Reply(reply.client, error=failure), codec.encode(Bundle())
        wire.send(sink, wire.reply_head(reply), up)


def main() -> None:
    """Use stdin and stdout for messages; what user code prints goes to stderr."""
    source, sink = os.dup(0), os.dup(1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    keep_freed_memory()
    with exact_arithmetic(), suppress(wire.Closed):
        serve(source, sink)


if __name__ == "__main__":
    main()
