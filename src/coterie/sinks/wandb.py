"""Weights & Biases: an offline run in `wandb/` of the run directory, or one on its server."""

import os
import secrets
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import final

from coterie.engine.record import RoundEvent
from coterie.engine.sink import PROJECT, Sink, Status, TrackedRun, list_values

_KINDS = ("CACHE", "CONFIG", "DATA", "ARTIFACT")  # folders that would be in the home directory
_LONGEST_TAG = 64


@final
class WeightsAndBiases(Sink):
    """Stores a run offline, to be sent by `wandb sync`, or online.

    An offline run cannot be continued: a resumed one is stored anew, with all its rounds, under the
    same id. Online, W&B ignores rounds that it has already.
    """

    modules, extra = ("wandb",), "wandb"

    def environment(self, run: TrackedRun) -> Mapping[str, str | None]:
        """Switch reports of errors off; offline, keep all files in the run directory."""
        quiet = {"WANDB_ERROR_REPORTING": "false", "WANDB_SILENT": "true"}
        if run.online:  # it needs the user's own settings
            return quiet
        folder = run.folder.absolute() / "wandb"
        return {**quiet, **{f"WANDB_{kind}_DIR": str(folder / kind.lower()) for kind in _KINDS}}

    def start(self, run: TrackedRun) -> None:
        """Open the run under its id, and store the rounds before."""
        import wandb

        folder = run.folder / "wandb"
        folder.mkdir(exist_ok=True)
        number = _keep_id(folder)
        before = [*folder.glob(f"offline-run-*-{number}")]
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or PROJECT,
            name=run.name,
            id=number,
            dir=str(run.folder),
            config=run.parameters(),
            tags=[tag[:_LONGEST_TAG] for tag in run.tags.values()],
            mode="online" if run.online else "offline",
            resume="allow" if run.online else None,
            settings=wandb.Settings(
                console="off",
                disable_git=True,
                save_code=False,
                silent=True,
                x_disable_machine_info=True,
                x_disable_meta=True,
                x_disable_stats=True,
            ),
        )
        for event in run.history:
            self.round(event)
        current = Path(self._run.settings.sync_dir)
        for old in before:
            if old != current:
                shutil.rmtree(old)

    def round(self, event: RoundEvent) -> None:
        """Log the numbers of a round as one step."""
        self._run.log(list_values(event), step=event.round)

    def end(self, status: Status) -> None:
        """Finish the run, whose summary has the last values, and W&B's own process."""
        import wandb

        self._run.finish(exit_code=0 if status == "finished" else 1)
        wandb.teardown()  # else the file may still be written when this returns


def _keep_id(folder: Path) -> str:
    """Return the id of the run, which is drawn once and kept beside it."""
    path = folder / "id.txt"
    if not path.exists():
        path.write_text(secrets.token_hex(6))
    return path.read_text()
