"""Two hosts with a bad network between them: `coterie deploy` must keep its bits and its clients.

    python tests/endurance/hosts.py

The server is in one network namespace, two clients are in another, and all that they say passes a
proxy which delays it by 100 ms each way and cuts every connection 30 s after it was opened, also in
the middle of a transfer. A stateful method and one with uploads of several MB must end as the same
federation simulated in one process, with no client lost in any round. What is not for clients must
be refused to whoever reaches the server's own address. Needs root and `ip` (iproute2).
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NoReturn

TESTS = Path(__file__).parent.parent
sys.path[0:1] = [str(TESTS), str(TESTS / "unit" / "deploy")]

import fleet  # noqa: E402

import coterie  # noqa: E402

SERVER, PROXY, CLIENTS, PORT = "192.0.2.1", "192.0.2.2", "192.0.2.3", 9092
SITES = fleet.NAMES[:2]
METHODS = {
    "scaffold": 'net = { backbone = "mlp", projection = 64 }\nmethod = { name = "scaffold" }',
    # 84 x 16384 weights in the last layer of the projector: 6 MB, which is two chunks
    "moon": 'net = { backbone = "simple-cnn", projection = 16384 }\n'
    'method = { name = "moon", mu = 1.0 }',
}
CONFIG = """
run = {{ seed = 5, rounds = {rounds} }}
{parts}
local = {{ epochs = 1, batch_size = 16, lr = 0.01 }}
evaluate = {{ every = 1, with = ["personal"] }}
cohort = {{ min_clients = 2 }}
"""
CALL = """
import ssl, sys
import httpx
context = ssl.create_default_context(cafile=sys.argv[2])
response = httpx.post(sys.argv[1], verify=context, trust_env=False)
print(response.status_code, response.text)
"""
REFUSAL = "403 not served to the network"
_LIMIT, _LAST_WORDS, _END = 1800.0, 300.0, 10.0  # seconds; for busy machines


class Hosts:
    """Two network namespaces with a cable between them, and the processes in them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server, self.clients = (f"coterie-{os.getpid()}-{end}" for end in ("s", "c"))
        self._made: list[str] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        source = str(TESTS.parent / "src")
        paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}

    def connect(self) -> None:
        """Make the namespaces and the cable, with two addresses at the server's end."""
        for space in (self.server, self.clients):
            _ip("netns", "add", space)
            self._made.append(space)
        cable = ("link", "add", "eth0", "netns", self.server, "type", "veth")
        _ip(*cable, "peer", "name", "eth0", "netns", self.clients)
        addresses = {self.server: (SERVER, PROXY), self.clients: (CLIENTS,)}
        for space, own in addresses.items():
            for address in own:
                _ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                _ip("-n", space, "link", "set", device, "up")

    def start(self, space: str, log: str, *words: str) -> "subprocess.Popen[bytes]":
        """Start a Python program in a namespace; what it prints goes to a file."""
        with (self.folder / log).open("wb") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", space, sys.executable, *words],
                cwd=self.folder,
                env=self._environment,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches this program, which ends the others
            )
        self._processes.append(process)
        return process

    def run(self, space: str, log: str, *words: str) -> str:
        """Run a program to its end; return what it printed."""
        status = self.start(space, log, *words).wait(_LAST_WORDS)
        printed = (self.folder / log).read_text().strip()
        if status:
            raise RuntimeError(f"{' '.join(words[:4])} ended with {status}: {printed}")
        return printed

    def read_until(self, log: str, words: str, process: "subprocess.Popen[bytes]") -> None:
        """Wait until a program has printed some words."""
        deadline = time.monotonic() + _LAST_WORDS
        while words not in (text := (self.folder / log).read_text()):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{log} never had {words!r}: {text}")
            time.sleep(0.1)

    def end(self, *processes: "subprocess.Popen[bytes]") -> None:
        """End programs, by force if they take their time."""
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def remove(self) -> None:
        """End all programs and remove the namespaces, and with them the cable."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C would leave something behind
        self.end(*(process for process in self._processes if process.poll() is None))
        for space in self._made:
            subprocess.run(["ip", "netns", "delete", space], check=False)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


@contextlib.contextmanager
def two_hosts(folder: Path) -> Iterator[Hosts]:
    """Make two hosts; remove them and their programs, whatever happens."""
    hosts = Hosts(folder)
    try:
        try:
            hosts.connect()
        except subprocess.CalledProcessError as error:
            _give_up(f"'{' '.join(error.cmd)}' failed: {error.stderr.strip()}")
        yield hosts
    finally:
        hosts.remove()


def _give_up(reason: str) -> NoReturn:
    print(f"hosts.py makes network namespaces, which is impossible here: {reason}", file=sys.stderr)
    sys.exit(2)


def prepare(hosts: Hosts) -> Path:
    """Write the sites' data, certificates that name the proxy, and keys; return the data."""
    deploy = ("-m", "coterie", "deploy")
    names = ("--host", PROXY, "--host", SERVER)  # the second one for who reaches it directly
    hosts.run(hosts.server, "certs.txt", *deploy, "certs", "certs", *names)
    registered = hosts.folder / "registered"
    registered.mkdir()
    for site in SITES:
        hosts.run(hosts.clients, f"{site}-key.txt", *deploy, "keys", f"at-{site}", site)
        shutil.copy(hosts.folder / f"at-{site}" / f"{site}.pub", registered)
    return fleet.write_sites(hosts.folder / "sites", SITES, images=True)


