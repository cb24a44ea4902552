"""FedAvg in Flower's Simulation Runtime over Ray, one round whenever it is asked.

`ServerApp`, `ClientApp` and the strategy are of Flower's message API. The strategy waits before the
first round, and hands the turn back when a round's models have been averaged. `flwr run` starts
this same runtime through a server in the background; here it is started directly, in this process,
so that nothing is left behind.
"""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from flower_client import app as client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from shared import Turns, flat, put, simple_cnn


class Pausing(FedAvg):
    """FedAvg that takes turns with the other contenders."""

    def __init__(self, turns: Turns, rounds: int, clients: int) -> None:
        everyone = {"min_train_nodes": clients, "min_available_nodes": clients}
        super().__init__(fraction_train=1.0, fraction_evaluate=0.0, **everyone)
        self._turns, self._rounds, self.steps = turns, rounds, 0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Wait for the first round."""
        if server_round == 1:
            self._turns.next_round()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Say that a round is done and wait for the next."""
        answers = list(replies)
        found = super().aggregate_train(server_round, answers)
        self._turns.done()
        failed = [answer.error.reason for answer in answers if answer.has_error()]
        if failed:
            raise RuntimeError(f"{len(failed)} clients failed: {failed[0]}")
        self.steps += sum(int(answer.content["metrics"]["steps"]) for answer in answers)
        if server_round < self._rounds:
            self._turns.next_round()
        return found


def main() -> None:
    """Run the simulation to its end."""
    turns = Turns()
    task = turns.task()
    out = Path(task["out"])
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        net = simple_cnn()
        put(net, np.load(task["start"]))
        strategy = Pausing(turns, task["rounds"], len(task["clients"]))
        result = strategy.start(
            grid,
            ArrayRecord(net.state_dict()),
            num_rounds=task["rounds"],
            train_config=ConfigRecord({"task": turns.path}),
        )
        net.load_state_dict(result.arrays.to_torch_state_dict())
        np.save(out / "weights.npy", flat(net))
        (out / "steps-0.json").write_text(json.dumps(strategy.steps))

    place = mkdtemp(prefix="ray-")  # short, for the names of sockets have to be
    try:
        run_simulation(
            server_app,
            client_app,
            num_supernodes=len(task["clients"]),
            backend_config={
                "init_args": {"num_cpus": task["cores"], "_temp_dir": place},
                "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            },
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
