"""A small federation that learns from two views of its images, and what is told by hand of it."""

import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from federation import COUNTS, Federation, assert_near, same, shuffle
from safetensors.torch import load_file
from torch import Tensor, nn

import toy
from coterie.cli.main import main
from coterie.core import seeds
from coterie.core.batch import Batch
from coterie.core.bundle import Bundle, ClientState, Payload, Tensors
from coterie.core.errors import ConfigError, Interrupted
from coterie.core.settings import NetSettings
from coterie.core.task import METHOD, Round
from coterie.experiment.config import load
from coterie.experiment.given import divide_sites
from coterie.experiment.run import execute
from coterie.kit.context import ClientContext
from coterie.nets.build import make_backbone
from coterie.nets.heads import Network

SMALL: dict[str, dict[str, Any]] = {
    "simsiam": {"hidden": 16, "bottleneck": 4},
    "simclr": {"hidden": 16},
    "byol": {"hidden": 16, "momentum": 0.7},
    "swav": {"hidden": 16, "prototypes": 6},
    "rotation": {"hidden": 16},
    "supervised": {},
}  # heads and settings that suit a few samples
SIZES = [sum(row) for row in COUNTS]

# BatchNorm in the backbone too, momentum and decay, two batches a step with one left over
ROUGH: dict[str, dict[str, Any]] = {
    "run": {"rounds": 3},
    "local": {
        **{"batch_size": 4, "accumulate": 2, "momentum": 0.9, "weight_decay": 1e-3},
        **{"schedule": "cosine"},
    },
}


class Done(NamedTuple):
    """What came of one client's update."""

    up: Payload
    state: ClientState | None
    metrics: dict[str, float]
    keeps: dict[str, Tensors]  # what the site keeps for it


class TwoViews(Federation):
    """Images of 9 x 9 pixels on three clients, asked one call at a time."""

    def __init__(
        self,
        folder: Path,
        method: str = "fedavg",
        objective: str = "simsiam",
        tables: Mapping[str, Mapping[str, Any]] | None = None,
        relabelled: bool = False,
        **fields: Any,
    ) -> None:
        base: dict[str, dict[str, Any]] = {
            "data": {"augment": "crop-flip"},
            "net": {"norm": "bn"},
            "objective": {"name": objective, **SMALL[objective]},
        }
        for name, change in (tables or {}).items():
            base[name] = {**base.get(name, {}), **change}
        self.relabelled = relabelled
        super().__init__(folder, method, tables=base, shape=(1, 9, 9), **fields)

    def _data(self, counts: Any, shape: tuple[int, ...]) -> Any:
        random = np.random.default_rng(7)
        centres = 1.5 * random.normal(size=(len(counts[0]), *shape))
        sites = {}
        for client, row in enumerate(counts):
            y = np.repeat(np.arange(len(row)), row)
            x = (centres[y] + random.normal(size=(len(y), *shape))).astype(np.float32)
            if self.relabelled:
                y = (y[::-1] + 1) % len(row)
            sites[f"site-{client}"] = (x, y)
        classes = np.arange(len(counts[0]))
        return divide_sites(shuffle(sites), (centres[classes].astype(np.float32), classes), 0)

    def context(
        self, client: int, place: Round, kept: Mapping[str, Tensors] | None = None
    ) -> ClientContext:
        """What a site hands to a method."""
        return ClientContext(
            id=client,
            round=place,
            own=None,
            data=self.shard(client),
            objective=self.parts.objective,
            local=self.parts.local,
            nets=self.nets,
            draw_fresh=lambda key: self.parts.fresh(METHOD, client, key),
            kept=kept or {},
            folder=self.folder,
        )

    def train(
        self,
        client: int,
        place: Round,
        model: Tensors,
        state: ClientState | None = None,
        kept: Mapping[str, Tensors] | None = None,
    ) -> Done:
        """What a site does with a model that it received."""
        ctx = self.context(client, place, kept)
        with seeds.scoped(place.torch_seed(client)):
            up, state = self.method.client_update(ctx, Bundle({"model": model}), state)
        self.nets.release()
        return Done(up, state, ctx.metrics, ctx.keeps)

    def personal(
        self,
        client: int,
        place: Round,
        model: Tensors,
        state: ClientState | None = None,
        kept: Mapping[str, Tensors] | None = None,
    ) -> Tensors:
        """The model of its own that a client is tested with."""
        ctx = self.context(client, place, kept)
        with seeds.scoped(place.torch_seed(client)):
            found = self.method.personal(ctx, Bundle({"model": model}), state)
        assert found is not None
        return found

    def batches(self, client: int, place: Round) -> Iterator[Batch]:
        """The training batches of a client's round, two views each."""
        draw = place.generator
        return self.shard(client).batches(
            self.parts.local, ("train", "train"), lambda what: draw(f"train/{what}", client)
        )

    def double(self, weights: Tensors) -> Network:
        """A network in double precision and training mode; what is not there is as at the start."""
        net = super().network({**self.nets["model"].state_dict(), **weights})
        return net.train()

    def moved(self, scale: float = 0.05, seed: int = 0) -> Tensors:
        """Weights as they might be after some rounds."""
        random = torch.Generator().manual_seed(seed)
        return {
            name: tensor + scale * torch.randn(tensor.shape, generator=random)
            if tensor.is_floating_point() and "running" not in name
            else tensor
            for name, tensor in self.start()["model"].items()
        }

    def digests(self) -> list[str]:
        """Of the server's state after every round of the whole run."""
        return [event.digest for event in self.run().history]

    def stopped(self, after: int) -> None:
        """The whole run, interrupted after a round and gone on with."""
        stop = [toy.StopAfter(after, KeyboardInterrupt)]
        with pytest.raises(Interrupted):
            execute(self.config, self.folder, recorders=stop, given=self.given)
        execute(self.config, self.folder, resume=True, given=self.given)

    def files(self) -> dict[str, Tensors]:
        """The personal models that the run left, by file name."""
        paths = sorted((self.folder / "personal").iterdir())
        return {path.name: load_file(path) for path in paths}


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a @ b) / ((a @ a).sqrt() * (b @ b).sqrt())


