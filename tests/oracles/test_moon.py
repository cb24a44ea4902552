"""MOON against local training written out sample by sample, from the paper's Algorithm 1."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.config import GIVEN
from coterie.core import codec, seeds
from coterie.core.bundle import Bundle, ClientState, Payload, ServerState, Tensors
from coterie.core.task import METHOD, Reply, Round
from coterie.data.batches import DataShard
from coterie.engine.states import StateStore
from coterie.experiment import given_data, prepare
from coterie.kit.context import ClientContext, ServerContext
from coterie.kit.objective import Batch
from coterie.kit.server_optimizer import ServerOptimizer
from coterie.nets.heads import Network
from coterie.runner import Result, choose, execute

ENTRIES, WIDTH, RATE, ROUNDS = 6, 8, 0.1, 10
COUNTS = ((14, 8, 0), (0, 10, 12), (5, 5, 11))  # samples of each class, by client


class Answer(NamedTuple):
    """What came of one client's update."""

    up: Payload
    state: ClientState | None
    metrics: dict[str, float]


class Federation:
    """A method on clients whose class counts are known, asked one call at a time."""

    def __init__(
        self,
        folder: Path,
        method: str,
        counts: Sequence[Sequence[int]] = COUNTS,
        tables: dict[str, dict[str, Any]] | None = None,
        shape: tuple[int, ...] = (ENTRIES,),
        **fields: Any,
    ) -> None:
        base: dict[str, dict[str, Any]] = {
            "run": {"rounds": ROUNDS, "seed": 3},
            "data": {"name": GIVEN},
            "net": {"backbone": "mlp", "projection": WIDTH, "norm": "none"},
            "method": {"name": method, **fields},
            "local": {"batch_size": 8, "lr": RATE, "momentum": 0.0, "weight_decay": 0.0},
            "executor": {"kind": "serial"},
            "evaluate": {"every": 0, "with": [], "targets": []},
            "checkpoint": {"every": 1, "keep": 99},
        }
        for name, change in (tables or {}).items():
            base[name] = {**base.get(name, {}), **change}
        self.folder, self.config = folder, choose(base, {})
        self.given = self._data(counts, shape)
        self.experiment = prepare(self.config, folder, self.given)
        self.parts, self.method = self.experiment.parts, self.experiment.parts.method
        self.nets = self.parts.nets(METHOD)

    def _data(self, counts: Sequence[Sequence[int]], shape: tuple[int, ...]) -> Any:
        random = np.random.default_rng(7)
        centres = 1.5 * random.normal(size=(len(counts[0]), *shape))
        sites = {}
        for client, row in enumerate(counts):
            y = np.repeat(np.arange(len(row)), row)
            x = (centres[y] + random.normal(size=(len(y), *shape))).astype(np.float32)
            sites[f"site-{client}"] = (x, y)
        classes = np.arange(len(counts[0]))
        return given_data(sites, (centres[classes].astype(np.float32), classes), 0)

    def place(
        self, step: int, rounds: int = ROUNDS, stage: str = "train", before: int = 0
    ) -> Round:
        """Round `step` of a stage that has so many rounds of other stages before it."""
        total, clients = rounds + before, len(self.experiment.partition.clients)
        return Round(before + step, total, stage, step, rounds, clients, self.config.run.seed)

    def start(self) -> ServerState:
        """The server's state before the first round."""
        return self.method.init(self.nets)

    def shard(self, client: int) -> DataShard:
        """The data of a client."""
        shares = self.experiment.partition
        augment = self.config.data.augment
        return DataShard(
            self.experiment.dataset, shares.train[client], shares.test[client], augment=augment
        )

    def update(
        self,
        client: int,
        place: Round,
        down: Payload,
        state: ClientState | None = None,
        own: Payload | None = None,
    ) -> Answer:
        """What a site does with a task."""
        ctx = ClientContext(
            id=client,
            round=place,
            own=own,
            data=self.shard(client),
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.nets,
            fresh=lambda key: self.parts.fresh(METHOD, client, key),
            kept={},
            spool=self.folder,
        )
        with seeds.scoped(place.torch_seed(client)):
            up, state = self.method.client_update(ctx, down, state)
        self.nets.release()
        return Answer(up, state, ctx.metrics)

    def collect(
        self, server: ServerState, place: Round, uploads: dict[int, tuple[int, Payload]]
    ) -> ServerState:
        """The server's state after replies of (samples, payload)."""
        ctx = ServerContext(
            round=place,
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.nets,
            rules=self.method.uploads(place.stage),
            optimizer=ServerOptimizer(),
            spool=self.folder,
        )
        replies = (Reply(client, up, n) for client, (n, up) in uploads.items())
        return self.method.server_update(ctx, server, replies)

    def batches(self, client: int, place: Round) -> Iterator[Batch]:
        """The training batches of a client's round."""
        draw = place.generator
        return self.shard(client).batches(
            self.parts.local, ("train",), lambda what: draw(f"train/{what}", client)
        )

    def network(self, weights: Tensors) -> Network:
        """A network in double precision."""
        net = copy.deepcopy(self.nets["model"])
        net.load_state_dict(weights)
        return net.double()

    def reference(self, weights: Tensors) -> Callable[[Batch], Tensor]:
        """z of a frozen network: eval mode, constants to the gradient."""
        net = self.network(weights).eval()
        return lambda batch: net(batch.x.double()).z.detach()

    def trained(
        self,
        client: int,
        place: Round,
        start: Tensors,
        loss: Callable[[Network, Batch], Tensor],
        parts: tuple[str, ...] = ("backbone", "projector", "classifier"),
    ) -> tuple[Tensors, float]:
        """Plain SGD in double precision by a naive loss; and the mean loss over samples."""
        net = self.network(start)
        for name, part in net.named_children():
            part.train(name in parts)
        moved = [p for name, p in net.named_parameters() if name.startswith(parts)]
        total, samples = 0.0, 0
        for batch in self.batches(client, place):
            value = loss(net, batch)
            slopes = torch.autograd.grad(value, moved, allow_unused=True)
            with torch.no_grad():
                for weight, slope in zip(moved, slopes, strict=True):
                    if slope is not None:
                        weight -= RATE * slope
            total += float(value.detach()) * len(batch)
            samples += len(batch)
        return net.state_dict(), total / samples

    def run(self) -> Result:
        """The whole run."""
        return execute(self.config, self.folder, given=self.given)

    def servers(self) -> list[ServerState]:
        """The server's state after every round of the run."""
        folders = sorted((self.folder / "checkpoints").glob("round_*"))
        return [codec.decode((folder / "server.safetensors").read_bytes()) for folder in folders]

    def state(self, client: int, after: int) -> ClientState | None:
        """A client's state after a round of the run."""
        return StateStore(self.folder / "clients").load(client, below=after + 1)


