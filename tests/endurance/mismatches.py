"""Twenty wrong peers at one deployed run: each differs in one thing, and is refused for it.

    python tests/endurance/mismatches.py

A server and three clients, over TLS with keys, and a fourth key that only wrong peers have. The
first of them is taken into the federation, as its data fit; it and all others are refused in the
middle of the run, one after the other, when they get their first task. Each must end with its
reason, which the server must have recorded too, and the run must have the bits of the three clients
alone.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import bench

if __name__ == "__main__":
    bench.compute_in_one_thread()
bench.find_modules()

import fleet  # noqa: E402
import numpy as np  # noqa: E402
import refusals  # noqa: E402
import warm  # noqa: E402
import warm_sites  # noqa: E402
from refusals import Intruder  # noqa: E402

from site_processes import wait_for_rounds  # noqa: E402

WRONG = "x-wrong"  # behind the names of the good clients, so that these keep their numbers
PER_PEER = 20  # rounds: enough to come, to be refused, and to be seen to be gone
HASH = "from coterie.experiment.config import Config; Config.hash = lambda self: '0' * 64"
RENAMED = """
from coterie.nets.backbones import mlp
class Renamed(mlp.MLP):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.body = self.layers
        del self.layers
    def forward(self, x):
        return self.body(x)
mlp.MLP = Renamed
"""
WIDER = "from coterie.nets.backbones import mlp; mlp._HIDDEN = mlp.MLP.width = 201"
CHANGED = """
import torch
from coterie.nets.backbones import mlp
first = mlp.MLP.__init__
def init(self, *arguments):
    first(self, *arguments)
    {change}
mlp.MLP.__init__ = init
"""
DOUBLE = CHANGED.format(change="self.layers[1].double()")
LONGER = CHANGED.format(change="self.register_buffer('more', torch.zeros(1))")


def settings(root: Path, rounds: int) -> dict[str, Any]:
    """A method of the user's own, whose clients have states."""
    method = {"name": "toy_methods:Faulty"}
    run = {"rounds": rounds, "seed": 5}
    return fleet.tables(root, run=run, method=method, evaluate={"every": 0})


def list_peers(sites: warm_sites.Sites, folder: Path) -> list[Intruder]:
    """All wrong peers; the first is in the federation before the first round."""
    peers: list[tuple[str, str, tuple[str, ...], str]] = [
        ("another shape", "networks have the schema", (), WIDER),
        ("another name", "networks have the schema", (), RENAMED),
        ("another dtype", "networks have the schema", (), DOUBLE),
        ("a tensor more", "networks have the schema", (), LONGER),
    ]
    for value in ("1", "3", "'2'"):
        change = f"from coterie.deploy import handshake; handshake.PROTOCOL = {value}"
        reason = f"speaks protocol 2, this client {value.strip(chr(39))}"
        peers.append((f"protocol {value}", reason, (), change))
    for module, version in (("coterie", "0.1.0"), ("coterie", "99.0"), ("torch", "1.13.0")):
        change = f"import {module}; {module}.__version__ = '{version}'"
        peers.append((f"{module} {version}", f"this client {version}", (), change))
    agreed = (sites.folder / "run.toml").read_text()
    changes = {"lr = 0.05": "lr = 0.06", "seed = 5": "seed = 6", "epochs = 1": "epochs = 2"}
    for key, other in changes.items():
        file = folder / f"{other}.toml"
        assert agreed.count(key) == 1, key
        file.write_text(agreed.replace(key, other))
        options = ("--config", str(file))
        peers.append((f"agreed on {other}", "another configuration", options, ""))
    missing = "import sys; sys.modules['toy_methods'] = None"
    peers.append(("another hash", "does not have the hash", (), HASH))
    peers.append(("no such method", "cannot be used here", (), missing))
    peers.append(("own code denied", "code that is not Coterie's", (), "--own-code"))
    for what, reason, data in _write_data(sites.data / "amiens.npz", folder):
        peers.append((what, reason, ("--data", str(data)), ""))
    # a reason is repeated until the next peer comes, so that neighbours must differ in theirs
    mixed = [peer for first in range(4) for peer in peers[first::4]]
    assert all(one[1] != next_[1] for one, next_ in pairwise(mixed))
    return [_complete(sites, *peer) for peer in mixed]


