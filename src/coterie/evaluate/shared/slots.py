"""Stock functions for federated evaluators that train a classifier on clients' features."""

import torch

from coterie.evaluate.shared.head import count_right
from coterie.kit import Bundle, FederatedEvaluator, Nets, Payload, Round, ServerState, Tensors


def start_empty(self: FederatedEvaluator, nets: Nets, weights: Tensors) -> ServerState:
    """Start without a classifier: clients have the features, the server needs no weights."""
    return Bundle()


def send_head(self: FederatedEvaluator, server: ServerState, round: Round) -> Payload:
    """Send the classifier, when there is one."""
    return Bundle({"head": server["head"]} if "head" in server else {})


def no_network(self: FederatedEvaluator, server: ServerState) -> Tensors | None:
    """Return None: there is only a classifier."""
    return None


def score_head(head: Tensors, test: Tensors) -> Tensors:
    """Count the test samples of a client, and those that the classifier gets right."""
    right, tests = count_right(head, test["h"], test["y"]), len(test["y"])
    return {"right": torch.tensor(right), "tests": torch.tensor(tests)}
