"""What sites and the server are built from, as plain data that other processes can read."""

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from coterie.core import exact, seeds
from coterie.core.bundle import Payload, ServerState, Tensors
from coterie.core.errors import ConfigError
from coterie.core.registry import Component
from coterie.core.settings import Local, NetSettings
from coterie.core.task import METHOD, ClientId, Round
from coterie.data.augment import Choice
from coterie.kit.builder import Builder
from coterie.kit.evaluator import Evaluator
from coterie.kit.expect import Expected, Sizes, expect
from coterie.kit.method import FederatedEvaluator, Method
from coterie.kit.networks import Nets
from coterie.kit.objective import Objective
from coterie.kit.stages import Stage, plan_rounds, resolve
from coterie.native.library import loaded
from coterie.native.switch import bf16, kernels
from coterie.nets.heads import Network
from coterie.nets.precision import check_bf16


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
    unseen: tuple[ClientId, ...] = ()  # clients that never train and are only tested
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
        build |= {name: tuple(values[name]) for name in ("shape", "last", "unseen")}
        return cls(**{**values, **build})


def describe_environment(spec: Spec) -> dict[str, str]:
    """Describe what must be the same wherever a client's bits are to be the same."""
    environment = exact.environment(spec.device)
    if spec.net.kernel == "native":
        environment["kernels"] = name_kernels(spec.net)
        environment["kernel library"] = loaded().digest[:16]
    return environment


def name_kernels(net: NetSettings) -> str:
    """Name what this machine computes with: the variant of its kernels, or torch."""
    return loaded().variant if net.kernel == "native" else "torch"


def check_arithmetic(spec: Spec) -> None:
    """Refuse a machine that cannot compute as the spec says."""
    if spec.net.precision == "bf16":
        check_bf16(spec.device)