def distance(p: Tensor, z: Tensor) -> Tensor:
    """D(p, sg z), sample by sample."""
    rows = [-cosine(p[i], z[i].detach()) for i in range(len(p))]
    return torch.stack(rows).sum() / len(rows)


def simsiam(net: Network, batch: Batch) -> Tensor:
    """D(p1, sg z2) / 2 + D(p2, sg z1) / 2."""
    one, two = (net(view.double()) for view in batch.views)
    return 0.5 * distance(one.p, two.z) + 0.5 * distance(two.p, one.z)


def windows(batches: Iterator[Batch], accumulate: int) -> list[list[Batch]]:
    """The batches of each optimiser step: so many, fewer at the end of an epoch."""
    found: list[list[Batch]] = [[]]
    for batch in batches:
        found[-1].append(batch)
        if len(found[-1]) == accumulate or batch.last:
            found.append([])
    return found[:-1]


Slopes = dict[str, Tensor]


def slopes(
    net: Network,
    loss: Callable[[Network, Batch], Tensor],
    window: list[Batch],
    told: list[float] | None = None,
) -> Slopes:
    """The mean gradient over the batches of a step; `told` gets the loss of every sample."""
    trained = {name: weight for name, weight in net.named_parameters() if weight.requires_grad}
    total = {name: torch.zeros_like(weight) for name, weight in trained.items()}
    for batch in window:
        value = loss(net, batch)
        if told is not None:
            told += [float(value.detach())] * len(batch)
        found = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
        for name, slope in zip(trained, found, strict=True):
            if slope is not None:
                total[name] += slope / len(window)
    return total


@torch.no_grad()
def shift(net: Network, by: Slopes, rate: float) -> None:
    """w = w - rate g."""
    weights = dict(net.named_parameters())
    for name, slope in by.items():
        weights[name] -= rate * slope


def layers(module: nn.Module | None) -> list[tuple[Any, ...]]:
    """A head as (kind, widths...), for comparison with what a paper says."""
    assert isinstance(module, nn.Sequential)
    found: list[tuple[Any, ...]] = []
    for layer in module:
        if isinstance(layer, nn.Linear):
            found.append(("fc", layer.in_features, layer.out_features))
        elif isinstance(layer, nn.BatchNorm1d):
            found.append(("bn", layer.num_features))
        else:
            found.append((type(layer).__name__.lower(),))
    return found


def paper_network(name: str) -> Network:
    """The network of the shipped CIFAR-10 configuration of an objective."""
    config = load(f"cifar10/{name}", {})
    chosen = {key: getattr(config.net, key) for key in ("kernel", "precision")}
    assert config.net == NetSettings("resnet18", config.net.projection, **chosen)
    backbone = make_backbone(config.net, (3, 32, 32))
    return config.objective.build(backbone, 10, config.net.projection)


def count(net: nn.Module, without: str = "target.") -> int:
    """The parameters that are sent."""
    return sum(p.numel() for name, p in net.named_parameters() if not name.startswith(without))


def assert_trained_as(
    fed: TwoViews, loss: Callable[[Network, Batch], Tensor], client: int = 2, step: int = 3
) -> None:
    """A client's update is plain SGD on a loss that is written out by hand, in double."""
    model, place = fed.moved(), fed.place(step)
    net, told = fed.double(model), list[float]()
    for window in windows(fed.batches(client, place), fed.parts.local.accumulate):
        shift(net, slopes(net, loss, window, told), fed.parts.local.rate(place))
    done = fed.train(client, place, model)
    assert_near(done.up["model"], net.state_dict(), atol=1e-5)
    assert done.metrics["loss"] == pytest.approx(float(np.mean(told)), rel=1e-3, abs=1e-5)
    assert set(done.up.tensors) == {"model"}
    gaps = [float((done.up["model"][n] - model[n]).abs().max()) for n in model if "weight" in n]
    assert max(gaps) > 1e-3  # or the comparison above would not mean much


