"""What federated evaluators share that train a classifier on clients' features."""

import torch

from coterie import kit
from coterie.evaluate.shared.features import features
from coterie.evaluate.shared.head import count_right
from coterie.kit import Bundle, FederatedEvaluator, Tensors

HEAD = {
    "weight": kit.Entry("float32", ("classes", "width")),
    "bias": kit.Entry("float32", ("classes",)),
}
SCORES = {name: kit.Entry("int64", (), least=0) for name in ("right", "tests")}


class HeadEvaluator(FederatedEvaluator):
    """Clients keep their features, the server keeps a classifier in the group `head`."""

    key: str

    @property
    def metrics(self) -> tuple[str, ...]:
        """The accuracy, and the number of labels that were used."""
        return self.key, f"{self.key}_labels"

    def begin(self, net: kit.Frozen, data: kit.Shard) -> kit.ClientState:
        """Compute h and y of the client's training and test samples."""
        groups = {}
        for group, test in (("train", False), ("test", True)):
            h, y = features(net, data, test)
            groups[group] = {"h": h.cpu(), "y": y.cpu()}
        return Bundle(groups)

    def start(self, nets: kit.Nets, weights: Tensors) -> kit.ServerState:
        """Start without a classifier: clients have the features, the server needs no weights."""
        return Bundle()

    def broadcast(self, server: kit.ServerState, round: kit.Round) -> kit.Payload:
        """Send the classifier, when there is one."""
        return Bundle({"head": server["head"]} if "head" in server else {})

    def model(self, server: kit.ServerState) -> Tensors | None:
        """Return None: there is only a classifier."""
        return None


def score_head(head: Tensors, test: Tensors) -> Tensors:
    """Count the test samples of a client, and those that the classifier gets right."""
    right, tests = count_right(head, test["h"], test["y"]), len(test["y"])
    return {"right": torch.tensor(right), "tests": torch.tensor(tests)}
