"""Who takes part in a round, and who is lost: pure functions of the seed and the round."""

from collections.abc import Sequence
from typing import Literal

from coterie.core import seeds
from coterie.core.settings import Cohort
from coterie.core.task import ClientId, ClientInfo, Stage


def sample(
    clients: Sequence[ClientInfo], stage: Stage, fraction: float, seed: int, round: int
) -> list[ClientId]:
    """The cohort, largest shard first: the order of start and of reduction.

    `m = max(1, int(N * fraction))` clients without replacement; a stage may ask all, or nobody.
    """
    if stage.cohort == "none":
        return []
    chosen = sorted(clients, key=lambda info: info.id)  # an executor lists them in any order
    size = max(1, int(len(chosen) * fraction + 1e-9))  # 100 * 0.29 is 28.999...
    if stage.cohort == "sample" and size < len(chosen):
        picks = seeds.generator(seed, "cohort", round).choice(len(chosen), size, replace=False)
        chosen = [chosen[pick] for pick in picks]
    return [info.id for info in sorted(chosen, key=lambda info: (-info.examples, info.id))]


def dropouts(
    ids: Sequence[ClientId], stage: Stage, cohort: Cohort, seed: int, round: int
) -> dict[ClientId, Literal["before", "after"]]:
    """Who is lost, and when. Each client's fate has its own address, whoever else is invited."""
    lost: dict[ClientId, Literal["before", "after"]] = {}
    for client in ids if cohort.drop_before or cohort.drop_after else ():
        before, after = seeds.generator(seed, "dropouts", round, client).random(2)
        if before < cohort.drop_before:
            lost[client] = "before"
        elif after < cohort.drop_after:
            lost[client] = "after"
    count = int(len(ids) * stage.drop + 1e-9)
    if count == 0:
        return lost
    draw = seeds.generator(seed, "stage-drop", round)
    if stage.steady:
        draw = seeds.generator(seed, f"stage-drop/{stage.name}")
    for pick in draw.choice(len(ids), count, replace=False):
        lost[ids[pick]] = "before"
    return lost
