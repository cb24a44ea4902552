"""Every method x every rule. A method that is added to the directory is here by itself."""

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES, Case

import coterie
import toy
from coterie.core import codec, registry
from coterie.core.bundle import Bundle
from coterie.core.errors import NoReplies, RunFailed
from coterie.core.schema import describe
from coterie.core.settings import ServerSettings
from coterie.core.task import METHOD, Round, Task
from coterie.engine.site import Site
from coterie.experiment.config import load
from coterie.experiment.prepare import Experiment, prepare
from coterie.experiment.result import Result
from coterie.kit.aggregate import Screen
from coterie.kit.context import ServerContext
from coterie.kit.stages import plan_rounds

SHIPPED = registry.names("methods")
every_method = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def tables(toy_data: Path, changes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The toy configuration as a case changes it; it may bring other data."""
    rest = {name: table for name, table in changes.items() if name != "data"}
    whole = toy.tables(toy_data, **rest)
    return {**whole, "data": {**whole["data"], **changes.get("data", {})}}


def run(toy_data: Path, out: Path, changes: dict[str, dict[str, Any]], **rest: Any) -> Result:
    return coterie.run(tables(toy_data, changes), out=out, **rest)


@pytest.fixture(scope="module")
def uninterrupted(
    toy_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Case], Path]:
    """The run of a case from start to end, made once for all processes that run tests."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "whole"
    shared.mkdir(exist_ok=True)

    def get(case: Case) -> Path:
        made = shared / case.name
        if not made.exists():
            own = tmp_path_factory.mktemp("run") / "run"
            run(toy_data, own, case.changes)
            with suppress(OSError):  # another process was faster
                own.rename(made)
        return made

    return get


def experiment(case: Case, toy_data: Path, folder: Path) -> Experiment:
    folder.mkdir(exist_ok=True)
    return prepare(load(tables(toy_data, case.changes), {}), folder)


def round_zero(chosen: Experiment) -> Round:
    stages, clients = chosen.parts.stages(METHOD), len(chosen.partition.clients)
    return plan_rounds(stages, clients, chosen.spec.seed)[0][1]


def first_stage(chosen: Experiment) -> Any:
    """The first stage, whose functions are all filled in."""
    return chosen.parts.stages(METHOD)[0]


def server_context(chosen: Experiment, folder: Path) -> ServerContext:
    parts = chosen.parts
    return ServerContext(
        round=round_zero(chosen),
        objective=parts.objective,
        local=parts.local,
        nets=parts.nets(METHOD),
        rules=first_stage(chosen).uploads,
        optimizer=ServerSettings(),
        folder=folder / "spool",
    )


@every_method
def test_a_finished_run_is_opened_from_its_files(
    case: Case, uninterrupted: Callable[[Case], Path]
) -> None:
    result = coterie.load(uninterrupted(case))
    if (result.folder / "model.safetensors").exists():
        assert result.model().state_dict() and result.model("best").state_dict()
    else:
        assert all(result.personal(client).state_dict() for client in result.clients)


@every_method
def test_inputs_stay_as_they_were_and_equal_inputs_give_equal_bits(
    case: Case, toy_data: Path, tmp_path: Path
) -> None:
    chosen = experiment(case, toy_data, tmp_path / "a")
    stage, place = first_stage(chosen), round_zero(chosen)
    server = chosen.parts.start()
    down = stage.broadcast(server, place)
    before = server.digest(), down.digest()
    site = Site(chosen.spec, chosen.partition)
    replies = []
    first, last = chosen.partition.clients[0], chosen.partition.clients[-1]
    for client in (first, last, first):
        own = stage.address(server, place, client)
        replies.append(site.run(Task("update", client, place, down, own)))
    assert [reply.error for reply in replies] == [None] * 3
    assert replies[0].up.digest() == replies[2].up.digest()
    assert replies[0].state == replies[2].state
    uploads = [reply.up.digest() for reply in replies]
    updated = [
        stage.server(server_context(chosen, tmp_path), server, iter(replies[:2])).digest()
        for _ in range(2)
    ]
    assert updated[0] == updated[1]
    assert (server.digest(), down.digest()) == before
    assert [reply.up.digest() for reply in replies] == uploads


@every_method
def test_payloads_survive_the_codec_and_pass_the_screen(
    case: Case, toy_data: Path, tmp_path: Path
) -> None:
    chosen = experiment(case, toy_data, tmp_path / "a")
    stage, place = first_stage(chosen), round_zero(chosen)
    server = chosen.parts.start()
    down = stage.broadcast(server, place)
    client = chosen.partition.clients[-1]
    reply = Site(chosen.spec, chosen.partition).run(
        Task("update", client, place, down, stage.address(server, place, client))
    )
    for bundle in (server, down, reply.up):
        again = codec.decode(codec.encode(bundle))
        assert again.digest() == bundle.digest()
        assert again.nbytes() == bundle.nbytes()
    expected = chosen.parts.expect(METHOD, stage, down)
    assert expected.schema().problem(describe(reply.up)) is None
    assert Screen(expected).problem(reply) is None


@every_method
def test_no_reply_is_no_update(case: Case, toy_data: Path, tmp_path: Path) -> None:
    chosen = experiment(case, toy_data, tmp_path / "a")
    server = chosen.parts.method.init(chosen.parts.nets(METHOD))
    ctx = server_context(chosen, tmp_path)
    try:
        after = first_stage(chosen).server(ctx, server, iter(()))
    except NoReplies:
        return
    assert after.digest() == server.digest()


@every_method
def test_a_fully_dropped_cohort_leaves_the_model_alone(
    case: Case, toy_data: Path, tmp_path: Path
) -> None:
    changes: dict[str, Any] = {
        **case.changes,
        "cohort": {"drop_before": 1.0, "drop_after": 0.0, "max_skipped": 99},
        "run": {"rounds": 2},
    }
    if case.staged:  # without an upload there is nothing to go on with
        with pytest.raises(RunFailed, match="answers that all later rounds need"):
            run(toy_data, tmp_path / "run", changes)
    else:
        run(toy_data, tmp_path / "run", changes)
    lines = toy.trace(tmp_path / "run")
    assert all(line["skipped"] for line in lines)
    assert len({line["digest"] for line in lines}) == 1
    assert all(len(line["lost"]) == len(line["cohort"]) for line in lines)
    assert sum(line["bytes_up"] + line["bytes_down"] for line in lines) == 0


@pytest.mark.slow
@every_method
def test_workers_give_the_bits_of_serial(
    case: Case, toy_data: Path, tmp_path: Path, uninterrupted: Callable[[Case], Path]
) -> None:
    workers = 1 if case.variant else 2  # the method itself shows that states travel between two
    changes = {**case.changes, "executor": {"kind": "processes", "workers": workers}}
    run(toy_data, tmp_path / "run", changes)
    assert toy.trace(tmp_path / "run") == toy.trace(uninterrupted(case))
    assert toy.outputs(tmp_path / "run") == toy.outputs(uninterrupted(case))


ENDS: dict[str, list[type[BaseException]]] = {
    "stopped": [KeyboardInterrupt],
    "killed": [toy.Killed],
    "in turns": [KeyboardInterrupt, toy.Killed],
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "end"),
    [
        (c, end)
        for c in CASES
        for end in (["stopped", "killed"] if c.name in SHIPPED else ["in turns"])
    ],
    ids=lambda one: one.name if isinstance(one, Case) else one,
)
def test_a_run_that_ends_and_is_resumed_comes_to_the_same_bits(
    case: Case,
    end: str,
    toy_data: Path,
    tmp_path: Path,
    uninterrupted: Callable[[Case], Path],
) -> None:
    ways = ENDS[end]
    expected, folder = toy.trace(uninterrupted(case)), tmp_path / "run"
    # after every round; a variant where a checkpoint is, and where the last one is a round old
    rounds = [1, 2] if case.variant and not case.staged else range(len(expected))
    for count, round in enumerate(rounds):
        stop = [toy.StopAfter(round, ways[round % len(ways)])]
        with pytest.raises(BaseException) as raised:
            run(toy_data, folder, case.changes, resume=count > 0, recorders=stop)
        assert "interrupted" in str(raised.value) or isinstance(raised.value, toy.Killed)
    run(toy_data, folder, case.changes, resume=True)
    assert toy.trace(folder) == expected
    assert toy.outputs(folder) == toy.outputs(uninterrupted(case))


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.zero is not None], ids=lambda case: case.name
)
def test_the_zero_setting_is_fedavg(case: Case, toy_data: Path, tmp_path: Path) -> None:
    assert case.zero is not None
    run(toy_data, tmp_path / "fedavg", case.plain)
    run(toy_data, tmp_path / "zero", case.zero)
    fedavg, zero = (toy.outputs(tmp_path / name) for name in ("fedavg", "zero"))
    assert zero["model.safetensors"] == fedavg["model.safetensors"]


