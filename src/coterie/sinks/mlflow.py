"""MLflow: a database in `mlflow/` of the run directory, or a tracking server."""

import os
import time
from collections.abc import Mapping
from typing import final

from coterie.engine.record import RoundEvent
from coterie.engine.sink import PROJECT, Sink, Status, TrackedRun, list_values

_MOST_PARAMETERS = 100  # in one request
_ENDS = {"finished": "FINISHED", "interrupted": "KILLED", "failed": "FAILED"}


@final
class MLflow(Sink):
    """Stores parameters, tags and metrics by round.

    A resumed run continues the same run of MLflow: values of a round that it has are not stored
    twice, and rounds that it lacks are added.
    """

    modules, extra = ("mlflow", "sqlalchemy", "alembic"), "mlflow"

    def environment(self, run: TrackedRun) -> Mapping[str, str | None]:
        """Switch telemetry off; offline, forget the server as well."""
        quiet = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
        return quiet if run.online else {**quiet, "MLFLOW_TRACKING_URI": None}

    def start(self, run: TrackedRun) -> None:
        """Find the run by the id that was kept, or create it; then add what it lacks."""
        from mlflow.tracking import MlflowClient

        folder = run.folder.absolute() / "mlflow"
        folder.mkdir(exist_ok=True)
        address = f"sqlite:///{folder / 'mlflow.db'}"
        if run.online:
            address = os.environ.get("MLFLOW_TRACKING_URI", "")
            if not address:
                raise ValueError("record.online = true needs the variable MLFLOW_TRACKING_URI")
        self._client = MlflowClient(tracking_uri=address, registry_uri=address)
        self._stored: dict[tuple[str, int], float] = {}
        kept = folder / "run_id.txt"
        if kept.exists():
            self._run = kept.read_text()
            self._read_stored()
            self._client.update_run(self._run, status="RUNNING")
        else:
            self._run = self._create(run, None if run.online else folder.as_uri())
            kept.write_text(self._run)
        for event in run.history:
            self.round(event)

    def round(self, event: RoundEvent) -> None:
        """Log the numbers of a round, apart from those that are stored already."""
        from mlflow.entities import Metric

        now, step = int(time.time() * 1000), event.round
        metrics = [
            Metric(name, value, now, step)
            for name, value in list_values(event).items()
            if not self._has(name, step, value)
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def end(self, status: Status) -> None:
        """Set the status of the run."""
        self._client.set_terminated(self._run, _ENDS[status])

    def _create(self, run: TrackedRun, artifacts: str | None) -> str:
        from mlflow.entities import Param

        experiment = self._client.get_experiment_by_name(PROJECT)
        number = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(PROJECT, artifact_location=artifacts)
        )
        tags = {**run.tags, "folder": str(run.folder)}
        created: str = self._client.create_run(number, run_name=run.name, tags=tags).info.run_id
        parameters = [Param(name, str(value)) for name, value in run.parameters().items()]
        for start in range(0, len(parameters), _MOST_PARAMETERS):
            part = parameters[start : start + _MOST_PARAMETERS]
            self._client.log_batch(created, params=part)
        return created

    def _has(self, name: str, step: int, value: float) -> bool:
        """Whether a value is stored already; a repeated round takes another time."""
        stored = self._stored.get((name, step))
        return stored == value or (stored is not None and name == "seconds")

    def _read_stored(self) -> None:
        """Read which values the run has, by name and round."""
        for name in self._client.get_run(self._run).data.metrics:
            for metric in self._client.get_metric_history(self._run, name):
                self._stored[name, metric.step] = metric.value
