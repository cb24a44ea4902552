"""Addressed randomness: the same address draws the same numbers, no two addresses meet."""

import random
from itertools import product

import numpy as np
import pytest
import torch

from coterie.core import seeds
from coterie.core.task import Round


def first_draws(**address: int | str) -> bytes:
    full = {"seed": 7, "purpose": "order", "round": 3, "client": 5} | address
    return seeds.generator(**full).bytes(16)  # type: ignore[arg-type]


def global_draws() -> tuple[float, float, float]:
    return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002


def test_an_address_always_draws_the_same() -> None:
    assert first_draws() == first_draws()


def test_every_part_of_an_address_matters() -> None:
    others = [
        first_draws(seed=8),
        first_draws(seed=7 + 2**32),
        first_draws(purpose="view"),
        first_draws(purpose=""),
        first_draws(round=4),
        first_draws(client=6),
        first_draws(client=seeds.NOBODY),
        first_draws(round=5, client=3),
    ]
    assert len({first_draws(), *others}) == len(others) + 1


def test_many_addresses_give_distinct_streams() -> None:
    addresses = product((0, 1, 2**40), ("cohort", "train/order/0"), range(12), range(-1, 12))
    streams = [seeds.generator(*address).bytes(16) for address in addresses]
    assert len(set(streams)) == len(streams) == 3 * 2 * 12 * 13


def test_the_default_address_is_the_whole_run() -> None:
    explicit = seeds.generator(7, "x", 0, seeds.NOBODY)
    assert seeds.generator(7, "x").bytes(16) == explicit.bytes(16)


def test_streams_are_stable_over_versions() -> None:
    assert seeds.generator(0, "cohort", 1, 2).integers(2**32, size=2).tolist() == [
        1107504188,
        3566224841,
    ]
    assert seeds.torch_seed(0, "task", 1) == 1731749331


def test_derived_seeds() -> None:
    found = {seeds.derive(7, "probe", round, client) for round in range(30) for client in range(30)}
    assert len(found) == 900
    assert all(0 <= seed < 2**62 for seed in found)
    assert seeds.derive(7, "probe", 1, 2) == seeds.derive(7, "probe", 1, 2)


def mix_many(indices: np.ndarray) -> np.ndarray:
    """`mix32` for an array: the same words, to look at many of them."""
    mixed = indices.astype(np.uint32)
    mixed ^= mixed >> np.uint32(16)
    mixed *= np.uint32(0x85EBCA6B)
    mixed ^= mixed >> np.uint32(13)
    mixed *= np.uint32(0xC2B2AE35)
    return mixed ^ mixed >> np.uint32(16)


def test_mix32_is_a_bijection_on_a_large_sample() -> None:
    spread = np.random.default_rng(1).integers(2**32, size=300_000)
    indices = np.unique(np.concatenate([np.arange(300_000), spread]))
    assert len(np.unique(mix_many(indices))) == len(indices)
    some = indices[:: len(indices) // 2000]
    assert [seeds.mix32(int(index)) for index in some] == mix_many(some).tolist()


def test_mix32_can_be_undone() -> None:
    def undo(mixed: int) -> int:
        mixed ^= mixed >> 16
        mixed = mixed * pow(0xC2B2AE35, -1, 2**32) % 2**32
        mixed ^= mixed >> 13 ^ mixed >> 26
        mixed = mixed * pow(0x85EBCA6B, -1, 2**32) % 2**32
        return mixed ^ mixed >> 16

    for index in (0, 1, 2, 2**16, 2**31, 2**32 - 1, 123_456_789):
        assert undo(seeds.mix32(index)) == index
    assert seeds.mix32(2**32 + 5) == seeds.mix32(5)


def test_torch_seeds_do_not_collide() -> None:
    found = {seeds.torch_seed(3, "task", index) for index in range(400_000)}
    assert len(found) == 400_000
    assert all(0 <= seed < 2**32 for seed in found)


def test_torch_seeds_of_rounds_clients_and_the_server_do_not_collide() -> None:
    rounds = [Round(index, 40, "train", index, 40, 25, seed=9) for index in range(40)]
    found = [one.torch_seed(client) for one in rounds for client in (None, *range(25))]
    assert len(set(found)) == len(found) == 40 * 26


def test_torch_seeds_begin_again_after_all_that_torch_has() -> None:
    """100,000 rounds of a billion clients: numpy's draws differ even there."""
    clients = 2**32 - 1
    first, later = (Round(i, 2, "t", i, 2, clients, seed=9) for i in (0, 1))
    assert first.torch_seed(3) == later.torch_seed(3) < 2**32
    assert first.generator("order", 3).bytes(16) != later.generator("order", 3).bytes(16)
    last = Round(10**5 - 1, 10**5, "t", 10**5 - 1, 10**5, 10**9, seed=9)
    assert 0 <= last.torch_seed(10**9 - 1) < 2**32


def test_a_round_addresses_its_own_draws() -> None:
    place = Round(3, 10, "train", 3, 10, 8, seed=7)
    assert place.generator("order", 5).bytes(16) == first_draws()
    assert place.generator("order").bytes(16) == first_draws(client=seeds.NOBODY)


def test_scoped_seeds_the_three_global_generators() -> None:
    with seeds.scoped(11):
        first = global_draws()
    with seeds.scoped(11):
        assert global_draws() == first
    with seeds.scoped(12):
        assert all(one != other for one, other in zip(global_draws(), first, strict=True))


def restored_after(scope: BaseException | None) -> bool:
    """Whether draws after a scope are those that would have come without it."""
    with seeds.scoped(1):
        global_draws()
        expected = global_draws(), global_draws()
    with seeds.scoped(1):
        global_draws()
        found = [global_draws()]
        try:
            with seeds.scoped(2):
                global_draws()
                if scope is not None:
                    raise scope
        except (ValueError, KeyboardInterrupt):
            pass
        found.append(global_draws())
    return tuple(found) == expected


@pytest.mark.parametrize("error", [None, ValueError("x"), KeyboardInterrupt()])
def test_scoped_restores_the_global_generators(error: BaseException | None) -> None:
    assert restored_after(error)


@pytest.mark.parametrize("seed", [0, 2**32 - 1])
def test_scoped_takes_all_32_bits(seed: int) -> None:
    with seeds.scoped(seed):
        assert torch.initial_seed() == seed
