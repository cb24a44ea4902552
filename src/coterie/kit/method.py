"""Method: a federated algorithm. Its fields are its hyper-parameters; it keeps nothing on `self`.

Slots are written out, or filled with a function from `kit.stock`. No method inherits from another.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, ClassVar, Literal

from coterie.core.bundle import Bundle, ClientState, Payload, ServerState, Tensors
from coterie.core.task import ClientId, Reply, Round, Stage
from coterie.nets.heads import Network

if TYPE_CHECKING:
    from coterie.core.settings import Local
    from coterie.kit.builder import Make
    from coterie.kit.context import ClientContext, ServerContext, Shard
    from coterie.kit.networks import Frozen, Nets


class Method(ABC):
    """What is learned, never where it runs."""

    objectives: ClassVar[tuple[str, ...] | None] = ("supervised",)
    """The objectives it works with; None: any. Another one is a configuration error."""

    reduce: ClassVar[Mapping[str, str]] = {"model": "mean"}
    """Every group of an upload, and how it is reduced: `mean`, `sum` or `gather`.

    The group must have the names, shapes and dtypes of the group of that name in the broadcast;
    `"sum:prototypes"` says that it looks like another group of the broadcast. A group that is like
    none there must look alike on all clients."""

    leaves: ClassVar[str] = "weights (with BatchNorm statistics, if any) and its number of samples"
    """What a client gives away, in words; shown at the start of a run."""

    pooled: ClassVar[bool] = False
    """All data are merged into one client before the run (centralised training)."""

    unit_images: ClassVar[bool] = False
    """Networks see images in [0, 1], without the data set's mean and standard deviation."""

    central: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    """By network, the prefixes of names that only the server trains.

    Of these nothing is private to a client, and BatchNorm statistics are the server's own whatever
    `net.bn_buffers` says."""

    aliases: ClassVar[Mapping[str, str]] = {}
    """Keys of `[method]` that are other names of keys elsewhere: `{"mine": "objective.name"}`."""

    @abstractmethod
    def init(self, nets: "Nets") -> ServerState:
        """The server's state before the first round."""

    @abstractmethod
    def broadcast(self, server: ServerState, round: Round) -> Payload:
        """What every client of the round receives."""

    @abstractmethod
    def client_update(
        self, ctx: "ClientContext", down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
        """Train on one client: what it sends, and what it remembers."""

    @abstractmethod
    def server_update(
        self, ctx: "ServerContext", server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        """One pass over the valid replies, in cohort order."""

    @abstractmethod
    def model(self, server: ServerState) -> Tensors | None:
        """The weights of `nets["model"]` that are tested, saved and exported.

        None: there is no global model; every client's own is tested on the global data instead.
        """

    def address(self, server: ServerState, round: Round, client: ClientId) -> Payload | None:
        """What this client alone receives besides the broadcast; it finds it in `ctx.own`."""
        return None

    def personal(
        self, ctx: "ClientContext", down: Payload, state: ClientState | None
    ) -> Tensors | None:
        """The client's own model, made on the client for evaluation; None: the global one."""
        return None

    def uploads(self, stage: str) -> Mapping[str, str]:
        """The groups that clients send in a stage, with their rules; by default those of `reduce`.

        A stage in which clients send less than in another says so here.
        """
        return self.reduce

    def check(self, local: "Local") -> None:
        """Raise `ConfigError` where the `[local]` table does not go with this method."""

    def stages(self, rounds: int) -> tuple[Stage, ...]:
        """The stretches of the run; `rounds` counts training rounds."""
        return (Stage("train", rounds),)

    def nets(self, make: "Make") -> dict[str, Network]:
        """The networks it uses; `make()` builds one for the objective.

        `"model"` is the one that is tested; there may be others that are sent or trained.
        """
        return {"model": make()}

    @classmethod
    def has_personal(cls) -> bool:
        """Whether clients have models of their own."""
        return cls.personal is not Method.personal


class FederatedEvaluator(Method):
    """An evaluator that is itself a federated program with rounds of its own.

    The engine drives it over the same executor: `start`, then `rounds` rounds of broadcast,
    `client_update` and `server_update` with every client, then `finish`. Its clients' states live
    only as long as one evaluation, and its bytes are reported apart.
    """

    where: ClassVar[Literal["federated"]] = "federated"
    own_models: ClassVar[bool] = False
    """`begin` gets every client's own model where the method makes one, not the global one."""
    rounds: int = 1

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

    def init(self, nets: "Nets") -> ServerState:
        """The state for the networks' initial weights."""
        return self.start(nets, nets.weights())
