"""Checkpoints: a round is committed if and only if its directory has a valid manifest.

    checkpoints/round_000012/   server.safetensors  state.json  manifest.json (SHA-256 of both)
    checkpoints/best/           weights of the best rounds (`engine/best.py`)
    blobs/<sha256>              large arrays of server states, shared by checkpoints

A commit syncs the metrics lines, writes `round_000012.tmp/`, syncs its files and the folder,
renames it, syncs the parent, and prunes. A crash at any moment leaves the previous checkpoint or
this one.
"""

import contextlib
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coterie.core import codec, files
from coterie.core.bundle import Blob, Bundle, ServerState
from coterie.core.errors import CheckpointError, CodecError
from coterie.core.files import disk_errors, make_folder, sync_folder, write_durably
from coterie.core.task import ClientId
from coterie.engine.best import Best, BestWeights
from coterie.engine.client_states import StateStore

_SERVER, _STATE, _MANIFEST = "server.safetensors", "state.json", "manifest.json"


@dataclass(frozen=True)
class Position:
    """The progress of a run after its last finished round, beside the server's state."""

    round: int = -1  # the last finished one
    finished: bool = False
    skipped: int = 0  # rounds in a row that were skipped
    diverged: int = 0  # rounds in a row in which no client stayed finite
    states: Mapping[ClientId, tuple[int, str]] = field(default_factory=dict)  # round, digest
    metrics_bytes: int = 0  # the committed length of metrics.jsonl, and its hash
    metrics_sha256: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)  # what the bits depend on
    best: Best | None = None  # the best round so far, if there is a global model

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Position":
        """Parse what `asdict` and JSON wrote; older checkpoints have no best round."""
        states = {int(c): (int(r), str(d)) for c, (r, d) in values.pop("states").items()}
        best = values.pop("best", None)
        return cls(states=states, best=Best(**best) if best else None, **values)


