from pathlib import Path
from typing import Any

import pytest

from coterie.sinks.mlflow import MLflow


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of MLflow's own
@pytest.mark.usefixtures("calls")
def test_a_run_is_stored_once_in_its_directory_also_after_a_resume(
    tracker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://tracking.example")
    tracker.run(MLflow(), 0, 2, "interrupted")
    tracker.run(MLflow(), 1, 3, "finished")  # only the first round was committed
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=f"sqlite:///{tracker.folder}/mlflow/mlflow.db")
    (experiment,) = (e for e in client.search_experiments() if e.name == "coterie")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("my-run", "FINISHED")
    assert run.data.params["method.mu"] == "1.5" and run.data.params["run.rounds"] == "4"
    assert run.data.params["evaluate.with"] == '["accuracy"]'
    assert run.data.tags["method"] == "moon"
    for name in ("accuracy", "seconds", "bytes_up"):
        history = client.get_metric_history(run.info.run_id, name)
        assert sorted(metric.step for metric in history) == [0, 1, 2, 3]
    assert run.data.metrics["accuracy"] == 0.375

    server = f"sqlite:///{tracker.folder}/mlflow/mlflow.db"  # as good as any, for another run
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    tracker.folder = tmp_path / "other-run"
    tracker.folder.mkdir()
    tracker.run(MLflow(), 0, 1, "failed", online=True)
    names = {run.info.run_name: run.info.status for run in client.search_runs(["1"])}
    assert names == {"my-run": "FINISHED", "other-run": "FAILED"}
    assert not (tracker.folder / "mlflow" / "mlflow.db").exists()


def test_a_server_has_to_be_named(tracker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ValueError, match="MLFLOW_TRACKING_URI"):
        tracker.run(MLflow(), 0, 0, "finished", online=True)
