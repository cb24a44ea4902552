"""The environment that a checkpoint records."""

import pytest

from coterie.core import exact


def test_a_limit_on_the_instructions_of_torch_is_another_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(exact.INSTRUCTIONS, raising=False)
    unlimited = exact.environment("cpu")
    monkeypatch.setenv(exact.INSTRUCTIONS, "AVX512_CORE_BF16")
    limited = exact.environment("cpu")
    assert unlimited | {"onednn": "AVX512_CORE_BF16"} == limited != unlimited
