"""One linear classifier for all clients, trained by federated averaging on their features.

Before the first round every client computes its features, which are its state for this evaluation.
In each training round it goes on from the averaged classifier for one part of the schedule of
`shared.head`, with fresh momentum; classifiers are averaged by numbers of samples. In the last
round the clients only test the final classifier on their own test data.
"""

from collections.abc import Iterator
from typing import ClassVar

import torch

from coterie.core.bundle import Bundle, ClientState, Payload, ServerState, Tensors
from coterie.core.task import Reply, Round
from coterie.evaluate.shared.features import features
from coterie.evaluate.shared.head import count_right, fresh_head, train_head
from coterie.kit.context import ClientContext, ServerContext, Shard
from coterie.kit.method import FederatedEvaluator
from coterie.kit.networks import Frozen, Nets
from coterie.kit.rules import Gather, Mean

ROUNDS = 21  # 20 of training, one of testing


def encoded(net: Frozen, data: Shard) -> ClientState:
    """A client's state for an evaluation: h and y of its training and of its test samples."""
    groups = {}
    for group, test in (("train", False), ("test", True)):
        h, y = features(net, data, test)
        groups[group] = {"h": h.cpu(), "y": y.cpu()}
    return Bundle(groups)


class SharedHead(FederatedEvaluator):
    """All of a federated probe but whose encoders are used and what is made of the results."""

    reduce: ClassVar = {"head": Mean(), "found": Gather()}

    def begin(self, net: Frozen, data: Shard) -> ClientState:
        """The features of the training and test samples."""
        return encoded(net, data)

    def start(self, nets: Nets, weights: Tensors) -> ServerState:
        """Nothing: the clients begin with a classifier of zeros."""
        return Bundle()

    def broadcast(self, server: ServerState, round: Round) -> Payload:
        """The classifier, from the second round on."""
        return Bundle({"head": server["head"]} if "head" in server else {})

    def client_update(
        self, ctx: ClientContext, down: Payload, state: ClientState | None
    ) -> tuple[Payload, ClientState | None]:
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
        place, parts = ctx.round.step, ctx.round.steps - 1
        if place < parts:
            head = train_head(head, h, y, ctx.generator("order"), (place, parts))
        found = {name: torch.tensor(count) for name, count in counts.items()}
        return Bundle({"head": head, "found": found}), None  # the features stay as they were saved

    def server_update(
        self, ctx: ServerContext, server: ServerState, replies: Iterator[Reply]
    ) -> ServerState:
        """Average the classifiers; keep what the clients counted, in their order."""
        reduced = ctx.reduce(replies)
        counted = [counts for _, counts in sorted(reduced.gathered["found"].items())]
        found = {name: torch.stack([one[name] for one in counted]) for name in counted[0]}
        return server.replace(head=reduced["head"], found=found)

    def model(self, server: ServerState) -> Tensors | None:
        """There is no network, only a classifier."""
        return None
