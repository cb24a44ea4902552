"""What FedSSC sends a device: whose vectors are drawn for it, and which of them are kept."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from federation import CLASSES, COUNTS, SIZES, WIDTH, Federation, normal
from fedssc_loss import EVERY, fedssc
from torch import Tensor

from coterie.core.bundle import Bundle, Payload, ServerState
from coterie.core.errors import ConfigError
from coterie.methods.fedssc import FedSSC, draw


def pool(vectors: Tensor, counts: Tensor, clients: Tensor) -> dict[str, Tensor]:
    """What the server keeps of the devices' class means."""
    return {"vectors": vectors, "counts": counts, "clients": clients}


def upload(server: ServerState, rows: dict[int, tuple[Tensor, int]]) -> Payload:
    """Means and counts of the classes that a client speaks of."""
    zs = torch.zeros(CLASSES, WIDTH)
    n = torch.zeros(CLASSES, dtype=torch.int64)
    for k, (vector, count) in rows.items():
        zs[k], n[k] = vector, count
    return Bundle({"model": server["model"], "class_means": {"zs": zs}, "class_counts": {"n": n}})


def received(
    fed: Federation, server: ServerState, step: int, client: int
) -> tuple[Tensor, list[bool]]:
    """zs and the mask that a client gets in a round."""
    own = fed.address(server, fed.place(step), client)
    if own is None:
        return torch.zeros(CLASSES, WIDTH), [False] * CLASSES
    return own["representations"]["zs"], own["known"]["valid"].tolist()


def spread(owners: int, classes: int = CLASSES) -> tuple[Tensor, Tensor, Tensor]:
    """A pool in which everybody owns everything: vectors, counts, clients."""
    vectors = normal(3, owners, classes, WIDTH)
    return vectors, torch.full((owners, classes), 20), torch.arange(owners)


def rows_of(vector: Tensor, options: list[Tensor]) -> list[int]:
    return [place for place, one in enumerate(options) if torch.allclose(vector, one, atol=1e-6)]


def test_one_device_is_drawn_for_each_class() -> None:
    vectors, counts, clients = spread(4)
    picks = np.zeros((CLASSES, 4), int)
    together = 0
    for seed in range(400):
        generator = np.random.default_rng(seed)
        zs, known = draw(pool(vectors, counts, clients), 9, 1, generator, True)
        assert known.all()
        chosen = [rows_of(zs[k], list(vectors[:, k])) for k in EVERY]
        assert all(len(one) == 1 for one in chosen)
        for k, (pick,) in enumerate(chosen):
            picks[k, pick] += 1
        together += len({pick for (pick,) in chosen}) == 1
    assert (abs(picks - 100) < 45).all()  # five standard deviations
    assert together < 60  # classes are drawn apart: one in sixteen agrees by chance


def test_k_devices_are_drawn_without_replacement_and_averaged() -> None:
    vectors, counts, clients = spread(4, classes=1)
    options = [
        (vectors[i, 0] + vectors[j, 0]) / 2 for i in range(4) for j in range(i + 1, 4)
    ]  # no pair of one device with itself
    seen = set()
    for seed in range(100):
        zs, known = draw(pool(vectors, counts, clients), 9, 2, np.random.default_rng(seed), True)
        (pair,) = rows_of(zs[0], options)
        assert known.tolist() == [True]
        seen.add(pair)
    assert seen == set(range(6))


@pytest.mark.parametrize("k", [3, 7, 1000, "all"])
def test_fewer_than_k_are_all_averaged(k: Any) -> None:
    """And alike, whatever their numbers of samples."""
    vectors, counts, clients = spread(3)
    counts = counts + torch.arange(3)[:, None] * 50
    zs, known = draw(pool(vectors, counts, clients), 9, k, np.random.default_rng(0), True)
    np.testing.assert_allclose(zs, vectors.mean(dim=0), rtol=1e-5, atol=1e-6)
    assert known.all()


