"""A linear classifier on frozen representations, trained by FedAvg: no label leaves its client.

Before the first round every client computes its features, which are its state for this evaluation.
In each training round it continues from the averaged classifier for one part of the schedule of
`shared.head`, with fresh momentum; classifiers are averaged by numbers of samples. In the last
round the clients only test the final classifier on their own test data.

The features are those of the global model, and all right answers are counted over all test samples:
the clients' test data together are the test set. A method without a global model has no common
encoder; each client then uses its own.

With `own_models` every client uses its personal model where it has one, and the result is the mean
over clients of the accuracy on their own test data. It is a diagnostic: the clients'
representations need not lie in one space, so that one classifier for all of them says little about
the encoders (He et al., SSFL, 2021, section 5.4.3 and Figure 6).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge

from coterie.evaluate.shared.features import encode_client
from coterie.evaluate.shared.head import count_right, fresh_head, train_head
from coterie.kit import (
    Answer,
    Bundle,
    ClientContext,
    ClientState,
    FederatedEvaluator,
    Frozen,
    Gather,
    Mean,
    Nets,
    Payload,
    Reply,
    Round,
    ServerContext,
    ServerState,
    Shard,
    State,
    Tensors,
)


@final
@dataclass(frozen=True)
class FederatedProbe(FederatedEvaluator):
    """One classifier for all clients."""

    rounds: Annotated[int, Ge(2)] = 21  # the last one tests, the others train
    own_models: bool = False  # a field here, a constant in the base
    key: str = "federated_probe"

    reduce: ClassVar = {"head": Mean(), "found": Gather()}

    def begin(self, net: Frozen, data: Shard) -> ClientState:
        """The features of the training and test samples."""
        return encode_client(net, data)

    def start(self, nets: Nets, weights: Tensors) -> ServerState:
        """Nothing: the clients begin with a classifier of zeros."""
        return Bundle()

    def broadcast(self, server: ServerState, round: Round) -> Payload:
        """The classifier, from the second round on."""
        return Bundle({"head": server["head"]} if "head" in server else {})

    def client_update(self, ctx: ClientContext, down: Payload, state: State) -> Answer:
        """Test the classifier as received, then train it; in the last round only test."""
        assert state is not None  # `begin` made it
        train, test = state["train"], state["test"]
        h, y = train["h"], train["y"]
        head = down.get("head") or fresh_head(ctx.data.classes, h)
        counts = {
            "right": count_right(head, test["h"], test["y"]),
            "tests": len(test["y"]),
            "labels": len(y),
        }
        part, parts = ctx.round.step, ctx.round.steps - 1
        if part < parts:
            head = train_head(head, h, y, ctx.generator("order"), (part, parts))
        found = {name: torch.tensor(count) for name, count in counts.items()}
        return Bundle({"head": head, "found": found}), None  # the features stay as they were saved

    def server_update(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        """Average the classifiers; keep what the clients counted, in their order."""
        reduced = ctx.reduce(replies)
        clients = [counts for _, counts in sorted(reduced.gathered["found"].items())]
        found = {name: torch.stack([counts[name] for counts in clients]) for name in clients[0]}
        return server.replace(head=reduced["head"], found=found)

    def model(self, server: ServerState) -> Tensors | None:
        """There is no network, only a classifier."""
        return None

    def finish(self, ctx: ServerContext, server: ServerState) -> Mapping[str, float]:
        """`federated_probe` and `federated_probe_labels`."""
        counts = server["found"]
        right, tests = counts["right"], counts["tests"]
        if self.own_models:
            tested = tests > 0
            accuracy = float((right[tested].double() / tests[tested]).mean())
        else:
            total = int(tests.sum())
            accuracy = int(right.sum()) / total if total else float("nan")
        return {self.key: accuracy, f"{self.key}_labels": float(counts["labels"].sum())}
