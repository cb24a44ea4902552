"""A site answers tasks: states that are read and saved, failures that become replies."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from canned import (
    WEIGHT,
    FixedOnClients,
    Nothing,
    Scale,
    Toy,
    add,
    make_spec,
    model,
    position,
    value,
)

from coterie.core.bundle import Bundle, ClientState, Payload
from coterie.core.errors import CheckpointError, Diverged
from coterie.core.task import Attempt, Task
from coterie.data import datasets
from coterie.data.datasets import Dataset, Raw
from coterie.data.partition import Partition
from coterie.engine.site import Site, out_of_memory
from coterie.kit.builder import Builder
from coterie.kit.context import ClientContext, Shard
from coterie.nets.heads import Network

# client 2 has a single training sample, client 1 no test sample
SHARES = Partition({0: np.arange(6), 1: np.arange(6, 11), 2: np.arange(11, 12)}, {0: np.arange(3)})
Part = Callable[[ClientContext, Payload, ClientState | None], tuple[Payload, ClientState | None]]
MakeSite = Callable[..., Site]


class WithPrivate(Network):
    """The toy network with a buffer that never leaves a client."""

    def __init__(self) -> None:
        super().__init__(Scale())
        self.register_buffer("own", torch.zeros(1))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Twelve training and three test samples with two entries; sample i holds i twice."""
    x, y = np.repeat(np.arange(12.0, dtype=np.float32)[:, None], 2, 1), np.arange(12) % 2
    return datasets.store("toy", Raw(x, y, x[:3], y[:3]), tmp_path_factory.mktemp("cache"))


