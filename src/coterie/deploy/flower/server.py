"""The server's end: SuperLink in this process, behind a guard, with its state in a database.

Requests and answers are written to and read from that database, not over the network. Each start of
the server begins a new run there and ends earlier ones, so the answer to a request of a server that
was killed is refused. Signals to stop wait until a transaction is done.
"""

import json
import logging
import secrets
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.app.message import remove_content_from_message
from flwr.common.constant import NOOP_ACCOUNT_NAME, NOOP_FLWR_AID, Status
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.constant import NOOP_FEDERATION_ID, NodeStatus, TaskType
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.utils import uint64_to_int64

from coterie.core.errors import ConfigError
from coterie.deploy.certificates import Certificates
from coterie.deploy.flower import records
from coterie.deploy.flower.application import make_application
from coterie.deploy.flower.transactions import database_errors, transaction
from coterie.deploy.guard import Guard, check_exposure
from coterie.deploy.keys import read_registry
from coterie.deploy.link import Message
from coterie.deploy.superlink import Listener

_log = logging.getLogger(__name__)

FLEET = tuple(
    f"/v1/fleet/{name}"
    for name in (
        *("activate-node", "deactivate-node", "send-node-heartbeat"),
        *("pull-messages", "push-messages", "pull-object", "push-object"),
    )
)
_ARRIVALS = ("/v1/fleet/push-messages", "/v1/fleet/push-object")  # parts of answers
_TOGETHER_SECONDS = 0.02  # in which further parts of an answer are likely to arrive
_SELF_REGISTRATION = ("/v1/fleet/register-node",)  # without keys, on one machine
_MAX_REQUEST_BYTES = 8 * 1024**2  # Flower's chunks have 5 MiB
_HOUSEKEEPING_SECONDS = 5.0  # Flower ends a run that gave no sign of life for 60 s
_PRESENT = [NodeStatus.REGISTERED, NodeStatus.ONLINE, NodeStatus.OFFLINE]

# Answers of this run, and how many of their objects are still to be uploaded
_ANSWERS = """
SELECT message_res.message_id AS id, message_res.reply_to_message_id AS request,
       COALESCE(object_push_sessions.pending_count, 0) AS missing
FROM message_res
LEFT JOIN object_push_session_roots
       ON object_push_session_roots.root_object_id = message_res.message_id
LEFT JOIN object_push_sessions
       ON object_push_sessions.session_id = object_push_session_roots.session_id
WHERE message_res.run_id = :run
"""

# Flower offers a request once, and an offer that a broken connection swallowed counts too
_OFFER_AGAIN = """
UPDATE message_ins SET delivered_at = ''
WHERE message_id IN (SELECT value FROM json_each(:ids))
  AND NOT EXISTS (
    SELECT 1 FROM message_res WHERE message_res.reply_to_message_id = message_ins.message_id
  )
"""
_OFFER_SECONDS = 5.0


@dataclass
class _Request:
    """A request that was sent; `life` is when the client had last connected."""

    message: Message  # without its body
    node: int
    life: str
    deadline: float
    offered: float  # when it was last