def test_nobody_is_drawn_for_k_of_zero() -> None:
    _, known = draw(pool(*spread(3)), 9, 0, np.random.default_rng(0), True)
    assert not known.any()


@pytest.mark.parametrize("k", [1, 2, "all"])
def test_only_owners_are_drawn(k: Any) -> None:
    """A count of zero is no vector: it is not averaged in as zeros."""
    vectors, counts, clients = spread(4)
    counts[[0, 2, 3], 0] = 0  # class 0: client 1 alone
    counts[:, 1] = 0  # class 1: nobody
    vectors[counts == 0] = 0.0
    for seed in range(20):
        zs, known = draw(pool(vectors, counts, clients), 9, k, np.random.default_rng(seed), True)
        assert known.tolist() == [True, False, True]
        np.testing.assert_allclose(zs[0], vectors[1, 0], rtol=1e-6)
        assert zs.isfinite().all()


def test_a_device_receives_others_vectors_unless_it_is_the_only_owner() -> None:
    vectors, counts, clients = spread(3)
    clients = torch.tensor([4, 0, 8])
    counts[[0, 2], 1] = 0  # class 1: client 0 alone
    for seed in range(30):
        zs, known = draw(pool(vectors, counts, clients), 0, 1, np.random.default_rng(seed), True)
        assert rows_of(zs[0], list(vectors[:, 0])) != [1]
        assert known.all()
        np.testing.assert_allclose(zs[1], vectors[1, 1], rtol=1e-6)
    zs, _ = draw(pool(vectors, counts, clients), 0, 9, np.random.default_rng(0), True)
    np.testing.assert_allclose(zs[0], vectors[[0, 2], 0].mean(dim=0), rtol=1e-5, atol=1e-6)
    for exclude_self in (True, False):  # Algorithm 1: the mean over all who own the class
        zs, _ = draw(
            pool(vectors, counts, clients), 0, "all", np.random.default_rng(0), exclude_self
        )
        np.testing.assert_allclose(zs[0], vectors[:, 0].mean(dim=0), rtol=1e-5, atol=1e-6)
    found = {
        tuple(
            rows_of(
                draw(pool(vectors, counts, clients), 0, 1, generator, False)[0][0],
                list(vectors[:, 0]),
            )
        )
        for generator in map(np.random.default_rng, range(30))
    }
    assert found == {(0,), (1,), (2,)}


def pooled(fed: Federation, owners: int = 6) -> tuple[ServerState, Tensor]:
    """A server to which so many clients reported all classes."""
    server, vectors = fed.start(), spread(owners)[0]
    uploads = {
        client: (30, upload(server, {k: (vectors[client, k], 12) for k in EVERY}))
        for client in range(owners)
    }
    return fed.collect(server, fed.place(0), uploads), vectors


@pytest.mark.parametrize("excluded", [{}, {"exclude_self": True}, {"exclude_self": False}])
def test_the_draw_may_belong_to_the_round_and_the_device(
    excluded: dict[str, bool], tmp_path: Path
) -> None:
    """Section V-B: vectors sent "to a device"; by default those of others."""
    fed = fedssc(tmp_path, shared_draw=False, **excluded)
    server, vectors = pooled(fed)
    picks = np.zeros((8, 6), int)
    for step in range(1, 9):
        for client in range(6):
            zs, known = received(fed, server, step, client)
            assert known == [True] * CLASSES
            assert torch.equal(zs, received(fed, server, step, client)[0])
            (picks[step - 1, client],) = rows_of(zs[0], list(vectors[:, 0]))
    assert all(len(set(row)) > 1 for row in picks.tolist())  # devices of a round differ
    assert all(len(set(column)) > 1 for column in picks.T.tolist())  # and rounds of a device
    assert (picks != np.arange(6)).all() == excluded.get("exclude_self", True)