@pytest.fixture
def make(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeSite:
    """Make a site of the toy method, with some slots of the method replaced."""

    def site(part: Part | None = None, personal: Any = None, **changes: Any) -> Site:
        if part is not None:
            monkeypatch.setattr(Toy, "client_update", lambda self, *arguments: part(*arguments))
        if personal is not None:
            monkeypatch.setattr(Toy, "personal", lambda self, *arguments: personal(*arguments))
        return Site(make_spec(tmp_path, data=str(dataset.path), **changes), SHARES)

    return site


def update(client: int = 0, index: int = 0, **changes: Any) -> Task:
    return replace(Task("update", client, position(index), model(1.0)), **changes)


def evaluate(client: int = 0, index: int = 0, **changes: Any) -> Task:
    down = Bundle({"evaluated": {WEIGHT: torch.tensor([2.0])}})
    return replace(Task("evaluate", client, position(index), down), **changes)


def remember(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
    """A client's part that counts its rounds in its state."""
    count = 1 if state is None else 1 + int(state.scalars["count"])
    return down, Bundle(scalars={"count": count})


def raising(error: Exception) -> Part:
    def part(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        raise error

    return part


def saved(folder: Path, client: int = 0) -> list[str]:
    return sorted(path.name for path in (folder / "clients" / str(client)).glob("*"))


def test_an_update_is_answered_with_the_upload_and_the_number_of_samples(make: MakeSite) -> None:
    reply = make().run(update(1))
    assert reply.error is None and reply.client == 1
    assert value(reply.up) == 2.0 and reply.examples == 5
    assert reply.state == ""


def test_a_clients_part_sees_its_own_data_its_own_payload_and_the_round(make: MakeSite) -> None:
    seen: list[Any] = []

    def look(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        samples = torch.cat([batch.x for batch in ctx.sweep()])
        seen.append((ctx.id, ctx.round, ctx.own, samples[:, 0].tolist(), state))
        return down, None

    own = Bundle(scalars={"draw": 1})
    make(look).run(update(1, index=2, own=own))
    assert seen == [(1, position(2), own, [6.0, 7.0, 8.0, 9.0, 10.0], None)]


def test_metrics_of_other_kinds_of_numbers_are_sent_as_floats(make: MakeSite) -> None:
    def measure(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        ctx.metrics.update(odd=np.float32(0.5), count=3)
        return down, None

    metrics = make(measure).run(update()).metrics
    assert metrics == {"odd": 0.5, "count": 3.0}
    assert {type(number) for number in metrics.values()} == {float}


def test_an_update_reads_the_state_of_an_earlier_round_and_never_its_own(make: MakeSite) -> None:
    seen = []

    def part(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        seen.append(None if state is None else state.scalars["count"])
        return remember(ctx, down, state)

    site = make(part)
    for index in (0, 1, 1, 4):  # round 1 is done twice, as after a worker's death
        site.run(update(index=index))
    assert seen == [None, 1, 1, 2]


def test_the_digest_of_a_saved_state_is_in_the_reply(make: MakeSite, tmp_path: Path) -> None:
    reply = make(remember).run(update(index=3))
    assert reply.state == Bundle(scalars={"count": 1}).digest()
    assert saved(tmp_path) == ["000003.1.safetensors"]


def test_an_evaluation_reads_the_state_of_this_very_round(make: MakeSite) -> None:
    seen = []

    def personal(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        seen.append(None if state is None else state.scalars["count"])

    site = make(remember, personal)
    site.run(update(index=0))
    site.run(update(index=1))
    site.run(evaluate(index=0))
    site.run(evaluate(index=1))
    assert seen == [1, 2]


def test_states_are_each_clients_own(make: MakeSite, tmp_path: Path) -> None:
    site = make(remember)
    site.run(update(0, index=0))
    site.run(update(1, index=1))
    assert (saved(tmp_path, 0), saved(tmp_path, 1)) == (
        ["000000.1.safetensors"],
        ["000001.1.safetensors"],
    )


def test_a_later_attempt_forgets_what_an_earlier_one_did_not_commit(
    make: MakeSite, tmp_path: Path
) -> None:
    for index in (0, 1):
        make(remember).run(update(index=index, attempt=Attempt(1, 0, (0,))))
    reply = make(remember).run(update(index=1, attempt=Attempt(2, 1, (0,))))
    assert reply.state == Bundle(scalars={"count": 2}).digest()
    assert saved(tmp_path) == ["000000.1.safetensors", "000001.2.safetensors"]


def with_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the toy network a part that never leaves a client."""

    def nets(self: Toy, build: Builder) -> dict[str, Network]:
        return {"model": WithPrivate()}

    monkeypatch.setattr(Toy, "nets", nets)
    monkeypatch.setattr(Nothing, "private", ("own",))


def grow(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
    """A client's part that adds one to the private part of its network; it has no state."""
    assert state is None
    net: Any = ctx.net(down["model"])
    net.own.add_(1.0)
    ctx.metrics["own"] = net.own.item()
    return Bundle({"model": ctx.shared(net)}), None


def test_what_networks_keep_is_laid_back_in_the_next_round_and_never_sent(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_private(monkeypatch)
    site = make(grow)
    replies = [site.run(update(index=index)) for index in range(3)]
    assert [reply.error for reply in replies] == [None] * 3
    assert [reply.metrics["own"] for reply in replies] == [1.0, 2.0, 3.0]
    assert list(replies[0].up["model"]) == [WEIGHT]
    assert site.run(update(1, index=3)).metrics["own"] == 1.0  # another client starts anew


def test_a_methods_state_comes_back_without_what_networks_keep(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_private(monkeypatch)
    seen = []

    def part(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        seen.append(state if state is None else (list(state.tensors), dict(state.scalars)))
        up, _ = grow(ctx, down, None)
        return up, Bundle({"mine": {"w": torch.ones(1)}}, {"count": 1})

    site = make(part)
    for index in range(2):
        site.run(update(index=index))
    assert seen == [None, (["mine"], {"count": 1})]


def test_an_evaluation_uses_what_networks_keep(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_private(monkeypatch)

    def look(self: FixedOnClients, net: Any, data: Shard, seed: int) -> Mapping[str, float]:
        return {"own": net.net.own.item()}

    monkeypatch.setattr(FixedOnClients, "__call__", look)
    site = make(grow, evaluators={"look": FixedOnClients()})
    site.run(update(index=0))
    assert site.run(evaluate(index=0)).metrics == {"look/own": 1.0}


@pytest.mark.parametrize("where", ["upload", "state"])
def test_a_client_that_is_not_finite_has_diverged_and_saves_nothing(
    where: str, make: MakeSite, tmp_path: Path
) -> None:
    nan = model(float("nan"))

    def part(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        return (nan, model(0.0)) if where == "upload" else (down, nan)

    reply = make(part).run(update())
    assert reply.error is not None and reply.error.kind == "diverged"
    assert where in reply.error.reason
    assert not saved(tmp_path) and reply.state == ""


def test_a_loss_that_is_not_finite_is_a_client_that_diverged(make: MakeSite) -> None:
    reply = make(raising(Diverged("its loss is nan"))).run(update())
    assert reply.error is not None
    assert (reply.error.kind, reply.error.reason) == ("diverged", "its loss is nan")
    assert not reply.error.trace


def test_a_client_with_a_single_sample_is_skipped(make: MakeSite) -> None:
    reply = make().run(update(2))
    assert reply.error is not None and reply.error.kind == "skipped"
    assert "1 training sample" in reply.error.reason


def test_whatever_a_clients_part_raises_is_a_failure_with_its_traceback(make: MakeSite) -> None:
    site = make(raising(ZeroDivisionError("a bug\non two lines")))
    reply = site.run(update())
    assert reply.error is not None
    assert (reply.error.kind, reply.error.reason) == ("failed", "ZeroDivisionError: a bug")
    assert Path(__file__).name in reply.error.trace  # where it was raised


@pytest.mark.parametrize(
    "error",
    [MemoryError(), torch.OutOfMemoryError(), RuntimeError("alloc: can't allocate memory: 9 EB")],
)
def test_a_client_whose_memory_runs_out_is_lost(error: Exception, make: MakeSite) -> None:
    assert out_of_memory(error)
    reply = make(raising(error)).run(update())
    assert reply.error is not None and reply.error.kind == "lost"
    assert "memory" in reply.error.reason and "6 samples" in reply.error.reason


def test_torch_says_that_memory_ran_out_in_words_that_are_known() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**50)
    assert out_of_memory(raised.value)


def test_other_errors_are_not_taken_for_memory_that_ran_out() -> None:
    assert not out_of_memory(RuntimeError("shapes do not match"))
    assert not out_of_memory(ValueError("can't allocate memory"))


def test_a_state_that_cannot_be_read_or_saved_is_a_failure_of_the_disk(
    make: MakeSite, tmp_path: Path
) -> None:
    site = make(remember)
    (tmp_path / "clients" / "0").mkdir(parents=True)
    (tmp_path / "clients" / "0" / "000000.1.safetensors").write_bytes(b"no bundle")
    read = site.run(update(index=1))
    assert read.error is not None and read.error.kind == "disk"
    (tmp_path / "clients" / "1").touch()
    save = site.run(update(1))
    assert save.error is not None and save.error.kind == "disk"
    raised = make(raising(CheckpointError("no room"))).run(update(index=0))
    assert raised.error is not None
    assert (raised.error.kind, raised.error.reason) == ("disk", "no room")


def test_draws_follow_from_the_round_and_the_client_and_leave_the_generators_alone(
    make: MakeSite,
) -> None:
    def draw(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        return model(torch.rand(1).item()), None

    site, before = make(draw), torch.get_rng_state()
    tasks = (update(0), update(0), update(1), update(0, index=1))
    drawn = [value(site.run(task).up) for task in tasks]
    assert drawn[0] == drawn[1] and len(set(drawn)) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_reference_networks_are_taken_back_after_every_task(make: MakeSite) -> None:
    used = []

    def look(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        used.append(ctx.frozen(down["model"]).net)
        raise ZeroDivisionError

    site = make(look)
    for _ in range(2):
        site.run(update())
    assert used[0] is used[1]


def test_the_stage_that_travels_by_name_decides_what_a_client_does(
    make: MakeSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    def double(ctx: ClientContext, down: Payload, state: ClientState | None) -> Any:
        return add(down, value(down)), None

    stages = Toy.stages

    def two(self: Toy, rounds: int) -> Any:
        (train,) = stages(self, rounds)
        return train, replace(train, name="double", client=double)

    monkeypatch.setattr(Toy, "stages", two)
    site = make()
    task = update(1)
    assert value(site.run(task).up) == 2.0
    task = replace(task, down=model(5.0), round=replace(task.round, stage="double"))
    assert value(site.run(task).up) == 10.0


def test_a_network_that_sees_plain_pixels_gets_data_that_are_not_normalised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.full((12, 1, 2, 2), 51, np.uint8)
    raw = Raw(x, np.arange(12) % 2, x[:3], np.arange(3) % 2, mean=(0.5,), std=(0.5,))
    data = datasets.store("pixels", raw, tmp_path / "cache")
    spec = make_spec(tmp_path, data=str(data.path), shape=(1, 2, 2))
    assert Site(spec, SHARES).dataset.mean == (0.5,)
    monkeypatch.setattr(Network, "unit_images", True)
    assert Site(spec, SHARES).dataset.mean == ()
