"""The measures of spread against plain formulas, and the warning."""

import itertools
import math
from pathlib import Path

import pytest
import torch
from points import Points, clusters, identity

import toy
from coterie.engine.record import Event, NoteEvent
from coterie.evaluate import geometry
from coterie.evaluate.geometry import MOST, Geometry, measure, sample


def test_measures_are_those_of_the_formulas() -> None:
    h = torch.randn(20, 6, generator=torch.Generator().manual_seed(4))
    rows = [[value / math.hypot(*row) for value in row] for row in h.double().tolist()]
    columns = list(zip(*rows, strict=True))
    means = [sum(column) / 20 for column in columns]
    pairs = zip(columns, means, strict=True)
    spreads = [math.sqrt(sum((v - mean) ** 2 for v in column) / 20) for column, mean in pairs]
    near = [math.exp(-2 * math.dist(u, v) ** 2) for u, v in itertools.combinations(rows, 2)]
    u = torch.tensor(rows, dtype=torch.float64)
    values = torch.linalg.eigvalsh(u.T @ u).clamp(min=0).sqrt()
    shares = (values / values.sum()).tolist()
    found = measure(h)
    assert math.isclose(found["feature_std"], math.sqrt(6) * sum(spreads) / 6, rel_tol=1e-6)
    assert math.isclose(found["uniformity"], math.log(sum(near) / len(near)), rel_tol=1e-6)
    rank = math.exp(-sum(share * math.log(share) for share in shares))
    assert math.isclose(found["effective_rank"], rank, rel_tol=1e-6)


def test_what_is_spread_out_and_what_has_collapsed() -> None:
    spread = measure(torch.randn(2000, 16, generator=torch.Generator().manual_seed(5)))
    assert spread["feature_std"] == pytest.approx(1.0, abs=0.02)
    assert spread["effective_rank"] == pytest.approx(16.0, abs=0.1)
    for collapsed in (torch.ones(50, 16), torch.zeros(50, 16)):
        found = measure(collapsed)
        assert found["feature_std"] < 1e-6
        assert found["effective_rank"] == pytest.approx(1.0, abs=1e-3)
        assert found["uniformity"] == pytest.approx(0.0, abs=1e-9)
        assert "collapsed" in (Geometry().warning(found) or "")
    assert Geometry().warning(spread) is None and Geometry().warning({}) is None


def test_the_sample_is_seeded_and_has_a_limit() -> None:
    x = torch.arange(5000.0)[:, None]
    data = Points((x[:4], torch.arange(4)), (x, torch.zeros(5000, dtype=torch.int64)))
    first, again, other = (sample(identity(), data, seed)[:, 0].tolist() for seed in (1, 1, 2))
    assert first == again != other
    assert len(first) == len(set(first)) == MOST


def test_too_few_samples_give_no_measure() -> None:
    data = clusters(4, 2, seed=0)
    data._parts[True] = data._parts[True][0][:1], data._parts[True][1][:1]
    assert Geometry()(identity(), data, 0) == {}


def test_another_key_stands_before_the_names() -> None:
    found = Geometry(key="mine")(identity(), clusters(40, 2, seed=0), 0)
    assert list(found) == ["mine_feature_std", "mine_effective_rank", "mine_uniformity"]
    assert "mine_feature_std is" in (Geometry(key="mine").warning({"mine_feature_std": 0.0}) or "")
    assert Geometry(key="mine").warning({"feature_std": 0.0}) is None


def test_the_user_is_warned_once(
    toy_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(geometry.self_supervised, "COLLAPSED", 100.0)
    notes: list[str] = []

    def record(event: Event) -> None:
        if isinstance(event, NoteEvent):
            notes.append(event.text)

    result = toy.run(toy_data, tmp_path, evaluate={"with": ["geometry"]}, recorders=[record])
    assert len(notes) == 1 and notes[0].startswith("round 1: the representations have collapsed")
    assert {"feature_std", "effective_rank", "uniformity"} <= result.metrics.keys()
