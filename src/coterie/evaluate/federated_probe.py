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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, final

import torch
from annotated_types import Ge, Le

from coterie import kit
from coterie.evaluate.shared.federated import HEAD, SCORES, HeadEvaluator, score_head
from coterie.evaluate.shared.head import fresh_head, train_head
from coterie.kit import Answer, Bundle, ClientContext, State, fields


@final
@dataclass(frozen=True)
class FederatedProbe(HeadEvaluator):
    """One classifier for all clients."""

    rounds: Annotated[int, Ge(2), Le(fields.MOST_ROUNDS)] = 21  # the last tests, the others train
    own_models: bool = False  # a field here, a constant in the base
    key: str = "federated_probe"

    reduce: ClassVar = {
        "head": kit.Mean(entries=HEAD),
        "counts": kit.Gather(entries={**SCORES, "labels": kit.Entry("int64", (), least=0)}),
    }

    def client_update(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Test the classifier as received, then train it; in the last round only test."""
        assert state is not None  # `begin` made it
        h, y = state["train"]["h"], state["train"]["y"]
        head = down.get("head") or fresh_head(ctx.data.classes, h)
        counts = {**score_head(head, state["test"]), "labels": torch.tensor(len(y))}
        part, parts = ctx.round.step, ctx.round.steps - 1
        if part < parts:
            head = train_head(head, h, y, ctx.generator("order"), (part, parts))
        return Bundle({"head": head, "counts": counts}), None  # the features stay saved

    def server_update(self, ctx: kit.ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Average the classifiers; stack the clients' counts in the order of their ids."""
        reduced = ctx.reduce(replies)
        clients = [own for _, own in sorted(reduced.gathered["counts"].items())]
        counts = {name: torch.stack([own[name] for own in clients]) for name in clients[0]}
        return server.replace(head=reduced["head"], counts=counts)

    def finish(self, ctx: kit.ServerContext, server: Bundle) -> Mapping[str, float]:
        """Report `federated_probe` and `federated_probe_labels`."""
        counts = server["counts"]
        right, tests = counts["right"], counts["tests"]
        if self.own_models:
            tested = tests > 0
            accuracy = float((right[tested].double() / tests[tested]).mean())
        else:
            total = int(tests.sum())
            accuracy = int(right.sum()) / total if total else float("nan")
        return {self.key: accuracy, f"{self.key}_labels": float(counts["labels"].sum())}
