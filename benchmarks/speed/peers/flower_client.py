"""The clients of `run_flower.py`: Flower's message API, as Ray's worker processes import it.

A worker process keeps the images of the clients it has acted for, as normalised floats.
"""

import functools
import json
from pathlib import Path
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from shared import Samples, epoch, simple_cnn
from torch import Tensor, nn

app = ClientApp()


@functools.cache
def task(path: str) -> Any:
    """What there is to do."""
    return json.loads(Path(path).read_text())


@functools.cache
def share(path: str, client: int) -> tuple[Tensor, Tensor]:
    """The images and labels of a client."""
    return Samples(task(path)).share(task(path)["clients"][client])


@functools.cache
def network() -> nn.Module:
    """One network for all clients of this process."""
    return simple_cnn()


@app.train()
def train(message: Message, context: Context) -> Message:
    """One local epoch."""
    torch.set_num_threads(1)
    path, client = message.content["config"]["task"], int(context.node_config["partition-id"])
    x, y = share(path, client)
    net = network()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    steps = epoch(net, x, y)
    return Message(
        RecordDict(
            {
                "arrays": ArrayRecord(net.state_dict()),
                "metrics": MetricRecord({"num-examples": len(y), "steps": steps}),
            }
        ),
        reply_to=message,
    )