def assert_near(found: Tensors, expected: Tensors, atol: float = 2e-6) -> None:
    assert set(found) == set(expected)
    for name, tensor in found.items():
        np.testing.assert_allclose(tensor, expected[name], rtol=1e-5, atol=atol, err_msg=name)


def same(one: Tensors, other: Tensors, prefix: str = "") -> bool:
    """Whether two sets of weights have the same bits."""
    assert set(one) == set(other)
    names = [name for name in one if name.startswith(prefix)]
    assert names
    return all(torch.equal(one[name], other[name]) for name in names)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) / ((a @ a).sqrt() * (b @ b).sqrt())


def contrast(z: Tensor, z_glob: Tensor, z_prevs: Sequence[Tensor], tau: float) -> Tensor:
    """-log e^{cos(z, z_glob)/tau} / (e^{cos(z, z_glob)/tau} + sum_b e^{cos(z, z_prev_b)/tau})."""
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(z)):
        near = (cosine(z[i], z_glob[i]) / tau).exp()
        far = [(cosine(z[i], z_prev[i]) / tau).exp() for z_prev in z_prevs]
        total = total - (near / (near + torch.stack(far).sum())).log()
    return total / len(z)


def fedavg(folder: Path, **tables: dict[str, Any]) -> Federation:
    return Federation(folder, "fedavg", tables=tables)


def moon(
    folder: Path, tables: dict[str, dict[str, Any]] | None = None, **fields: Any
) -> Federation:
    return Federation(folder, "moon", tables=tables, **fields)


def others(fed: Federation, *clients: int) -> list[Tensors]:
    """Weights that are far from the global ones."""
    return [fed.parts.fresh(METHOD, client, "model") for client in clients]


def remembered(*models: Tensors) -> ClientState:
    return Bundle({f"previous_{place}": model for place, model in enumerate(models)})


