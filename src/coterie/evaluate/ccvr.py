"""CCVR (Luo et al. 2021): a linear classifier on virtual features, drawn by moments of real ones.

Every client sends, for each class c, the count n_ck and the moments of its frozen features; with
mu_ck their mean and S_ck their unbiased covariance, those of all clients together are

    mu_c = sum_k n_ck mu_ck / n_c
    S_c  = ( sum_k [ (n_ck - 1) S_ck + n_ck mu_ck mu_ck^T ] - n_c mu_c mu_c^T ) / (n_c - 1)

exactly. The server draws features from N(mu_c, S_c + 1e-6 I) and trains the classifier on them, as
every probe does; the clients test it on their own test data, all answers counted together. Settled
here: what is sent is n_ck mu_ck and the bracket, one triangle of it, in double precision, so that
the server only adds up; as many features of every class; a class with fewer than two samples has no
covariance and is left out. Features are divided by their length, as for all probes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
from torch import Tensor

from coterie import kit
from coterie.evaluate.shared.federated import SCORES, HeadEvaluator, score_head
from coterie.evaluate.shared.head import fresh_head, train_head
from coterie.kit import Answer, Bundle, ClientContext, State, Tensors, fields

_RIDGE = 1e-6  # added to the variances
_FEWEST = 2  # samples of a class that have a covariance
_MOMENTS = {
    "count": kit.Entry("int64", ("classes",), least=0),
    "sum": kit.Entry("float64", ("classes", "width")),
    "square": kit.Entry("float64", ("classes", "triangle")),
}


@final
@dataclass(frozen=True)
class CCVR(HeadEvaluator):
    """One classifier over the global encoder, from moments of the clients' features."""

    rounds = 2  # moments, then tests

    virtual: fields.Width = 200  # features drawn of every class
    key: str = "ccvr"

    def stages(self, rounds: int) -> tuple[kit.Stage, ...]:
        """Moments, then tests."""
        sums = {"moments": kit.Sum(entries=_MOMENTS)}
        collect = kit.Stage("moments", 1, "all", client=self.sum_up, server=self.fit, uploads=sums)
        counts = {"counts": kit.Sum(entries=SCORES)}
        test = kit.Stage("test", 1, "all", client=self.test, server=self.count, uploads=counts)
        return collect, test

    def sizes(self, nets: kit.Nets, known: Mapping[str, int]) -> Mapping[str, int]:
        """`triangle`: the entries of one triangle of a covariance, with the diagonal."""
        return {"triangle": known["width"] * (known["width"] + 1) // 2}

    def sum_up(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Sum up the training features of each class."""
        assert state is not None  # `begin` made it
        train = state["train"]
        return Bundle({"moments": moments(train["h"], train["y"], ctx.data.classes)}), None

    def test(self, ctx: ClientContext, down: Bundle, state: State) -> Answer:
        """Test the classifier on the client's own test data."""
        assert state is not None
        return Bundle({"counts": score_head(down["head"], state["test"])}), None

    def count(self, ctx: kit.ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Keep the sums of the clients' counts."""
        return server.replace(counts={**server["counts"], **ctx.reduce(replies)["counts"]})

    def fit(self, ctx: kit.ServerContext, server: Bundle, replies: kit.Replies) -> Bundle:
        """Train the classifier on virtual features."""
        sums = ctx.reduce(replies)["moments"]
        h, y = draw_virtual(sums, self.virtual, ctx.generator("virtual"))
        head = fresh_head(len(sums["count"]), h)
        if len(y):
            head = train_head(head, h, y, ctx.generator("order"))
        return server.replace(head=head, counts={"labels": sums["count"].sum()})

    def finish(self, ctx: kit.ServerContext, server: Bundle) -> Mapping[str, float]:
        """Report `ccvr` and `ccvr_labels`."""
        counts = {name: int(count) for name, count in server["counts"].items()}
        return {
            self.key: counts["right"] / counts["tests"] if counts["tests"] else float("nan"),
            f"{self.key}_labels": float(counts["labels"]),
        }


def moments(h: Tensor, y: Tensor, classes: int) -> Tensors:
    """Compute by class the count, the sum of h, and the upper triangle of the sum of h h^T."""
    h = h.double()
    rows, columns = torch.triu_indices(h.shape[1], h.shape[1])
    sums, squares = h.new_zeros(classes, h.shape[1]), h.new_zeros(classes, len(rows))
    count = torch.bincount(y, minlength=classes)
    for label in range(classes):
        if count[label]:
            own = h[y == label]
            sums[label] = own.sum(dim=0)
            squares[label] = (own.T @ own)[rows, columns]
    return {"count": count, "sum": sums, "square": squares}


def gaussians(sums: Tensors) -> Iterator[tuple[int, Tensor, Tensor]]:
    """Yield mean and unbiased covariance of every class that has two samples or more."""
    width = sums["sum"].shape[1]
    rows, columns = torch.triu_indices(width, width)
    for label, count in enumerate(sums["count"].tolist()):
        if count < _FEWEST:
            continue
        mean = sums["sum"][label] / count
        square = mean.new_zeros(width, width)
        square[rows, columns] = sums["square"][label]
        square[columns, rows] = sums["square"][label]
        yield label, mean, (square - count * torch.outer(mean, mean)) / (count - 1)


def draw_virtual(sums: Tensors, each: int, draw: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Draw features and labels of every class that has a covariance, from its Gaussian."""
    width = sums["sum"].shape[1]
    ridge = _RIDGE * torch.eye(width, dtype=torch.float64)
    h, y = [torch.empty(0, width)], [torch.empty(0, dtype=torch.int64)]
    for label, mean, covariance in gaussians(sums):
        noise = torch.from_numpy(draw.standard_normal((each, width)))
        drawn = mean + noise @ torch.linalg.cholesky(covariance + ridge).T
        h.append(drawn.float())
        y.append(torch.full((each,), label))
    return torch.cat(h), torch.cat(y)
