"""`embedding.npz`: whose samples are in it, what the model makes of them, and that it is seeded."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import toy
from coterie.core.errors import ConfigError
from coterie.engine.embedding import EMBEDDING, choose_count, draw

SHARES = {0: np.arange(0, 50), 3: np.arange(50, 60), 7: np.arange(60, 200)}


def held(folder: Path) -> dict[str, np.ndarray]:
    with np.load(folder / EMBEDDING) as file:
        return dict(file)


def test_samples_are_drawn_over_all_clients_by_the_seed() -> None:
    first, again, other = (draw(SHARES, 80, seed) for seed in (1, 1, 2))
    assert sum(map(len, first.values())) == 80
    for client, rows in first.items():
        assert len(np.unique(rows)) == len(rows) and set(rows) <= set(SHARES[client])
        assert np.array_equal(rows, again[client])
    assert not np.array_equal(first[7], other[7])
    everything = draw(SHARES, 5000, 0)
    assert all(np.array_equal(everything[client], SHARES[client]) for client in SHARES)


@pytest.mark.parametrize("norms", [{"norm": "none"}, {"norm": "bn", "bn_buffers": "local"}])
def test_the_file_has_what_the_model_makes_of_the_samples(
    toy_data: Path, tmp_path: Path, norms: dict[str, Any]
) -> None:
    changes = {"record": {"embedding": 90}, "net": norms}
    result = toy.run(toy_data, tmp_path / "run", **changes)
    found, experiment = held(tmp_path / "run"), toy.prepared(toy_data, tmp_path, **changes)
    assert set(found) == {"features", "projection", "class", "client", "index"}
    dataset, shares = experiment.dataset, experiment.partition
    assert np.array_equal(found["class"], dataset.y_train[found["index"]])
    assert all(
        row in shares.train[c] for c, row in zip(found["client"], found["index"], strict=True)
    )
    assert len(found["features"]) == 90 and found["projection"].shape == (90, 8)
    if norms["norm"] == "none":
        x = torch.from_numpy(dataset.x_train[found["index"]])
        with torch.no_grad():
            h, z, *_ = result.model()(x)
        assert np.allclose(found["features"], h, atol=1e-5)
        assert np.allclose(found["projection"], z, atol=1e-5)
    other = toy.run(toy_data, tmp_path / "other", **changes)
    assert (other.folder / EMBEDDING).read_bytes() == (tmp_path / "run" / EMBEDDING).read_bytes()


def test_a_client_sees_its_samples_with_its_own_shift(toy_data: Path, tmp_path: Path) -> None:
    record = {"record": {"embedding": 180}}
    shifted = {"partition": {"skew": "noise", "strength": 2.0}}
    toy.run(toy_data, tmp_path / "run", run={"rounds": 1}, **record, **shifted)
    result = toy.run(toy_data, tmp_path / "again", run={"rounds": 1}, **record, **shifted)
    found = held(tmp_path / "run")
    x = torch.from_numpy(toy.prepared(toy_data, tmp_path).dataset.x_train[found["index"]])
    with torch.no_grad():
        plain = result.model()(x).h.numpy()
    assert not np.allclose(found["features"], plain, atol=1e-3)


def test_a_finished_run_writes_it_when_asked_later(toy_data: Path, tmp_path: Path) -> None:
    toy.run(toy_data, tmp_path / "run")
    assert not (tmp_path / "run" / EMBEDDING).exists()
    toy.run(toy_data, tmp_path / "run", resume=True, record={"embedding": 10})
    assert len(held(tmp_path / "run")["class"]) == 10


def test_without_a_global_model_it_is_refused(toy_data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"method\.name = .solo. has none"):
        toy.run(toy_data, tmp_path / "run", method={"name": "solo"}, record={"embedding": 10})
    with pytest.raises(ConfigError, match=r"record\.embedding = 9999"):
        toy.run(toy_data, tmp_path / "run", record={"embedding": 9999})


def test_small_data_have_an_embedding_by_default(toy_data: Path, tmp_path: Path) -> None:
    assert (choose_count("auto", 20_000), choose_count("auto", 20_001)) == (500, 0)
    assert (choose_count(0, 10), choose_count(7, 10)) == (0, 7)
    record = {"record": {"embedding": "auto"}, "run": {"rounds": 1}}
    toy.run(toy_data, tmp_path / "run", **record)
    assert len(held(tmp_path / "run")["class"]) == 180
    toy.run(toy_data, tmp_path / "solo", method={"name": "solo"}, **record)
    assert not (tmp_path / "solo" / EMBEDDING).exists()  # it has no global model
    with pytest.raises(ConfigError, match=r"record\.embedding = 'some'"):
        toy.run(toy_data, tmp_path / "bad", record={"embedding": "some"})
