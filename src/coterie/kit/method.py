"""Method: a federated algorithm. Its fields are its hyper-parameters; it keeps nothing on `self`.

Slots are written out, or filled with a function from `kit.stock`. No method inherits from another.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from coterie.core.bundle import Bundle, ClientState, Payload, ServerState, Tensors
from coterie.core.errors import ConfigError
from coterie.core.task import ClientId, Round
from coterie.kit.rules import Mean, Rules, check_rules
from coterie.kit.stages import Answer, Replies, Stage, State
from coterie.nets.heads import Network

if TYPE_CHECKING:
    from coterie.core.settings import Local
    from coterie.kit.builder import Builder
    from coterie.kit.context import ClientContext, ServerContext, Shard
    from coterie.kit.networks import Frozen, Nets


class Method(ABC):
    """What is learned, never where it runs."""

    objectives: ClassVar[tuple[str, ...] | None] = ("supervised",)
    """The objectives it works with; None: any. Another one is a configuration error."""

    reduce: ClassVar[Rules] = {"model": Mean()}
    """Every group of an upload, and how it is reduced; a stage may say otherwise (`uploads`)."""

    leaves: ClassVar[str] = "weights (with BatchNorm statistics, if any) and its number of samples"
    """What a client gives away, in words; shown at the start of a run."""

    pooled: ClassVar[bool] = False
    """All data are merged into one client before the run (centralised training)."""

    def __init_subclass__(cls) -> None:
        check_rules(cls.reduce, cls.__name__)

    @property
    def views(self) -> tuple[str, ...]:
        """The views of a sample that it trains on; empty: those of the objective."""
        return ()

    @property
    def labels(self) -> bool:
        """Whether it reads labels beside those that the objective reads."""
        return False

    @property
    def draws_fresh(self) -> bool:
        """Whether clients start from weights of their own (`ctx.fresh`)."""
        return False

    @abstractmethod
    def init(self, nets: "Nets") -> ServerState:
        """The server's state before the first round."""

    @abstractmethod
    def broadcast(self, server: ServerState, round: Round) -> Payload:
        """What every client of the round receives."""

    def client_update(self, ctx: "ClientContext", down: Payload, state: State) -> Answer:
        """Train on one client: what it sends, and what it remembers."""
        raise ConfigError(f"{type(self).__name__} has no client_update")

    def server_update(
        self, ctx: "ServerContext", server: ServerState, replies: Replies
    ) -> ServerState:
        """The server's next state, from one pass over the valid replies in cohort order."""
        raise ConfigError(f"{type(self).__name__} has no server_update")

    @abstractmethod
    def model(self, server: ServerState) -> Tensors | None:
        """The weights of `nets["model"]` that are tested, saved and exported.

        None: there is no global model; every client's own is tested on the global data instead.
        """

    def address(self, server: ServerState, round: Round, client: ClientId) -> Payload | None:
        """What this client alone receives besides the broadcast; it finds it in `ctx.own`."""
        return None

    def personal(self, ctx: "ClientContext", down: Payload, state: State) -> Tensors | None:
        """The client's own model, made on the client for evaluation; None: the global one."""
        return None

    def check(self, local: "Local") -> None:
        """Raise `ConfigError` where the `[local]` table does not go with this method."""

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The stretches of the run; `rounds` counts training rounds."""
        return (Stage("train", rounds),)

    def nets(self, build: "Builder") -> dict[str, Network]:
        """The networks it uses; `build()` makes one for the objective.

        `"model"` is the one that is tested; there may be others that are sent or trained.
        """
        return {"model": build()}

    def sizes(self, nets: "Nets", known: Mapping[str, int]) -> Mapping[str, int | tuple[int, ...]]:
        """Words of its own for the shapes of declared uploads.

        `known` has those that every method can use: `classes`, `width`, `projection`.
        """
        return {}

    @classmethod
    def has(cls, slot: str) -> bool:
        """Whether the class fills a slot that a method may leave out, such as `personal`."""
        optional = ("client_update", "server_update", "personal")
        return slot not in optional or getattr(cls, slot) is not getattr(Method, slot)


class FederatedEvaluator(Method):
    """An evaluator that is itself a federated program with rounds of its own.

    The engine plays it over the same executor: `start`, then the `rounds` rounds of its one stage
    (or of those that `stages` gives) with every client, then `finish`. Its clients' states live
    only as long as one evaluation, and its bytes are reported apart.
    """

    where: ClassVar[Literal["federated"]] = "federated"
    labels = True  # like most; its clients then see labelled samples only
    own_models: bool = False
    """`begin` gets every client's own model where the method makes one, not the global one."""
    rounds: int = 1

    @property
    def headline(self) -> str:
        """The metric that says most of the model; "" if it is not known."""
        return str(getattr(self, "key", ""))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of all metrics that it may report; () if they are not known before a run."""
        return ()

    @abstractmethod
    def start(self, nets: "Nets", weights: Tensors) -> ServerState:
        """The program's first state, with the weights under test in it.

        There are none where the method has no global model; only programs with `begin` get so far.
        """

    def begin(self, net: "Frozen", data: "Shard") -> ClientState:
        """On a client, before the first round: its first state, from the model under test.

        Without it, clients have no state then, and the model is in what `start` returns. Where the
        method has no global model, it is the client's own.
        """
        return Bundle()

    @abstractmethod
    def finish(self, ctx: "ServerContext", server: ServerState) -> Mapping[str, float]:
        """The metrics, after the last round."""

    @classmethod
    def has_begin(cls) -> bool:
        """Whether clients prepare before the first round."""
        return cls.begin is not FederatedEvaluator.begin

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """All clients in every round."""
        return (Stage("evaluate", rounds, "all"),)

    def init(self, nets: "Nets") -> ServerState:
        """The state for the networks' initial weights."""
        return self.start(nets, nets.weights())
