"""Checkpoints: a round is done if and only if its directory has a valid manifest.

    checkpoints/round_000012/   server.safetensors  state.json  manifest.json (SHA-256 of both)
    blobs/<sha256>              big arrays that a server state refers to, shared by checkpoints

Commit: metrics lines are on the disk; write `round_000012.tmp/`, sync files and folder, rename,
sync the parent; then prune. A crash at any moment leaves the checkpoint before, or this one.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coterie.core import codec
from coterie.core.bundle import Blob, Bundle, ServerState
from coterie.core.errors import CheckpointError, CodecError
from coterie.core.files import disk_errors, make_folder, sync_folder, write_durably
from coterie.core.task import ClientId
from coterie.engine.client_states import StateStore

_SERVER, _STATE, _MANIFEST = "server.safetensors", "state.json", "manifest.json"


@dataclass(frozen=True)
class Position:
    """Where a run stands after its last finished round, beside the server's state."""

    round: int = -1  # the last finished one
    finished: bool = False
    skipped: int = 0  # rounds in a row that were skipped
    diverged: int = 0  # rounds in a row in which no client stayed finite
    states: Mapping[ClientId, tuple[int, str]] = field(default_factory=dict)  # round, digest
    metrics_bytes: int = 0  # the committed length of metrics.jsonl, and its hash
    metrics_sha256: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)  # what exact bits depend on

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Position":
        """Read back what `asdict` and JSON made of one."""
        states = {int(c): (int(r), str(d)) for c, (r, d) in values.pop("states").items()}
        return cls(states=states, **values)


class CheckpointStore:
    """The checkpoints of one run directory."""

    def __init__(self, run: Path, keep: int = 2) -> None:
        self.run, self.keep = run, keep
        self.folder, self.blobs = run / "checkpoints", run / "blobs"
        self._referred: dict[int, frozenset[str]] = {}  # blobs, by checkpoint

    def rounds(self) -> list[int]:
        """The rounds that have a checkpoint directory, oldest first."""
        names = (path.name for path in self.folder.glob("round_*/"))
        return sorted(int(name[6:]) for name in names if name[6:].isdigit())

    def commit(self, server: ServerState, position: Position) -> None:
        """Make a round's outcome permanent."""
        final = self._place(position.round)
        self._referred.pop(position.round, None)
        temporary = final.with_name(f"{final.name}.tmp")
        files = {
            _SERVER: codec.encode(server),
            _STATE: json.dumps(asdict(position), sort_keys=True).encode(),
        }
        files[_MANIFEST] = json.dumps(
            {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        ).encode()
        with disk_errors(final, sum(map(len, files.values()))):
            try:
                shutil.rmtree(temporary, ignore_errors=True)
                make_folder(self.folder)
                temporary.mkdir()
                for name, data in files.items():
                    write_durably(temporary / name, data)
                sync_folder(temporary)
                shutil.rmtree(final, ignore_errors=True)
                temporary.replace(final)
                sync_folder(self.folder)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
            self._prune()

    def adopt(self, server: ServerState) -> ServerState:
        """Move a state's blobs from wherever they were spooled to where checkpoints find them."""
        if not server.blobs:
            return server
        with disk_errors(self.blobs):
            self.blobs.mkdir(exist_ok=True)
        homes: dict[str, Blob] = {}
        for name, blob in server.blobs.items():
            home = self.blobs / blob.sha256
            with disk_errors(home, blob.nbytes):
                # what lies at home may have been damaged since: a new copy always takes its place
                if blob.path != home and (blob.path.exists() or not home.exists()):
                    with blob.path.open("rb") as file:
                        os.fsync(file.fileno())
                    blob.path.replace(home)
                    sync_folder(self.blobs)
            homes[name] = Blob(home, blob.dtype, blob.shape, blob.sha256)
        return Bundle(server.tensors, server.scalars, homes)

    def tidy(self, server: ServerState) -> None:
        """Remove blobs that neither a checkpoint nor the state at hand has a use for."""
        wanted = {blob.sha256 for blob in server.blobs.values()}
        idle = [path for path in self.blobs.glob("*") if path.name not in wanted]
        if idle:
            committed = frozenset[str]().union(*map(self._blobs_of, self.rounds()))
            with disk_errors(self.blobs):
                for path in idle:
                    if path.name not in committed:
                        path.unlink(missing_ok=True)

    def newest(self) -> tuple[ServerState, Position, list[str]] | None:
        """The newest checkpoint that is whole, and what was wrong with newer ones.

        None where there is none at all; `CheckpointError` where there are some and all are broken.
        """
        complaints: list[str] = []
        for round in reversed(self.rounds()):
            try:
                return *self._read(round), complaints
            except CheckpointError as error:
                complaints.append(str(error))
        if complaints:
            raise CheckpointError(
                f"no checkpoint in {self.folder} is whole ({'; '.join(complaints)}); start again "
                "with another --out"
            )
        return None

    def discard_after(self, round: int) -> None:
        """Remove checkpoints of later rounds, which were found broken."""
        for later in self.rounds():
            if later > round:
                shutil.rmtree(self._place(later), ignore_errors=True)

    def _read(self, round: int) -> tuple[ServerState, Position]:
        place = self._place(round)
        try:
            manifest = json.loads((place / _MANIFEST).read_bytes())
            data = {name: (place / name).read_bytes() for name in (_SERVER, _STATE)}
            for name, content in data.items():
                if hashlib.sha256(content).hexdigest() != manifest[name]:
                    raise CheckpointError(f"{place / name} is not what its manifest says")
            server = codec.decode(data[_SERVER])
            position = Position.from_json(json.loads(data[_STATE]))
            problem = next(self._problems(server, position), None)
        except (OSError, ValueError, KeyError, TypeError, CodecError) as error:
            raise CheckpointError(f"{place}: {type(error).__name__}: {error}") from error
        if problem is not None:
            raise CheckpointError(f"{place}: {problem}")
        return server, position

    def _problems(self, server: ServerState, position: Position) -> Iterator[str]:
        for blob in server.blobs.values():
            if not blob.is_intact():
                yield f"the blob {blob.path} is missing or broken"
        if problem := StateStore(self.run / "clients").problem(position.states, position.round):
            yield problem
        path = self.run / "metrics.jsonl"
        lines = path.read_bytes()[: position.metrics_bytes] if path.exists() else b""
        if hashlib.sha256(lines).hexdigest() != position.metrics_sha256:
            yield f"{path} is not what was committed"

    def _prune(self) -> None:
        for old in self.rounds()[: -self.keep]:
            shutil.rmtree(self._place(old), ignore_errors=True)
        self.tidy(Bundle())

    def _blobs_of(self, round: int) -> frozenset[str]:
        """The blobs that a checkpoint refers to; a broken one has no use for any."""
        if round not in self._referred:
            try:
                server = codec.decode((self._place(round) / _SERVER).read_bytes())
            except (OSError, CodecError):
                return frozenset()
            self._referred[round] = frozenset(blob.sha256 for blob in server.blobs.values())
        return self._referred[round]

    def _place(self, round: int) -> Path:
        return self.folder / f"round_{round:06d}"