class Parts:
    """The objects that a spec describes: method, objective, evaluators, networks."""

    def __init__(self, spec: Spec) -> None:
        own = spec.objects.get
        self.spec, self.local = spec, spec.local
        self.method: Method = own("method") or spec.method.build()
        self.objective: Objective = own("objective") or spec.objective.build()
        self.augment: Choice = own("augment") or spec.augment
        built = {
            name: own(f"evaluate.{name}") or component.build()
            for name, component in spec.evaluators.items()
        }
        self.evaluators: dict[str, Evaluator] = {
            name: part for name, part in built.items() if isinstance(part, Evaluator)
        }
        self.programs: dict[str, FederatedEvaluator] = {
            name: part for name, part in built.items() if isinstance(part, FederatedEvaluator)
        }
        self._nets: dict[str, Nets] = {}
        self._stages: dict[str, tuple[Stage, ...]] = {}
        self._sizes: dict[str, Sizes] = {}

    def due(self, name: str, round: Round) -> bool:
        """Whether an evaluator takes part in the evaluation after a round."""
        return round.last or name not in self.spec.last

    def due_evaluators(self, round: Round) -> dict[str, Evaluator]:
        """Select the evaluators without rounds of their own that are due after a round."""
        return {n: evaluator for n, evaluator in self.evaluators.items() if self.due(n, round)}

    def program(self, name: str) -> Method:
        """Look up the program of a task: a federated evaluator, or the run's method."""
        return self.programs.get(name, self.method)

    def start(self) -> ServerState:
        """Make the server's state before the first round."""
        with seeds.scoped(seeds.torch_seed(self.spec.seed, "start", 0)):
            return self.method.init(self.nets(METHOD))

    def stages(self, program: str) -> tuple[Stage, ...]:
        """Resolve the stages of a program, once."""
        if program not in self._stages:
            evaluator = self.programs.get(program)
            rounds = self.spec.rounds if evaluator is None else evaluator.rounds
            self._stages[program] = resolve(self.program(program), rounds)
        return self._stages[program]

    def stage(self, program: str, name: str) -> Stage:
        """Look up a stage of a program by the name in a task's round."""
        return next(stage for stage in self.stages(program) if stage.name == name)

    def expect(self, program: str, stage: Stage, down: Payload) -> Expected:
        """Resolve what the uploads of a stage must look like, from its rules and its broadcast."""
        rules = stage.uploads or {}
        declared = stage.arrays or any(rule.entries for rule in rules.values())
        return expect(down, rules, stage.arrays, self.sizes(program) if declared else {})

    def sizes(self, program: str) -> Sizes:
        """Measure what the words in shapes of a program's declared uploads stand for, once."""
        if program not in self._sizes:
            method, nets = self.program(program), self.nets(program)
            with torch.no_grad():  # of a copy: a network may remember how it was called
                outputs = copy.deepcopy(nets["model"])(torch.zeros(2, *self.spec.shape))
            known = {"classes": self.spec.classes}
            known |= {"width": outputs.h.shape[-1], "projection": outputs.z.shape[-1]}
            own = {f.name: getattr(method, f.name) for f in fields(method)}  # type: ignore[arg-type]
            ints = {n: v for n, v in own.items() if type(v) is int}
            words = {**ints, **known, **method.sizes(nets, known)}
            self._sizes[program] = {n: (v,) if isinstance(v, int) else v for n, v in words.items()}
        return self._sizes[program]

    def check_uploads(self) -> None:
        """Raise `ConfigError` for uploads of which no form is known, before the run.

        Every stage is tried on the initial state. What a later stage broadcasts may need more than
        that; `like` is then checked when the stage begins.
        """
        for program in (METHOD, *self.programs):
            method = self.program(program)
            server = self.start() if program == METHOD else method.init(self.nets(program))
            first: dict[str, tuple[Stage, Round]] = {}
            for stage, round in plan_rounds(self.stages(program), 1, self.spec.seed):
                if stage.cohort != "none":
                    first.setdefault(stage.name, (stage, round))
            for stage, round in first.values():
                assert stage.broadcast and stage.uploads is not None
                try:
                    down = stage.broadcast(server, round)
                except Exception:
                    if round.index > 0:
                        continue
                    raise
                if round.index > 0:
                    rules = {group: r for group, r in stage.uploads.items() if not r.like}
                    stage = replace(stage, uploads=rules)
                self.expect(program, stage, down)

    def global_model(self, server: ServerState) -> Tensors:
        """Return the global model; `ConfigError` if the method has none."""
        weights = self.method.model(server)
        if weights is None:
            raise ConfigError(
                f"{type(self.method).__name__} has no global model, which this evaluator needs: "
                "change evaluate.with"
            )
        return weights

    def nets(self, program: str) -> Nets:
        """Build the networks of a program, once."""
        if program not in self._nets:
            self._nets[program] = Nets(
                self._build(self.program(program), seeds.torch_seed(self.spec.seed, "init", 0)),
                private=self.objective.private,
                local_buffers=self.spec.net.bn_buffers == "local",
                device=self.spec.device,
            )
        return self._nets[program]

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Compute inside a `with` block as `net.kernel` and `net.precision` say."""
        net = self.spec.net
        with kernels(net.kernel == "native"), bf16(net.precision == "bf16"):
            yield

    @property
    def uploads(self) -> Path:
        """The folder of all big arrays of a round, until a checkpoint adopts them."""
        return Path(self.spec.folder) / "spool"

    def spool(self, program: str) -> Path:
        """Return the folder of the server's big arrays, until a checkpoint adopts them."""
        return self.uploads / f"{program}-server"

    def fresh(self, program: str, client: ClientId, key: str) -> Tensors:
        """Initialise a network with a seed of this client's own, and return its weights."""
        if isinstance(self.spec.objects.get("net"), nn.Module):
            raise ConfigError(
                f"{type(self.method).__name__} draws fresh weights for each client, which a "
                "network that is given as a module cannot have: give its class"
            )
        seed = seeds.torch_seed(self.spec.seed, "init", client + 1)
        net = self._build(self.program(program), seed)[key]
        return self.nets(program).split(key, net)[0]

    def _build(self, method: Method, seed: int) -> dict[str, Network]:
        spec = self.spec
        if type(method).nets is Method.nets:  # an evaluator without networks uses the method's
            method = self.method
        with seeds.scoped(seed):
            own, sensor = spec.objects.get("net"), spec.objects.get("sensor")
            build = Builder(self.objective, spec.net, spec.shape, spec.classes, own, sensor)
            return method.nets(build)
