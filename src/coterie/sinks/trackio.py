"""Trackio: a database in `trackio/` of the run directory, or a server or Space of the user's."""

import shutil
from collections.abc import Mapping
from typing import final

from coterie.engine.record import RoundEvent
from coterie.engine.sink import PROJECT, Sink, Status, TrackedRun, list_values

_REMOTE = ("SPACE_ID", "SERVER_URL", "BUCKET_ID", "DATASET_ID", "WEBHOOK_URL")


@final
class Trackio(Sink):
    """Stores metrics by round.

    The rounds of a resumed run are all stored anew in the run directory. Online they are appended,
    so that repeated rounds are there twice, with equal values.
    """

    modules, extra = ("trackio",), "trackio"

    def environment(self, run: TrackedRun) -> Mapping[str, str | None]:
        """Name the folder; offline, forget servers and keep the library of the hub offline."""
        here = {"TRACKIO_DIR": str(run.folder.absolute() / "trackio")}
        quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "TRACKIO_STORAGE_MODE": "sqlite"}
        if run.online:
            return {**here, **quiet}
        nowhere = dict.fromkeys(f"TRACKIO_{name}" for name in _REMOTE)
        return {**here, **quiet, **nowhere, "HF_HUB_OFFLINE": "1"}

    def start(self, run: TrackedRun) -> None:
        """Open the run, and store the rounds before."""
        if not run.online:
            shutil.rmtree(run.folder / "trackio", ignore_errors=True)
        import trackio

        self._run = trackio.init(
            project=PROJECT,
            name=run.name,
            config={**run.tags, **run.parameters()},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        for event in () if run.online else run.history:
            self.round(event)

    def round(self, event: RoundEvent) -> None:
        """Log the numbers of a round as one step."""
        self._run.log(list_values(event), step=event.round)

    def end(self, status: Status) -> None:
        """Wait until all is stored."""
        self._run.finish()
