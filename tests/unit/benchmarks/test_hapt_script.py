"""The script of benchmarks/papers/hapt trains on the labels that the probe of a run draws."""

import runpy
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie
from coterie.data.datasets import load
from coterie.evaluate import probe
from coterie.evaluate.shared.head import choose_balanced

SCRIPT = Path(__file__).parents[3] / "benchmarks" / "papers" / "hapt" / "measure.py"


@pytest.fixture
def root(tmp_path: Path) -> str:
    """Write files of two persons with 60 windows each."""
    generator = np.random.default_rng(0)
    for person in (1, 2):
        x = generator.normal(size=(60, 6, 128)).astype(np.float32)
        np.savez(tmp_path / f"person_{person:02d}.npz", x=x, y=np.repeat(np.arange(6), 10))
    return str(tmp_path)


def test_labels_from_scratch_are_those_of_the_probe(
    root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[torch.Tensor] = []

    def watch(y: torch.Tensor, share: float, seed: int) -> torch.Tensor:
        drawn.append(choose_balanced(y, share, seed))
        return drawn[-1]

    monkeypatch.setattr(probe, "choose_balanced", watch)
    changes = {
        "data.root": root,
        "run.rounds": 1,
        "run.seed": 3,
        "evaluate.with": ["probe_10"],
        "evaluate.last": [],
        "executor.kind": "serial",
    }
    coterie.run("hapt/simclr", out=tmp_path / "run", progress=False, **changes)
    script = runpy.run_path(str(SCRIPT))
    sites = script["hide_labels"](load("hapt", root), 0.1, 3)
    labels = np.concatenate([y for _, y in sites.values()])
    assert np.flatnonzero(labels >= 0).tolist() == drawn[0].tolist()


def test_means_are_written_in_per_cent_with_deviations() -> None:
    show = runpy.run_path(str(SCRIPT))["show"]
    assert show([0.5, 0.6, 0.7], 3) == "60.0 ± 10.0"
    assert show([0.5], 3) == "50.0 (1)"
    assert show([], 3) == ""
