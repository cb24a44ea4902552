"""FedSSC against Algorithm 1 and Eq. 2 to 5, with the readings that the paper leaves open."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_moon import COUNTS, WIDTH, Federation, assert_near, contrast, cosine, others, same
from torch import Tensor
from torch.nn import functional as F

from coterie.core.bundle import Bundle, Payload, ServerState, Tensors
from coterie.core.task import Round
from coterie.kit.objective import Batch
from coterie.methods.fedssc import FedSSC, draw, weight_at
from coterie.nets.heads import Network

CLASSES = len(COUNTS[0])
SIZES = [sum(row) for row in COUNTS]
EVERY = tuple(range(CLASSES))
Tables = dict[str, dict[str, Any]]


def fedssc(folder: Path, tables: Tables | None = None, **fields: Any) -> Federation:
    return Federation(folder, "fedssc", tables=tables, **fields)


def fedavg(folder: Path, tables: Tables | None = None) -> Federation:
    return Federation(folder, "fedavg", tables=tables)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape)).float()


def addressed(zs: Tensor, known: tuple[int, ...] = EVERY) -> Payload:
    """What a client is sent."""
    valid = torch.tensor([k in known for k in range(len(zs))])
    return Bundle({"representations": {"zs": zs}, "known": {"valid": valid}})


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
    own = fed.method.address(server, fed.place(step), client)
    if own is None:
        return torch.zeros(CLASSES, WIDTH), [False] * CLASSES
    return own["representations"]["zs"], own["known"]["valid"].tolist()


def glob(z: Tensor, y: Tensor, zs: Tensor, known: tuple[int, ...], tau: float) -> Tensor:
    """Eq. 3: -log e^{cos(z, zs_y)/tau} / sum_k e^{cos(z, zs_k)/tau}, over the classes known."""
    terms = []
    for i, label in enumerate(y.tolist()):
        if label in known:
            powers = {k: (cosine(z[i], zs[k]) / tau).exp() for k in known}
            terms.append(-(powers[label] / torch.stack(list(powers.values())).sum()).log())
    return torch.stack(terms).mean() if terms else torch.zeros((), dtype=torch.float64)


def pairs(z: Tensor, y: Tensor, zs: Tensor, known: tuple[int, ...], tau: float) -> Tensor:
    """SupCon over the batch and the shared vectors; the gradient flows through both samples."""
    terms, labels = [], y.tolist()
    for a in range(len(z)):
        candidates = [(z[b], labels[b]) for b in range(len(z)) if b != a]
        candidates += [(zs[k], k) for k in known]
        powers = [(cosine(z[a], other) / tau).exp() for other, _ in candidates]
        positives = [p for p, (_, k) in zip(powers, candidates, strict=True) if k == labels[a]]
        if positives:
            below = torch.stack(powers).sum()
            terms.append(-torch.stack([(p / below).log() for p in positives]).mean())
    return torch.stack(terms).mean() if terms else torch.zeros((), dtype=torch.float64)


def by_hand(
    fed: Federation,
    client: int,
    place: Round,
    received: Tensors,
    *,
    mu_glob: float,
    zs: Tensor,
    previous: Tensors | None = None,
    known: tuple[int, ...] = EVERY,
    mu_class: float = 1.0,
    mu_moon: float | None = None,
    parts: tuple[str, ...] = ("backbone", "projector", "classifier"),
) -> tuple[Tensors, float]:
    """Eq. 5: l_class + mu_moon l_moon + mu_glob l_glob."""
    method, vectors = fed.method, zs.double()
    assert isinstance(method, FedSSC)
    z_glob = fed.reference(received)
    z_prev = fed.reference(previous) if previous is not None else None
    mu_moon = method.mu_moon if mu_moon is None else mu_moon
    shared = pairs if method.local_pairs else glob

    def loss(net: Network, batch: Batch) -> Tensor:
        out = net(batch.x.double())
        total = mu_class * F.cross_entropy(out.logits, batch.y)
        if z_prev is not None:
            total = total + mu_moon * contrast(out.z, z_glob(batch), [z_prev(batch)], method.tau)
        return total + mu_glob * shared(out.z, batch.y, vectors, known, method.tau)

    return fed.trained(client, place, received, loss, parts)


# -- the weight of the shared representations


def test_the_weight_is_held_and_then_falls_to_its_end() -> None:
    """mu_i = mu_s - (i - T0)/(T - T0) (mu_s - mu_e): the paper's formula with the round put in."""
    found = {step: weight_at(step, 100, 5, 1.0, 1e-4) for step in (*range(6), 52, 99, 100)}
    assert [found[step] for step in range(6)] == [1.0] * 6
    assert found[52] == pytest.approx(0.505313, abs=5e-7)
    assert found[99] == pytest.approx(0.010625, abs=5e-7)
    assert found[100] == pytest.approx(1e-4)
    assert weight_at(30, 100, 20, 4.0, 2.0) == pytest.approx(4.0 - 10 / 80 * 2.0)


