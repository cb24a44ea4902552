"""`coterie doctor`: what it says of the machine."""

import re
import signal
from collections.abc import Iterator

import pytest
import torch

from coterie.cli.main import main
from coterie.nets import precision


@pytest.fixture
def announced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A processor that announces bfloat16; no runs are compared."""
    monkeypatch.setattr("coterie.cli.doctor._check_agreement", lambda: 0.5)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: True)
    precision.try_bf16.cache_clear()
    yield
    precision.try_bf16.cache_clear()


@pytest.mark.parametrize(
    ("status", "said"),
    [(0, "bfloat16 works"), (-signal.SIGILL, "no bfloat16: .*SIGILL.*ONEDNN_MAX_CPU_ISA")],
)
def test_doctor_says_whether_bfloat16_can_be_used(
    announced: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    status: int,
    said: str,
) -> None:
    monkeypatch.setattr(precision, "run_trial", lambda program: status)
    monkeypatch.setenv("COLUMNS", "1000")
    with pytest.raises(SystemExit) as end:
        main(["doctor"])
    assert end.value.code in (0, None)
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("processor")]
    assert re.search(said, line)