@pytest.mark.parametrize("fields", [{}, {"exclude_self": False}, {"k_shared": 2}])
def test_one_draw_of_a_round_serves_all_devices(fields: dict[str, Any], tmp_path: Path) -> None:
    """Section III: in each round, for each class, the server selects a device at random."""
    fed = fedssc(tmp_path, **fields)
    server, vectors = pooled(fed)
    means = [[one] for one in vectors.transpose(0, 1)[0]]
    if "k_shared" in fields:
        means = [[a, b] for i, (a,) in enumerate(means) for (b,) in means[i + 1 :]]
    options = [torch.stack(chosen).mean(dim=0) for chosen in means]
    rounds = []
    for step in range(1, 60):
        found = [received(fed, server, step, client)[0] for client in range(6)]
        assert all(torch.equal(zs, found[0]) for zs in found)
        (pick,) = rows_of(found[0][0], options)
        rounds.append(pick)
    assert len(set(rounds)) > 5  # anybody's, and another one in other rounds


def test_one_draw_for_all_cannot_leave_each_device_out() -> None:
    with pytest.raises(ConfigError, match=r"exclude_self = true .* method\.shared_draw = false"):
        FedSSC(exclude_self=True)
    assert FedSSC(exclude_self=True, shared_draw=False).exclude_self


def test_before_the_first_reports_no_class_is_known(tmp_path: Path) -> None:
    fed = fedssc(tmp_path)
    assert received(fed, fed.start(), 0, 1)[1] == [False] * CLASSES


@pytest.mark.parametrize("stale", ["keep", "drop"])
def test_a_class_that_nobody_reported_this_round(stale: str, tmp_path: Path) -> None:
    fed = fedssc(tmp_path, stale=stale, k_shared="all", exclude_self=False)
    a, b, c = (normal(seed, WIDTH) for seed in range(3))
    server = fed.start()
    first = {0: (9, upload(server, {0: (a, 12)})), 1: (5, upload(server, {1: (b, 15)}))}
    server = fed.collect(server, fed.place(0), first)
    zs, known = received(fed, server, 1, 2)
    assert known == [True, True, False]
    np.testing.assert_allclose(zs[:2], torch.stack([a, b]), rtol=1e-6)
    # class 0 is missing for two rounds, class 1 is reported by another device
    for step in (1, 2):
        server = fed.collect(server, fed.place(step), {2: (7, upload(server, {1: (c, 10)}))})
        zs, known = received(fed, server, step + 1, 5)
        assert known == [stale == "keep", True, False]
        np.testing.assert_allclose(zs[1], c, rtol=1e-6)  # nothing old beside what is new
        if stale == "keep":
            np.testing.assert_allclose(zs[0], a, rtol=1e-6)
    # what comes back takes the old one's place
    server = fed.collect(server, fed.place(3), {1: (7, upload(server, {0: (c, 10)}))})
    zs, known = received(fed, server, 4, 5)
    np.testing.assert_allclose(zs[0], c, rtol=1e-6)
    assert known == [True, stale == "keep", False]


@pytest.mark.parametrize("shared_draw", [True, False])
def test_a_run_shares_what_was_reported(shared_draw: bool, tmp_path: Path) -> None:
    """Round by round: the draw is a vector that a device sent; each for itself, another one."""
    fed = fedssc(tmp_path, min_count=5, shared_draw=shared_draw)
    server = fed.start()
    states: dict[int, Any] = {}
    sent: dict[int, Payload] = {}
    for step in range(3):
        place = fed.place(step)
        down, answers = fed.broadcast(server, place), {}
        for client in range(len(COUNTS)):
            zs, known = received(fed, server, step, client)
            for k in EVERY if sent else ():
                owners = [i for i in sent if COUNTS[i][k] >= 5]
                if not shared_draw:
                    owners = [i for i in owners if i != client] or [client]
                assert known[k]
                options = [sent[i]["class_means"]["zs"][k] for i in owners]
                assert rows_of(zs[k], options)
            own = fed.address(server, place, client)
            answers[client] = fed.update(client, place, down, states.get(client), own)
        sent = {client: answer.up for client, answer in answers.items()}
        states = {client: answer.state for client, answer in answers.items()}
        server = fed.collect(server, place, {k: (SIZES[k], up) for k, up in sent.items()})
