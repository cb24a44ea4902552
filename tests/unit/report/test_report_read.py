import json
import math
from pathlib import Path

import pytest
from made_run import charts_of, make_run, page_of

from coterie.core.errors import CheckpointError, DataError
from coterie.report import write_report


def test_values_that_are_not_finite_are_left_out(tmp_path: Path) -> None:
    page = page_of(make_run(tmp_path / "run", grad=math.nan, peak=math.inf))
    assert "6 values that are not finite numbers were left out." in page
    assert "grad" not in charts_of(page)


def test_partition_without_heterogeneity_or_classes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    split = {"dataset": "d", "digest": "e", "classes": 0, "clients": []}
    (folder / "partition.json").write_text(json.dumps(split))
    assert "There is no client." in page_of(folder)


@pytest.mark.parametrize("name", ["config.toml", "partition.json", "metrics.jsonl"])
@pytest.mark.parametrize("content", [None, "{ broken", '{"round": 1}\n', b"\xff\xfe"])
def test_broken_files_are_named(tmp_path: Path, name: str, content: str | bytes | None) -> None:
    folder = make_run(tmp_path / "run")
    (folder / name).unlink()
    if content is not None:
        data = content if isinstance(content, bytes) else content.encode()
        (folder / name).write_bytes(data)
    with pytest.raises((CheckpointError, DataError)) as caught:
        write_report(folder)
    assert name in str(caught.value) and "\n" not in str(caught.value)
    assert not (folder / "report.html").exists()


def test_empty_and_half_written_metrics(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run")
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(whole + '{"round": 3, "sta')
    assert "The last line of metrics.jsonl is incomplete" in page_of(folder)
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(CheckpointError, match="no finished round"):
        write_report(folder)


@pytest.mark.parametrize(
    "key", ["round", "stage", "lost", "cohort", "bytes_up", "seconds", "metrics"]
)
def test_a_value_of_the_wrong_kind_is_named(tmp_path: Path, key: str) -> None:
    path = make_run(tmp_path / "run", rounds=1) / "metrics.jsonl"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: None}) + "\n")
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl .* line 1"):
        write_report(path.parent)


def test_class_names_are_as_many_as_the_classes(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", classes=3)
    split = json.loads((folder / "partition.json").read_text())
    (folder / "partition.json").write_text(json.dumps(split | {"class_names": ["a", "b"]}))
    with pytest.raises(DataError, match="class_names has 2 names for 3 classes"):
        write_report(folder)
