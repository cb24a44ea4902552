"""Checkpoints: a round is committed if and only if its directory has a valid manifest.

    checkpoints/round_000012/   server.safetensors  state.json  manifest.json (SHA-256 of both)
                                metrics.jsonl (a copy; its SHA-256 is in state.json)
    checkpoints/best/           weights of the best rounds (`engine/best.py`)
    blobs/<sha256>              large arrays of server states, shared by checkpoints

A commit syncs the metrics lines, writes `round_000012.tmp/`, syncs its files and the folder,
renames it, syncs the parent, and prunes. A crash at any moment leaves the previous checkpoint or
this one.

What several checkpoints rely on exists twice, so that one damaged file costs one checkpoint at
most: the metrics, and the second copies (`engine/copies.py`) of blobs, of the best weights and of
client states that no client has replaced since the checkpoint before.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from coterie.core import codec, files
from coterie.core.bundle import Blob, Bundle, ServerState
from coterie.core.errors import CheckpointError, CodecError
from coterie.core.files import (
    copy_durably,
    disk_errors,
    make_folder,
    replace_durably,
    sync_folder,
    write_durably,
)
from coterie.core.task import ClientId
from coterie.engine import copies
from coterie.engine.best import Best, BestWeights
from coterie.engine.client_states import StateStore
from coterie.engine.record import MetricsFile

_SERVER, _STATE, _MANIFEST = "server.safetensors", "state.json", "manifest.json"
_METRICS = "metrics.jsonl"
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, CodecError, CheckpointError)
_ROUND = re.compile(r"round_([0-9]{6,})")


@dataclass(frozen=True)
class Origin:
    """What a run computes: its configuration, but for what may change, and a digest of its data."""

    config: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    data: str = ""


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
    origin: Origin | None = None
    attempt: int = 0  # that committed it

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Position":
        """Parse what `asdict` and JSON wrote; older checkpoints have no best round, no origin."""
        states = {int(c): (int(r), str(d)) for c, (r, d) in values.pop("states").items()}
        best, origin = (values.pop(key, None) for key in ("best", "origin"))
        return cls(
            states=states,
            best=Best(**best) if best else None,
            origin=Origin(**origin) if origin else None,
            **values,
        )


class CheckpointStore:
    """The checkpoints of one run directory."""

    def __init__(self, run: Path, keep: int = 2, has_states: bool = True) -> None:
        self.run, self.keep, self.has_states = run, keep, has_states
        self.folder, self.blobs = run / "checkpoints", run / "blobs"
        self.best, self.states = BestWeights(run), StateStore(run / "clients")
        self.metrics = MetricsFile(run / _METRICS)
        self._copied: dict[ClientId, int] = {}  # clients whose state has a copy, and its round
        self._references: dict[int, frozenset[str]] = {}  # blobs, by checkpoint

    def rounds(self) -> list[int]:
        """List the rounds that have a checkpoint directory, oldest first."""
        matches = (_ROUND.fullmatch(path.name) for path in self.folder.glob("round_*/"))
        rounds = {int(match[1]) for match in matches if match}
        return sorted(round for round in rounds if self._path(round).is_dir())

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
        needed = sum(map(len, contents.values())) + position.metrics_bytes
        with disk_errors(final, needed):
            try:
                files.remove_tree(temporary)
                make_folder(self.folder)
                files.mkdir(temporary, exist_ok=False)
                for name, data in contents.items():
                    write_durably(temporary / name, data)
                if self.metrics.path.exists():
                    copy_durably(self.metrics.path, temporary / _METRICS, position.metrics_bytes)
                sync_folder(temporary)
                files.remove_tree(final)
                files.rename(temporary, final)
                sync_folder(self.folder)
            finally:
                files.remove_tree(temporary)
            for old in self.rounds()[: -self.keep]:
                files.remove_tree(self._path(old))
            if (best := self._list_best()) is not None:
                self.best.prune(best)
            self.remove_unused_blobs(Bundle())
            self._copy_shared(server, position)

    def _copy_shared(self, server: ServerState, position: Position) -> None:
        """Make second copies of blobs, and of states that the checkpoint before relies on too."""
        for blob in server.blobs.values():
            if blob.path.parent == self.blobs:
                copies.make_copy(blob.path)
        before = max((round for round in self.rounds() if round < position.round), default=None)
        if not self.has_states or before is None:
            return
        shared = {c: round for c, (round, _) in position.states.items() if round <= before}
        new = [client for client, round in shared.items() if self._copied.get(client) != round]
        self.states.duplicate(position.states, new, before)
        self._copied |= shared

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
        names = {path.name.removesuffix(copies.SUFFIX) for path in self.blobs.glob("*")}
        if others := names - current:
            try:
                committed = frozenset[str]().union(*map(self._read_references, self.rounds()))
            except OSError:
                return  # nobody knows what a checkpoint refers to that cannot be read now
            with disk_errors(self.blobs):
                for name in others - committed:
                    copies.remove(self.blobs / name)

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

    def read_metrics(self, position: Position) -> bytes | None:
        """Read the committed lines, from the run or from the checkpoint; None if both are damaged.

        Checkpoints of older versions have no copy of them.
        """
        for path in (self.metrics.path, self._path(position.round) / _METRICS):
            with contextlib.suppress(OSError):
                lines = path.read_bytes()[: position.metrics_bytes]
                if hashlib.sha256(lines).hexdigest() == position.metrics_sha256:
                    return lines
        return None

    def find_damaged_metrics(self) -> str | None:
        """Say if the lines of a finished run are not those that its last checkpoint committed.

        Without a whole checkpoint nothing is known about them.
        """
        path = self.metrics.path
        try:
            position = self._read_position(max(self.rounds(), default=-1))
        except _BROKEN:
            return None
        try:
            lines = path.read_bytes() if path.is_file() else b""
        except OSError as error:
            return f"{path} cannot be read ({error.strerror})"
        if hashlib.sha256(lines).hexdigest() == position.metrics_sha256:
            return None
        return f"{path} is missing or damaged"

    def mend(self, server: ServerState, position: Position) -> Iterator[str]:
        """Restore what a checkpoint that was loaded relies on, where it is damaged, and say so."""
        lines = self.read_metrics(position)
        assert lines is not None  # the checkpoint was loaded
        if self.metrics.restore(lines):
            yield f"{self.metrics.path} was missing or damaged, and is restored from a checkpoint"
        copy = self._path(position.round) / _METRICS
        try:
            same = copy.read_bytes() == lines
        except OSError:
            same = False
        if not same:
            replace_durably(copy, lines)
        notes = [copies.mend(blob.path, partial(_is_blob, blob)) for blob in server.blobs.values()]
        notes += [self.best.mend(position.best)] if position.best else []
        notes += self.states.mend(position.states, position.round) if self.has_states else []
        yield from filter(None, notes)

    def _read(self, round: int) -> tuple[ServerState, Position]:
        folder = self._path(round)
        try:
            server = self._find_blobs(codec.decode(self._read_file(round, _SERVER)))
            position = self._read_position(round)
            if position.round != round:
                raise CheckpointError(f"{folder} is the checkpoint of round {position.round}")
            for blob in server.blobs.values():
                if not copies.find_intact(blob.path, partial(_is_blob, blob)):
                    raise CheckpointError(f"{folder}: the blob {blob.path} is missing or damaged")
            exact = position.origin is not None  # older checkpoints do not know every state
            if self.has_states and (
                problem := self.states.find_problem(position.states, position.round, exact)
            ):
                raise CheckpointError(f"{folder}: {problem}")
            if self.read_metrics(position) is None:
                path = self.metrics.path
                raise CheckpointError(f"{folder}: {path} has changed since it was committed")
        except CheckpointError:
            raise
        except _BROKEN as error:
            raise CheckpointError(f"{folder}: {type(error).__name__}: {error}") from error
        return server, position

    def _read_position(self, round: int) -> Position:
        return Position.from_json(json.loads(self._read_file(round, _STATE)))

    def _read_file(self, round: int, name: str) -> bytes:
        """Read a file of a checkpoint, and compare it with the manifest."""
        folder = self._path(round)
        manifest, data = json.loads((folder / _MANIFEST).read_bytes()), (folder / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != manifest[name]:
            raise CheckpointError(f"{folder / name} does not match its manifest")
        return data

    def _find_blobs(self, server: ServerState) -> ServerState:
        """Look for blobs in this run directory, wherever it was when they were committed."""
        blobs = {
            name: replace(blob, path=self.blobs / blob.sha256)
            for name, blob in server.blobs.items()
        }
        return Bundle(server.tensors, server.scalars, blobs)

    def _list_best(self) -> set[int] | None:
        """List the best rounds that checkpoints refer to; a damaged one refers to none.

        Return None if one cannot be read at present: it may refer to any.
        """
        rounds = set[int]()
        for round in self.rounds():
            try:
                best = self._read_position(round).best
            except FileNotFoundError:
                continue
            except OSError:
                return None
            except _BROKEN:
                continue
            if best is not None:
                rounds.add(best.round)
        return rounds

    def _read_references(self, round: int) -> frozenset[str]:
        """List the blobs that a checkpoint refers to; none if it is incomplete or damaged."""
        if round not in self._references:
            try:
                server = codec.decode((self._path(round) / _SERVER).read_bytes())
            except (FileNotFoundError, CodecError):
                return frozenset()
            self._references[round] = frozenset(blob.sha256 for blob in server.blobs.values())
        return self._references[round]

    def _path(self, round: int) -> Path:
        return self.folder / f"round_{round:06d}"


def _is_blob(blob: Blob, path: Path) -> bool:
    return replace(blob, path=path).is_intact()