class FlowerServerLink:
    """Sends requests to the sites that have a key in the registry, or to all on one machine."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        database: Path,
        tls: Certificates | None = None,
        keys: Path | None = None,
        insecure_network: bool = False,
        seconds: float = 12 * 3600.0,
        max_bytes: int = records.MAX_BYTES,
    ) -> None:
        """Start SuperLink on an address; `seconds` is the longest that a request may take."""
        if (tls is None) != (keys is None):
            raise ConfigError("certificates and a folder of keys belong together: give both")
        secured = tls is not None
        check_exposure(
            host, secured=secured, insecure=not secured, insecure_network=insecure_network
        )
        if tls is not None:
            tls.check()
        self._keys, self._seconds, self._max_bytes = keys, seconds, max_bytes
        self._requests: dict[str, _Request] = {}
        self._failed: dict[str, Message] = {}
        self._names: dict[int, str] = {}
        self._asked: dict[int, str] = {}
        self._registry_seen: object = None
        self._arrived = threading.Event()
        self.database = database
        logging.getLogger("flwr").setLevel(logging.CRITICAL)  # the guard reports refusals
        registry = {} if keys is None else read_registry(keys)
        with database_errors(database):
            database.parent.mkdir(parents=True, exist_ok=True)
            database.touch(mode=0o600)
            app = make_application(host, port, database, secured)
            self._state: SqlLinkState = app.state.linkstate_factory.state()
            if keys is not None:
                self._register(registry)
            self._run, self._task = self._begin_run()
        paths = FLEET if secured else FLEET + _SELF_REGISTRATION
        guard = Guard(app, paths, _MAX_REQUEST_BYTES, self._note_arrival)
        self._listener = Listener(guard, host, port, tls)
        self.address = f"{host}:{self._listener.port}"
        self._closing = threading.Event()
        self._housekeeper = threading.Thread(target=self._keep_alive, daemon=True)
        self._housekeeper.start()

    def peers(self) -> Mapping[str, bool]:
        """Tell of every registered client whether it is connected now, in the order of names."""
        connections = self.connections()
        return {name: name in connections for name in sorted(self._names.values())}

    @transaction
    def connections(self) -> Mapping[str, str]:
        """Identify the connection of every client that has one, by when it was made."""
        self._read_registry_again()
        nodes = self._nodes()
        if self._keys is None:
            self._ask_names(nodes)
        return {
            name: f"{id} since {nodes[id].last_activated_at}"
            for id, name in self._names.items()
            if id in nodes and nodes[id].status == NodeStatus.ONLINE
        }

    @transaction
    def send(self, messages: Sequence[Message]) -> list[str]:
        """Send requests in one transaction; one to a client that is not connected fails."""
        nodes = self._nodes()
        online = {
            name: nodes[id]
            for id, name in self._names.items()
            if id in nodes and nodes[id].status == NodeStatus.ONLINE
        }
        ids = [f"unsent-{secrets.token_hex(8)}" for _ in messages]
        addressed = []
        for position, message in enumerate(messages):
            if message.peer in online:
                addressed.append((position, message, online[message.peer]))
            else:
                self._fail(ids[position], message, "the client is not connected")
        sent = self._push([(message, node) for _, message, node in addressed])
        for (position, message, _), id in zip(addressed, sent, strict=True):
            if id:
                ids[position] = id
            else:
                self._fail(ids[position], message, "the client was removed from the registry")
        return ids

    @transaction
    def receive(self, ids: Collection[str]) -> list[Message]:
        """Return the requests of `ids` that were answered or failed by now, without waiting."""
        nodes = self._nodes()
        rows = self._state.query(_ANSWERS, {"run": uint64_to_int64(self._run)})
        answers = {row["request"]: row["id"] for row in rows if not row["missing"]}
        done = []
        for id in ids:
            if id in self._failed:
                done.append(self._failed.pop(id))
            elif id not in self._requests:
                done.append(Message("", "", id=id, error="there is no such request"))
            elif id in answers:
                done.append(self._take(id, answers[id]))
            elif reason := self._lost(self._requests[id], nodes):
                self._forget(id)
                done.append(replace(self._requests.pop(id).message, id=id, error=reason))
        self._offer_again([id for id in ids if id in self._requests])
        return done

    def wait(self, seconds: float) -> None:
        """Wait until a part of an answer has arrived, for so long at most."""
        if self._arrived.wait(seconds):
            time.sleep(_TOGETHER_SECONDS)  # one look for all of them, whatever clients send
        self._arrived.clear()

    @transaction
    def close(self) -> None:
        """End the run and stop SuperLink; safe to call twice."""
        if not self._closing.is_set():
            self._closing.set()
            self._housekeeper.join()
            self._listener.close()
            try:
                self._state.stop_run(self._run)
            except Exception as error:  # the next start of the server ends the run too
                _log.warning("SuperLink's database did not take the end of the run: %s", error)

    def _note_arrival(self, path: str) -> None:
        if path in _ARRIVALS:
            self._arrived.set()

    def _begin_run(self) -> tuple[int, int]:
        """Begin a run that needs no app: its task is claimed by us before anybody else could."""
        unfinished = [Status.PENDING, Status.STARTING, Status.RUNNING]
        for old in self._state.get_run_info(statuses=unfinished):
            self._state.stop_run(old.run_id)
        run = self._state.create_run(
            *(None, None, None, {}, NOOP_FEDERATION_ID, None, NOOP_FLWR_AID, TaskType.SERVER_APP)
        )
        task = self._state.get_run_info(run_ids=[run])[0].primary_task_id
        assert task is not None  # every run has one
        self._state.claim_task(task)
        self._state.activate_task(task)
        return run, task

    def _keep_alive(self) -> None:
        """Tell SuperLink that the run's server lives, also while it computes."""
        while not self._closing.wait(_HOUSEKEEPING_SECONDS):
            try:
                self._state.acknowledge_task_heartbeat(self._task)
            except Exception as error:
                _log.warning("SuperLink's database did not take a sign of life: %s", error)

    def _nodes(self) -> dict[int, NodeInfo]:
        return {node.node_id: node for node in self._state.get_node_info(statuses=_PRESENT)}

    def _register(self, registry: Mapping[str, bytes]) -> None:
        """Admit exactly the keys of the registry."""
        names = {}
        for name, key in registry.items():
            id = self._state.get_node_id_by_public_key(key)
            if id is None:
                try:
                    id = self._state.create_node(NOOP_FLWR_AID, NOOP_ACCOUNT_NAME, key, 0)
                except ValueError as error:
                    raise ConfigError(
                        f"the key of {name!r} was removed earlier and stays removed; "
                        "make a new key for this site"
                    ) from error
            names[id] = name
        self._names = names
        self._expel([id for id in self._nodes() if id not in names])

    def _expel(self, nodes: Sequence[int]) -> None:
        for id in nodes:
            self._state.delete_node(NOOP_FLWR_AID, id)
            self._names.pop(id, None)

    def _read_registry_again(self) -> None:
        """Follow changes to the folder of keys during the run."""
        if self._keys is None:
            return
        files = sorted(self._keys.glob("*.pub"))
        seen = [(file.name, file.stat().st_mtime_ns) for file in files if file.exists()]
        if seen == self._registry_seen:
            return
        self._registry_seen = seen
        present = {file.stem for file in files}  # first: a file that cannot be read keeps nobody in
        self._expel([id for id, name in self._names.items() if name not in present])
        try:
            self._register(read_registry(self._keys))
        except ConfigError as error:
            _log.warning("no key was added: %s", error)

    def _ask_names(self, nodes: Mapping[int, NodeInfo]) -> None:
        """Ask clients without registered keys for their names."""
        for id, node in nodes.items():
            if node.status == NodeStatus.ONLINE and id not in {*self._names, *self._asked}:
                self._asked[id] = self._push([(Message("", records.ASK_NAME), node)])[0]
        answered = {answer.id: answer for answer in self.receive([*self._asked.values()])}
        for id, request in [*self._asked.items()]:
            if request in answered:
                del self._asked[id]
                if name := str(answered[request].head.get("name", "")):
                    self._names = {k: v for k, v in self._names.items() if v != name}
                    self._names[id] = name  # the newest client of a name takes it

    def _push(self, addressed: Sequence[tuple[Message, NodeInfo]]) -> list[str]:
        """Store requests and their objects; an empty id for one that SuperLink did not take."""
        if not addressed:
            return []
        bodies: dict[int, ArrayRecord | None] = {}
        uploads: dict[str, InflatableObject] = {}
        ids: list[str] = []
        with no_object_id_recompute(), self._state.session():
            session = self._state.start_session(self._run)
            for message, node in addressed:
                if id(message.body) not in bodies:
                    bodies[id(message.body)] = records.write_body(message.body)
                body = bodies[id(message.body)]
                content = records.write_content(message.kind, message.head, body)
                # it stays longer than our own deadline
                request = records.make_request(
                    self._run, node.node_id, content, self._seconds + 3600.0
                )
                stored, missing = self._state.store_message_and_object_tree(
                    remove_content_from_message(request), get_object_tree(request), session
                )
                ids.append(request.object_id if stored else "")
                if stored:
                    objects = get_all_nested_objects(request)
                    uploads.update((name, objects[name]) for name in missing)
                    self._requests[request.object_id] = _Request(
                        replace(message, body=b""),
                        node.node_id,
                        node.last_activated_at,
                        time.monotonic() + self._seconds,
                        time.monotonic(),
                    )
            # after all trees are known: Flower closes a session when nothing of it is missing
            for name, item in uploads.items():
                self._state.store_object(self._run, session, name, item.deflate())
        return ids

    def _take(self, id: str, answer: str) -> Message:
        """Read an answer; whatever is wrong with it is this client's error."""
        request = self._requests.pop(id).message
        try:
            store, contents, size = self._state.object_store, dict[str, bytes](), 0
            for tree in iterate_object_tree(store.get_object_tree(answer)):
                content = store.get(tree.object_id) or b""
                size += len(content)
                if size > self._max_bytes:
                    raise ValueError(f"more than {self._max_bytes:,} bytes")
                contents[tree.object_id] = content
            kind, head, body = records.read_content(
                records.read_message(answer, contents, self._max_bytes)
            )
        except Exception as error:
            return replace(request, id=id, error=f"the answer cannot be read: {error}")
        finally:
            self._forget(id)
        return Message(request.peer, kind, head, body, id)

    def _lost(self, request: _Request, nodes: Mapping[int, NodeInfo]) -> str:
        """Say why a request will not be answered; empty if it still may be."""
        node = nodes.get(request.node)
        if node is None:
            return "the client was removed from the registry"
        if node.status != NodeStatus.ONLINE:
            return "the client is no longer connected"
        if node.last_activated_at != request.life:
            return "the client was restarted before it answered"
        if time.monotonic() > request.deadline:
            return f"the client did not answer within {self._seconds:.0f} s"
        return ""

    def _offer_again(self, ids: Sequence[str]) -> None:
        """Offer requests again that somebody waits for; clients know those that they have."""
        now = time.monotonic()
        due = [id for id in ids if now - self._requests[id].offered > _OFFER_SECONDS]
        for id in due:
            self._requests[id].offered = now
        if due:
            self._state.query(_OFFER_AGAIN, {"ids": json.dumps(due)})

    def _fail(self, id: str, message: Message, reason: str) -> None:
        self._failed[id] = replace(message, body=b"", id=id, error=reason)

    def _forget(self, request: str) -> None:
        """Delete a request, its answer and what only they refer to."""
        with self._state.session():
            for row in self._state.query(
                "SELECT message_id AS id FROM message_res WHERE reply_to_message_id = :id",
                {"id": request},
            ):
                self._state.object_store.delete(row["id"])
            self._state.delete_messages({request})
            self._state.object_store.delete(request)
