"""The states that clients keep between rounds: one file per client and version.

A version is named by the round that wrote it and the attempt of the run, as in
`clients/7/000012.1.safetensors`. A task of round t reads the newest version below t, so a task
that is repeated reads the same state again.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from coterie.core import codec, files
from coterie.core.bundle import ClientState
from coterie.core.errors import CheckpointError, CodecError
from coterie.core.files import replace_durably
from coterie.core.task import Attempt, ClientId

_SUFFIX = ".safetensors"


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
        path = self.folder / str(client) / f"{round:06d}.{attempt.number}{_SUFFIX}"
        replace_durably(path, codec.encode(state))
        versions = sorted(self._versions(client))
        needed = {path, *(v.path for v in versions if v.round > round)}
        for limit in (*attempt.kept, round - 1):  # a repeated task reads below `round`
            if older := [v for v in versions if v.round <= limit]:
                needed.add(older[-1].path)
        for version in versions:
            if version.path not in needed:
                with files.disk_errors(version.path):
                    files.remove_file(version.path)

    def begin(self, attempt: Attempt) -> None:
        """Remove states that earlier attempts wrote for rounds that were never committed."""
        for folder in self.folder.glob("*/"):
            for version in self._versions(int(folder.name)):
                if version.round >= attempt.first and version.attempt < attempt.number:
                    with files.disk_errors(version.path):
                        files.remove_file(version.path)

    def forget(self, client: ClientId) -> None:
        """Remove every state of a client."""
        files.remove_tree(self.folder / str(client))

    def find_problem(self, expected: Mapping[ClientId, tuple[int, str]], last: int) -> str | None:
        """Describe what is wrong with the states that a checkpoint of round `last` needs.

        `expected` has the round and digest of each client's state, from its last reply. A newer
        version up to `last` is from a client whose reply was lost: its digest is not known.
        """
        for client, (round, digest) in expected.items():
            versions = [v for v in self._versions(client) if round <= v.round <= last]
            if not versions:
                return f"{self.folder / str(client)} has no state of round {round}"
            newest = max(versions)
            try:
                actual = codec.decode(newest.path.read_bytes()).digest()
            except (OSError, CodecError) as error:
                return f"{newest.path}: {error}"
            if newest.round == round and actual != digest:
                return f"{newest.path} does not have the digest that was recorded"
        return None

    def _versions(self, client: ClientId) -> Iterator[Version]:
        for path in (self.folder / str(client)).glob(f"*{_SUFFIX}"):
            round, attempt = path.name.removesuffix(_SUFFIX).split(".")
            yield Version(int(round), int(attempt), path)
