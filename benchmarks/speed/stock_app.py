"""The app that `sites.py` gives to stock SuperNodes: a client returns the array that it was given.

Flower starts a process for every message to a client, so torch is imported once a round, as it is
by an app that trains with torch. The server's part measures rounds and writes them to a file.
"""

import json
import time
from pathlib import Path

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client_app = ClientApp()
server_app = ServerApp()


@client_app.train()
def echo(message: Message, context: Context) -> Message:
    """Train for no time at all."""
    torch.set_num_threads(1)
    return Message(message.content, reply_to=message)


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Send an array to all clients and wait for the answers, round by round."""
    rounds, clients, size, out = (
        context.run_config[k] for k in ("rounds", "clients", "size", "out")
    )
    while len(nodes := list(grid.get_node_ids())) < int(clients):
        time.sleep(0.2)
    seconds = []
    for round in range(int(rounds)):
        values = np.full(int(size) // 4, round, np.float32)  # another one, which has to be sent
        begin = time.perf_counter()
        arrays = ArrayRecord([values])
        tasks = [Message(RecordDict({"arrays": arrays}), node, "train") for node in nodes]
        for reply in grid.send_and_receive(tasks, timeout=120):
            (answer,) = reply.content.array_records["arrays"].to_numpy_ndarrays()
            assert np.array_equal(answer, values)
            nodes.remove(reply.metadata.src_node_id)
        seconds.append(time.perf_counter() - begin)
        assert not nodes, "a client did not answer"
        nodes = [task.metadata.dst_node_id for task in tasks]
    written = Path(f"{out}.new")
    written.write_text(json.dumps(seconds))
    written.rename(str(out))