@pytest.mark.parametrize(
    ("fields", "tables", "previous"),
    [
        ({}, {}, 1),
        ({"mu": 1.0, "tau": 0.2}, {}, 1),
        ({"mu": 2.0, "buffer": 3}, {}, 2),
        ({"buffer": 2}, {}, 2),
        ({}, {"net": {"norm": "bn"}}, 1),
        ({}, {"local": {"batch_size": 4, "epochs": 2}}, 1),
        ({}, {"local": {"batch_size": 4, "steps": 3}}, 1),
        ({}, {"data": {"augment": "crop-flip"}, "local": {"batch_size": 4, "epochs": 2}}, 1),
    ],
)
def test_local_training_follows_algorithm_1(
    fields: dict[str, Any], tables: dict[str, dict[str, Any]], previous: int, tmp_path: Path
) -> None:
    """Defaults mu 5, tau 0.5. The references see the same images as z, frozen, in eval mode."""
    shape = (1, 9, 9) if "data" in tables else (ENTRIES,)
    fed = Federation(tmp_path, "moon", tables=tables, shape=shape, **fields)
    server, place = fed.start(), fed.place(3)
    models = others(fed, 5, 6)[:previous]
    mu, tau = fields.get("mu", 5.0), fields.get("tau", 0.5)
    glob, prevs = fed.reference(server["model"]), [fed.reference(model) for model in models]

    def loss(net: Network, batch: Batch) -> Tensor:
        out = net(batch.x.double())
        term = contrast(out.z, glob(batch), [prev(batch) for prev in prevs], tau)
        return F.cross_entropy(out.logits, batch.y) + mu * term

    expected, value = fed.trained(2, place, server["model"], loss)
    answer = fed.update(2, place, fed.method.broadcast(server, place), remembered(*models))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    assert set(answer.up.tensors) == {"model"}
    plain = Federation(tmp_path, "fedavg", tables=tables, shape=shape)
    without = plain.update(2, place, Bundle({"model": server["model"]})).up["model"]
    gaps = [float((answer.up["model"][name] - without[name]).abs().max()) for name in without]
    assert max(gaps) > 1e-3  # or the comparison above would not mean much


def test_a_client_without_a_previous_model_trains_as_fedavg(tmp_path: Path) -> None:
    """In round 0 and, by default, whenever it comes first."""
    fed, plain = moon(tmp_path), fedavg(tmp_path)
    server = fed.start()
    for step in (0, 4):
        place = fed.place(step)
        answer = fed.update(1, place, fed.method.broadcast(server, place))
        expected = plain.update(1, place, Bundle({"model": server["model"]}))
        assert same(answer.up["model"], expected.up["model"])
        assert answer.metrics.get("loss_contrast", 0.0) == 0.0
        assert answer.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-6)


def test_a_late_client_may_contrast_with_its_random_initialisation(tmp_path: Path) -> None:
    """The authors' code: nobody in round 0, from round 1 on whoever has not trained yet."""
    fed, plain = moon(tmp_path, first="random_init"), fedavg(tmp_path)
    server = fed.start()
    first = fed.place(0)
    expected = plain.update(1, first, Bundle({"model": server["model"]})).up["model"]
    assert same(fed.update(1, first, fed.method.broadcast(server, first)).up["model"], expected)
    late = fed.place(1)
    down = fed.method.broadcast(server, late)
    told = remembered(fed.parts.fresh(METHOD, 1, "model"))
    answer = fed.update(1, late, down)
    assert same(answer.up["model"], fed.update(1, late, down, told).up["model"])
    assert not same(
        answer.up["model"], fed.update(1, late, down, remembered(*others(fed, 2))).up["model"]
    )
    # one that has trained contrasts with what it trained
    told = remembered(*others(fed, 7))
    skip = moon(tmp_path)
    assert same(
        fed.update(1, late, down, told).up["model"], skip.update(1, late, down, told).up["model"]
    )


@pytest.mark.parametrize("buffer", [1, 3])
def test_equal_references_train_as_fedavg(buffer: int, tmp_path: Path) -> None:
    """z_glob = z_prev: the loss is the constant -log 1/(1 + B), with no gradient."""
    fed, plain = moon(tmp_path, buffer=buffer), fedavg(tmp_path)
    server, place = fed.start(), fed.place(2)
    state = remembered(*[server["model"]] * buffer)
    answer = fed.update(0, place, fed.method.broadcast(server, place), state)
    expected = plain.update(0, place, Bundle({"model": server["model"]}))
    assert_near(answer.up["model"], expected.up["model"])
    constant = answer.metrics["loss"] - expected.metrics["loss"]
    assert constant == pytest.approx(5.0 * math.log(1 + buffer), rel=1e-4)


def test_mu_zero_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    tables = {"run": {"rounds": 4}, "local": {"momentum": 0.9, "weight_decay": 1e-5}}
    plain = fedavg(tmp_path / "fedavg", **tables)
    plain.run()
    for term in ("contrast", "l2"):
        fed = moon(tmp_path / term, tables, mu=0.0, term=term)
        fed.run()
        for mine, expected in zip(fed.servers(), plain.servers(), strict=True):
            assert same(mine["model"], expected["model"])