def test_a_run_shorter_than_the_hold_keeps_the_weight() -> None:
    for steps in (1, 3, 5):
        assert [weight_at(step, steps, 5, 0.5, 1e-4) for step in range(steps)] == [0.5] * steps


@pytest.mark.parametrize(
    ("fields", "step", "before", "weight"),
    [
        ({}, 3, 0, 1.0),
        ({}, 5, 0, 1.0),
        ({}, 7, 0, 1.0 - 2 / 5 * (1.0 - 1e-4)),
        ({"hold": 0, "mu_glob": 2.0, "mu_glob_end": 1.0}, 5, 0, 1.5),
        ({"init_with": "extract"}, 7, 1, 1.0 - 2 / 5 * (1.0 - 1e-4)),
        ({"mu_moon": 0.0}, 3, 0, 1.0),
        ({"mu_moon": 1.0, "tau": 0.2}, 3, 0, 1.0),
        ({"local_pairs": True}, 3, 0, 1.0),
        ({"norm": "bn"}, 3, 0, 1.0),
    ],
)
def test_local_training_follows_algorithm_1(
    fields: dict[str, Any], step: int, before: int, weight: float, tmp_path: Path
) -> None:
    """Defaults mu_moon 5, mu_glob 1 to 1e-4, tau 0.5 for both terms."""
    tables: Tables = {"net": {"norm": fields.get("norm", "none")}}
    chosen = {name: value for name, value in fields.items() if name != "norm"}
    fed = fedssc(tmp_path, tables, **chosen)
    server, place, zs = fed.start(), fed.place(step, before=before), normal(1, CLASSES, WIDTH)
    (previous,) = others(fed, 6)
    expected, value = by_hand(
        fed, 2, place, server["model"], mu_glob=weight, zs=zs, previous=previous
    )
    answer = fed.update(
        2,
        place,
        fed.method.broadcast(server, place),
        Bundle({"previous": previous}),
        addressed(zs),
    )
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    assert answer.metrics["mu_glob"] == pytest.approx(weight)
    if fields.get("mu_moon") != 0:
        assert answer.state is not None
        assert same(answer.state["previous"], answer.up["model"])  # as trained, before averaging


@pytest.mark.parametrize("local_pairs", [False, True])
@pytest.mark.parametrize("known", [(0, 1), (2,)])
def test_a_class_without_a_vector_is_left_out_of_the_softmax(
    known: tuple[int, ...], local_pairs: bool, tmp_path: Path
) -> None:
    """Whatever stands in its row; its samples add nothing, the mean is over the others."""
    fed = fedssc(tmp_path, local_pairs=local_pairs)
    server, place, zs = fed.start(), fed.place(3), normal(1, CLASSES, WIDTH)
    expected, value = by_hand(fed, 2, place, server["model"], mu_glob=1.0, zs=zs, known=known)
    down = fed.method.broadcast(server, place)
    answer = fed.update(2, place, down, own=addressed(zs, known))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)
    rows = [zs[k] if k in known else 1e3 * normal(9, WIDTH) for k in EVERY]
    again = fed.update(2, place, down, own=addressed(torch.stack(rows), known))
    assert same(again.up["model"], answer.up["model"])


@pytest.mark.parametrize("norm", ["none", "bn"])
def test_round_0_is_fedavg(norm: str, tmp_path: Path) -> None:
    """No vector has been shared and no client has a previous model."""
    tables: Tables = {"net": {"norm": norm}}
    fed, plain = fedssc(tmp_path, tables), fedavg(tmp_path, tables)
    server, place = fed.start(), fed.place(0)
    for client in range(len(COUNTS)):
        own = fed.method.address(server, place, client)
        found = fed.update(client, place, fed.method.broadcast(server, place), own=own)
        expected = plain.update(client, place, Bundle({"model": server["model"]}))
        assert same(found.up["model"], expected.up["model"])


