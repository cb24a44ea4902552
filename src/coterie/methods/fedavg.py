"""FedAvg: federated averaging (McMahan et al., AISTATS 2017).

Each client of the round's cohort S trains the global model on its own data, the server averages:

    w_k = local training of w on client k,      w = sum_{k in S} (n_k / sum_{j in S} n_j) w_k

Settled here: the weights are numbers of samples and sum to one over those who answered, not over
the federation; BatchNorm statistics are averaged like weights (`net.bn_buffers = "average"`) and
batch counters take the largest; a client's optimiser is new in every round. With `server.optimizer`
it becomes FedAvgM, FedAdam, FedYogi or FedAdagrad.
"""

from dataclasses import dataclass
from typing import final

from coterie.kit import Method, stock


@final
@dataclass(frozen=True)
class FedAvg(Method):
    """Train locally, average. Works with any objective."""

    objectives = None

    init = stock.start_from_net
    broadcast = stock.send_model
    client_update = stock.train_objective
    server_update = stock.average
    model = stock.global_model
