"""A client's end: one resident process on Flower's fleet protocol, which runs nobody else's code.

The client signs each request with its key and tells every few seconds that it lives. It keeps the
number that SuperLink gave it in a file, so that after a crash it can end its earlier life there
before it begins a new one; otherwise Flower would refuse it until that life had timed out.
"""

import json
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import httpx
from flwr.app import Message as FlowerMessage
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    ObjectPushError,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from coterie.core.errors import ConfigError, RunFailed
from coterie.core.files import replace_durably
from coterie.deploy.flower import records
from coterie.deploy.guard import check_exposure
from coterie.deploy.keys import encode_public_key, make_key, read_private_key
from coterie.deploy.link import Message
from coterie.deploy.refusals import explain

_BEAT_SECONDS = records.HEARTBEAT_SECONDS / 3
_RETRY_SECONDS = 1.0
_AT_ONCE = 4  # objects that are sent or fetched at the same time
_PULL_SECONDS = 60.0  # for objects that the server announced
_CHUNK_BYTES = 5 * 1024**2

T = TypeVar("T")


class FlowerClientLink:
    """Takes requests from a server and answers them."""

    def __init__(
        self,
        server: str,
        *,
        state: Path,
        ca: Path | None = None,
        key: Path | None = None,
        name: str = "",
        insecure_network: bool = False,
        patience: float = 3600.0,
        max_bytes: int = records.MAX_BYTES,
    ) -> None:
        """Connect to `HOST:PORT`; a server that is away is waited for up to `patience` seconds.

        `state` is the folder that keeps this client's number. `name` counts only where the server
        has no registry of keys.
        """
        secured = ca is not None and key is not None
        if not secured and (ca or key):
            raise ConfigError("the authority's certificate and this client's key belong together")
        host = server.rpartition(":")[0]
        check_exposure(
            host, secured=secured, insecure=not secured, insecure_network=insecure_network
        )
        self._server, self._secured, self._name = server, secured, name
        self._patience, self._max_bytes = patience, max_bytes
        self._file = state / "node.json"
        private = read_private_key(key or _own_key(state))
        self._public = encode_public_key(private.public_key())
        self._client = FleetHttpClient.from_server_address(
            server,
            not secured,
            _read_authority(ca) if ca else None,
            [
                RuntimeVersionHttpInterceptor(component_name="SuperNode"),
                NodeAuthHttpInterceptor(private, private.public_key()),
            ],
        )
        self._open: dict[str, FlowerMessage] = {}
        self._offer: _Offer | None = None
        self._in_use_until = 0.0  # by this client itself, if an activation was cut off
        self._absent_since: float | None = None
        self._closing = threading.Event()
        self._node = Node()
        try:
            self._until_answered(self._activate)
        except BaseException:
            self._client.close()
            raise
        self._heart = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        self._heart.start()

    def receive(self) -> Message | None:
        """Return the next request, without waiting; None if there is none or the server is away."""
        try:
            if self._offer is None:
                self._offer = self._ask()
            if self._offer is None:
                return self._answered(None)
            request = self._fetch(self._offer)
        except ObjectPullError:  # the server has withdrawn the request
            self._offer = None
            return None
        except httpx.HTTPError as error:
            self._recover(error)
            return None
        self._offer = None
        return self._answered(self._open_request(request))

    def reply(self, to: Message, kind: str, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Answer a request; an answer that the server no longer waits for is dropped."""
        request = self._open.pop(to.id)
        with no_object_id_recompute():
            content = records.write_content(kind, head, records.write_body(body))
            answer = FlowerMessage(content, reply_to=request)
            answer.metadata.__dict__["_message_id"] = answer.object_id
            tree = get_object_tree(answer)
            self._until_answered(lambda: self._upload(answer, tree))

    def close(self) -> None:
        """Sign off; safe to call twice."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._heart.join()
        with suppress(httpx.HTTPError):  # a server that is away will notice
            self._client.DeactivateNode(DeactivateNodeRequest(node_id=self._node.node_id))
            self._file.unlink(missing_ok=True)  # no life is left to be ended
        self._client.close()

    def _activate(self) -> None:
        """End this client's earlier life on the server, if any, and begin a new one."""
        if self._file.is_file():
            earlier = json.loads(self._file.read_text())
            with suppress(httpx.HTTPStatusError):  # it had ended, or that was another server
                self._client.DeactivateNode(DeactivateNodeRequest(node_id=earlier["node"]))
        if not self._secured:
            with suppress(httpx.HTTPStatusError):  # it was registered in an earlier life
                self._client.RegisterNode(RegisterNodeFleetRequest(public_key=self._public))
        request = ActivateNodeRequest(
            public_key=self._public, heartbeat_interval=records.HEARTBEAT_SECONDS
        )
        try:
            self._node = Node(node_id=self._client.ActivateNode(request).node_id)
        except (httpx.ReadError, httpx.ReadTimeout, httpx.RemoteProtocolError):
            # the server may have activated this client, and would refuse it until that times out
            self._in_use_until = time.monotonic() + 2 * records.HEARTBEAT_SECONDS + _RETRY_SECONDS
            raise
        replace_durably(
            self._file,
            json.dumps({"server": self._server, "node": self._node.node_id}).encode(),
            remedy="",
        )

    def _beat(self) -> None:
        """Tell the server every few seconds that this client lives, also while it computes."""
        while not self._closing.wait(_BEAT_SECONDS):
            request = SendNodeHeartbeatRequest(
                node=self._node, heartbeat_interval=records.HEARTBEAT_SECONDS
            )
            # `receive` says what is wrong, and gives up when it is time
            with suppress(httpx.HTTPError, RuntimeError):
                self._client.SendNodeHeartbeat(request)

    def _ask(self) -> "_Offer | None":
        """Ask for the next request; one that is offered again while it is open here is none."""
        response = self._client.PullMessages(PullMessagesRequest(node=self._node))
        if not response.messages_list:
            return None
        message = message_from_proto(response.messages_list[0])
        if message.metadata.message_id in self._open:
            return None
        return _Offer(message, response.message_object_trees[0], {})

    def _fetch(self, offer: "_Offer") -> FlowerMessage:
        """Fetch the objects of a request that have not arrived yet, and put it together."""
        ids = [branch.object_id for branch in iterate_object_tree(offer.tree)]
        if len(ids) > self._max_bytes // _CHUNK_BYTES + 16:
            raise RunFailed(f"the server sent more than {self._max_bytes:,} bytes")
        metadata, arrived = offer.message.metadata, offer.arrived
        pull = make_pull_object_fn_protobuf(self._client.PullObject, self._node, metadata.run_id)

        def pull_once(id: str) -> bytes:
            if id not in arrived:
                arrived[id] = pull(id)
            return arrived[id]

        contents = pull_objects(
            ids, pull_once, max_concurrent_pulls=_AT_ONCE, max_time=_PULL_SECONDS
        )
        arrived.clear()  # `read_message` frees each object when it has been read
        return records.read_message(metadata.message_id, contents, self._max_bytes)

    def _open_request(self, request: FlowerMessage) -> Message | None:
        """Hand a request on, or answer it here if it asks for this client's name."""
        kind, head, body = records.read_content(request)
        message = Message("server", kind, head, body, request.metadata.message_id)
        self._open[message.id] = request
        if kind == records.ASK_NAME:
            self.reply(message, kind, {"name": self._name})
            return None
        return message

    def _upload(self, answer: FlowerMessage, tree: ObjectTree) -> None:
        """Announce an answer and send what the server misses of it, until it misses nothing."""
        run = answer.metadata.run_id
        announcement = PushMessagesRequest(
            node=self._node,
            messages_list=[message_to_proto(remove_content_from_message(answer))],
            message_object_trees=[tree],
        )
        try:
            response = self._client.PushMessages(announcement)
            missing = set(response.objects_to_push)
            if missing:
                push = make_push_object_fn_protobuf(
                    self._client.PushObject, self._node, run, response.session_id
                )
                objects = {
                    id: content
                    for id, content in get_all_nested_objects(answer).items()
                    if id in missing
                }
                push_objects(objects, push, max_concurrent_pushes=_AT_ONCE)
        except httpx.HTTPStatusError as error:
            if error.response.status_code != httpx.codes.FORBIDDEN:
                raise  # 403: the server was restarted, and asks again if it wants to know

    def _until_answered(self, call: Callable[[], T]) -> T:
        """Repeat a call while the server is away."""
        while True:
            try:
                return self._answered(call())
            except (httpx.HTTPError, ObjectPushError) as error:
                self._suffer(error)
                self._closing.wait(_RETRY_SECONDS)

    def _answered(self, result: T) -> T:
        self._absent_since = None
        return result

    def _recover(self, error: httpx.HTTPError) -> None:
        """Do what lets the next call succeed, if anything does."""
        status = error.response.status_code if isinstance(error, httpx.HTTPStatusError) else 0
        if status == httpx.codes.FORBIDDEN:  # the request was of a server that has ended since
            self._offer = None
        elif status == httpx.codes.UNAUTHORIZED:  # unknown to a server with a new database
            self._offer = None
            self._until_answered(self._activate)
        else:
            self._suffer(error)

    def _suffer(self, error: Exception) -> None:
        """Bear with an error that may pass; raise one that does not, or that lasts too long."""
        line, passes = explain(error, self._server, self._secured)
        if isinstance(error, ObjectPushError) or self._is_in_own_way(error):
            return
        if not passes:
            raise ConfigError(line) from error
        now = time.monotonic()
        self._absent_since = self._absent_since or now
        if now - self._absent_since > self._patience:
            raise RunFailed(f"{line}; gave up after {self._patience:.0f} s") from error

    def _is_in_own_way(self, error: Exception) -> bool:
        """Tell whether this client's own activation, cut off a moment ago, keeps it out."""
        return (
            isinstance(error, httpx.HTTPStatusError)
            and error.response.status_code == httpx.codes.PRECONDITION_FAILED
            and time.monotonic() < self._in_use_until
        )


class _Offer(NamedTuple):
    """A request that the server announced, and what has arrived of it."""

    message: FlowerMessage
    tree: ObjectTree
    arrived: dict[str, bytes]  # objects, by id; kept while connections break


def _own_key(state: Path) -> Path:
    """Make a key for a client that was given none, once."""
    file = state / "client.key"
    return file if file.exists() else make_key(state, "client").private


def _read_authority(file: Path) -> bytes:
    if not file.is_file():
        raise ConfigError(f"there is no certificate of the authority {file}")
    return file.read_bytes()
