"""The states that clients keep between rounds: one file per client and version.

A version is named by the round that wrote it and the attempt of the run, as in
`clients/7/000012.1.safetensors`. A task of round t reads the newest version below t, so a task
that is repeated reads the same state again. Files and folders with other names are ignored.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

from coterie.core import codec, files
from coterie.core.bundle import ClientState
from coterie.core.errors import CheckpointError, CodecError
from coterie.core.files import replace_durably
from coterie.core.task import Attempt, ClientId
from coterie.engine import copies

_SUFFIX = ".safetensors"
_NUMBER = r"(0|[1-9][0-9]*)"
_CLIENT = re.compile(_NUMBER)
_VERSION = re.compile(rf"(-?[0-9]{{5,}})\.{_NUMBER}{re.escape(_SUFFIX)}")

Expected = Mapping[ClientId, tuple[int, str]]  # the round and digest of each client's state


class Version(NamedTuple):
    """A saved state; versions are ordered by round, then by attempt."""

    round: int
    attempt: int
    path: Path


class StateStore:
    """The states of all clients of a site, for one program."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, client: ClientId, below: int) -> ClientState | None:
        """Load the newest state of a round below `below`, or return None."""
        older = [version for version in self._versions(client) if version.round < below]
        if not older:
            return None
        path = max(older).path
        try:
            return codec.decode(path.read_bytes())
        except (OSError, CodecError) as error:
            raise CheckpointError(f"the state of client {client} at {path}: {error}") from error

    def save(self, client: ClientId, round: int, attempt: Attempt, state: ClientState) -> None:
        """Save a version, then remove those that resuming from a kept checkpoint cannot need."""
        if state.blobs:
            raise TypeError("a client's state has tensors and scalars, no blobs")
        path = self.folder / str(client) / _name(round, attempt.number)
        replace_durably(path, codec.encode(state))
        versions = sorted(self._versions(client))
        needed = {path, *(v.path for v in versions if v.round > round)}
        for limit in (*attempt.kept, round - 1):  # a repeated task reads below `round`
            if older := [v for v in versions if v.round <= limit]:
                needed.add(older[-1].path)
        for version in versions:
            if version.path not in needed:
                copies.remove(version.path)

    def begin(self, attempt: Attempt) -> None:
        """Remove states that earlier attempts wrote for rounds that were never committed."""
        for client in self.clients():
            for version in self._versions(client):
                if version.round >= attempt.first and version.attempt < attempt.number:
                    copies.remove(version.path)

    def forget(self, client: ClientId) -> None:
        """Remove every state of a client."""
        files.remove_tree(self.folder / str(client))

    def clients(self) -> list[ClientId]:
        """List the clients that have a folder."""
        names = (path.name for path in self.folder.glob("*/"))
        return sorted(int(name) for name in names if _CLIENT.fullmatch(name))

    def list_unknown(self) -> list[Path]:
        """List the files and folders that are no states, or of no client."""
        unknown = []
        for path in sorted(self.folder.glob("*")):
            if not (_CLIENT.fullmatch(path.name) and path.is_dir()):
                unknown.append(path)
                continue
            versions = {version.path for version in self._versions(int(path.name))}
            known = versions | set(map(copies.find_copy, versions))
            unknown += sorted(set(path.iterdir()) - known)
        return unknown

    def last_attempt(self) -> int:
        """Return the highest attempt that saved a state; 0 if there is none."""
        saved = (version for client in self.clients() for version in self._versions(client))
        return max((version.attempt for version in saved), default=0)

    def find_digest(self, client: ClientId, round: int) -> str | None:
        """Compute the digest of a state that a client saved in a round; None if it saved none."""
        versions = [v for v in self._versions(client) if v.round == round]
        return _digest(max(versions).path) if versions else None

    def find_problem(self, expected: Expected, last: int, exact: bool = False) -> str | None:
        """Describe what is wrong with the states that a checkpoint of round `last` needs.

        `expected` has the round and digest of each client's state, from its last reply. A newer
        version up to `last` is from a client whose reply was lost: its digest is not known. With
        `exact` all digests are known, and any other state is a problem.
        """
        for client, (round, digest) in expected.items():
            version = self._find(client, round, last)
            if version is None:
                return f"{self.folder / str(client)} has no state of round {round}"
            if version.round == round:
                if not copies.find_intact(version.path, partial(_has_digest, digest)):
                    return f"{version.path} does not have the digest that was recorded"
            elif exact:
                return f"{version.path} is not known to the checkpoint"
            elif _digest(version.path) is None:
                return f"{version.path} cannot be read"
        for client in set(self.clients()) - expected.keys() if exact else ():
            if version := self._find(client, -1, last):
                return f"{version.path} is not known to the checkpoint"
        return None

    def mend(self, expected: Expected, last: int) -> Iterator[str]:
        """Restore states that are damaged from their copies, and say which."""
        for client, (round, digest) in expected.items():
            version = self._find(client, round, last)
            if version is None or version.round != round:
                continue
            if note := copies.mend(version.path, partial(_has_digest, digest)):
                yield note

    def duplicate(self, expected: Expected, clients: Collection[ClientId], last: int) -> None:
        """Make a second copy of the states of some clients."""
        for client in clients:
            if version := self._find(client, expected[client][0], last):
                copies.make_copy(version.path)

    def _find(self, client: ClientId, first: int, last: int) -> Version | None:
        """Find the newest version of some rounds."""
        return max((v for v in self._versions(client) if first <= v.round <= last), default=None)

    def _versions(self, client: ClientId) -> Iterator[Version]:
        """List the versions of a client; of one that is missing there may be a copy."""
        folder = self.folder / str(client)
        for name in {path.name.removesuffix(copies.SUFFIX) for path in folder.glob(f"*{_SUFFIX}*")}:
            if match := _VERSION.fullmatch(name):
                version = Version(int(match[1]), int(match[2]), folder / name)
                if name == _name(version.round, version.attempt):
                    yield version


def _name(round: int, attempt: int) -> str:
    return f"{round:06d}.{attempt}{_SUFFIX}"


def _has_digest(digest: str, path: Path) -> bool:
    return _digest(path) == digest


def _digest(path: Path) -> str | None:
    """Compute the digest of a saved state; None if it cannot be read."""
    try:
        return codec.decode(path.read_bytes()).digest()
    except (OSError, CodecError):
        return None
