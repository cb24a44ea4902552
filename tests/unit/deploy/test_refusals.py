"""Which answers of a server may pass by themselves."""

import httpx
import pytest

from coterie.deploy.refusals import explain


@pytest.mark.parametrize(
    ("status", "passes"), [(500, True), (503, True), (401, False), (413, False), (418, False)]
)
def test_a_server_that_is_busy_is_asked_again(status: int, passes: bool) -> None:
    request = httpx.Request("POST", "https://server.example")
    error = httpx.HTTPStatusError("", request=request, response=httpx.Response(status))
    line, may_pass = explain(error, "server.example", True)
    assert may_pass is passes and "server.example" in line
