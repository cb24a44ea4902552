"""Projections that all point one way are a collapse, and the user is told once."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie.engine.record import Event, NoteEvent
from coterie.kit.self_supervised import COLLAPSED, warn_of_collapse

SMALL: dict[str, Any] = {
    "run": {"rounds": 3},
    "data": {"limit": 120},
    "partition": {"clients": 2},
    "local": {"epochs": 1},
    "executor": {"kind": "serial"},
    "evaluate": {"with": []},
}


@pytest.mark.parametrize(
    ("metrics", "warns"),
    [
        ({"train_feature_std": COLLAPSED / 2}, True),
        ({"train_feature_std": COLLAPSED}, False),
        ({"train_feature_std": 0.9}, False),
        ({}, False),  # a round that nobody answered
        ({"server_feature_std": COLLAPSED / 2}, True),
        ({"train_feature_std": 0.9, "server_feature_std": 0.9}, False),
    ],
)
def test_a_collapse_is_said(metrics: dict[str, float], warns: bool) -> None:
    said = warn_of_collapse(None, metrics)
    assert (said is not None) == warns
    assert said is None or f"{next(iter(metrics))} is 0.025" in said


@dataclass
class Notes:
    """Keeps the notes of a run."""

    texts: list[str]

    def __call__(self, event: Event) -> None:
        if isinstance(event, NoteEvent):
            self.texts.append(event.text)


@pytest.mark.parametrize("objective", ["simsiam", "simclr", "byol", "swav"])
def test_a_run_says_it_once(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coterie.kit.self_supervised.COLLAPSED", 9.0)
    notes = Notes([])
    coterie.run(f"digits/{objective}", out=tmp_path / "run", recorders=[notes], **SMALL)
    assert [text.startswith("round 1: the clients' projections") for text in notes.texts] == [True]