def test_no_weight_on_both_terms_is_fedavg_bit_for_bit(tmp_path: Path) -> None:
    tables: Tables = {"run": {"rounds": 4}, "local": {"momentum": 0.9, "weight_decay": 1e-5}}
    fed = fedssc(tmp_path / "fedssc", tables, mu_moon=0.0, mu_glob=0.0)
    plain = fedavg(tmp_path / "fedavg", tables)
    for one in (fed, plain):
        one.run()
    for mine, expected in zip(fed.servers(), plain.servers(), strict=True):
        assert same(mine["model"], expected["model"])


@pytest.mark.parametrize("fields", [{"mu_glob": 0.0}, {"k_shared": 0}, {"min_count": 1000}])
def test_nothing_shared_is_moon(fields: dict[str, Any], tmp_path: Path) -> None:
    tables: Tables = {"run": {"rounds": 3}}
    fed = fedssc(tmp_path / "fedssc", tables, **fields)
    moon = Federation(tmp_path / "moon", "moon", tables=tables)
    for one in (fed, moon):
        one.run()
    for mine, expected in zip(fed.servers(), moon.servers(), strict=True):
        assert_near(mine["model"], expected["model"], atol=1e-5)


# -- what a client reports


@pytest.mark.parametrize("norm", ["none", "bn"])
@pytest.mark.parametrize(
    ("min_count", "client", "counts"),
    [
        (10, 0, [14, 0, 0]),
        (10, 1, [0, 10, 12]),  # ten are enough
        (11, 1, [0, 0, 12]),
        (1, 0, [14, 8, 0]),  # a class that it does not have is never sent
        (100, 2, [0, 0, 0]),
    ],
)
def test_classes_with_enough_samples_are_reported(
    min_count: int, client: int, counts: list[int], norm: str, tmp_path: Path
) -> None:
    """Eq. 4: the mean of z over all local data of a class, by the model after the last epoch."""
    fed = fedssc(tmp_path, {"net": {"norm": norm}}, min_count=min_count)
    server, place = fed.start(), fed.place(0)
    up = fed.update(client, place, fed.method.broadcast(server, place)).up
    assert up["class_counts"]["n"].tolist() == counts
    z_of = fed.reference(up["model"])
    (batch,) = fed.shard(client).sweep()
    z, expected = z_of(batch), torch.zeros(CLASSES, WIDTH, dtype=torch.float64)
    for k, count in enumerate(counts):
        if count:
            for i in range(len(batch)):
                expected[k] += z[i] / count if batch.y[i] == k else 0.0
    np.testing.assert_allclose(up["class_means"]["zs"], expected, rtol=1e-4, atol=1e-5)


# -- what a device is sent


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
        zs, known = draw(vectors, counts, clients, 9, 1, generator, True)
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
        zs, known = draw(vectors, counts, clients, 9, 2, np.random.default_rng(seed), True)
        (pair,) = rows_of(zs[0], options)
        assert known.tolist() == [True]
        seen.add(pair)
    assert seen == set(range(6))


@pytest.mark.parametrize("k", [3, 7, 1000, "all"])
def test_fewer_than_k_are_all_averaged(k: Any) -> None:
    """And alike, whatever their numbers of samples."""
    vectors, counts, clients = spread(3)
    counts = counts + torch.arange(3)[:, None] * 50
    zs, known = draw(vectors, counts, clients, 9, k, np.random.default_rng(0), True)
    np.testing.assert_allclose(zs, vectors.mean(dim=0), rtol=1e-5, atol=1e-6)
    assert known.all()


def test_nobody_is_drawn_for_k_of_zero() -> None:
    _, known = draw(*spread(3), 9, 0, np.random.default_rng(0), True)
    assert not known.any()