def _complete(
    sites: warm_sites.Sites, what: str, reason: str, options: tuple[str, ...], before: str
) -> Intruder:
    """Give a peer the key and folder of the fourth site; it may run the method unless it denies."""
    shared = ["--folder", str(sites.town.folder / WRONG / "site")]
    if before == "--own-code":
        before = ""
    else:
        shared.append("--own-code")
    return Intruder(what, reason, WRONG, (*shared, *options), before)


def _write_data(good: Path, folder: Path) -> Iterator[tuple[str, str, Path]]:
    """Data that do not fit: what is wrong, the reason of the refusal, the file."""
    with np.load(good) as arrays:
        x, y = arrays["x"], arrays["y"]
    pixels = np.zeros((len(y), 8, 8), np.uint8)
    pixels[:, 0, 0] = np.arange(len(y))
    wrong = {
        "fewer features": ("its samples are", x[:, :5], y),
        "images": ("its samples are", pixels, y),
        "another class": ("it has the class 7", x, np.where(y == 1, 7, y)),
        "fewer samples": ("training samples, and had", x[:90], y[:90]),
    }
    for what, (reason, samples, labels) in wrong.items():
        path = folder / f"{what}.npz"
        np.savez(path, x=samples, y=labels)
        yield what, reason, path


def reasons(out: Path) -> list[str]:
    """Why the server did without a client, by round."""
    lines = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return ["; ".join(line["lost"].values()) for line in lines]


def try_all(
    sites: warm_sites.Sites, folder: Path, tables: dict[str, Any], count: int
) -> tuple[int, int, int]:
    """Let some of them try; how many were refused, had their reason recorded here, and tried."""
    out, refused, recorded = sites.folder / "run", 0, 0
    server = sites.serve(out, tables)
    for name in fleet.NAMES:
        sites.join(name)
    peers = list_peers(sites, folder)[:count]
    for peer in peers:
        before = len(reasons(out)) if (out / "metrics.jsonl").exists() else 0
        refused += refusals.judge(sites, peer, refusals.send(sites, peer, folder))
        try:  # the server sees that it is gone
            wait_for_rounds(out, len(reasons(out)) + 1, server)
        except AssertionError as error:
            raise AssertionError(f"{error}: {sites.log('server').read_text()[-1000:]}") from error
        noted = reasons(out)[before:]
        recorded += any(peer.reason in reason for reason in noted)
        print(
            f"  rounds {before + 1} to {len(reasons(out))} on the server: {set(noted)}", flush=True
        )
    refusals.wait_to_end(out, server)
    sites.finish()
    return refused, recorded, len(peers)


def main() -> None:
    """Run, report; exit status 1 if one is not refused, or not recorded, or the bits differ."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", type=int, default=20)
    options = parser.parse_args()
    with bench.workplace() as folder:
        root = fleet.write_sites(folder / "sites")
        rounds = PER_PEER * (options.peers + 1)
        tables = settings(root, rounds)
        log = folder / "alone.log"
        alone = warm.spawn(lambda: fleet.simulate(root, folder / "alone", tables), log)
        assert alone.wait() == 0, log.read_text()[-500:]
        warm_sites.import_all(folder / "first", root, settings(root, 2))
        names = (*fleet.NAMES, WRONG)
        with warm_sites.sites(folder / "town", root, names) as sites:
            refused, recorded, tried = try_all(sites, folder, tables, options.peers)
        equal = fleet.digests(folder / "town" / "run") == fleet.digests(folder / "alone")
    print(f"the record of the run has the reason of {recorded}")
    print(f"{refused} of {tried} refused; the run is {'equal' if equal else 'DIFFERENT'}")
    sys.exit(min(refused, recorded) < tried or not equal)


if __name__ == "__main__":
    main()
