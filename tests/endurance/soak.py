"""All at once for a long time: kills, deaths of workers, drop-outs and hostile clients.

    python tests/endurance/soak.py --minutes 60
    python tests/endurance/soak.py --rounds 12 --clients 20

As many rounds as fit, over 500 clients with states, a fifth of them in a round. Some tasks raise,
exit, or send NaN, huge entries or wrong shapes, and some clients drop out: so it is in two runs. In
the second one workers also die, and main process, workers and fork server are killed at random
times. Resumed until it is done, each time from its newest checkpoint, it must have the weights,
states and metrics of the first. Each of these faults must have happened.
"""

import argparse
import os
import random
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import bench

bench.compute_in_one_thread()
bench.find_modules()

import kills  # noqa: E402
import warm  # noqa: E402

import toy  # noqa: E402

CLIENTS = 500
TRIAL_ROUNDS = 6  # to see how long a round takes


def settings(data: Path, clients: int, rounds: int, deaths: str = "") -> dict[str, Any]:
    """The tables of a run."""
    return {
        "run": {"rounds": rounds, "seed": 2},
        "data": {"name": "arrays", "root": str(data)},
        "partition": {"kind": "iid", "clients": clients},
        "net": {"backbone": "logistic"},
        "method": {"name": "rude_methods:Wild", "folder": deaths},
        "cohort": {"fraction": 0.2, "drop_before": 0.1, "drop_after": 0.05},
        "evaluate": {"with": ["accuracy"], "every": 5},
        "executor": {"kind": "processes", "workers": 2},
        "checkpoint": {"every": 2},
    }


def run(folder: Path, name: str, tables: dict[str, Any]) -> tuple[Path, float]:
    """Do a run without disturbing it; its folder, and how long it took."""
    config, out, begin = kills.write_tables(folder, name, tables), folder / name, time.monotonic()
    words = ["run", str(config), "--out", str(out), "--resume"]
    status = warm.start(words, folder / f"{name}.log").wait(36_000.0)
    assert status == 0, (folder / f"{name}.log").read_text()[-1000:]
    return out, time.monotonic() - begin


def disturb(folder: Path, name: str, tables: dict[str, Any], pause: float, seed: int) -> int:
    """Do a run that is killed every few seconds, and judge every start; how often it was."""
    config, out = kills.write_tables(folder, name, tables), folder / name
    words = ["run", str(config), "--out", str(out), "--resume"]
    generator, killed, log = random.Random(seed), 0, folder / f"{name}.log"
    status: int | None = None
    while status != 0:
        committed = kills.count_committed(out, tables["checkpoint"]["every"])
        log.unlink(missing_ok=True)  # one that is killed at once must not have that of another
        process = warm.start(words, log)
        # so that the shortest run is killed too, the first time is in its first rounds
        _let_run(process, pause * generator.uniform(0.5, 1.5), None if killed else out)
        kind = generator.choice(kills.KINDS) if killed else "main"
        hits: list[str] = []
        if process.poll() is None and kills.strike(process, kind, generator, kind in kills.MAIN):
            hits.append(kind)
        _let_run(process, pause)  # it survives the death of a worker or of the fork server
        if process.poll() is None and kills.strike(process, "main", generator):
            hits.append("main")
        status, killed = process.wait(), killed + len(hits)
        assert kills.ended_well(status, hits[-1] if hits else ""), (
            f"ended with {status}, killed: {hits}: {log.read_text()[-1000:]}"
        )
        problem = kills.restarted(kills.read_start(log), committed)
        assert not problem, problem
    return killed


def _let_run(process: warm.Process, seconds: float, out: Path | None = None) -> None:
    """Wait for the end of a process, or a time, or the first round of `out`."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        if out and kills.count_rounds(out):
            break
        time.sleep(0.002)


def main() -> None:
    """Soak, report; exit status 1 if the two runs differ, or a kind of fault never happened."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=0, help="so many, whatever time they take")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rounds, clients = options.rounds, options.clients
    with bench.workplace() as folder:
        data = toy.write_data(folder / "many.npz", train=clients * 8, test=300)
        run(folder, "imports", settings(data, clients, 1))
        warm.import_all(folder / "imports.log")
        _, start = run(folder, "start", settings(data, clients, 1))
        _, few = run(folder, "few", settings(data, clients, TRIAL_ROUNDS))
        seconds = max(0.01, (few - start) / (TRIAL_ROUNDS - 1))
        pause = start + min(12.0, rounds / 2 or 12.0) * seconds
        rounds = rounds or int(max(12.0, 60.0 * options.minutes - 3 * few) / (3.0 * seconds))
        print(f"{rounds} rounds of {seconds:.2f} s, a kill every {pause:.1f} s", flush=True)
        whole, took = run(folder, "whole", settings(data, clients, rounds))
        print(f"left alone: {took / 60.0:.1f} minutes", flush=True)
        deaths = folder / "deaths"
        deaths.mkdir()
        begin = time.monotonic()
        tables = settings(data, clients, rounds, str(deaths))
        killed = disturb(folder, "disturbed", tables, pause, options.seed)
        died = len(os.listdir(deaths))  # noqa: PTH208
        print(f"disturbed: {(time.monotonic() - begin) / 60.0:.1f} minutes", flush=True)
        lines, found = toy.trace(whole), toy.trace(folder / "disturbed")
        models = [(one / "model.safetensors").read_bytes() for one in (whole, folder / "disturbed")]
        equal = lines == found and models[0] == models[1]
        rejected, lost = (sum(len(line[key]) for line in lines) for key in ("rejected", "lost"))
    print(f"{killed} kills, {died} workers died, {rejected} tasks rejected, {lost} clients lost")
    happened = all((killed, died, rejected, lost))
    if not happened:
        print("a fault never happened: more rounds or clients are needed")
    print(f"{int(equal)} of 1 equal after {len(found)} rounds")
    sys.exit(not (equal and happened))


if __name__ == "__main__":
    main()
