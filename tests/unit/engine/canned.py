"""An executor with scripted replies and toy parts: the engine's work without data or training."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, cast, final

import torch
from torch import Tensor

from coterie.core.batch import Batch
from coterie.core.bundle import Bundle, ClientState, Payload, ServerState, Tensors
from coterie.core.registry import Component
from coterie.core.settings import Local, NetSettings, ServerSettings
from coterie.core.task import ClientId, ClientInfo, Failure, Reply, Round, Task
from coterie.engine.play import Player
from coterie.engine.record import Event, NoteEvent, Recorders
from coterie.engine.spec import Parts, Spec
from coterie.kit import stock
from coterie.kit.builder import Builder
from coterie.kit.context import ClientContext, ServerContext, Shard
from coterie.kit.evaluator import Evaluator
from coterie.kit.method import FederatedEvaluator, Method
from coterie.kit.networks import Frozen, Nets
from coterie.kit.objective import Loss, Objective
from coterie.kit.stages import Stage
from coterie.nets.build import Backbone
from coterie.nets.heads import Network

WEIGHT = "backbone.scale"  # the one weight of the toy network
SIZES = {0: 10, 1: 30, 2: 20}  # training samples by client: the largest is 1, then 2, then 0
NO_DATA = cast(Shard, None)  # for evaluations in which nobody looks at the server's data


class Scale(Backbone):
    """Multiplies the sum of a sample's entries by its only weight."""

    width = 1

    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1).sum(1, keepdim=True) * self.scale


def build_scale(method: Method, build: Builder) -> dict[str, Network]:
    """The networks of a method whose only weight is that of `Scale`."""
    return {"model": Network(Scale())}


@final
@dataclass(frozen=True)
class Nothing(Objective):
    """Has no heads; warns of a metric `train_alarm`."""

    def build(self, backbone: Backbone, classes: int, projection: int) -> Network:
        return Network(backbone)

    def loss(self, net: Network, batch: Batch) -> Loss:
        return Loss(net(batch.x).h.mean())

    def warning(self, metrics: Mapping[str, float]) -> str | None:
        return "an alarm" if "train_alarm" in metrics else None


@final
@dataclass(frozen=True)
class Toy(Method):
    """Averages the one weight of the toy network; a client adds its number to it."""

    objectives = None
    cohort: str = "sample"
    quorum: int = 1
    required: bool = False

    init = stock.start_from_net
    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model
    nets = build_scale

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        return add(down, ctx.id), None

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        cohort: Any = self.cohort
        return (Stage("train", rounds, cohort, quorum=self.quorum, required=self.required),)


@final
@dataclass(frozen=True)
class Fixed(Evaluator):
    """Measures, on the server, the value that it was given."""

    name: str = "score"
    value: float = 0.5

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        return {self.name: self.value}

    def warning(self, metrics: Mapping[str, float]) -> str | None:
        return "a low score" if self.value < 0 else None


@final
@dataclass(frozen=True)
class FixedOnClients(Evaluator):
    """Measures, on every client, the value that it was given; the federation's is the list."""

    where: ClassVar = "client"
    value: float = 0.5

    def __call__(self, net: Frozen, data: Shard, seed: int) -> Mapping[str, float]:
        return {"score": self.value}

    def summarise(self, found: Mapping[ClientId, Mapping[str, float]]) -> Mapping[str, float]:
        return {f"score_{client}": metrics["score"] for client, metrics in found.items()}


@final
@dataclass(frozen=True)
class Program(FederatedEvaluator):
    """Averages one number over its rounds, from the weight under test on."""

    rounds: int = 2

    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def start(self, nets: Nets, weights: Tensors) -> ServerState:
        return Bundle({"model": weights})

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        return add(down, 1), None

    def finish(self, ctx: ServerContext, server: ServerState) -> Mapping[str, float]:
        return {"program": value(server)}


