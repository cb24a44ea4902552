from pathlib import Path

from made_run import make_run

from coterie.report import make_headline
from coterie.report.read import read_run


def test_headline(tmp_path: Path) -> None:
    history = read_run(make_run(tmp_path / "run", 20, every=5)).history
    head = make_headline(history, [0.3, 0.99])
    assert head.final == head.best == (history[-1].metrics["accuracy"], 19)
    hit = next(row for row in history if row.metrics.get("accuracy", 0) >= 0.3)
    assert (head.targets[0].rounds, head.targets[0].bytes) == (
        hit.round + 1,
        3_000_000 * (hit.round + 1),
    )
    assert head.targets[1].rounds is None
    assert (head.bytes_up, head.bytes_down, head.seconds) == (20_000_000, 40_000_000, 30.0)
    assert make_headline(history, [0.5], "absent").final is None
