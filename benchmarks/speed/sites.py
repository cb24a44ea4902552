"""What a round over deployed sites costs beyond training, and that of a stock SuperNode.

    python benchmarks/speed/sites.py

Coterie: `coterie deploy server` and two `coterie deploy client` on this machine with TLS, keys and
the database, FedAvg on points of which a client's training takes milliseconds. A round's seconds
are those in `metrics.jsonl`, less those of the client that trained longest. Stock: Flower's own
`flower-superlink` and two `flower-supernode` without TLS, keys and a database on disk, which is
less work, with an app that returns the array it was given, of the same number of bytes
(`stock_app.py`). The first round of both is left out. Writes JSON.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from commands import Commands
from round import HERE

from coterie.deploy.flower_version import require_flower

SITES = ("north", "south")
SAMPLES, CLASSES, ENTRIES = 100, 3, 6
HOST = "127.0.0.1"
CONFIGURATION = """
run = {{ seed = 0, rounds = {rounds} }}
net = {{ backbone = "mlp", projection = 8, norm = "none" }}
method = {{ name = "fedavg" }}
local = {{ epochs = 1, batch_size = 16, lr = 0.05 }}
evaluate = {{ every = 0, with = [] }}
"""
APP = """
[project]
name = "stock"
version = "1.0.0"
description = "Returns what it is given"
license = "Apache-2.0"
[tool.flwr.app]
publisher = "benchmark"
[tool.flwr.app.components]
serverapp = "stock_app:server_app"
clientapp = "stock_app:client_app"
[tool.flwr.app.config]
rounds = {rounds}
clients = {clients}
size = {size}
out = "{out}"
"""


def find_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def write_sites(folder: Path) -> None:
    """Points around a centre for each class, a file for each site."""
    generator = np.random.default_rng(0)
    centres = generator.normal(size=(CLASSES, ENTRIES))
    for site in SITES:
        y = np.arange(SAMPLES) % CLASSES
        x = centres[y] + generator.normal(size=(SAMPLES, ENTRIES))
        np.savez(folder / f"{site}.npz", x=x.astype(np.float32), y=y)


def measure_coterie(folder: Path, rounds: int) -> dict[str, Any]:
    """Rounds over two sites as they are deployed."""
    coterie, port = (sys.executable, "-m", "coterie", "deploy"), find_port()
    with Commands(folder) as commands:
        write_sites(folder)
        (folder / "sites.toml").write_text(CONFIGURATION.format(rounds=rounds + 1))
        (folder / "registered").mkdir()
        commands.run("certs", *coterie, "certs", "certs", "--host", HOST)
        for site in SITES:
            commands.run(f"keys-{site}", *coterie, "keys", f"at-{site}", site)
            shutil.copy(folder / f"at-{site}" / f"{site}.pub", folder / "registered")
        at = ("--host", HOST, "--port", port, "--certificates", "certs", "--keys", "registered")
        commands.start("server", *coterie, "server", "sites.toml", *at, "--out", "run")
        for site in SITES:
            own = ("--data", f"{site}.npz", "--key", f"at-{site}/{site}.key")
            to = ("--server", f"{HOST}:{port}", "--ca", "certs/ca.pem")
            commands.start(site, *coterie, "client", *to, *own)
        taken = watch(commands, folder / "run" / "metrics.jsonl", rounds)
        commands.wait(lambda: not any(map(commands.running, ("server", *SITES))))
        lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
        events = [json.loads(line) for line in lines][1:]
        trained = zip(*(read_training(commands.printed(site)) for site in SITES), strict=True)
    longest = [max(each) for each in trained][1:]
    if any(event["lost"] or event["rejected"] for event in events):
        sys.exit("a client was lost")
    seconds = [event["seconds"] for event in events]
    beyond = [whole - own for whole, own in zip(seconds, longest, strict=True)]
    return {
        **describe("seconds beyond training", beyond),
        "seconds of training, median": statistics.median(longest),
        **taken,
        "bytes to a client": events[0]["bytes_down"] // len(SITES),
    }


def watch(commands: Commands, metrics: Path, rounds: int) -> dict[str, float]:
    """Clock and processor from the end of the first round to that of the last, by round."""
    taken = []
    for lines in (1, rounds + 1):

        def recorded(lines: int = lines) -> bool:
            return metrics.exists() and metrics.read_bytes().count(b"\n") >= lines

        commands.wait(recorded, "server", *SITES)
        used = [commands.processor(name) for name in ("server", *SITES)]
        taken.append((time.perf_counter(), used))
    (begin, before), (end, after) = taken
    server, *clients = [(b - a) / rounds for a, b in zip(before, after, strict=True)]
    return {
        "seconds from round to round": (end - begin) / rounds,
        "processor seconds of the server, a round": server,
        "processor seconds of a client, a round": statistics.mean(clients),
    }


def read_training(printed: str) -> list[float]:
    """The seconds that a client trained, by round."""
    return [float(text) for text in re.findall(r"trained in ([0-9.]+) s", printed)]


def measure_stock(folder: Path, rounds: int, size: int) -> dict[str, Any]:
    """Rounds over two SuperNodes as Flower starts them."""
    programs, home, out = Path(sys.executable).parent, folder / "home", folder / "seconds.json"
    link = f"{HOST}:{(port := find_port())}"
    variables = {"FLWR_HOME": str(home), "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    with Commands(folder, **variables) as commands:
        home.mkdir()
        connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "{link}"\n'
        (home / "config.toml").write_text(f"{connection}insecure = true\n")
        app = folder / "app"
        app.mkdir()
        shutil.copy(HERE / "stock_app.py", app)
        text = APP.format(rounds=rounds + 1, clients=len(SITES), size=size, out=out)
        (app / "pyproject.toml").write_text(text)
        at = ("--insecure", "--host", HOST)
        commands.start("superlink", programs / "flower-superlink", *at, "--port", port)
        commands.wait(lambda: can_connect(port), "superlink")
        for site in SITES:
            own = (*at, "--superlink", link, "--port", find_port())
            commands.start(site, programs / "flower-supernode", *own)
        commands.run("run", programs / "flwr", "run", app)
        commands.wait(out.exists, "superlink", *SITES)
        seconds = json.loads(out.read_text())[1:]
    return describe("seconds of a round", seconds)


def can_connect(port: int) -> bool:
    """Whether somebody listens on a port."""
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def describe(name: str, values: Sequence[float]) -> dict[str, Any]:
    """Median, 90 % quantile and all values."""
    quantile = statistics.quantiles(values, n=10, method="inclusive")[-1]
    return {
        f"{name}, median": statistics.median(values),
        f"{name}, 90 % quantile": quantile,
        name: values,
    }


def main() -> None:
    """Measure, print, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, help="of Coterie")
    parser.add_argument("--stock-rounds", type=int, default=6, help="of Flower; 0: leave it out")
    parser.add_argument("--out", type=Path, default=HERE / "sites.json")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    require_flower()  # no telemetry, no check for updates, no installations
    found: dict[str, Any] = {"load before, processes": os.getloadavg()[0]}
    with TemporaryDirectory() as name:
        folder = Path(name)
        found["coterie"] = measure_coterie(folder / "coterie", options.rounds)
        if options.stock_rounds:
            size = found["coterie"]["bytes to a client"]
            found["stock"] = measure_stock(folder / "stock", options.stock_rounds, size)
            ratio = found["stock"]["seconds of a round, median"]
            found["stock / coterie"] = ratio / found["coterie"]["seconds beyond training, median"]
    for who in ("coterie", "stock"):
        for figure, value in found.get(who, {}).items():
            if not isinstance(value, list):
                print(f"{who:<8} {figure}: {value:,.3f}")
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
