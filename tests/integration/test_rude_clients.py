"""Clients that do what they must not: the same reasons and the same bits on every executor."""

from pathlib import Path
from typing import Any

import pytest

import toy
from coterie.core.errors import ConfigError

EXECUTORS: dict[str, dict[str, Any]] = {
    "serial": {"kind": "serial"},
    "processes": {"kind": "processes", "workers": 2},
}
ENDINGS = {
    "exit": "failed: SystemExit: enough",
    "interrupt": "failed: KeyboardInterrupt: ",
    "bytes": "failed: TypeError: the scalar 'x' is bytes, not a number, text, True or False",
    "integer": "failed: TypeError: the scalar 'x' is an integer of 5001 bits",
}
UPLOADS = {
    "shape": "stats/v is float32 [7], not float32 [3]",
    "dtype": "stats/v is float64 [3], not float32 [3]",
    "large": "stats/v holds 9.999999680285692e+37",
    "not a number": "the scalar 'x' is nan",
}


def run(data: Path, folder: Path, faults: list[str], executor: str) -> list[dict[str, Any]]:
    method = {"name": "rude_methods:Rude", "faults": faults}
    settings = EXECUTORS[executor]
    toy.run(data, folder, run={"rounds": 2}, method=method, executor=settings)
    return toy.trace(folder)


@pytest.mark.parametrize("faults", [ENDINGS, UPLOADS], ids=["endings", "uploads"])
def test_every_executor_says_the_same_of_rude_clients(
    faults: dict[str, str], toy_data: Path, tmp_path: Path
) -> None:
    traces = {
        name: run(toy_data, tmp_path / name, list(faults), executor=name) for name in EXECUTORS
    }
    assert traces["serial"] == traces["processes"]
    assert toy.outputs(tmp_path / "serial") == toy.outputs(tmp_path / "processes")
    for line in traces["serial"]:
        reasons = dict(enumerate(faults.values()))
        assert {int(client): why for client, why in line["rejected"].items()} == reasons
        assert not line["skipped"] and not line["lost"]


def test_what_diverges_and_what_cannot_be_sent(toy_data: Path, tmp_path: Path) -> None:
    (first, _) = run(toy_data, tmp_path, ["nan", "complex", "numpy"], "serial")
    assert first["rejected"]["0"] == "diverged: its upload is not finite"
    assert first["rejected"]["1"].startswith("failed: CodecError: stats/v is complex64")
    assert list(first["rejected"]) == ["0", "1"]  # numbers of numpy are numbers


@pytest.mark.parametrize("executor", EXECUTORS)
def test_one_wrong_first_client_does_not_get_the_others_rejected(
    executor: str, toy_data: Path, tmp_path: Path
) -> None:
    experiment = toy.prepared(toy_data, tmp_path / "plan")
    sizes = experiment.partition.sizes()
    first = min(sizes, key=lambda client: (-sizes[client], client))  # the first of the cohort
    faults = ["shape" if client == first else "" for client in range(toy.CLIENTS)]
    for line in run(toy_data, tmp_path / "run", faults, executor):
        assert list(line["rejected"]) == [str(first)]
        assert line["metrics"]["server_stats"] == 3.0 * (toy.CLIENTS - 1)


def test_a_group_without_a_form_is_refused_before_the_run(toy_data: Path, tmp_path: Path) -> None:
    method = {"name": "rude_methods:Undeclared"}
    with pytest.raises(ConfigError, match=r"'stats' have no form: .*Gather\(entries="):
        toy.run(toy_data, tmp_path / "run", method=method)
    assert not (tmp_path / "run").exists()