@pytest.mark.parametrize("k", [1, 2, "all"])
def test_only_owners_are_drawn(k: Any) -> None:
    """A count of zero is no vector: it is not averaged in as zeros."""
    vectors, counts, clients = spread(4)
    counts[[0, 2, 3], 0] = 0  # class 0: client 1 alone
    counts[:, 1] = 0  # class 1: nobody
    vectors[counts == 0] = 0.0
    for seed in range(20):
        zs, known = draw(vectors, counts, clients, 9, k, np.random.default_rng(seed), True)
        assert known.tolist() == [True, False, True]
        np.testing.assert_allclose(zs[0], vectors[1, 0], rtol=1e-6)
        assert zs.isfinite().all()


def test_a_device_receives_others_vectors_unless_it_is_the_only_owner() -> None:
    vectors, counts, clients = spread(3)
    clients = torch.tensor([4, 0, 8])
    counts[[0, 2], 1] = 0  # class 1: client 0 alone
    for seed in range(30):
        zs, known = draw(vectors, counts, clients, 0, 1, np.random.default_rng(seed), True)
        assert rows_of(zs[0], list(vectors[:, 0])) != [1]
        assert known.all()
        np.testing.assert_allclose(zs[1], vectors[1, 1], rtol=1e-6)
    zs, _ = draw(vectors, counts, clients, 0, 9, np.random.default_rng(0), True)
    np.testing.assert_allclose(zs[0], vectors[[0, 2], 0].mean(dim=0), rtol=1e-5, atol=1e-6)
    for exclude_self in (True, False):  # Algorithm 1: the mean over all who own the class
        zs, _ = draw(vectors, counts, clients, 0, "all", np.random.default_rng(0), exclude_self)
        np.testing.assert_allclose(zs[0], vectors[:, 0].mean(dim=0), rtol=1e-5, atol=1e-6)
    found = {
        tuple(
            rows_of(
                draw(vectors, counts, clients, 0, 1, generator, False)[0][0], list(vectors[:, 0])
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


@pytest.mark.parametrize("exclude_self", [False, True])
def test_the_draw_belongs_to_the_round_and_the_device(exclude_self: bool, tmp_path: Path) -> None:
    fed = fedssc(tmp_path, exclude_self=exclude_self)
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
    assert not exclude_self or (picks != np.arange(6)).all()


@pytest.mark.parametrize("exclude_self", [False, True])
def test_one_draw_may_serve_all_devices(exclude_self: bool, tmp_path: Path) -> None:
    fed = fedssc(tmp_path, shared_draw=True, exclude_self=exclude_self)
    server, _ = pooled(fed)
    rounds = []
    for step in range(1, 9):
        found = [received(fed, server, step, client)[0] for client in range(6)]
        assert all(torch.equal(zs, found[0]) for zs in found)
        rounds.append(found[0])
    assert any(not torch.equal(zs, rounds[0]) for zs in rounds)


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


def test_a_run_shares_what_was_reported(tmp_path: Path) -> None:
    """Round by round: the draw of every device is a vector that another one sent."""
    fed = fedssc(tmp_path, min_count=5)
    server = fed.start()
    states: dict[int, Any] = {}
    sent: dict[int, Payload] = {}
    for step in range(3):
        place = fed.place(step)
        down, answers = fed.method.broadcast(server, place), {}
        for client in range(len(COUNTS)):
            zs, known = received(fed, server, step, client)
            for k in EVERY if sent else ():
                owners = [i for i in sent if COUNTS[i][k] >= 5 and i != client] or [client]
                assert known[k]
                options = [sent[i]["class_means"]["zs"][k] for i in owners]
                assert rows_of(zs[k], options)
            own = fed.method.address(server, place, client)
            answers[client] = fed.update(client, place, down, states.get(client), own)
        sent = {client: answer.up for client, answer in answers.items()}
        states = {client: answer.state for client, answer in answers.items()}
        server = fed.collect(server, place, {k: (SIZES[k], up) for k, up in sent.items()})


# -- rounds of other kinds, and variants


def test_an_initial_extraction_moves_no_model_and_shifts_no_schedule(tmp_path: Path) -> None:
    tables: Tables = {"run": {"rounds": 4}, "net": {"norm": "bn"}}
    fed = fedssc(tmp_path / "run", tables, init_with="extract", hold=1, min_count=5)
    start = fed.start()
    history, servers = fed.run().history, fed.servers()
    assert len(history) == 5
    assert same(servers[0]["model"], start["model"])
    assert not same(servers[1]["model"], start["model"])
    weights = [event.metrics["train_mu_glob"] for event in history[1:]]
    assert weights == pytest.approx([1.0, 1.0, 1 - 0.9999 / 3, 1 - 2 * 0.9999 / 3])
    # the vectors of client 1 for class 2 and of client 2 for class 2, by the initial model
    options = []
    for client in (1, 2):
        (batch,) = fed.shard(client).sweep()
        options.append(fed.reference(start["model"])(batch)[batch.y == 2].mean(dim=0).float())
    own = fed.method.address(servers[0], fed.place(0, 4, before=1), 0)
    assert own is not None
    assert own["known"]["valid"].all()
    assert any(torch.allclose(own["representations"]["zs"][2], one, atol=1e-5) for one in options)


def test_the_weight_falls_over_a_run(tmp_path: Path) -> None:
    fed = fedssc(tmp_path / "run", {"run": {"rounds": 5}}, hold=2, min_count=5)
    history = fed.run().history
    weights = [event.metrics["train_mu_glob"] for event in history[1:]]
    assert weights == pytest.approx([1.0, 1.0, 1 - 0.9999 / 3, 1 - 2 * 0.9999 / 3])


def test_two_stages_train_the_features_then_the_classifier(tmp_path: Path) -> None:
    """Frozen parts keep their bits, BatchNorm statistics and weight decay included."""
    tables: Tables = {
        "run": {"rounds": 5},
        "net": {"norm": "bn"},
        "local": {"momentum": 0.9, "weight_decay": 0.1},
    }
    fields = {"two_stage": True, "stage1_fraction": 0.6, "min_count": 5}
    fed = fedssc(tmp_path / "run", tables, **fields)
    before = fed.start()["model"]
    fed.run()
    found = []
    for server in fed.servers():
        parts = ("backbone", "projector", "classifier")
        found.append([part for part in parts if not same(server["model"], before, part)])
        before = server["model"]
    features, classifier = ["backbone", "projector"], ["classifier"]
    assert found == [[], *[features] * 3, *[classifier] * 2]


def test_two_stages_are_split_at_nine_tenths() -> None:
    for rounds in (10, 100):
        stages = [stage.rounds for stage in FedSSC(two_stage=True).stages(rounds)]
        assert stages == [1, rounds * 9 // 10, rounds // 10]


@pytest.mark.parametrize("stage1", ["glob", "moon+glob"])
def test_the_first_stage_has_no_cross_entropy(stage1: str, tmp_path: Path) -> None:
    """The weight of the shared term is constant there."""
    fed = fedssc(tmp_path, two_stage=True, stage1=stage1)
    name = fed.method.stages(10)[1].name
    server, zs = fed.start(), normal(1, CLASSES, WIDTH)
    (previous,) = others(fed, 6)
    for step in (1, 8):
        place = fed.place(step, 9, name, before=1)
        expected, value = by_hand(
            fed,
            2,
            place,
            server["model"],
            mu_glob=1.0,
            zs=zs,
            previous=previous if stage1 == "moon+glob" else None,
            mu_class=0.0,
            parts=("backbone", "projector"),
        )
        down = fed.method.broadcast(server, place)
        answer = fed.update(2, place, down, Bundle({"previous": previous}), addressed(zs))
        assert_near(answer.up["model"], expected, atol=1e-5)
        assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)


def test_the_second_stage_is_cross_entropy_on_frozen_features(tmp_path: Path) -> None:
    fed = fedssc(tmp_path, {"net": {"norm": "bn"}}, two_stage=True)
    place = fed.place(0, 1, fed.method.stages(10)[2].name, before=10)
    server, zs = fed.start(), normal(1, CLASSES, WIDTH)
    expected, value = by_hand(
        fed, 2, place, server["model"], mu_glob=0.0, zs=zs, parts=("classifier",)
    )
    down = fed.method.broadcast(server, place)
    answer = fed.update(2, place, down, Bundle({"previous": others(fed, 6)[0]}), addressed(zs))
    assert_near(answer.up["model"], expected, atol=1e-5)
    assert answer.metrics["loss"] == pytest.approx(value, rel=1e-4)


def test_a_device_of_unknown_classes_only_does_not_fail(tmp_path: Path) -> None:
    """In the first stage, without one vector for its samples, there is nothing to descend."""
    fed = fedssc(tmp_path, two_stage=True)
    place = fed.place(0, 9, fed.method.stages(10)[1].name, before=1)
    server = fed.start()
    own = addressed(normal(1, CLASSES, WIDTH), (2,))
    answer = fed.update(0, place, fed.method.broadcast(server, place), own=own)
    assert same(answer.up["model"], server["model"])


@pytest.mark.parametrize("negative", ["previous", "other_class", "none"])
def test_other_negatives_stay_finite(negative: str, tmp_path: Path) -> None:
    """The paper saw them collapse: the spread of the features is recorded."""
    fed = fedssc(tmp_path / "run", {"run": {"rounds": 4}}, negative=negative, min_count=5)
    history = fed.run().history
    for event in history:
        assert not event.rejected
        assert all(math.isfinite(value) for value in event.metrics.values())
        assert event.metrics["train_feature_std"] > 0
    for server in fed.servers():
        assert all(tensor.isfinite().all() for tensor in server["model"].values())


def test_other_negatives_are_other_losses(tmp_path: Path) -> None:
    found = []
    for negative in ("previous", "other_class", "none"):
        fed = fedssc(tmp_path, negative=negative)
        server, place = fed.start(), fed.place(3)
        state = Bundle({"previous": others(fed, 6)[0]})
        own = addressed(normal(1, CLASSES, WIDTH))
        down = fed.method.broadcast(server, place)
        found.append(fed.update(2, place, down, state, own).up["model"])
    assert not same(found[0], found[1])
    assert not same(found[0], found[2])
    assert not same(found[1], found[2])


# -- payload and record


def test_payloads_of_the_papers_network(tmp_path: Path) -> None:
    """Simple-cnn, K = 10: 10,240 bytes beside 370,504 of model, 2.8 percent more each way."""
    tables: Tables = {"net": {"backbone": "simple-cnn", "projection": 256}}
    counts = [[2] * 10, [1] * 10]
    fed = Federation(tmp_path, "fedssc", counts, tables, (3, 32, 32), min_count=1)
    server, place = fed.start(), fed.place(0)
    down = fed.method.broadcast(server, place)
    assert down.nbytes() == 370_504
    uploads = {client: (10, fed.update(client, place, down).up) for client in range(2)}
    up = uploads[0][1]
    sizes = {group: Bundle({group: up[group]}).nbytes() for group in up.tensors}
    assert sizes == {"model": 370_504, "class_means": 10_240, "class_counts": 80}
    server = fed.collect(server, place, uploads)
    own = fed.method.address(server, fed.place(1), 0)
    assert own is not None
    sizes = {group: Bundle({group: own[group]}).nbytes() for group in own.tensors}
    assert sizes == {"representations": 10_240, "known": 10}
    assert own.nbytes() / down.nbytes() == pytest.approx(0.028, abs=5e-4)


def test_a_run_counts_what_it_addresses_and_records_its_terms(tmp_path: Path) -> None:
    tables: Tables = {"run": {"rounds": 3}}
    mine = fedssc(tmp_path / "fedssc", tables, min_count=5).run()
    plain = fedavg(tmp_path / "fedavg", tables).run().history
    clients, vectors = len(COUNTS), CLASSES * WIDTH * 4
    for one, other in zip(mine.history[1:], plain[1:], strict=True):
        assert one.bytes_down - other.bytes_down == clients * (vectors + CLASSES)
        assert one.bytes_up - other.bytes_up == clients * (vectors + 8 * CLASSES)
    metrics = mine.metrics
    for name in ("loss_class", "loss_contrast", "loss_shared", "feature_std", "mu_glob"):
        assert metrics[f"train_{name}"] > 0
    for name in ("train_cos_glob", "train_cos_prev"):
        assert -1 <= metrics[name] <= 1


def test_the_defaults_are_those_of_the_paper() -> None:
    method = FedSSC()
    assert (method.mu_moon, method.mu_glob, method.mu_glob_end) == (5.0, 1.0, 1e-4)
    assert (method.hold, method.tau, method.k_shared, method.min_count) == (5, 0.5, 1, 10)
    assert (method.exclude_self, method.shared_draw, method.stale) == (True, False, "keep")
    assert (method.init_with, method.negative, method.stage1) == ("none", "previous", "glob")
    assert (method.two_stage, method.stage1_fraction, method.local_pairs) == (False, 0.9, False)