@every_method
def test_the_loss_falls_on_the_toy_problem(
    case: Case, toy_data: Path, tmp_path: Path, uninterrupted: Callable[[Case], Path]
) -> None:
    # cross-entropy on the test set: what is trained on may be another thing in every stage
    if case.within is None:
        folder = uninterrupted(case)
    else:
        folder = tmp_path / "run"
        evaluators = ["accuracy"] if case.falls == "loss" else []
        more = {"run": {"rounds": case.within}, "evaluate": {"with": evaluators}}
        run(toy_data, folder, {**case.changes, **more})
    rounds = [line["metrics"] for line in toy.trace(folder) if not line["skipped"]]
    losses = [metrics[case.falls] for metrics in rounds if case.falls in metrics]  # in its stages
    assert min(losses) < losses[0] - 0.05 * abs(losses[0])


def test_a_zero_server_momentum_is_fedavg_up_to_rounding(toy_data: Path, tmp_path: Path) -> None:
    plain = toy.run(toy_data, tmp_path / "plain")
    changes = {"server": {"optimizer": "momentum", "momentum": 0.0}}
    other = toy.run(toy_data, tmp_path / "other", **changes)
    pairs = zip(plain.model().parameters(), other.model().parameters(), strict=True)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in pairs)


def test_every_shipped_method_says_when_it_is_fedavg() -> None:
    cases = {case.name: case for case in CASES}
    assert all(name in cases for name in SHIPPED)


def test_an_empty_bundle_has_a_digest() -> None:
    assert Bundle().digest() == codec.decode(codec.encode(Bundle())).digest()
