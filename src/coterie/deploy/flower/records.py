"""Our messages as Flower's records, and back.

A message has two records: `head`, a ConfigRecord with its kind and head as JSON, and `body`, an
ArrayRecord with one array of bytes, which Flower cuts into chunks of 5 MiB and does not interpret.
Flower stores records under their SHA-256, so a body that is sent to many is stored once.
"""

import json
import secrets
import time
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Metadata, RecordDict
from flwr.app import Message as FlowerMessage
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

BUNDLE = "coterie.bundle"  # the type of our arrays: bytes that only our codec reads
ASK_NAME = "coterie.name"  # the kind of the question that a client answers by itself
MAX_BYTES = 2 * 1024**3  # of one message
HEARTBEAT_SECONDS = 15.0  # after twice this time without a sign of life a client counts as lost


def write_body(body: bytes) -> ArrayRecord | None:
    """Make the record of a body; messages that share the record share what is stored."""
    if not body:
        return None
    return ArrayRecord({"body": Array("uint8", (len(body),), BUNDLE, body)})


def write_content(kind: str, head: Mapping[str, Any], body: ArrayRecord | None) -> RecordDict:
    """Make the content of a message.

    Flower names a message by the hash of its content, and accepts an answer from whoever knows the
    name. The random entry makes the name one that only the addressee knows.
    """
    text = json.dumps(dict(head))
    record = ConfigRecord({"kind": kind, "head": text, "nonce": secrets.token_hex(16)})
    content = RecordDict({"head": record})
    if body is not None:
        content["body"] = body
    return content


def make_request(run: int, node: int, content: RecordDict, seconds: float) -> FlowerMessage:
    """Make a message of the server to a node, which stays for so many seconds."""
    metadata = Metadata(
        run_id=run,
        message_id="",
        src_node_id=SUPERLINK_NODE_ID,
        dst_node_id=node,
        reply_to_message_id="",
        group_id="",
        created_at=time.time(),
        ttl=seconds,
        message_type="query",
    )
    request = make_message(metadata, content)
    request.metadata.__dict__["_message_id"] = request.object_id
    return request


def read_message(id: str, contents: dict[str, bytes], limit: int) -> FlowerMessage:
    """Put a message together from its objects; ValueError for more bytes than `limit`."""
    _check_size(contents, limit)
    message = inflate_object_from_contents(id, contents)
    if not isinstance(message, FlowerMessage):
        raise ValueError(f"a {type(message).__name__} instead of a message")
    message.metadata.__dict__["_message_id"] = id
    return message


def read_content(message: FlowerMessage) -> tuple[str, dict[str, Any], bytes]:
    """Return kind, head and body; ValueError, KeyError or TypeError if they are not ours."""
    records = message.content
    values = records.config_records["head"]
    head = json.loads(str(values["head"]))
    if not isinstance(head, dict):
        raise ValueError("the head is not a table")
    body = b""
    if "body" in records:
        array = records.array_records["body"]["body"]
        if array.stype != BUNDLE:
            raise ValueError(f"an array of type {array.stype!r} instead of {BUNDLE!r}")
        body = array.data
    return str(values["kind"]), head, body


def _check_size(contents: Mapping[str, bytes], limit: int) -> None:
    """Refuse arrays that would be too large: one that repeats a chunk is larger than what came."""
    total = sum(len(content) for content in contents.values())
    for content in contents.values():
        kind, children, _ = get_object_head_values_from_object_content(content)
        if kind == Array.__qualname__:
            chunks = json.loads(get_object_body(content, Array))["arraychunk_ids"]
            total += sum(len(contents[children[chunk]]) for chunk in chunks)
    if total > 2 * limit:  # what came and what it is put together to
        raise ValueError(f"more than {limit:,} bytes")