def call_control(hosts: Hosts) -> bool:
    """Ask the server's own address to start a run, with the authority's certificate only."""
    url = f"https://{SERVER}:{PORT}/v1/control/start-run"
    answer = hosts.run(hosts.clients, "control.txt", "-c", CALL, url, "certs/ca.pem")
    print(f"Control API at the server's own address: {answer}", flush=True)
    return answer == REFUSAL


def deploy(hosts: Hosts, name: str, out: Path, delay: float, cut: float) -> tuple[bool, list[int]]:
    """Run a configuration over the proxy; return whether all went well, and the cuts."""
    ends = (f"{PROXY}:{PORT}", f"{SERVER}:{PORT}")
    limits = ("--delay", str(delay), "--cut", str(cut))
    log = f"{name}-proxy.txt"
    proxy = hosts.start(hosts.server, log, str(TESTS / "slow_proxy.py"), *ends, *limits)
    hosts.read_until(log, "ready", proxy)
    programs = {"server": hosts.start(hosts.server, f"{name}-server.txt", *_serve(name, out))}
    hosts.read_until(f"{name}-server.txt", "listening on", programs["server"])
    for site in SITES:
        programs[site] = hosts.start(hosts.clients, f"{name}-{site}.txt", *_work(name, site))
    fine = call_control(hosts)
    deadline = time.monotonic() + _LIMIT
    for program, process in programs.items():
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(1.0, deadline - time.monotonic()))
        deadline = min(deadline, time.monotonic() + _LAST_WORDS)  # clients end with the server
        if process.returncode != 0:
            fine = False
            printed = (hosts.folder / f"{name}-{program}.txt").read_text()[-2000:]
            print(f"{name}: {program} ended with {process.returncode}: {printed}", flush=True)
    hosts.end(*(each for each in (*programs.values(), proxy) if each.poll() is None))
    lines = (hosts.folder / log).read_text().splitlines()
    return fine, [int(line.split()[1]) for line in lines if line.startswith("cut")]


def _serve(name: str, out: Path) -> list[str]:
    where = ["--host", SERVER, "--port", str(PORT), "--out", str(out)]
    secured = ["--certificates", "certs", "--keys", "registered"]
    return ["-m", "coterie", "deploy", "server", f"{name}.toml", *where, *secured]


def _work(name: str, site: str) -> list[str]:
    where = ["--server", f"{PROXY}:{PORT}", "--folder", f"{name}-{site}"]
    secured = ["--ca", "certs/ca.pem", "--key", f"at-{site}/{site}.key"]
    return ["-m", "coterie", "deploy", "client", *where, *secured, "--data", f"sites/{site}.npz"]


def compare(deployed: Path, simulated: Path) -> tuple[bool, int]:
    """Return whether two runs have the same digests and model, and how often one lost a client."""
    if not (deployed / "model.safetensors").is_file():
        return False, 0
    models = [(run / "model.safetensors").read_bytes() for run in (deployed, simulated)]
    equal = fleet.digests(deployed) == fleet.digests(simulated) and models[0] == models[1]
    rounds = map(json.loads, (deployed / "metrics.jsonl").read_text().splitlines())
    return equal, sum(len(round["lost"]) + len(round["rejected"]) for round in rounds)


def endure(hosts: Hosts, sites: Path, name: str, options: argparse.Namespace) -> bool:
    """Run one method over the bad network and in one process; return whether all is well."""
    config = hosts.folder / f"{name}.toml"
    config.write_text(CONFIG.format(rounds=options.rounds, parts=METHODS[name]))
    deployed, simulated = (hosts.folder / f"{name}-{kind}" for kind in ("deployed", "simulated"))
    began = time.monotonic()
    fine, cuts = deploy(hosts, name, deployed, options.delay, options.cut)
    seconds = time.monotonic() - began
    changes = {"data.name": "sites", "data.root": str(sites), "executor.kind": "serial"}
    coterie.run(config, out=simulated, **changes)
    equal, lost = compare(deployed, simulated)
    busy = sum(waiting > 0 for waiting in cuts)
    print(
        f"{name}: {options.rounds} rounds in {seconds:.0f} s, {seconds / options.rounds:.1f} s a "
        f"round; {len(cuts)} connections cut, {busy} of them with data under way; "
        f"{lost} replies lost; {'equal' if equal else 'DIFFERENT'}",
        flush=True,
    )
    return fine and equal and not lost and len(cuts) >= 3


def main() -> None:
    """Run both methods; exit status 1 if anything differs, 2 if it cannot be tried here."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cut", type=float, default=30.0, help="seconds from the opening")
    parser.add_argument("--delay", type=float, default=0.1, help="seconds each way")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--methods", nargs="*", default=[*METHODS], choices=[*METHODS])
    options = parser.parse_args()
    if os.geteuid() != 0:
        _give_up("it needs root")
    if shutil.which("ip") is None:
        _give_up("there is no command 'ip' (iproute2)")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with TemporaryDirectory() as name:
        os.environ["COTERIE_CACHE"] = str(Path(name) / "cache")
        with two_hosts(Path(name)) as hosts:
            sites = prepare(hosts)
            fine = [endure(hosts, sites, method, options) for method in options.methods]
    sys.exit(not all(fine))


if __name__ == "__main__":
    main()