class CheckpointStore:
    """The checkpoints of one run directory."""

    def __init__(self, run: Path, keep: int = 2, has_states: bool = True) -> None:
        self.run, self.keep, self.has_states = run, keep, has_states
        self.folder, self.blobs = run / "checkpoints", run / "blobs"
        self.best = BestWeights(run)
        self._references: dict[int, frozenset[str]] = {}  # blobs, by checkpoint

    def rounds(self) -> list[int]:
        """List the rounds that have a checkpoint directory, oldest first."""
        names = (path.name for path in self.folder.glob("round_*/"))
        return sorted(int(name[6:]) for name in names if name[6:].isdigit())

    def commit(self, server: ServerState, position: Position) -> None:
        """Write the checkpoint of a round durably and atomically, then prune old ones."""
        final = self._path(position.round)
        self._references.pop(position.round, None)
        temporary = final.with_name(f"{final.name}.tmp")
        contents = {
            _SERVER: codec.encode(server),
            _STATE: json.dumps(asdict(position), sort_keys=True).encode(),
        }
        contents[_MANIFEST] = json.dumps(
            {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}
        ).encode()
        with disk_errors(final, sum(map(len, contents.values()))):
            try:
                files.remove_tree(temporary)
                make_folder(self.folder)
                files.mkdir(temporary, exist_ok=False)
                for name, data in contents.items():
                    write_durably(temporary / name, data)
                sync_folder(temporary)
                files.remove_tree(final)
                files.rename(temporary, final)
                sync_folder(self.folder)
            finally:
                files.remove_tree(temporary)
            for old in self.rounds()[: -self.keep]:
                files.remove_tree(self._path(old))
            self.best.prune(self._list_best())
            self.remove_unused_blobs(Bundle())

    def adopt_blobs(self, server: ServerState) -> ServerState:
        """Move a state's blobs from the spool folder to that of the checkpoints."""
        if not server.blobs:
            return server
        with disk_errors(self.blobs):
            files.mkdir(self.blobs)
        moved: dict[str, Blob] = {}
        for name, blob in server.blobs.items():
            target = self.blobs / blob.sha256
            with disk_errors(target, blob.nbytes):
                # an existing file may have been damaged since, so a new copy always replaces it
                if blob.path != target and (blob.path.exists() or not target.exists()):
                    sync_folder(blob.path)
                    files.rename(blob.path, target)
                    sync_folder(self.blobs)
            moved[name] = Blob(target, blob.dtype, blob.shape, blob.sha256)
        return Bundle(server.tensors, server.scalars, moved)

    def remove_unused_blobs(self, server: ServerState) -> None:
        """Remove blobs that neither a checkpoint nor the current state refers to."""
        current = {blob.sha256 for blob in server.blobs.values()}
        others = [path for path in self.blobs.glob("*") if path.name not in current]
        if others:
            committed = frozenset[str]().union(*map(self._read_references, self.rounds()))
            with disk_errors(self.blobs):
                for path in others:
                    if path.name not in committed:
                        files.remove_file(path)

    def load_newest(self) -> tuple[ServerState, Position, list[str]] | None:
        """Load the newest valid checkpoint; also return the problems of newer ones.

        Return None if there is no checkpoint; raise `CheckpointError` if all of them are damaged.
        """
        problems: list[str] = []
        for round in reversed(self.rounds()):
            try:
                return *self._read(round), problems
            except CheckpointError as error:
                problems.append(str(error))
        if problems:
            raise CheckpointError(
                f"no checkpoint in {self.folder} is valid ({'; '.join(problems)}); start again "
                "with another --out"
            )
        return None

    def discard_after(self, round: int) -> None:
        """Remove the checkpoints of later rounds, which are damaged."""
        for later in self.rounds():
            if later > round:
                files.remove_tree(self._path(later))

    def _read(self, round: int) -> tuple[ServerState, Position]:
        folder, metrics = self._path(round), self.run / "metrics.jsonl"
        try:
            manifest = json.loads((folder / _MANIFEST).read_bytes())
            data = {name: (folder / name).read_bytes() for name in (_SERVER, _STATE)}
            for name, content in data.items():
                if hashlib.sha256(content).hexdigest() != manifest[name]:
                    raise CheckpointError(f"{folder / name} does not match its manifest")
            server = codec.decode(data[_SERVER])
            position = Position.from_json(json.loads(data[_STATE]))
            for blob in server.blobs.values():
                if not blob.is_intact():
                    raise CheckpointError(f"{folder}: the blob {blob.path} is missing or damaged")
            states = StateStore(self.run / "clients")
            expected = position.states if self.has_states else {}
            if problem := states.find_problem(expected, position.round):
                raise CheckpointError(f"{folder}: {problem}")
            lines = metrics.read_bytes()[: position.metrics_bytes] if metrics.exists() else b""
            if hashlib.sha256(lines).hexdigest() != position.metrics_sha256:
                raise CheckpointError(f"{folder}: {metrics} has changed since it was committed")
        except (OSError, ValueError, KeyError, TypeError, CodecError) as error:
            raise CheckpointError(f"{folder}: {type(error).__name__}: {error}") from error
        return server, position

    def _list_best(self) -> set[int]:
        """List the best rounds that checkpoints refer to; a damaged one refers to none."""
        rounds = set[int]()
        for round in self.rounds():
            with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
                state = json.loads((self._path(round) / _STATE).read_bytes())
                if (best := Position.from_json(state).best) is not None:
                    rounds.add(best.round)
        return rounds

    def _read_references(self, round: int) -> frozenset[str]:
        """List the blobs that a checkpoint refers to; none if it is damaged."""
        if round not in self._references:
            try:
                server = codec.decode((self._path(round) / _SERVER).read_bytes())
            except (OSError, CodecError):
                return frozenset()
            self._references[round] = frozenset(blob.sha256 for blob in server.blobs.values())
        return self._references[round]

    def _path(self, round: int) -> Path:
        return self.folder / f"round_{round:06d}"
