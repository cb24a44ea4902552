"""What sites and the server are built from, as plain data that can cross a process border."""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from coterie.core import seeds
from coterie.core.bundle import ServerState, Tensors
from coterie.core.errors import ConfigError
from coterie.core.registry import Component
from coterie.core.settings import Local, NetSettings
from coterie.core.task import METHOD, ClientId, Round
from coterie.data.augment import Choice
from coterie.kit.builder import Builder
from coterie.kit.evaluator import Evaluator
from coterie.kit.method import FederatedEvaluator, Method
from coterie.kit.networks import Nets
from coterie.kit.objective import Objective
from coterie.kit.stages import Stage, resolve
from coterie.native.switch import kernels
from coterie.nets.heads import Network


@dataclass(frozen=True)
class Spec:
    """Everything that decides what a client computes; JSON in and out."""

    seed: int
    data: str  # the folder of the decoded data set
    shape: tuple[int, ...]
    classes: int
    augment: str | dict[str, Any]
    net: NetSettings
    local: Local
    method: Component
    objective: Component
    evaluators: Mapping[str, Component]
    folder: str  # the run directory: client states, spooled arrays, personal models
    rounds: int = 1  # of training: the stages of the method follow from it
    device: str = "cpu"
    last: tuple[str, ...] = ()  # evaluators that wait for the last round
    objects: Mapping[str, Any] = field(default_factory=dict)
    """Parts that only this process has, by table (an evaluator: `evaluate.KEY`)."""

    def to_json(self) -> str:
        """Write the spec as JSON."""
        if self.objects:
            raise ConfigError(f"{', '.join(self.objects)}: no other process has these objects")
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> "Spec":
        """Parse what `to_json` wrote."""
        values: dict[str, Any] = json.loads(text)
        build = {"net": Component("coterie.core.settings:NetSettings", values["net"]).build()}
        build["local"] = Component("coterie.core.settings:Local", values["local"]).build()
        for name in ("method", "objective"):
            build[name] = Component(**values[name])
        build["evaluators"] = {n: Component(**c) for n, c in values["evaluators"].items()}
        build |= {name: tuple(values[name]) for name in ("shape", "last")}
        return cls(**{**values, **build})


class Parts:
    """The living objects of a spec."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.method: Method = self._object("method") or spec.method.build()
        self.objective: Objective = self._object("objective") or spec.objective.build()
        self.local = spec.local
        built = {
            name: self._object(f"evaluate.{name}") or component.build()
            for name, component in spec.evaluators.items()
        }
        self.evaluators: dict[str, Evaluator] = {
            name: one for name, one in built.items() if isinstance(one, Evaluator)
        }
        self.programs: dict[str, FederatedEvaluator] = {
            name: one for name, one in built.items() if isinstance(one, FederatedEvaluator)
        }
        self._nets: dict[str, Nets] = {}
        self._stages: dict[str, tuple[Stage, ...]] = {}

    @property
    def augment(self) -> Choice:
        """What `data.augment` names, or the object itself."""
        return self._object("augment") or self.spec.augment

    def _object(self, table: str) -> Any:
        return self.spec.objects.get(table)

    def due(self, name: str, round: Round) -> bool:
        """Whether an evaluator takes part in the evaluation after a round."""
        return round.last or name not in self.spec.last

    def program(self, name: str) -> Method:
        """The method of a task: the run's, or a federated evaluator."""
        return self.programs.get(name, self.method)

    def start(self) -> ServerState:
        """The server's state before the first round."""
        with seeds.scoped(seeds.torch_seed(self.spec.seed, "start", 0)):
            return self.method.init(self.nets(METHOD))

    def stages(self, program: str) -> tuple[Stage, ...]:
        """The stages of a program, resolved once."""
        if program not in self._stages:
            evaluator = self.programs.get(program)
            rounds = self.spec.rounds if evaluator is None else evaluator.rounds
            self._stages[program] = resolve(self.program(program), rounds)
        return self._stages[program]

    def stage(self, program: str, name: str) -> Stage:
        """The stage of a program by the name that travels with a task."""
        return next(stage for stage in self.stages(program) if stage.name == name)

    def global_model(self, server: ServerState) -> Tensors:
        """The global model, where the method has one."""
        weights = self.method.model(server)
        if weights is None:
            raise ConfigError(
                f"{type(self.method).__name__} has no global model, which this evaluator needs: "
                "change evaluate.with"
            )
        return weights

    def nets(self, program: str) -> Nets:
        """The networks of a program, built once."""
        if program not in self._nets:
            self._nets[program] = Nets(
                self._build(self.program(program), seeds.torch_seed(self.spec.seed, "init", 0)),
                private=self.objective.private,
                local_buffers=self.spec.net.bn_buffers == "local",
                device=self.spec.device,
            )
        return self._nets[program]

    def kernels(self) -> AbstractContextManager[None]:
        """Compute with the kernels inside a `with` block, where `net.kernel` chose them."""
        return kernels(self.spec.net.kernel == "native")

    def spool(self, program: str) -> Path:
        """Where the server puts big arrays before a state of it adopts them."""
        return Path(self.spec.folder) / "spool" / f"{program}-server"

    def fresh(self, program: str, client: ClientId, key: str) -> Tensors:
        """The weights of an initialisation that is this client's own."""
        if isinstance(self._object("net"), nn.Module):
            raise ConfigError(
                f"{type(self.method).__name__} draws fresh weights for each client, which a "
                "network that is given as a module cannot have: give its class"
            )
        seed = seeds.torch_seed(self.spec.seed, "init", client + 1)
        net = self._build(self.program(program), seed)[key]
        return self.nets(program).split(key, net)[0]

    def _build(self, method: Method, seed: int) -> dict[str, Network]:
        spec = self.spec
        with seeds.scoped(seed):
            own = self._object("net")
            build = Builder(self.objective, spec.net, spec.shape, spec.classes, own)
            return self._owner(method).nets(build)

    def _owner(self, method: Method) -> Method:
        """Whose networks a program has: an evaluator without any takes those it evaluates."""
        return method if type(method).nets is not Method.nets else self.method
