"""Times of methods with rounds on the server alone: lines through two measurements, added up."""

from pathlib import Path
from typing import Any

import pytest

import toy
from coterie.core.errors import NoReplies, RunFailed
from coterie.experiment.config import Config, load
from coterie.experiment.prepare import prepare
from coterie.experiment.tables import parse_overrides
from coterie.methods.mfcl import MFCL
from coterie.reproduce.estimate import Line, add_up_stages, estimate

SMALL = [
    *("data.limit=200", "run.rounds=3", "executor.kind=serial", "evaluate.every=0"),
    *("method.share_representations=true", "method.sense_rounds=2", "method.sensor_width=4"),
]


def digits(*more: str) -> Config:
    changes = dict(text.split("=", 1) for text in (*SMALL, *more))
    return load("digits/mfcl", parse_overrides(f"{key}={value}" for key, value in changes.items()))


def test_a_line_goes_through_two_points_and_never_falls() -> None:
    line = Line.through((10, 3.0), (30, 7.0))
    assert (line.start, line.sample) == pytest.approx((1.0, 0.2))
    assert line(100) == pytest.approx(21.0)
    assert Line.through((10, 3.0), (30, 2.0))(1000) == 2.0
    assert Line.through((10, 1.0), (30, 9.0)).start == 0.0
    assert Line.through((20, 4.0), (20, 5.0))(40) == pytest.approx(10.0)  # a client has no more


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ([], 2 * 10 + 10 + 3 * 200),
        (["method.refresh=epoch"], 2 * 10 + 3 * 10 + 3 * 200),
        (["method.drop=0.3"], 2 * 10 + 0.7 * 10 + 3 * 200),
        (["cohort.fraction=0.5"], 2 * 5 + 10 + 3 * 200),
        (["executor.kind=processes", "executor.workers=2"], (2 * 10 + 10) / 2 + 3 * 200),
    ],
)
def test_rounds_of_clients_are_shared_out_and_those_of_the_server_see_all_samples(
    more: list[str], expected: float, tmp_path: Path
) -> None:
    experiment = prepare(digits(*more), tmp_path)
    assert sum(experiment.partition.sizes().values()) == 200
    lines = {"sense": Line(1.0, 0.0), "upload": Line(1.0, 0.0), "contrast": Line(0.0, 1.0)}
    workers = 2 if "executor.workers=2" in more else 1
    assert add_up_stages(experiment, lines, workers) == pytest.approx(expected)


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["method.refresh=epoch", "method.sensor=table5"],
        ["method.sensor_norm=bn", "net.bn_buffers=local"],
    ],
)
def test_a_run_of_mfcl_has_a_time(more: list[str]) -> None:
    timings: dict[str, Any] = {}
    short, long = (estimate(digits(*more, f"run.rounds={n}"), timings) for n in (3, 300))
    assert 0.0 < short < long and len(timings) == 1  # measured once, whatever the number of rounds


def test_another_method_with_rounds_of_the_server_has_a_time(toy_data: Path) -> None:
    tables = toy.tables(toy_data, method={"name": "toy_methods:Staged"})
    assert estimate(load(tables, {}), {}) > 0.0


def test_a_client_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise NoReplies("out of order")

    monkeypatch.setattr(MFCL, "client_update", fails)
    with pytest.raises(RunFailed, match=r"NoReplies: out of order$"):
        estimate(digits(), {})
