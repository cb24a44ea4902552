"""The parts of `make endurance`: which promise each holds, and how often it is tried."""

import contests
import hostile
import kills
import survivors
from bench import Part

PARTS = (
    Part(
        "kills",
        1,
        "SIGKILL at random times of the main process, a worker, both, or the fork server of a run "
        "of MOON, SCAFFOLD, FedSSC, BYOL, Per-SSFL, Orchestra or MFCL, twice; resumed to its end",
        200,
        kills.bench,
    ),
    Part(
        "deaths",
        2,
        "a worker killed in 30 % of tasks; equal to a run told who dies three times",
        100,
        survivors.deaths,
    ),
    Part(
        "dropouts",
        3,
        "drop-out rates of 0, 10, 30, 50, 90 and 100 %; equal to a run told the survivors",
        120,
        survivors.dropouts,
    ),
    Part(
        "updates",
        4,
        "a round in which half of the clients send what they must not; equal to the mean of the "
        "others",
        10_000,
        hostile.updates,
    ),
    Part(
        "payloads",
        5,
        "a damaged payload decoded in four ways: only `CodecError`, below 50 ms of processor time",
        10_000,
        hostile.payloads,
    ),
    Part(
        "races",
        8,
        "two commands for one run directory, half of them with the lock of a killed process",
        100,
        contests.races,
    ),
    Part(
        "signals",
        10,
        "SIGINT or SIGTERM at a random time, serial and processes in turn; resumed to its end",
        100,
        contests.signals,
    ),
)
