"""The classes on the page for method writers run as they are written."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie

PAGE = Path(__file__).parents[2] / "docs" / "own-method.md"
MODULE = "page_of_own_methods"


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module with all Python of the page."""
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
    (tmp_path / f"{MODULE}.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    yield MODULE
    sys.modules.pop(MODULE, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "objective", "stages"),
    [
        ("Near", "supervised", ["train", "train"]),
        ("Near", f"{MODULE}:Smoothed", ["train", "train"]),
        ("Counted", "supervised", ["count", "train", "train"]),
    ],
)
def test_the_parts_on_the_page_train(
    method: str, objective: str, stages: list[str], module: str, tmp_path: Path
) -> None:
    result = coterie.run(
        "digits/fedavg",
        out=tmp_path / "run",
        run={"rounds": 2},
        local={"epochs": 1},
        method={"name": f"{module}:{method}"},
        objective={"name": objective},
        executor={"kind": "serial"},
    )
    assert [event.stage for event in result.history] == stages
    assert not any(event.rejected or event.skipped for event in result.history)
    assert result.metrics["train_loss"] > 0
