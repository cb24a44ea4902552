"""Whether tests can compute in bfloat16 here, by the question that a run asks."""

import pytest

from coterie.core.errors import ConfigError
from coterie.nets.precision import check_bf16, try_bf16


def is_deadly() -> bool:
    """Whether bfloat16 would kill this process; if so, check that a run is refused for it."""
    if not try_bf16():
        return False
    with pytest.raises(ConfigError, match=r"net\.precision = 'bf16': .*use net\.precision = 'fp32"):
        check_bf16("cpu")
    return True
