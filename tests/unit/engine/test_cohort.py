"""Who takes part and who is lost: pure functions of the seed and the round."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from coterie.core.settings import Cohort
from coterie.core.task import ClientInfo
from coterie.engine.cohort import draw_dropouts, invite
from coterie.kit import Stage

TRAIN = Stage("train", 10)


def invited(
    clients: Sequence[ClientInfo], stage: Stage, fraction: float, seed: int, round: int
) -> list[int]:
    return list(invite(clients, stage, Cohort(fraction=fraction), seed, round).clients)


def clients(count: int) -> list[ClientInfo]:
    """Clients of various sizes, with ties."""
    return [ClientInfo(k, f"client-{k}", 10 + 7 * k % 5) for k in range(count)]


def test_the_same_arguments_give_the_same_cohort() -> None:
    random.seed(1)
    first = invited(clients(50), TRAIN, 0.2, seed=3, round=7)
    random.seed(2)
    assert invited(clients(50), TRAIN, 0.2, seed=3, round=7) == first


def test_seed_and_round_change_the_cohort() -> None:
    found = [tuple(invited(clients(50), TRAIN, 0.2, seed, t)) for seed in (1, 2) for t in range(20)]
    assert len(set(found)) == len(found)


def test_the_cohort_does_not_depend_on_the_order_in_which_clients_are_listed() -> None:
    listed = clients(30)
    expected = invited(listed, TRAIN, 0.3, seed=5, round=2)
    random.Random(0).shuffle(listed)
    assert invited(listed, TRAIN, 0.3, seed=5, round=2) == expected


@pytest.mark.parametrize(
    ("count", "fraction", "size"),
    [
        (10, 1.0, 10),
        (10, 0.5, 5),
        (10, 0.19, 1),
        (10, 0.01, 1),
        (100, 0.29, 29),  # 28.999999999999996 in floating point
        (100, 0.07, 7),
        (3, 0.99, 2),
        (1, 0.5, 1),
    ],
)
def test_sizes(count: int, fraction: float, size: int) -> None:
    found = invited(clients(count), TRAIN, fraction, seed=0, round=0)
    assert len(found) == len(set(found)) == size
    assert set(found) <= set(range(count))


def test_largest_first_and_ties_by_id() -> None:
    listed = [ClientInfo(4, "e", 5), ClientInfo(1, "b", 9), ClientInfo(3, "d", 9)]
    listed += [ClientInfo(0, "a", 5), ClientInfo(2, "c", 70)]
    assert invited(listed, TRAIN, 1.0, seed=0, round=0) == [2, 1, 3, 0, 4]
    by_id = {info.id: info for info in clients(40)}
    for round in range(10):
        found = invited(clients(40), TRAIN, 0.5, seed=0, round=round)
        keys = [(-by_id[client].examples, client) for client in found]
        assert keys == sorted(keys)


def test_stages_decide_who_is_asked() -> None:
    everyone = sorted(range(20), key=lambda k: (-clients(20)[k].examples, k))
    assert invited(clients(20), Stage("cluster", 1, cohort="all"), 0.1, 0, 0) == everyone
    assert invited(clients(20), Stage("contrast", 1, cohort="none"), 1.0, 0, 0) == []
    assert len(invited(clients(20), Stage("train", 1), 0.1, 0, 0)) == 2


def test_nobody_to_ask() -> None:
    assert invited([], TRAIN, 0.5, 0, 0) == []


def test_every_client_is_asked_equally_often() -> None:
    rounds = 2000
    asked = Counter(
        client for t in range(rounds) for client in invited(clients(10), TRAIN, 0.3, 1, t)
    )
    assert sum(asked.values()) == 3 * rounds
    assert all(abs(count - 0.3 * rounds) < 100 for count in asked.values())  # five deviations


def test_without_settings_nobody_is_lost() -> None:
    assert draw_dropouts(range(100), TRAIN, Cohort(), 0, 0) == {}


def test_certain_losses() -> None:
    ids = list(range(9))
    assert draw_dropouts(ids, TRAIN, Cohort(drop_before=1.0), 0, 0) == dict.fromkeys(ids, "before")
    assert draw_dropouts(ids, TRAIN, Cohort(drop_after=1.0), 0, 0) == dict.fromkeys(ids, "after")
    both = Cohort(drop_before=1.0, drop_after=1.0)
    assert draw_dropouts(ids, TRAIN, both, 0, 0) == dict.fromkeys(ids, "before")


def test_each_clients_fate_is_its_own() -> None:
    settings = Cohort(drop_before=0.3, drop_after=0.3)
    for round in range(20):
        together = draw_dropouts(range(40), TRAIN, settings, 8, round)
        alone = {
            client: fate
            for client in reversed(range(40))
            for fate in draw_dropouts([client], TRAIN, settings, 8, round).values()
        }
        assert alone == together


def test_fates_change_with_seed_round_and_client() -> None:
    settings = Cohort(drop_before=0.5)
    fates = {
        tuple(draw_dropouts(range(40), TRAIN, settings, seed, t))
        for seed in (1, 2)
        for t in range(20)
    }
    assert len(fates) == 40


def test_rates_of_loss() -> None:
    found = Counter(
        fate
        for t in range(50)
        for fate in draw_dropouts(
            range(100), TRAIN, Cohort(drop_before=0.2, drop_after=0.5), 1, t
        ).values()
    )
    assert abs(found["before"] / 5000 - 0.2) < 0.03
    assert abs(found["after"] / 5000 - 0.8 * 0.5) < 0.04


@pytest.mark.parametrize(
    ("count", "drop", "lost"),
    [(10, 0.3, 3), (10, 0.29, 2), (100, 0.29, 29), (3, 0.3, 0), (4, 1.0, 4)],
)
def test_a_stage_drops_an_exact_share(count: int, drop: float, lost: int) -> None:
    ids = list(range(5, 5 + count))
    for round in range(5):
        found = draw_dropouts(ids, Stage("train", 5, drop=drop), Cohort(), 0, round)
        assert set(found) <= set(ids)
        assert list(found.values()) == ["before"] * lost


def test_a_stages_drop_goes_before_a_lost_upload() -> None:
    everyone = Stage("train", 5, drop=1.0)
    found = draw_dropouts(range(6), everyone, Cohort(drop_after=1.0), 0, 0)
    assert found == dict.fromkeys(range(6), "before")


def test_a_stage_drops_others_in_every_round() -> None:
    half = Stage("train", 20, drop=0.5)
    found = {tuple(sorted(draw_dropouts(range(20), half, Cohort(), 3, t))) for t in range(20)}
    assert len(found) == 20
    assert draw_dropouts(range(20), half, Cohort(), 3, 4) == draw_dropouts(
        range(20), half, Cohort(), 3, 4
    )


def test_a_steady_stage_drops_the_same_in_every_round() -> None:
    half = Stage("upload", 1, drop=0.5, steady=True)
    found = {tuple(sorted(draw_dropouts(range(20), half, Cohort(), 3, t))) for t in range(20)}
    assert len(found) == 1 and len(next(iter(found))) == 10
    others = draw_dropouts(range(20), Stage("other", 1, drop=0.5, steady=True), Cohort(), 3, 0)
    assert tuple(sorted(others)) not in found
    assert draw_dropouts(range(20), half, Cohort(), 4, 0).keys() != set(next(iter(found)))


def test_nobody_invited_nobody_lost() -> None:
    assert draw_dropouts([], Stage("train", 1, drop=0.5), Cohort(drop_before=0.5), 0, 0) == {}
