"""FedAvg in pfl-research: its `SimulatedBackend`, one round whenever it is asked.

With several workers every one of them is a process of this script, and pfl joins them by
`PFL_WORKER_ADDRESSES` (torch.distributed over gloo); it deals the clients by their sizes, largest
first to the worker with less to do. A callback after every central iteration hands the turn back
and waits for the next one, in every worker: one that went on would work in others' turns.
"""

import functools
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from shared import BATCH, Samples, Turns, flat, put, simple_cnn
from torch import Tensor, nn
from torch.nn import functional as F

NEVER = 10**9  # pfl evaluates in every n-th iteration, and in the first, which warms up


class Classifier(nn.Module):
    """The network with the two functions that pfl asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.net = simple_cnn()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """What is descended."""
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
        """Nothing is measured."""
        return {"samples": Weighted(len(y), 1)}


class CountedSGD(torch.optim.SGD):
    """SGD that knows how many steps were taken in this process."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        """One step, counted."""
        CountedSGD.steps += 1
        return super().step(closure)


class Pause(TrainingProcessCallback[PyTorchModel]):
    """Takes turns with the other contenders."""

    def __init__(self, turns: Turns, rounds: int, out: Path, rank: int) -> None:
        self._turns, self._rounds, self._out, self._rank = turns, rounds, out, rank

    def on_train_begin(self, *, model: PyTorchModel) -> Metrics:
        """Wait for the first round."""
        self._turns.next_round()
        return Metrics()

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: PyTorchModel, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        """Say that a round is done and wait for the next."""
        self._turns.done()
        if central_iteration + 1 < self._rounds:
            self._turns.next_round()
        return False, Metrics()

    def on_train_end(self, *, model: PyTorchModel) -> None:
        """Leave the weights, and how many steps this worker took."""
        (self._out / f"steps-{self._rank}.json").write_text(json.dumps(CountedSGD.steps))
        if self._rank == 0:
            np.save(self._out / "weights.npy", flat(model.pytorch_model))


def main() -> None:
    """Build everything as pfl's guides do, then run."""
    turns = Turns()
    task = turns.task()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    np.random.seed(0)  # noqa: NPY002  (pfl draws from it, alike in all workers)
    torch.manual_seed(0)
    rank = int(os.environ.get("PFL_WORKER_RANK", "0"))
    samples, shares = Samples(task), task["clients"]
    held = functools.cache(lambda client: samples.share(shares[client]))

    def dataset(client: int) -> PyTorchTensorDataset:
        x, y = held(client)
        order = torch.randperm(len(y))
        return PyTorchTensorDataset((x[order], y[order]), user_id=str(client))

    clients = list(range(len(shares)))
    data = FederatedDataset(
        dataset,
        get_user_sampler("minimize_reuse", clients),
        user_id_to_weight={client: len(shares[client]) for client in clients},
    )
    module = Classifier()
    put(module.net, np.load(task["start"]))
    model = PyTorchModel(
        module,
        functools.partial(CountedSGD, momentum=0.9, weight_decay=1e-5),
        torch.optim.SGD(module.parameters(), lr=1.0),
    )
    FederatedAveraging().run(
        NNAlgorithmParams(task["rounds"], NEVER, len(clients), 0),
        SimulatedBackend(data, data, [WeightByDatapoints()]),
        model,
        NNTrainHyperParams(local_batch_size=BATCH, local_num_epochs=1, local_learning_rate=0.01),
        callbacks=[Pause(turns, task["rounds"], Path(task["out"]), rank)],
    )


if __name__ == "__main__":
    main()
