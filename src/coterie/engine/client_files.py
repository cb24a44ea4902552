"""Where a site keeps what belongs to its clients: states, personal models, big arrays.

In a run on one machine that is the run directory. A site on another machine gets a client's state
with the task and returns the new one with the reply; then whoever asked keeps it, in the same way.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from coterie.core.bundle import Bundle, ClientState
from coterie.core.task import Task
from coterie.data.partition import Partition
from coterie.engine.client_states import StateStore
from coterie.engine.rundir import write_weights
from coterie.kit.method import FederatedEvaluator

MODEL = "model"  # the group of a personal model's weights
_BEFORE = -1  # the round of a state that a program's client made before the first round


class ClientFiles(Protocol):
    """What a site needs of the place where clients' files are."""

    def load(self, task: Task) -> ClientState | None:
        """Load the state that a task starts from."""

    def save(self, task: Task, kept: Bundle) -> None:
        """Keep what a task made: a state, or for the op `personal` a model."""

    def spool(self, task: Task) -> Path:
        """Choose the folder of the big arrays that a task writes."""


class RunFolder:
    """The files of clients in a run directory."""

    def __init__(
        self, folder: Path, partition: Partition, programs: Mapping[str, FederatedEvaluator]
    ) -> None:
        self._folder, self._partition, self._programs = folder, partition, programs
        self._attempt = 0

    def load(self, task: Task) -> ClientState | None:
        """Load the newest state; an evaluation may read that of its round, an update may not."""
        return self._store(task).load(task.client, task.round.index + (task.op != "update"))

    def save(self, task: Task, kept: Bundle) -> None:
        """Write a new version of the state, a program's first state, or a personal model."""
        if task.op == "update":
            self._store(task).save(task.client, task.round.index, task.attempt, kept)
        elif task.op == "personal":
            file = self._partition.file_name(task.client)
            write_weights(self._folder / "personal" / file, kept[MODEL])
        else:
            store = self._program_store(task.program)
            store.forget(task.client)
            store.save(task.client, _BEFORE, task.attempt, kept)

    def spool(self, task: Task) -> Path:
        """Choose a folder in `spool/`, which is emptied after every round."""
        name = f"{task.program}-{task.round.index:06d}-{task.attempt.number}"
        return self._folder / "spool" / name / str(task.client)

    def _store(self, task: Task) -> StateStore:
        """Open the store of a task's states; an evaluation reads those of the method."""
        program = self._programs.get(task.program) if task.op == "update" else None
        if program is not None:
            store = self._program_store(task.program)
            if task.round.index == 0 and not program.has_begin():
                store.forget(task.client)  # states of a program last for one evaluation
            return store
        store = StateStore(self._folder / "clients")
        if task.attempt.number != self._attempt:
            store.begin(task.attempt)
            self._attempt = task.attempt.number
        return store

    def _program_store(self, program: str) -> StateStore:
        return StateStore(self._folder / "evaluation" / program)
