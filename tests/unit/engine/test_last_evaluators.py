"""Evaluators that wait for the last round."""

from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.core.errors import ConfigError

_CHANGES: dict[str, Any] = {
    "run": {"rounds": 2},
    "data": {"limit": 200},
    "executor": {"kind": "serial"},
}


def test_they_run_once_beside_those_of_every_round(tmp_path: Path) -> None:
    """One of each kind: on the server, on clients, as a federated program."""
    names = ["knn", "personal_knn", "federated_probe"]
    table = {"with": ["accuracy"], "last": names}
    result = coterie.run("digits/fedavg", out=tmp_path / "run", evaluate=table, **_CHANGES)
    first, last = result.history
    late = {"knn", "client_knn_mean", "federated_probe"}
    assert "accuracy" in first.metrics and not late & first.metrics.keys()
    assert "accuracy" in last.metrics and late <= last.metrics.keys()
    assert first.evaluation_bytes_up == 0 < last.evaluation_bytes_up


def test_the_last_round_says_what_naming_them_everywhere_says(tmp_path: Path) -> None:
    every = coterie.run(
        "digits/fedavg", out=tmp_path / "every", evaluate={"with": ["accuracy", "knn"]}, **_CHANGES
    )
    table = {"with": ["accuracy"], "last": ["knn"]}
    late = coterie.run("digits/fedavg", out=tmp_path / "late", evaluate=table, **_CHANGES)
    assert late.metrics == every.metrics


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"last": ["probes"]}, "evaluate.last"),
        ({"last": ["knn"], "stop_at_target": True}, "waits for the last round"),
    ],
)
def test_what_cannot_be_is_said(tmp_path: Path, table: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        coterie.run("digits/fedavg", out=tmp_path / "run", evaluate=table, **_CHANGES)
