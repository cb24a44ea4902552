import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from coterie.sinks.wandb import WeightsAndBiases

HEAD, BLOCK = 7, 1 << 15  # bytes: of the file and of each piece of a record; of a block


def read_records(path: Path) -> Iterator[Any]:
    """Read the records of a `.wandb` file: pieces with checksum, length and kind, in blocks."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole = path.read_bytes(), HEAD, b""
    while at + HEAD <= len(data):
        if BLOCK - at % BLOCK < HEAD:
            at += BLOCK - at % BLOCK
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + HEAD])
        whole += data[at + HEAD : at + HEAD + length]
        at += HEAD + length
        if kind in (1, 4):  # the only piece, or the last one
            yield Record.FromString(whole)
            whole = b""


def values_of(items: Any) -> dict[str, Any]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of W&B's own
@pytest.mark.usefixtures("calls")
def test_a_run_is_stored_offline_once_also_after_a_resume(
    tracker: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    tracker.run(WeightsAndBiases(), 0, 2, "interrupted")
    tracker.run(WeightsAndBiases(), 1, 3, "finished")  # only the first round was committed
    (path,) = tracker.folder.glob("wandb/offline-run-*/*.wandb")
    records = list(read_records(path))
    rounds = [values_of(record.history.item) for record in records if record.HasField("history")]
    assert [entry["_step"] for entry in rounds] == [0, 1, 2, 3]
    assert [entry["accuracy"] for entry in rounds] == [0.0, 0.125, 0.25, 0.375]
    assert rounds[0]["bytes_up"] == 100 and rounds[0]["clients"] == 2
    (opened,) = [record.run for record in records if record.HasField("run")]
    assert (opened.project, opened.display_name) == ("coterie", "my-run")
    assert opened.run_id == (tracker.folder / "wandb" / "id.txt").read_text()
    assert values_of(opened.config.update)["method.mu"] == 1.5
    assert [*opened.tags] == ["moon", "supervised", "digits"]
    (ended,) = [record.exit for record in records if record.HasField("exit")]
    assert ended.exit_code == 0
    assert not (tmp_path / "home").exists()