def assert_no_label_is_used(folder: Path, method: str, objective: str) -> None:
    """Other labels for the same images, the same bits in every round."""
    plain = TwoViews(folder / "plain", method, objective, ROUGH)
    other = TwoViews(folder / "other", method, objective, ROUGH, relabelled=True)
    assert any((plain.shard(k).labels != other.shard(k).labels).any() for k in range(len(SIZES)))
    found = plain.run().history, other.run().history
    for one, two in zip(*found, strict=True):
        assert (one.digest, one.states, one.metrics) == (two.digest, two.states, two.metrics)


def assert_refused(folder: Path, method: str, objective: str) -> None:
    """An objective that a method does not work with is the configuration's fault: exit code 2."""
    with pytest.raises(ConfigError, match=f"method.name = '{method}' .* not with '{objective}'"):
        TwoViews(folder, method, objective)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    with pytest.raises(SystemExit) as ended:
        main(["run", "digits/fedavg", f"method.name={method}", f"objective.name={objective}"])
    for number, handler in handlers.items():
        signal.signal(number, handler)
    assert ended.value.code == 2


def assert_global_path(
    folder: Path, method: str, objective: str = "simsiam", **fields: Any
) -> TwoViews:
    """The server's model has the bits of FedAvg with the same objective after every round."""
    plain = TwoViews(folder / "fedavg", "fedavg", objective, ROUGH).digests()
    fed = TwoViews(folder / "run", method, objective, ROUGH, **fields)
    assert fed.digests() == plain
    assert len(set(plain)) == 3
    return fed


def finished(folder: Path, method: str, **fields: Any) -> TwoViews:
    """A whole run on SimSiam."""
    fed = TwoViews(folder, method, tables=ROUGH, **fields)
    fed.run()
    return fed


def assert_purely_local(fed: TwoViews) -> None:
    """After a run: every client's own model is what it would have trained alone, bit for bit."""
    alone = TwoViews(fed.folder, tables=ROUGH)
    for client in range(len(SIZES)):
        model = alone.start()["model"]  # the initial weights, the same for everybody
        for step in range(3):
            model = alone.train(client, alone.place(step, 3), model).up["model"]
            state = fed.state(client, step)
            assert state is not None and same(state["personal"], model)


def assert_own_models_stay(folder: Path, method: str) -> None:
    """Nothing of them is sent, absence and interruption leave them alone, the end writes them."""
    tables = {"run": {"rounds": 2, "seed": 1}, "cohort": {"fraction": 0.34}}
    fed, plain = TwoViews(folder / "run", method, tables=tables), TwoViews(folder, tables=tables)
    history = fed.run().history
    plain.folder = folder / "plain"
    for one, other in zip(history, plain.run().history, strict=True):
        assert (one.bytes_up, one.bytes_down) == (other.bytes_up, other.bytes_down)
        assert (one.digest, one.cohort) == (other.digest, other.cohort)
    first, second = (event.cohort[0] for event in history)
    assert first != second
    (absent,) = {*range(len(SIZES))} - {first, second}
    early, late = (fed.state(first, after) for after in (0, 1))
    assert early is not None and late is not None
    assert early.digest() == late.digest()  # in the round that it was not asked for
    assert set(early.tensors) == {"personal"}
    files = fed.files()
    assert set(files) == {f"site-{client}.safetensors" for client in range(len(SIZES))}
    for client in (first, second):
        state = fed.state(client, 1)
        assert state is not None and same(files[f"site-{client}.safetensors"], state["personal"])
    assert fed.state(absent, 1) is None
    assert same(files[f"site-{absent}.safetensors"], fed.start()["model"])
    again = TwoViews(folder / "stopped", method, tables=tables)
    again.stopped(after=0)
    assert all(same(files[name], other) for name, other in again.files().items())


class Spy:
    """Notes every batch that a network is asked to lower SimSiam's or another loss on."""

    def __init__(self, fed: TwoViews, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[Network, Batch]] = []
        kind = type(fed.parts.objective)
        real = kind.loss

        def loss(objective: Any, net: Network, batch: Batch) -> Any:
            self.seen.append((net, batch))
            return real(objective, net, batch)

        monkeypatch.setattr(kind, "loss", loss)

    def batches(self) -> list[Batch]:
        """In the order of the calls."""
        return [batch for _, batch in self.seen]


def equal(one: Batch, other: Batch) -> bool:
    """Whether two batches hold the same views of the same samples."""
    return torch.equal(one.index, other.index) and all(map(torch.equal, one.views, other.views))
