"""Times of studies: measured once for equal work, added up over stages, clients and tests."""

import re
from pathlib import Path
from typing import Any

import pytest
from made_recipe import tables

import toy
from coterie.core import exact
from coterie.core.errors import NoReplies, RunFailed
from coterie.core.settings import Local
from coterie.experiment.config import Config, load
from coterie.experiment.prepare import prepare
from coterie.experiment.tables import parse_overrides
from coterie.methods.mfcl import MFCL
from coterie.reproduce import estimate as estimates
from coterie.reproduce.estimate import add_up, describe, estimate
from coterie.reproduce.plan import make_study
from coterie.reproduce.recipe import parse
from coterie.reproduce.timing import Load, Timing, Work

SMALL = ["data.limit=200", "run.rounds=3", "executor.kind=serial", "evaluate.every=0"]
SHARED = ["method.share_representations=true", "method.sense_rounds=2", "method.sensor_width=4"]


def digits(name: str, *more: str) -> Config:
    changes = dict(text.split("=", 1) for text in (*SMALL, *more))
    return load(
        f"digits/{name}", parse_overrides(f"{key}={value}" for key, value in changes.items())
    )


def test_three_measurements_give_start_samples_and_batches() -> None:
    def seconds(load: Load) -> float:
        return 0.5 + 0.01 * load.samples + 0.2 * load.batches

    loads = [Load(32, 2, 2), Load(32, 8, 8), Load(96, 8, 24)]
    work = Work.through([seconds(load) for load in loads], loads)
    assert (work.start, work.sample, work.batch) == pytest.approx((0.5, 0.01, 0.2))
    assert work(1000, 50) == pytest.approx(20.5)
    loads = [Load(32, 2, 2), Load(32, 8, 8), Load(96, 8, 8)]
    assert Work.through([1.0, 0.9, 0.8], loads) == Work(1.0, 0.0, 0.0)  # never negative
    loads = [Load(20, 2, 2), Load(20, 8, 8), Load(20, 8, 8)]
    assert Work.through([1.0, 4.0, 4.0], loads).sample == 0.0  # there are no more


@pytest.mark.parametrize(
    ("samples", "steps", "accumulate", "batches"),
    [
        (64, 5, 1, 5),
        (64, 5, 2, 10),  # two batches a step
        (48, 4, 2, 6),  # three batches an epoch: its second step has one
        (16, 3, 8, 3),  # the end of an epoch ends a step
    ],
)
def test_batches_of_steps_are_counted(
    samples: int, steps: int, accumulate: int, batches: int
) -> None:
    assert Load.of(samples, steps, Local(batch_size=16, accumulate=accumulate)).batches == batches


@pytest.mark.parametrize("accumulate", [1, 2, 8])
def test_accumulating_gradients_changes_no_number_of_batches(
    accumulate: int, tmp_path: Path
) -> None:
    more = ["run.rounds=1", "local.epochs=2", "local.batch_size=8", "partition.kind=iid"]
    experiment = prepare(digits("fedavg", *more, f"local.accumulate={accumulate}"), tmp_path)
    timing = Timing(0.0, {"train": Work(0.0, 0.0, 1.0)}, {"train": Work(0.0, 0.0)})
    assert add_up(experiment, timing) == pytest.approx(2 * 3 * 10)  # 20 samples a client


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
    experiment = prepare(digits("mfcl", *SHARED, *more), tmp_path)
    assert sum(experiment.partition.sizes().values()) == 200
    clients = {"sense": Work(1.0, 0.0), "upload": Work(1.0, 0.0), "contrast": Work(0.0, 0.0)}
    server = {"sense": Work(0.0, 9.0), "upload": Work(0.0, 9.0), "contrast": Work(0.0, 1.0)}
    assert add_up(experiment, Timing(0.0, clients, server)) == pytest.approx(expected)


