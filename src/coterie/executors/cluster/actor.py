"""What runs on the nodes of a cluster: an actor that holds a site and answers tasks.

Ray carries byte strings between the nodes; what is in them is in our own codec. A client's state
comes with the task and returns with the reply, so an actor may die at any moment.
"""

import json
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from coterie.core import codec
from coterie.core.bundle import Bundle, ClientState
from coterie.core.exact import exact_arithmetic, keep_freed_memory, return_freed_memory
from coterie.core.task import Failure, Reply, Task
from coterie.data.copies import find_copy, write_copy
from coterie.data.partition import Partition
from coterie.engine.site import Site
from coterie.engine.spec import Spec, check_arithmetic, describe_environment
from coterie.executors import wire

# a reply without its payload as JSON, its payload, and what the client keeps (empty: nothing)
Answer = tuple[bytes, bytes, bytes]


class CarriedFiles:
    """The files of the client whose task runs: what came with it, and what it made."""

    def __init__(self) -> None:
        self.state: ClientState | None = None
        self.kept: Bundle | None = None
        self.folder = Path(tempfile.gettempdir()) / f"coterie-spool-{uuid.uuid4().hex}"

    def load(self, task: Task) -> ClientState | None:
        """Return the state that came with the task."""
        return self.state

    def save(self, task: Task, kept: Bundle) -> None:
        """Keep what the task made, for the reply."""
        if kept.blobs:
            raise TypeError("a client's state has tensors and scalars, no blobs")
        self.kept = kept

    def spool(self, task: Task) -> Path:
        """Choose a folder on this node, which is removed when the reply is packed."""
        return self.folder / "up"


class SiteActor:
    """A site on a node of the cluster; its methods are called through Ray, one at a time."""

    def __init__(self) -> None:
        self._settings = ExitStack()
        self._settings.enter_context(exact_arithmetic())
        keep_freed_memory()
        self._site: Site | None = None
        self._files = CarriedFiles()
        self._down, self._number = Bundle(), -1

    def open(self, head: bytes, partition: Sequence[Any], data: Sequence[Any]) -> bytes:
        """Build the site; answer `ready`, `missing` if the data have to be sent, or `failed`.

        `partition` and `data` hold references, so that Ray does not fetch what is not needed.
        """
        import ray

        values = json.loads(head)
        try:
            spec, fingerprint = Spec.from_json(values["spec"]), values["fingerprint"]
            path = find_copy(Path(spec.data), fingerprint)
            if path is None and not data:
                return json.dumps({"kind": "missing"}).encode()
            if path is None:
                path = write_copy(ray.get(data[0]), fingerprint)
            check_arithmetic(spec)
            packed = codec.decode(ray.get(partition[0]))["partition"]
            arrays = {name: tensor.numpy() for name, tensor in packed.items()}
            shares = Partition.unpack(arrays, tuple(values["names"]))
            spec = replace(spec, data=str(path), folder=str(self._files.folder))
            self._site = Site(spec, shares, self._files)
            environment = describe_environment(spec)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            return json.dumps({"kind": "failed", "reason": reason}).encode()
        node = ray.get_runtime_context().get_node_id()
        return json.dumps({"kind": "ready", "node": node, "environment": environment}).encode()

    def run(
        self, head: bytes, own: bytes, state: bytes, broadcast: Sequence[Any], number: int
    ) -> Answer:
        """Do a task; the broadcast is fetched and decoded only if it is not that of the last."""
        import ray

        assert self._site is not None  # the main process has waited for `ready`
        files = self._files
        files.state, files.kept = codec.decode(state) if state else None, None
        if number != self._number:
            return_freed_memory()
            shutil.rmtree(files.folder / "down", ignore_errors=True)
            self._down = codec.unpack(ray.get(broadcast[0]), files.folder / "down", codec.OWN)
            self._number = number
        reply = self._site.run(wire.read_task(json.loads(head), own, self._down))
        try:
            up, text = codec.pack(reply.up), _write_head(reply)
        except Exception as error:
            failure = Failure("failed", f"its upload cannot be sent: {error}")
            up, text = codec.pack(Bundle()), _write_head(Reply(reply.client, error=failure))
        shutil.rmtree(files.folder / "up", ignore_errors=True)
        with suppress(OSError):  # a broadcast with big arrays has files there, or nobody has
            files.folder.rmdir()
        kept = b"" if files.kept is None else codec.encode(files.kept)
        return text, up, kept


def _write_head(reply: Reply) -> bytes:
    return json.dumps(wire.reply_head(reply), default=asdict).encode()