@final
@dataclass(frozen=True)
class PreparedProgram(FederatedEvaluator):
    """Lets every client remember the weight under test before the first round."""

    rounds: int = 1

    broadcast = stock.send_model
    server_update = stock.average
    model = stock.global_model

    def start(self, nets: Nets, weights: Tensors) -> ServerState:
        return Bundle({"model": {WEIGHT: torch.zeros(1)}})

    def begin(self, net: Frozen, data: Shard) -> ClientState:
        return Bundle({"model": {WEIGHT: net.net.state_dict()[WEIGHT].clone()}})

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        assert state is not None
        return Bundle({"model": state["model"]}), state

    def finish(self, ctx: ServerContext, server: ServerState) -> Mapping[str, float]:
        return {"prepared": value(server)}


Answer = Callable[[Task], Reply]


def model(number: float) -> Bundle:
    """A bundle with the weight of the toy network."""
    return Bundle({"model": {WEIGHT: torch.tensor([float(number)])}})


def value(bundle: Bundle, group: str = "model") -> float:
    """The weight of the toy network in a bundle."""
    return bundle[group][WEIGHT].item()


def add(down: Payload, number: float) -> Bundle:
    """The broadcast model, its weight larger by a number."""
    return model(value(down) + number)


def work(task: Task) -> Reply:
    """Do what a well-behaved client does: add its number to the weight it was sent."""
    if task.op != "update":
        return Reply(task.client, examples=1)
    return Reply(task.client, add(task.down, task.client), SIZES[task.client])


def fail(kind: Any, reason: str = "a reason", trace: str = "") -> Answer:
    """Answer every task with a failure."""
    return lambda task: Reply(task.client, error=Failure(kind, reason, trace))


def by_client(answers: Mapping[ClientId, Answer], otherwise: Answer = work) -> Answer:
    """Answer as the script of each client says."""
    return lambda task: answers.get(task.client, otherwise)(task)


def by_round(answers: Mapping[int, Answer], otherwise: Answer = work) -> Answer:
    """Answer as the script of each round says."""
    return lambda task: answers.get(task.round.index, otherwise)(task)


@dataclass
class Canned:
    """An executor whose replies are scripted; it remembers the tasks that it was given."""

    answer: Answer = work
    sizes: Mapping[ClientId, int] = field(default_factory=lambda: SIZES)
    tests: Mapping[ClientId, int] = field(default_factory=lambda: dict.fromkeys(SIZES, 5))
    tasks: list[Task] = field(default_factory=list)

    def clients(self) -> Sequence[ClientInfo]:
        return [
            ClientInfo(client, str(client), size, self.tests.get(client, 0))
            for client, size in self.sizes.items()
        ]

    def run(self, tasks: Iterable[Task]) -> Iterator[Reply]:
        for task in tasks:
            self.tasks.append(task)
            yield self.answer(task)

    def close(self) -> None:
        pass

    def asked(self, op: str = "update") -> list[ClientId]:
        """Who was given tasks of a kind, in order."""
        return [task.client for task in self.tasks if task.op == op]


class Listener:
    """A recorder that remembers events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def notes(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, NoteEvent)]


def position(index: int = 0, total: int = 10, clients: int = 3) -> Round:
    """A round of the only stage of a run."""
    return Round(index, total, "train", index, total, clients, seed=7)


def make_spec(folder: Path, **changes: Any) -> Spec:
    """The spec of the toy method, without data."""
    values: dict[str, Any] = {
        "seed": 7,
        "data": "",
        "shape": (2,),
        "classes": 2,
        "augment": "none",
        "net": NetSettings(kernel="torch"),
        "local": Local(batch_size=4),
        "method": Toy(),
        "objective": Nothing(),
        "evaluators": {},
        "folder": str(folder),
        "rounds": 4,
        **changes,
    }
    for name in ("method", "objective"):
        values[name] = Component.of(values[name])
    values["evaluators"] = {key: Component.of(one) for key, one in values["evaluators"].items()}
    return Spec(**values)


def make_player(
    folder: Path,
    executor: Canned,
    listener: Listener | None = None,
    optimizer: ServerSettings | None = None,
    **changes: Any,
) -> Player:
    """A player of the toy method over a canned executor."""
    recorders = Recorders([] if listener is None else [listener])
    parts = Parts(make_spec(folder, **changes))
    return Player(parts, executor, recorders, optimizer or ServerSettings())
