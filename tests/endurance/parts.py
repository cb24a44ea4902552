"""The parts of `make endurance`: which promise each holds, and how often it is tried."""

import contests
import disk
import executors
import hostile
import kills
import privacy
import reads
import rounds
import signals
import sites
import survivors
from bench import Part


def _script(name: str, *options: str) -> tuple[str, ...]:
    return (f"tests/endurance/{name}", *options)


def _tests(*files: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-p", "no:cacheprovider", *files)


PARTS = (
    Part("kills", 1, "a process killed at a random time, seven stateful methods", 200, kills.bench),
    Part(
        "operations",
        1,
        "SIGKILL before each file operation, of all stateful methods",
        disk.KILLS,
        disk.killed,
    ),
    Part(
        *("nodes", 1, "a node of Ray killed at a random time", 20),
        command=_script("cluster.py", "--kills", "{n}", "--seed", "{first}"),
        step=20,
    ),
    Part("sites", 1, "server or client of deployed sites killed in turn", 40, sites.bench),
    Part(
        *("soak", 1, "kills, deaths, drop-outs and hostile clients at once", 1),
        command=_script("soak.py", "--minutes", "50"),
    ),
    Part("deaths", 2, "a worker killed in 30 % of tasks of a run", 100, survivors.deaths),
    Part("dropouts", 3, "six drop-out rates, 20 seeds each", 120, survivors.dropouts),
    Part("rounds", 3, "a random run against a model of twenty lines", 2_000, rounds.bench),
    Part(
        *("hosts", 3, "sites in two network name spaces, connections cut", 1),
        command=_script("hosts.py"),
    ),
    Part("updates", 4, "a round with generated hostile updates", 10_000, hostile.updates),
    Part(
        "payloads",
        5,
        "a damaged payload, decoded in four ways, each below 50 ms",
        10_000,
        hostile.payloads,
    ),
    Part(
        *("damage", 6, "1,000 bits flipped, 1,000 files cut, others swapped or lost", 2_400),
        command=_script("damage.py", "--trials", "{n}", "--seed", "{first}"),
        step=100,
    ),
    Part(
        "disk",
        7,
        "each file operation of two runs fails, in three ways",
        disk.FAULTY,
        disk.main_process,
    ),
    Part(
        "worker-disk",
        7,
        "each file operation of a worker fails, in three ways",
        disk.FAULTY_WORKER,
        disk.worker,
    ),
    Part("reads", 7, "a read of a run that is resumed fails", 160, reads.bench),
    Part("full-disk", 7, "a file system in memory that is full", 50, disk.full),
    Part(
        "races",
        8,
        "two commands for one run directory, the loser ends within 1 s",
        100,
        contests.races,
    ),
    Part(
        *("bad-input", 9, "wrong configurations and data, in 3 s of processor time", 90),
        command=_tests("tests/integration/test_bad_input.py", "tests/integration/test_bad_data.py"),
        step=90,
    ),
    Part("signals", 10, "SIGINT or SIGTERM amid a run, on two executors", 100, signals.local),
    Part("ray-signals", 10, "SIGINT or SIGTERM, on two nodes of Ray", 50, signals.cluster),
    Part("site-signals", 10, "SIGINT or SIGTERM to a server or client", 50, signals.deployed),
    Part(
        *("executors", 11, "a method and seed on six executors", len(executors.PAIRS)),
        executors.bench,
    ),
    Part(
        *("mismatches", 12, "wrong peers at a deployed run, in versions, settings, schema", 20),
        command=_script("mismatches.py", "--peers", "{n}"),
        step=20,
    ),
    Part(
        "intruders",
        13,
        "eleven intruders at a deployed run",
        11,
        command=_script("refusals.py"),
        step=11,
    ),
    Part("privacy", 14, "neighbouring sets of clients, published values", 1_000, privacy.bench),
    Part(
        *("memory", 15, "500 rounds of 500 clients with states", 1),
        command=_script(
            *("memory.py", "--clients", "500", "--rounds", "500"),
            *("--fraction", "1.0", "--method", "moon", "--every", "5"),
        ),
    ),
    Part(
        *("uploads", 15, "large uploads, little memory", 1),
        command=_script("blob_memory.py"),
    ),
)