@pytest.mark.parametrize(("steps", "seen"), [(0, 200), (2, 200), (1, 160)])
def test_passes_see_all_samples_unless_a_round_has_few_steps(
    steps: int, seen: int, tmp_path: Path
) -> None:
    more = ["run.rounds=1", f"local.steps={steps}", "local.batch_size=16", "partition.kind=iid"]
    experiment = prepare(digits("fedavg", *more), tmp_path)
    timing = Timing(0.0, {"train": Work(0.0, 1.0)}, {"train": Work(0.0, 0.0)})
    assert add_up(experiment, timing) == pytest.approx(seen)


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("mfcl", SHARED),
        ("mfcl", [*SHARED, "method.refresh=epoch", "method.sensor=table5"]),
        ("mfcl", [*SHARED, "method.sensor_norm=bn", "net.bn_buffers=local"]),
        ("fedproc", []),
        ("fedproc", ["method.schedule=two-stage"]),
        ("fedssc", []),
        ("fedssc", ["method.two_stage=true"]),
    ],
)
def test_a_run_of_stages_has_a_time(name: str, more: list[str]) -> None:
    timings: dict[str, Any] = {}
    short, long = (estimate(digits(name, *more, f"run.rounds={n}"), timings) for n in (3, 300))
    assert 0.0 < short < long and len(timings) == 1  # measured once, whatever the number of rounds


def test_another_method_with_rounds_of_the_server_has_a_time(toy_data: Path) -> None:
    tables = toy.tables(toy_data, method={"name": "toy_methods:Staged"})
    assert estimate(load(tables, {}), {}) > 0.0


def test_equal_rows_have_equal_estimates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds, the division of the data and weights of a loss change nothing of a step."""
    measured = []

    def pretend(experiment: Any, folder: Path) -> Timing:
        measured.append(experiment.config)  # each later measurement would be ten times as long
        second = Work(0.0, 0.0, 10.0 ** len(measured))
        return Timing(0.0, {"train": second}, {"train": Work(0.0, 0.0)})

    monkeypatch.setattr(estimates, "measure", pretend)
    some = tables()
    for column in some["column"]:
        column["set"] = {"partition.kind": "iid"}
    some["column"][1]["set"]["partition.clients"] = 5
    changed = {"value": {}, "spread": {}, "rounds": {}}
    some["row"].append({**some["row"][1], **changed, "name": "mu", "set": {"method.mu": 0.5}})
    lines = list(describe(make_study(parse(some), "smoke"), tmp_path))
    assert [config.tables["method"]["name"] for config in measured] == ["fedavg", "fedprox"]
    times = {
        line.partition(":")[0]: re.findall("about (.*)", line)
        for line in lines
        if ", one" in line or ", two" in line
    }
    assert times["FedProx, one"] == times["mu, one"]
    assert times["FedProx, two"] == times["mu, two"]  # of other clients: with other last batches
    assert times["FedAvg, one"] != times["FedProx, one"]


def test_a_busy_machine_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nothing = Timing(0.0, {"train": Work(1.0, 0.0)}, {"train": Work(0.0, 0.0)})
    monkeypatch.setattr(estimates, "measure", lambda *_: nothing)
    monkeypatch.setattr(exact, "cores", lambda: 2)
    study = make_study(parse(tables()), "smoke")
    monkeypatch.setattr("os.getloadavg", lambda: (7.0, 0.0, 0.0))
    busy = list(describe(study, tmp_path))[-1]
    assert " on free cores (4.0 times that with what else runs now); finished runs" in busy
    monkeypatch.setattr("os.getloadavg", lambda: (1.5, 0.0, 0.0))
    assert " on free cores; finished runs" in list(describe(study, tmp_path))[-1]


def test_a_client_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> Any:
        raise NoReplies("out of order")

    monkeypatch.setattr(MFCL, "client_update", fails)
    with pytest.raises(RunFailed, match=r"NoReplies: out of order$"):
        estimate(digits("mfcl", *SHARED), {})