@pytest.mark.parametrize("buffer", [1, 3])
def test_the_buffer_holds_the_last_models_as_trained(buffer: int, tmp_path: Path) -> None:
    """First in, first out; kept at the end of local training, before the server averages."""
    rounds = 5
    fed = moon(tmp_path / "run", {"run": {"rounds": rounds}}, buffer=buffer)
    fed.run()
    servers, sizes = fed.servers(), [sum(row) for row in COUNTS]
    for after in range(rounds):
        states = [fed.state(client, after) for client in range(len(COUNTS))]
        newest = [state["previous_0"] for state in states if state is not None]
        assert len(newest) == len(COUNTS)
        mean = {
            name: sum(n / sum(sizes) * m[name].double() for n, m in zip(sizes, newest, strict=True))
            for name in newest[0]
        }
        assert_near(servers[after]["model"], mean, atol=1e-7)
        assert not any(same(model, servers[after]["model"]) for model in newest)
        for client, state in enumerate(states):
            assert state is not None
            held = min(buffer, after + 1)
            assert set(state.tensors) == {f"previous_{place}" for place in range(held)}
            for place in range(held):
                earlier = fed.state(client, after - place)
                assert earlier is not None
                assert same(state[f"previous_{place}"], earlier["previous_0"])


def test_a_sampled_client_keeps_the_model_of_its_last_participation(tmp_path: Path) -> None:
    tables = {"run": {"rounds": 6}, "cohort": {"fraction": 0.34}}
    fed = moon(tmp_path / "run", tables)
    history = fed.run().history
    servers = fed.servers()
    for client in range(len(COUNTS)):
        joined = [event.round for event in history if event.cohort == [client]]
        if joined:  # alone in its round, its model is the average
            state = fed.state(client, len(history))
            assert state is not None
            assert same(state["previous_0"], servers[joined[-1]]["model"])
    assert {event.cohort[0] for event in history} > {history[-1].cohort[0]}


@pytest.mark.parametrize("mu", [0.01, 5.0])
def test_the_l2_variant(mu: float, tmp_path: Path) -> None:
    """loss = CE + mu |z - z_glob|_2: a length, not its square; z is not normalised."""
    fed = moon(tmp_path, term="l2", mu=mu)
    server, place = fed.start(), fed.place(3)
    glob = fed.reference(server["model"])

    def loss(net: Network, batch: Batch) -> Tensor:
        out = net(batch.x.double())
        gaps = (out.z - glob(batch)).square().sum(dim=1)
        moved = gaps[gaps > 1e-20].sqrt()  # none has moved at the first step: no gradient
        return F.cross_entropy(out.logits, batch.y) + mu * moved.sum() / len(batch)

    expected, value = fed.trained(2, place, server["model"], loss)
    answer = fed.update(2, place, fed.method.broadcast(server, place))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    assert answer.metrics["loss_l2"] > 0
    assert answer.state is None or not answer.state.tensors  # it needs no previous model


def test_the_l2_variant_starts_with_the_step_of_fedavg(tmp_path: Path) -> None:
    """Its gradient is zero and finite where z = z_glob."""
    one = {"local": {"steps": 1}}
    fed, plain = moon(tmp_path, one, term="l2", mu=10.0), fedavg(tmp_path, **one)
    server, place = fed.start(), fed.place(3)
    answer = fed.update(0, place, fed.method.broadcast(server, place))
    expected = plain.update(0, place, Bundle({"model": server["model"]}))
    assert same(answer.up["model"], expected.up["model"])


def test_the_record_shows_the_parts_of_the_loss(tmp_path: Path) -> None:
    fed = moon(tmp_path / "run", {"run": {"rounds": 3}}, mu=1.0)
    metrics = fed.run().metrics
    assert metrics["train_loss"] == pytest.approx(
        metrics["train_loss_class"] + metrics["train_loss_contrast"], rel=1e-5
    )
    assert metrics["train_loss_contrast"] > 0
    for name in ("train_cos_glob", "train_cos_prev"):
        assert -1 <= metrics[name] <= 1


def test_it_sends_what_fedavg_sends(tmp_path: Path) -> None:
    """The previous model stays on the client."""
    tables = {"run": {"rounds": 2}}
    mine = moon(tmp_path / "moon", tables, buffer=2).run().history
    plain = fedavg(tmp_path / "fedavg", **tables).run().history
    for one, other in zip(mine, plain, strict=True):
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
